package scheduler

import (
	"math/rand/v2"
	"testing"
)

// BenchmarkWheelArmDisarm is what a message that is acknowledged in time costs: one of many timers is disarmed, and armed again for
// a later time. "sent": a million timers in the order in which they were armed, as a slab hands its slots out and ACKs come;
// "random": each at a place that no cache holds; "small": ten thousand, which a cache holds, at random.
func BenchmarkWheelArmDisarm(b *testing.B) {
	for _, c := range []struct {
		name   string
		timers uint32
		random bool
	}{{"sent", 1_000_000, false}, {"random", 1_000_000, true}, {"small", 10_000, true}} {
		b.Run(c.name, func(b *testing.B) {
			l := newLife(c.timers, c.random)
			b.ReportAllocs()
			for b.Loop() {
				l.step()
			}
		})
	}
}

// BenchmarkWheelLife is the same with the wheel turning, so that the visits to what was disarmed are in it: 100,000 messages a second,
// timers of 30 s.
func BenchmarkWheelLife(b *testing.B) {
	l := newLife(1_000_000, false)
	fired := make([]uint32, 0, 256)
	b.ReportAllocs()
	for b.Loop() {
		if l.step(); l.steps%100 == 0 {
			for _, i := range l.w.Advance(l.nowMs, fired[:0], cap(fired)) {
				l.w.Arm(i, l.nowMs+lifeMs)
			}
		}
	}
}

const lifeMs = 30_000

// life disarms and arms timers again and again, a hundred a millisecond.
type life struct {
	w      *Wheel
	places [1 << 20]uint32
	timers uint32
	nowMs  int64
	steps  int
}

func newLife(timers uint32, random bool) *life {
	l := &life{w: NewWheel(0), timers: timers}
	r := rand.New(rand.NewPCG(1, 1))
	for i := range l.places {
		if l.places[i] = uint32(i) % timers; random {
			l.places[i] = r.Uint32N(timers)
		}
	}
	for i := range timers {
		l.w.Arm(i, int64(i)/100+lifeMs)
	}
	l.nowMs = int64(timers) / 100
	return l
}

func (l *life) step() {
	i := l.places[l.steps%len(l.places)]
	l.w.Disarm(i)
	l.w.Arm(i, l.nowMs+lifeMs)
	if l.steps++; l.steps%100 == 0 {
		l.nowMs++
	}
}

// BenchmarkExpire is the cost per timer when a million fire over ten seconds of ticks.
func BenchmarkExpire(b *testing.B) {
	const timers = 1_000_000
	w := NewWheel(0)
	r := rand.New(rand.NewPCG(1, 1))
	dst := make([]uint32, 0, 1024)
	nowMs := int64(0)
	fired := 0
	for fired < b.N {
		b.StopTimer()
		for i := range uint32(timers) {
			w.Arm(i, nowMs+r.Int64N(10_000))
		}
		b.StartTimer()
		for w.Len() > 0 {
			nowMs += TickMs
			for w.Behind(nowMs) {
				dst = w.Advance(nowMs, dst[:0], 1024)
				fired += len(dst)
			}
		}
	}
}

func BenchmarkEmptyTick(b *testing.B) {
	w := NewWheel(0)
	for n := range b.N {
		w.Advance(int64(n)*TickMs, nil, 1)
	}
}
