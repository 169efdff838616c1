package ack

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// filled is a table with n entries in sessions of perSession each, timers armed 10 s ahead with some spread.
func filled(n, perSession int) (*Table, []Session) {
	t := NewTable(Config{}, 1)
	r := rand.New(rand.NewPCG(1, 1))
	sessions := make([]Session, (n+perSession-1)/perSession)
	for i := range sessions {
		sessions[i] = t.Open(Open{UserHash: r.Uint64(), Window: Window{MsgsMax: 2*perSession + 32, BytesMax: 1 << 30}, Owner: uint64(i)})
	}
	for i := range n {
		s := sessions[i%len(sessions)]
		if _, _, ok := t.Add(s, Add{Ref: Ref{Seq: uint64(i)}, Bytes: 160, Status: 2, DeadlineMs: 10_000 + r.Int64N(1000), NowMs: 1}); ok != AddOK {
			panic("bench: a window is too small")
		}
	}
	return t, sessions
}

// BenchmarkTableAck acknowledges entries of a full table, a thousand frames at a time, and then puts as many in their place. It
// reports ns/ack and ns/add apart; ns/op means nothing. What a frame meets depends on who sends it:
//
//   - frame=1/random: one number, from a random one of n/64 sessions: each step from session to number list to entry is a cache miss;
//   - frame=1/sent: one number, from 18,000 sessions in the order of sending, shuffled by a thousand: what clients that acknowledge
//     each message do;
//   - frame=16/random: up to a number, sixteen at once, from random sessions: what our clients do.
func BenchmarkTableAck(b *testing.B) {
	for _, size := range []struct {
		name string
		n    int
	}{{"10k", 10_000}, {"1M", 1_000_000}, {"10M", 10_000_000}} {
		b.Run("entries="+size.name, func(b *testing.B) {
			for _, sessions := range []int{size.n / 64, min(18_000, size.n/16)} {
				random := sessions == size.n/64
				x := newAcker(size.n, sessions)
				if random {
					b.Run("frame=1/random", func(b *testing.B) { x.run(b, 1, x.random) })
					b.Run("frame=16/random", func(b *testing.B) { x.run(b, 16, x.random) })
				} else {
					b.Run("frame=1/sent", func(b *testing.B) { x.run(b, 1, x.sent) })
				}
			}
		})
	}
}

// acker acknowledges what a table holds and fills it up again.
type acker struct {
	t        *Table
	sessions []Session
	acked    []uint64 // by session: the highest number acknowledged
	added    []uint64 // by session: the highest number given out
	turn     int
	r        *rand.Rand
	frames   [1024]uint32 // sessions
	dst      []Entry
}

func newAcker(n, sessions int) *acker {
	x := &acker{r: rand.New(rand.NewPCG(2, 2)), dst: make([]Entry, 0, 64)}
	x.t, x.sessions = filled(n, (n+sessions-1)/sessions)
	x.acked, x.added = make([]uint64, len(x.sessions)), make([]uint64, len(x.sessions))
	for i := range x.added {
		st, _ := x.t.State(x.sessions[i])
		x.added[i] = st.NumberLast
	}
	return x
}

func (x *acker) random() {
	for i := range x.frames {
		x.frames[i] = x.r.Uint32N(uint32(len(x.sessions)))
	}
}

func (x *acker) sent() {
	for i := range x.frames {
		x.frames[i] = uint32(x.turn % len(x.sessions))
		x.turn++
	}
	x.r.Shuffle(len(x.frames), func(i, j int) { x.frames[i], x.frames[j] = x.frames[j], x.frames[i] })
}

func (x *acker) run(b *testing.B, perFrame int, choose func()) {
	var acking, adding time.Duration
	hits, done := 0, 0
	b.ReportAllocs()
	for b.Loop() {
		choose()
		start := time.Now()
		for _, k := range x.frames {
			// A session that comes up too often in one round may have nothing left: such ACKs meet nothing and are rare.
			x.acked[k] = min(x.acked[k]+uint64(perFrame), x.added[k])
			x.dst, _ = x.t.AckUpTo(x.sessions[k], x.acked[k], 20, x.dst[:0])
			hits += len(x.dst)
		}
		between := time.Now()
		for range perFrame { // rounds, as publishers do: not all of a session at once
			for _, k := range x.frames {
				if _, number, ok := x.t.Add(x.sessions[k], Add{Bytes: 160, Status: 2, DeadlineMs: 10_000, NowMs: 20}); ok == AddOK {
					x.added[k] = number
				}
			}
		}
		acking += between.Sub(start)
		adding += time.Since(between)
		done += len(x.frames) * perFrame
	}
	b.ReportMetric(float64(acking.Nanoseconds())/float64(hits), "ns/ack")
	b.ReportMetric(float64(adding.Nanoseconds())/float64(done), "ns/add")
}

// BenchmarkAddAckHot is one session whose entries stay in the cache.
func BenchmarkAddAckHot(b *testing.B) {
	t, sessions := filled(1, 64)
	dst := make([]Entry, 0, 1)
	b.ReportAllocs()
	for i := range b.N {
		t.Add(sessions[0], Add{Bytes: 160, DeadlineMs: 10_000, NowMs: 20})
		dst, _ = t.Ack(sessions[0], uint64(i)+1, 1, 20, dst[:0])
	}
}

// BenchmarkExpireIdleTick is the tick of a table of a million entries of which none is due.
func BenchmarkExpireIdleTick(b *testing.B) {
	t, _ := filled(1_000_000, 64)
	dst := make([]Expired, 0, 256)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		dst = t.Expire(2+int64(i%900), dst[:0], 256)
	}
}

// BenchmarkTableBytes reports the heap per entry of a table of a million, in sessions of 64, 8 and 1 entries, the sessions
// included.
func BenchmarkTableBytes(b *testing.B) {
	for _, perSession := range []int{64, 8, 1} {
		b.Run(fmt.Sprintf("session=%d", perSession), func(b *testing.B) {
			const n = 1_000_000
			var bytes float64
			for b.Loop() {
				before := heap()
				t, sessions := filled(n, perSession)
				bytes = (float64(heap()) - float64(before) - float64(12*len(sessions))) / n
				runtime.KeepAlive(t)
				runtime.KeepAlive(sessions)
			}
			b.ReportMetric(bytes, "B/entry")
		})
	}
}

// BenchmarkTableGCPause acknowledges and adds in a table of ten million entries while the garbage collector runs cycle after cycle,
// and reports what the collector stopped the program for, to the edge of the bucket of the runtime's histogram.
func BenchmarkTableGCPause(b *testing.B) {
	x := newAcker(10_000_000, 18_000)
	var stop atomic.Bool
	var cycles atomic.Int64
	var busy sync.WaitGroup
	before := pauses()
	busy.Go(func() {
		for ; !stop.Load(); cycles.Add(1) {
			runtime.GC()
		}
	})
	b.Run("entries=10M", func(b *testing.B) {
		x.run(b, 1, x.sent)
		b.ReportMetric(float64(cycles.Load()), "GC-cycles")
		counts := pauses()
		for i := range counts.Counts {
			counts.Counts[i] -= before.Counts[i]
		}
		b.ReportMetric(quantile(counts, 0.5)*1000, "ms/pause-p50")
		b.ReportMetric(quantile(counts, 0.999)*1000, "ms/pause-p99.9")
		b.ReportMetric(quantile(counts, 1)*1000, "ms/pause-max")
	})
	stop.Store(true)
	busy.Wait()
}

func pauses() *metrics.Float64Histogram {
	sample := []metrics.Sample{{Name: "/sched/pauses/total/gc:seconds"}}
	metrics.Read(sample)
	return sample[0].Value.Float64Histogram()
}

// quantile is the upper edge of the bucket in which the share q of the values is reached; the lower one of the last bucket.
func quantile(h *metrics.Float64Histogram, q float64) float64 {
	total := uint64(0)
	for _, n := range h.Counts {
		total += n
	}
	need, seen := uint64(math.Ceil(q*float64(total))), uint64(0)
	for i, n := range h.Counts {
		if seen += n; seen >= need {
			if edge := h.Buckets[i+1]; !math.IsInf(edge, 1) {
				return edge
			}
			return h.Buckets[i]
		}
	}
	return 0
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
