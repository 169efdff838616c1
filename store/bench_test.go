package store

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/codec"
	"holdfast/delivery"
)

// quickWaiter counts answers without a lock of its own.
type quickWaiter struct{ done chan codec.Result }

func (w *quickWaiter) Stored(_ int, r codec.Result) { w.done <- r }

// steady runs the hot path in a state where every buffer has its size.
func TestAppendEndAndNoteDoNotAllocate(t *testing.T) {
	l := open(t, Config{Dir: t.TempDir(), CommitDelay: time.Hour, LazyDelay: time.Hour, DedupMax: 4096})
	defer shut(t, l)
	q := must(t, l, "alice", "")[0]
	now := time.Now().UnixMilli()
	w := &quickWaiter{done: make(chan codec.Result, 1)}
	command, id := make([]byte, 300), []byte("message-id")
	targets := make([]delivery.QueueID, 0, 4)
	ends := make([]delivery.Ending, 1)
	n := uint64(0)
	turn := func() {
		n++
		binary.BigEndian.PutUint64(id, n)
		targets, _, _ = l.Targets(targets[:0], []byte("alice"), nil, id, now)
		ref, r := l.Append(q, command, delivery.Meta{MessageID: id, AcceptedMs: now, ExpireAtMs: now + dayMs}, w, 0)
		if r != codec.ResultAccepted {
			t.Fatal(r)
		}
		l.Note(ref, 1, true)
		ends[0] = delivery.Ending{Ref: ref, Status: delivery.StatusAcked}
		if l.End(ends, now) != 1 {
			t.Fatal("not ended")
		}
		<-w.done
	}
	for range 10_000 {
		turn()
	}
	l.mu.Lock() // what grows with the time between two commits does not count here
	l.open.notes, l.open.ends, l.open.ended = make([]byte, 0, 1<<22), make([]byte, 0, 1<<22), make([]byte, 0, 1<<22)
	l.mu.Unlock()
	if n := testing.AllocsPerRun(2000, turn); n != 0 {
		t.Fatalf("%v allocations a message, want 0", n)
	}
}

func TestReadingDoesNotAllocate(t *testing.T) {
	l := open(t, Config{Dir: t.TempDir()})
	defer shut(t, l)
	q := must(t, l, "alice", "")[0]
	var ref delivery.Ref
	for i := range 50 {
		ref = store1(t, l, q, fmt.Sprint(i), strings.Repeat("x", 300))
	}
	var b delivery.Buffer
	turn := func() {
		if items, err := l.Next(&b, q, 0, 0, 50, 1<<20); err != nil || len(items) != 50 {
			t.Fatal(len(items), err)
		}
		if _, ok, err := l.Read(&b, ref); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	turn()
	if n := testing.AllocsPerRun(200, turn); n != 0 {
		t.Fatalf("%v allocations, want 0", n)
	}
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkDurablePut is put, wait for the sync, end; 256 publishers.
func BenchmarkDurablePut(b *testing.B) {
	for _, publishers := range []int{256, 2000} {
		b.Run(fmt.Sprint(publishers), func(b *testing.B) {
			l := open(b, Config{Dir: b.TempDir(), PendingBytesMax: 64 << 20, QueueMessagesMax: 1 << 20, QueueBytesMax: 1 << 30})
			defer shut(b, l)
			command := make([]byte, 512)
			now := time.Now().UnixMilli()
			var wg sync.WaitGroup
			b.ResetTimer()
			cpu := cpuTime()
			for p := range publishers {
				wg.Go(func() {
					w := &quickWaiter{done: make(chan codec.Result, 1)}
					q := must(b, l, fmt.Sprint("user", p), "")[0]
					ends := make([]delivery.Ending, 1)
					for i := range b.N / publishers {
						id := fmt.Append(nil, p, "-", i)
						ref, r := l.Append(q, command, delivery.Meta{MessageID: id, AcceptedMs: now, ExpireAtMs: now + dayMs}, w, 0)
						if r != codec.ResultAccepted || <-w.done != codec.ResultAccepted {
							b.Error("refused", r)
							return
						}
						ends[0] = delivery.Ending{Ref: ref, Status: delivery.StatusAcked}
						l.End(ends, now)
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "puts/s")
			b.ReportMetric(float64((cpuTime()-cpu).Nanoseconds())/float64(b.N), "cpu-ns/put")
			st := l.Stats()
			b.ReportMetric(float64(st.Written)/float64(max(1, st.Batches)), "puts/batch")
		})
	}
}

// BenchmarkElidedPut is put and end before the cut.
func BenchmarkElidedPut(b *testing.B) {
	l := open(b, Config{Dir: b.TempDir()})
	defer shut(b, l)
	q := must(b, l, "alice", "")[0]
	command, now := make([]byte, 512), time.Now().UnixMilli()
	ends := make([]delivery.Ending, 1)
	id := make([]byte, 0, 20)
	cpu := cpuTime()
	for i := 0; b.Loop(); i++ {
		id = fmt.Append(id[:0], i)
		ref, r := l.Append(q, command, delivery.Meta{MessageID: id, AcceptedMs: now, ExpireAtMs: now + dayMs}, nil, 0)
		if r != codec.ResultAccepted {
			b.Fatal(r)
		}
		ends[0] = delivery.Ending{Ref: ref, Status: delivery.StatusAcked}
		l.End(ends, now)
	}
	b.ReportMetric(float64((cpuTime()-cpu).Nanoseconds())/float64(b.N), "cpu-ns/put")
}

// fill stores n messages of 300 bytes for a number of users, taking turns.
func fill(b testing.TB, l *Local, n, users int) (qs []delivery.QueueID) {
	now := time.Now().UnixMilli()
	for u := range users {
		qs = append(qs, must(b, l, fmt.Sprint("user", u), "")[0])
	}
	command := make([]byte, 300)
	var id []byte
	for i := 0; i < n; {
		id = fmt.Appendf(id[:0], "message-%d", i)
		_, r := l.Append(qs[i%users], command, delivery.Meta{MessageID: id, AcceptedMs: now, ExpireAtMs: now + dayMs}, nil, 0)
		switch r {
		case codec.ResultAccepted:
			i++
		case codec.ResultOverloaded:
			time.Sleep(time.Millisecond)
		default:
			b.Fatal(r)
		}
	}
	eventually(b, "all is on the disk", func() bool { return l.Ledger().Live >= uint64(n) })
	return qs
}

func residentMB() float64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var total, resident int64
	_, _ = fmt.Sscan(string(b), &total, &resident)
	return float64(resident) * float64(os.Getpagesize()) / (1 << 20)
}

// BenchmarkRecovery opens a directory with a million stored messages of 100,000 users; HOLDFAST_STORE_MESSAGES changes the number.
func BenchmarkRecovery(b *testing.B) {
	n := 1_000_000
	_, _ = fmt.Sscan(os.Getenv("HOLDFAST_STORE_MESSAGES"), &n)
	cfg := Config{Dir: b.TempDir(), StorageBytesMax: 1 << 40}
	l := open(b, cfg)
	fill(b, l, n, 100_000)
	shut(b, l)
	l = nil
	runtime.GC()
	for b.Loop() {
		cpu := cpuTime()
		l = open(b, cfg)
		b.StopTimer()
		b.ReportMetric((cpuTime() - cpu).Seconds(), "cpu-s")
		if got := l.Ledger().Live; got != uint64(n) {
			b.Fatalf("%d messages", got)
		}
		debug.FreeOSMemory()
		b.ReportMetric(residentMB(), "RSS-MB")
		shut(b, l)
		b.StartTimer()
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}

// BenchmarkDrain reads and ends what is stored, 64 at a time, as after a login.
func BenchmarkDrain(b *testing.B) {
	for name, users := range map[string]int{"one-user": 1, "mixed": 1000} {
		b.Run(name, func(b *testing.B) {
			l := open(b, Config{Dir: b.TempDir(), QueueMessagesMax: 1 << 30, QueueBytesMax: 1 << 40})
			defer shut(b, l)
			qs := fill(b, l, max(b.N, users), users)
			var buf delivery.Buffer
			ends := make([]delivery.Ending, 0, 64)
			now := time.Now().UnixMilli()
			b.ResetTimer()
			for done, at := 0, 0; done < b.N; at++ {
				items, err := l.Next(&buf, qs[at%users], 0, 0, 64, 1<<20)
				if err != nil {
					b.Fatal(err)
				}
				ends = ends[:0]
				for _, it := range items {
					ends = append(ends, delivery.Ending{Ref: it.Ref, Status: delivery.StatusAcked})
				}
				done += l.End(ends, now)
				if len(items) == 0 && users == 1 {
					break
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}

// BenchmarkTargets asks where a message goes that is not known, which a search in the index for its id has to find out.
func BenchmarkTargets(b *testing.B) {
	for _, n := range []int{10_000, 1_000_000} {
		b.Run(fmt.Sprint("stored=", n), func(b *testing.B) {
			const users = 1000
			l := open(b, Config{Dir: b.TempDir(), StorageBytesMax: 1 << 40})
			defer shut(b, l)
			fill(b, l, n, users)
			names := make([][]byte, users)
			for u := range names {
				names[u] = fmt.Append(nil, "user", u)
			}
			id, now := make([]byte, 8), time.Now().UnixMilli()
			targets := make([]delivery.QueueID, 0, 4)
			b.ReportAllocs()
			i := uint64(0)
			for b.Loop() {
				i++
				binary.BigEndian.PutUint64(id, i)
				var duplicate bool
				if targets, duplicate, _ = l.Targets(targets[:0], names[i%users], nil, id, now); duplicate || len(targets) != 1 {
					b.Fatal("a new message is known, or goes nowhere")
				}
			}
		})
	}
}
