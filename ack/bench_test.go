package ack

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
)

// filled is a table with n entries in sessions of perSession each, timers armed 10 s ahead with some spread.
func filled(n, perSession int) (*Table, []Session) {
	t := NewTable(Config{}, 1)
	r := rand.New(rand.NewPCG(1, 1))
	sessions := make([]Session, (n+perSession-1)/perSession)
	for i := range sessions {
		sessions[i] = t.Open(Open{UserHash: r.Uint64(), Window: Window{MsgsMax: perSession + 1, BytesMax: 1 << 30}, Owner: uint64(i)})
	}
	for i := range n {
		s := sessions[i%len(sessions)]
		if _, _, ok := t.Add(s, Add{Ref: Ref{Seq: uint64(i)}, Bytes: 160, Status: 2, DeadlineMs: 10_000 + r.Int64N(1000), NowMs: 1}); ok != AddOK {
			panic("bench: a window is too small")
		}
	}
	return t, sessions
}

// BenchmarkConfirm acknowledges the oldest entry of a random session of a full table, a batch at a time, and then puts as many
// in their place: every ACK meets cold memory. It reports the two separately.
func BenchmarkConfirm(b *testing.B) {
	for _, n := range []int{1_000_000, 10_000_000} {
		b.Run(fmt.Sprintf("entries=%d", n), func(b *testing.B) { benchmarkConfirm(b, n) })
	}
}

func benchmarkConfirm(b *testing.B, n int) {
	t, sessions := filled(n, 64)
	next := make([]uint64, len(sessions))
	r := rand.New(rand.NewPCG(2, 2))
	dst := make([]Entry, 0, 1)
	var batch [1024]uint32
	var acked, added time.Duration
	done := 0
	b.ReportAllocs()
	b.ResetTimer()
	for ; b.Loop(); done += len(batch) {
		for i := range batch {
			batch[i] = r.Uint32N(uint32(len(sessions)))
		}
		start := time.Now()
		for _, k := range batch {
			next[k]++
			if dst, _ = t.Ack(sessions[k], next[k], 1, 20, dst[:0]); len(dst) != 1 {
				b.Fatal("an ACK missed")
			}
		}
		between := time.Now()
		for _, k := range batch {
			if _, _, ok := t.Add(sessions[k], Add{Bytes: 160, Status: 2, DeadlineMs: 10_000, NowMs: 20}); ok != AddOK {
				b.Fatal("an Add was refused")
			}
		}
		acked += between.Sub(start)
		added += time.Since(between)
	}
	b.ReportMetric(float64(acked.Nanoseconds())/float64(done), "ns/ack")
	b.ReportMetric(float64(added.Nanoseconds())/float64(done), "ns/add")
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

// BenchmarkExpire is the tick of a table of a million entries of which none is due.
func BenchmarkExpireIdleTick(b *testing.B) {
	t, _ := filled(1_000_000, 64)
	dst := make([]Expired, 0, 256)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		dst = t.Expire(2+int64(i%900), dst[:0], 256)
	}
}

// BenchmarkFootprint reports the heap of a million entries and what a garbage collection over them takes.
func BenchmarkFootprint(b *testing.B) {
	for range b.N {
		for _, perSession := range []int{64, 8, 1} {
			before := heap()
			t, sessions := filled(1_000_000, perSession)
			after := heap()
			start := time.Now()
			runtime.GC()
			cycle := time.Since(start)
			runtime.KeepAlive(t)
			b.ReportMetric(float64(after-before-uint64(12*len(sessions)))/1_000_000, fmt.Sprintf("B/entry-%d", perSession))
			b.ReportMetric(float64(cycle.Microseconds())/1000, fmt.Sprintf("ms/GC-%d", perSession))
			runtime.KeepAlive(sessions)
		}
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
