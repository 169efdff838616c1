package scheduler

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// model is a wheel as simple as it can be: a map that is searched whole.
type model struct {
	nowTick int64
	at      map[uint32]int64 // tick
}

func ceilTick(ms int64) int64 {
	t := ms / TickMs
	if ms%TickMs > 0 {
		t++
	}
	return t
}

// due takes out what is due at nowMs.
func (m *model) due(nowMs int64) map[uint32]int64 {
	m.nowTick = max(m.nowTick, nowMs/TickMs)
	out := make(map[uint32]int64)
	for i, tick := range m.at {
		if tick <= m.nowTick {
			out[i] = tick
			delete(m.at, i)
		}
	}
	return out
}

// pair runs a wheel and its model side by side.
type pair struct {
	t     testing.TB
	w     *Wheel
	m     model
	nowMs int64
}

func newPair(t testing.TB, nowMs int64) *pair {
	return &pair{t: t, w: NewWheel(nowMs), m: model{nowTick: nowMs / TickMs, at: make(map[uint32]int64)}, nowMs: nowMs}
}

func (p *pair) arm(i uint32, atMs int64) {
	p.w.Arm(i, atMs)
	p.m.at[i] = max(ceilTick(atMs), p.m.nowTick)
}

func (p *pair) disarm(i uint32) {
	_, want := p.m.at[i]
	delete(p.m.at, i)
	if got := p.w.Disarm(i); got != want {
		p.t.Fatalf("Disarm(%d) = %t, want %t", i, got, want)
	}
}

func (p *pair) advance(nowMs int64, limit int) {
	p.nowMs = max(p.nowMs, nowMs)
	want := p.m.due(nowMs)
	var fired []uint32
	for range 1 << 20 {
		n := len(fired)
		fired = p.w.Advance(nowMs, fired, limit)
		if len(fired)-n > limit {
			p.t.Fatalf("Advance gave %d timers, the limit was %d", len(fired)-n, limit)
		}
		if !p.w.Behind(nowMs) {
			break
		}
	}
	last := int64(math.MinInt64)
	for _, i := range fired {
		tick, ok := want[i]
		if !ok {
			p.t.Fatalf("timer %d fired at %d ms, but was not due", i, nowMs)
		}
		if tick < last {
			p.t.Fatalf("timer %d of tick %d fired behind one of tick %d", i, tick, last)
		}
		last = tick
		delete(want, i)
	}
	if len(want) > 0 {
		p.t.Fatalf("%d timers did not fire at %d ms: %v", len(want), nowMs, want)
	}
	if p.w.Len() != len(p.m.at) {
		p.t.Fatalf("Len() = %d, want %d", p.w.Len(), len(p.m.at))
	}
}

func TestWheelAgreesWithAModelUnderRandomOperations(t *testing.T) {
	spans := []int64{1, 10, 100, 2_600, 10_000, 170_000, 10_500_000, 700_000_000, 3_000_000_000}
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := newPair(t, r.Int64N(1<<40))
		for range 3000 {
			i := uint32(r.IntN(300))
			switch span := spans[r.IntN(len(spans))]; r.IntN(10) {
			case 0, 1, 2, 3:
				p.arm(i, p.nowMs+r.Int64N(span)-3)
			case 4:
				p.arm(i, p.nowMs-r.Int64N(span))
			case 5, 6:
				p.disarm(i)
			case 7:
				p.advance(p.nowMs+r.Int64N(span), 1+r.IntN(50))
			default:
				p.advance(p.nowMs+r.Int64N(40), 1+r.IntN(5))
			}
		}
		p.w.Check()
		p.advance(p.nowMs+4_000_000_000, 1000)
		if p.w.Len() != 0 {
			t.Fatalf("seed %d: %d timers left after everything was due", seed, p.w.Len())
		}
		p.w.Check()
	}
}

func TestWheelFiresAtTheEdgesOfItsLevels(t *testing.T) {
	for _, startMs := range []int64{0, 7, 2_559, 1_234_567_890} {
		for _, spanTicks := range []int64{1, 255, 256, 257, 1<<14 - 1, 1 << 14, 1<<14 + 1, 1<<20 - 1, 1 << 20, 1<<26 - 1, 1 << 26, 1<<26 + 1, 1 << 30} {
			w := NewWheel(startMs)
			atMs := startMs + spanTicks*TickMs
			w.Arm(5, atMs)
			if got := w.Advance(atMs-TickMs, nil, 10); len(got) != 0 {
				t.Fatalf("start %d, span %d ticks: fired a tick early", startMs, spanTicks)
			}
			if got := w.Advance(atMs+TickMs, nil, 10); !slices.Equal(got, []uint32{5}) {
				t.Fatalf("start %d, span %d ticks: fired %v a tick late, want [5]", startMs, spanTicks, got)
			}
			w.Check()
		}
	}
}

func TestWheelNeverFiresEarlyAndAtMostOneTickLate(t *testing.T) {
	for atMs := int64(1000); atMs < 1025; atMs++ {
		w := NewWheel(993)
		w.Arm(0, atMs)
		for nowMs := int64(993); ; nowMs++ {
			if len(w.Advance(nowMs, nil, 1)) == 0 {
				continue
			}
			if nowMs < atMs || nowMs >= atMs+TickMs {
				t.Fatalf("armed for %d, fired at %d", atMs, nowMs)
			}
			break
		}
	}
}

func TestWheelFiresAPastTimeAtTheNextAdvance(t *testing.T) {
	w := NewWheel(5000)
	w.Advance(9000, nil, 1)
	for i, atMs := range []int64{9000, 8999, 0, -1, math.MinInt64} {
		w.Arm(uint32(i), atMs)
		if !w.Behind(9000) {
			t.Errorf("armed for %d at 9000: Behind says there is nothing to do", atMs)
		}
		if got := w.Advance(9000, nil, 10); !slices.Equal(got, []uint32{uint32(i)}) {
			t.Errorf("armed for %d at 9000: fired %v", atMs, got)
		}
	}
}

func TestWheelTakesATimeAtTheEndOfTime(t *testing.T) {
	w := NewWheel(0)
	w.Arm(1, math.MaxInt64)
	w.Advance(1<<50, nil, 10)
	w.Check()
	if w.Len() != 1 {
		t.Fatal("a timer at the end of time fired")
	}
	if !w.Disarm(1) {
		t.Fatal("it could not be disarmed")
	}
}

func TestWheelGoesOnWhenTheClockGoesBack(t *testing.T) {
	w := NewWheel(10_000)
	w.Advance(20_000, nil, 1)
	w.Arm(1, 25_000)
	if got := w.Advance(1_000, nil, 10); len(got) != 0 || w.Behind(1_000) {
		t.Fatalf("fired %v after the clock went back", got)
	}
	if got := w.Advance(25_000, nil, 10); !slices.Equal(got, []uint32{1}) {
		t.Fatalf("fired %v, want [1]", got)
	}
}

func TestWheelHandsOutTimersOfATickInTheOrderTheyWereFirstArmed(t *testing.T) {
	w := NewWheel(0)
	for _, i := range []uint32{9, 3, 7, 1} {
		w.Arm(i, 5000)
	}
	if got := w.Advance(6000, nil, 10); !slices.Equal(got, []uint32{9, 3, 7, 1}) {
		t.Fatalf("fired %v", got)
	}
}

// A crowd in one bucket of a high level must not be spread in one call: its caller holds a lock.
func TestWheelAdvanceIsBoundedAndBehindSaysSo(t *testing.T) {
	const crowd = 50_000
	w := NewWheel(0)
	for i := range uint32(crowd) {
		w.Arm(i, 100_000)
	}
	calls, fired := 0, 0
	for w.Behind(100_000) {
		fired += len(w.Advance(100_000, nil, 100))
		if calls++; calls > crowd {
			t.Fatal("Advance makes no progress")
		}
	}
	if fired != crowd {
		t.Fatalf("%d fired, want %d", fired, crowd)
	}
	if calls < crowd/100 {
		t.Fatalf("%d calls for %d timers with a limit of 100", calls, crowd)
	}
}

func TestWheelJumpOverYearsWithOneTimerIsCheap(t *testing.T) {
	w := NewWheel(0)
	const year = int64(365 * 24 * 3600 * 1000)
	w.Arm(1, 100*year)
	for nowMs := int64(0); nowMs < 100*year; nowMs += year {
		if got := w.Advance(nowMs, nil, 1); len(got) > 0 {
			t.Fatalf("fired %d years early", (100*year-nowMs)/year)
		}
		for w.Behind(nowMs) {
			w.Advance(nowMs, nil, 1)
		}
	}
	var got []uint32
	for w.Behind(100 * year) {
		got = w.Advance(100*year, got, 1)
	}
	if !slices.Equal(got, []uint32{1}) {
		t.Fatalf("fired %v", got)
	}
}

func TestWheelTrimGivesMemoryBackOnlyWhenNothingIsArmed(t *testing.T) {
	w := NewWheel(0)
	w.Arm(10*nodesPerChunk, 1000)
	w.Trim(nodesPerChunk)
	if got := w.Advance(1000, nil, 10); !slices.Equal(got, []uint32{10 * nodesPerChunk}) {
		t.Fatalf("fired %v after Trim with an armed timer", got)
	}
	w.Trim(nodesPerChunk)
	if len(w.chunks) != 1 {
		t.Fatalf("%d chunks kept, want 1", len(w.chunks))
	}
	if w.Disarm(10 * nodesPerChunk) {
		t.Fatal("a trimmed timer was armed")
	}
	w.Arm(10*nodesPerChunk, 2000)
	w.Check()
}

func TestWheelArmDisarmAndAdvanceDoNotAllocate(t *testing.T) {
	w := NewWheel(0)
	for i := range uint32(1000) {
		w.Arm(i, 10_000)
	}
	dst := make([]uint32, 0, 1000)
	nowMs := int64(0)
	allocs := testing.AllocsPerRun(100, func() {
		nowMs += 10
		for i := range uint32(1000) {
			w.Disarm(i)
			w.Arm(i, nowMs+int64(i%20)*10)
		}
		dst = w.Advance(nowMs, dst[:0], 1000)
	})
	if allocs != 0 {
		t.Fatalf("%v allocations a round, want 0", allocs)
	}
}

// FuzzWheel reads operations from bytes and holds the wheel against the model.
func FuzzWheel(f *testing.F) {
	f.Add([]byte{0, 1, 10, 0, 3, 200, 1, 1, 0, 2, 5, 255})
	f.Add([]byte{0, 1, 63, 0, 2, 62, 2, 3, 60, 2, 3, 63, 2, 0, 63})
	f.Fuzz(func(t *testing.T, ops []byte) {
		p := newPair(t, 12_345)
		for n := 0; n+2 < len(ops) && n < 3*2000; n += 3 {
			// The span grows with the square of two byte values up to 30 days, to reach every level.
			i, span := uint32(ops[n+1]&63), int64(ops[n+2])*int64(ops[n+2])*int64(1+ops[n+1])*156
			switch ops[n] % 5 {
			case 0:
				p.arm(i, p.nowMs+span)
			case 1:
				p.arm(i, p.nowMs+int64(ops[n+2]))
			case 2:
				p.advance(p.nowMs+span, 1+int(i))
			case 3:
				p.advance(p.nowMs+int64(ops[n+2]), 1+int(i))
			case 4:
				p.disarm(i)
			}
		}
		p.w.Check()
	})
}
