package store

import (
	"math/rand/v2"
	"testing"
)

// A table finds what is in it and nothing else, whatever came and went before, and keeps room for the search to end.
func TestTableAgainstASet(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		// Few homes, in one part, so that slots stand in each other's way.
		var x table
		homes := 1 + r.Uint64N(40)
		// Every second time they are told apart by their tags, too, while those get shorter with every larger slot.
		tag := seed % 2 << 32
		spread := [...]uint32{1, 3, 1023, 65_537, 16_000_000}[seed%5]
		x.home = func(slot uint32) uint64 { return uint64(slot) % homes * (1 + tag) }
		in := map[uint32]bool{}
		for range 3000 {
			slot := spread * (1 + r.Uint32N(60+uint32(r.Uint64N(200))))
			switch {
			case in[slot]:
				x.remove(slot)
				delete(in, slot)
			case r.IntN(10) < 4+int(seed%4):
				x.insert(slot)
				in[slot] = true
			}
			found := map[uint32]bool{}
			for h := uint64(0); h < homes*(1+tag); h += 1 + tag {
				x.each(h, func(slot uint32) bool {
					if x.home(slot) == h {
						found[slot] = true
					}
					return false
				})
			}
			p := x.part(0)
			marks := 0
			for _, c := range p.cells {
				if c == cellMark {
					marks++
				}
			}
			if len(found) != len(in) || p.n != len(in) || p.marks != marks || (p.n+p.marks)*4 > len(p.cells)*3 {
				t.Fatalf("seed %d: %d found of %d, n %d, marks %d counted %d, %d cells", seed, len(found), len(in), p.n, marks, p.marks, len(p.cells))
			}
			for slot := range in {
				if !found[slot] {
					t.Fatalf("seed %d: %d is not found", seed, slot)
				}
			}
		}
	}
}
