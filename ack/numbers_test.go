package ack

import (
	"math"
	"slices"
	"testing"
)

// One message that is never acknowledged must not hold memory for all that come after it.
func TestMillionNumbersPassOneThatIsStuck(t *testing.T) {
	for _, c := range []struct {
		name     string
		inFlight int // numbers between sending and its ACK
		oldFirst bool
		pass     int
		class    uint8 // the list may not have grown above this
	}{
		{"each acknowledged at once", 1, true, 1_000_000, 0},
		{"in order, 48 in flight", 48, true, 100_000, 5},
		{"newest first, 48 in flight", 48, false, 100_000, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, Config{})
			s := f.openUser(1, 64, 1<<20)
			stuck, first := f.add(s, 1)
			passed := 0
			var dst []Entry
			for passed < c.pass/scale {
				from := uint64(math.MaxUint64)
				for range c.inFlight {
					_, number := f.add(s, 1)
					from = min(from, number)
				}
				for i := range uint64(c.inFlight) {
					number := from + i
					if !c.oldFirst {
						number = from + uint64(c.inFlight) - 1 - i
					}
					if dst, _ = f.Ack(s, number, 1, 5, dst[:0]); len(dst) != 1 || dst[0].Number != number {
						t.Fatalf("number %d: confirmed %+v", number, dst)
					}
					passed++
				}
			}
			f.Check()
			if class := f.shards[1].sessions.at(s.slot).class; class > c.class {
				t.Fatalf("the number list has grown to %d words", classSmallest<<class)
			}
			if chunks := len(f.shards[1].records.chunks); chunks > 1 {
				t.Fatalf("%d chunks of entries for %d in flight", chunks, c.inFlight+1)
			}
			got, _, ok := f.Take(stuck)
			if !ok || got.Number != first {
				t.Fatalf("the stuck message was lost: %+v", got)
			}
			f.Check()
		})
	}
}

// Several that are stuck at odd places, and every number asked for: those there are found, the others are not.
func TestLookupFindsExactlyTheNumbersInFlight(t *testing.T) {
	f := newFixture(t, Config{})
	s := f.openUser(1, 500, 1<<20)
	stuck := make(map[uint64]bool)
	for range 3000 {
		_, number := f.add(s, 1)
		if number%97 == 5 || number%41 == 0 || number > 2950 {
			stuck[number] = true
			continue
		}
		f.Ack(s, number, 1, 5, nil)
	}
	f.Check()
	for number := range uint64(3200) {
		_, e, ok := f.Lookup(s, number)
		if ok != stuck[number] || ok && e.Number != number {
			t.Fatalf("Lookup(%d) = %d, %t, want %t", number, e.Number, ok, stuck[number])
		}
	}
	if _, _, ok := f.Lookup(s, math.MaxUint64); ok {
		t.Fatal("found the largest number there is")
	}
}

func TestAckOfRangesAtTheEdgesAndOverHoles(t *testing.T) {
	for _, c := range []struct {
		name        string
		gone        []uint64 // acknowledged before, of 1 to 12
		from, count uint64
		want        []uint64
		result      AckResult
	}{
		{"one", nil, 5, 1, []uint64{5}, AckResult{Hits: 1}},
		{"the first", nil, 1, 1, []uint64{1}, AckResult{Hits: 1}},
		{"the last", nil, 12, 1, []uint64{12}, AckResult{Hits: 1}},
		{"all", nil, 1, 12, []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, AckResult{Hits: 12}},
		{"none", nil, 3, 0, nil, AckResult{}},
		{"twice", []uint64{5}, 5, 1, nil, AckResult{Late: 1}},
		{"over a hole", []uint64{5}, 4, 3, []uint64{4, 6}, AckResult{Hits: 2, Late: 1}},
		{"only holes", []uint64{4, 5, 6}, 4, 3, nil, AckResult{Late: 3}},
		{"from a hole to a hole", []uint64{4, 8}, 4, 5, []uint64{5, 6, 7}, AckResult{Hits: 3, Late: 2}},
		{"below what is there", []uint64{1, 2, 3}, 1, 3, nil, AckResult{Late: 3}},
		{"into what is there", []uint64{1, 2, 3}, 2, 4, []uint64{4, 5}, AckResult{Hits: 2, Late: 2}},
		{"above the holes at the end", []uint64{11, 12}, 10, 3, []uint64{10}, AckResult{Hits: 1, Late: 2}},
		{"every second", []uint64{2, 4, 6, 8, 10}, 1, 11, []uint64{1, 3, 5, 7, 9, 11}, AckResult{Hits: 6, Late: 5}},
		{"number zero", nil, 0, 3, nil, AckResult{Never: true}},
		{"beyond the last", nil, 12, 2, nil, AckResult{Never: true}},
		{"the next number", nil, 13, 1, nil, AckResult{Never: true}},
		{"a count that overflows", nil, 2, math.MaxUint64, nil, AckResult{Never: true}},
		{"the largest number", nil, math.MaxUint64, 1, nil, AckResult{Never: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, Config{})
			s := f.openUser(1, 64, 1<<20)
			for range 12 {
				f.add(s, 1)
			}
			for _, number := range c.gone {
				f.Ack(s, number, 1, 5, nil)
			}
			left := f.numbers(s)
			got, r := f.Ack(s, c.from, c.count, 9, nil)
			r.FirstAck = false
			var numbers []uint64
			for _, e := range got {
				numbers = append(numbers, e.Number)
			}
			if !slices.Equal(numbers, c.want) || r != c.result {
				t.Fatalf("confirmed %v, %+v; want %v, %+v", numbers, r, c.want, c.result)
			}
			left = slices.DeleteFunc(left, func(number uint64) bool { return slices.Contains(c.want, number) })
			if now := f.numbers(s); !slices.Equal(now, left) {
				t.Fatalf("left: %v, want %v", now, left)
			}
			f.Check()
		})
	}
}

func TestAckUpTo(t *testing.T) {
	f := newFixture(t, Config{})
	s := f.openUser(1, 64, 1<<20)
	for range 20 {
		f.add(s, 1)
	}
	f.Ack(s, 3, 2, 5, nil)
	for _, c := range []struct {
		number uint64
		hits   int
		never  bool
	}{{0, 0, false}, {1, 1, false}, {1, 0, false}, {5, 2, false}, {4, 0, false}, {21, 0, true}, {math.MaxUint64, 0, true}, {19, 14, false}, {20, 1, false}, {20, 0, false}} {
		got, r := f.AckUpTo(s, c.number, 6, nil)
		if len(got) != c.hits || r.Hits != c.hits || r.Never != c.never || r.Late != 0 {
			t.Fatalf("up to %d: %d confirmed, %+v", c.number, len(got), r)
		}
		f.Check()
	}
}

// The ring's first place wanders through the block: every offset must work.
func TestNumberListWrapsAtEveryPlace(t *testing.T) {
	f := newFixture(t, Config{})
	s := f.openUser(1, 64, 1<<20)
	next := uint64(1)
	for width := uint64(1); width <= 24/min(scale, 2); width++ {
		for range 3 * width {
			for range width {
				f.add(s, 1)
			}
			f.Ack(s, next+width/2, 1, 5, nil)
			got, _ := f.AckUpTo(s, next+width-1, 5, nil)
			if uint64(len(got)) != width-1 {
				t.Fatalf("width %d: %d confirmed", width, len(got))
			}
			next += width
			if f.add(s, 1); len(f.numbers(s)) != 1 { // one stays, so that the list is not dropped
				t.Fatal("more than one left")
			}
			f.add(s, 1)
			f.Ack(s, next, 1, 5, nil)
			f.Check()
			f.Ack(s, next+1, 1, 5, nil)
			next += 2
		}
	}
}

func TestSessionEndsWhenItsNumbersAreUsedUp(t *testing.T) {
	f := newFixture(t, Config{})
	s := f.openUser(1, 64, 1<<20)
	f.shards[1].sessions.at(s.slot).numberNext = numberLast
	if _, number := f.add(s, 1); number != numberLast {
		t.Fatalf("number %d", number)
	}
	if _, _, r := f.tryAdd(s, 1); r != AddClosed {
		t.Fatalf("past the last number: %v", r)
	}
	if got, _ := f.Ack(s, numberLast, 1, 5, nil); len(got) != 1 {
		t.Fatal("the last number was not found")
	}
}

func TestArenaJoinsWhatIsFreeAndForgetsAPeak(t *testing.T) {
	var a arena
	type given struct {
		block uint32
		class uint8
	}
	for round := range 3 {
		var blocks []given
		words := 0
		for n := range 3000 {
			class := uint8(n*7+round) % 9
			blocks = append(blocks, given{a.take(class), class})
			words += classSmallest << class
			for i := range a.words(blocks[n].block, class) {
				a.words(blocks[n].block, class)[i] = math.MaxUint64
			}
		}
		a.check(words)
		for len(blocks) > 1 {
			i := (len(blocks)*13 + 5) % len(blocks)
			a.give(blocks[i].block, blocks[i].class)
			words -= classSmallest << blocks[i].class
			blocks = slices.Delete(blocks, i, i+1)
			if len(blocks)%100 == 0 {
				a.check(words)
			}
		}
		whole := 0
		for next := a.free[classes-1]; next != 0; next = uint32(*a.first(next - 1) >> 32) {
			whole++
		}
		if whole < len(a.chunks)-len(a.spare)-1 {
			t.Fatalf("%d of %d chunks are whole again with one block in use", whole, len(a.chunks))
		}
		a.give(blocks[0].block, blocks[0].class)
		a.check(0)
		if len(a.chunks) > chunksKeptIdle {
			t.Fatalf("%d chunks kept with nothing in use", len(a.chunks))
		}
	}
}
