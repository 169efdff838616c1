package client

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"holdfast/codec"
)

func TestDedupAgreesWithAPlainModel(t *testing.T) {
	for _, size := range []int{1, 2, 7, 64, 1000} {
		d := newDedup(size)
		var order []int // oldest first
		levels := map[int]codec.AckLevel{}
		rnd := rand.New(rand.NewPCG(1, uint64(size)))
		for range 20 * size {
			id := rnd.IntN(3 * size)
			level := codec.AckLevel(rnd.IntN(3))
			key := d.key(fmt.Append(nil, id))
			got, ok := d.get(key)
			want, known := levels[id]
			if ok != known || got != want {
				t.Fatalf("size %d: id %d: %v %v, want %v %v", size, id, got, ok, want, known)
			}
			d.put(key, level)
			levels[id] = max(want, level)
			if !known {
				if order = append(order, id); len(order) > size {
					delete(levels, order[0])
					order = order[1:]
				}
			}
		}
	}
}

func TestDedupWithoutMemoryKnowsNothing(t *testing.T) {
	d := newDedup(-1)
	k := d.key([]byte("a"))
	d.put(k, 0)
	if _, ok := d.get(k); ok || d.ring != nil {
		t.Error("it remembers")
	}
}

func TestRangeSetAgreesWithAPlainModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var s rangeSet
		var has [80]bool
		for range 100 {
			n := 1 + rnd.Uint64N(70)
			if rnd.IntN(4) == 0 {
				r := codec.Range{From: n, Count: 1 + rnd.Uint64N(5)}
				s.addRange(r)
				for i := range r.Count {
					has[r.From+i] = true
				}
				continue
			}
			if s.add(n) == has[n] {
				t.Fatalf("add %d: new %v", n, has[n])
			}
			has[n] = true
		}
		var want []codec.Range
		for n := uint64(1); n < uint64(len(has)); n++ {
			switch last := len(want) - 1; {
			case !has[n]:
			case last >= 0 && want[last].From+want[last].Count == n:
				want[last].Count++
			default:
				want = append(want, codec.Range{From: n, Count: 1})
			}
		}
		if !slices.Equal(s.ranges, want) {
			t.Fatalf("ranges %v, want %v", s.ranges, want)
		}
		floor := uint64(0)
		for has[floor+1] {
			floor++
		}
		if s.floor() != floor {
			t.Fatalf("floor %d, want %d", s.floor(), floor)
		}
	}
}
