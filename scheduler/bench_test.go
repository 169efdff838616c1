package scheduler

import (
	"math/rand/v2"
	"testing"
)

// BenchmarkArmDisarm is what a message that is acknowledged in time costs, at a random place of a wheel of a million timers.
func BenchmarkArmDisarm(b *testing.B) {
	for _, order := range []string{"random", "fifo"} {
		b.Run(order, func(b *testing.B) {
			const timers = 1_000_000
			w := NewWheel(0)
			r := rand.New(rand.NewPCG(1, 1))
			places := make([]uint32, 1<<16)
			for i := range places {
				places[i] = r.Uint32N(timers)
			}
			for i := range uint32(timers) {
				w.Arm(i, 10_000+r.Int64N(1000))
			}
			b.ReportAllocs()
			b.ResetTimer()
			for n := range b.N {
				i := uint32(n % timers)
				if order == "random" {
					i = places[n%len(places)]
				}
				w.Disarm(i)
				w.Arm(i, 10_000+int64(n&1023))
			}
		})
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
