package store

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/codec"
	"holdfast/delivery"
)

// Everything at once, with a disk that is full now and then: each waiter is told exactly once, the ledger balances at any moment,
// each delivery ends once, and what a restart finds is what was left.
func TestEverythingAtOnceBalances(t *testing.T) {
	disk := &faultyDisk{}
	cfg := Config{Dir: t.TempDir(), files: disk.files(), SegmentBytes: 16 << 10, StorageBytesMax: 1 << 27, DeadLettersMax: 20, DedupMax: 100,
		CommitDelay: 100 * time.Microsecond, LazyDelay: time.Millisecond, RetryDelay: time.Millisecond}
	l := open(t, cfg)
	disk.set(func() { disk.full = true })
	var stop atomic.Bool
	var workers, watchers sync.WaitGroup
	var ended [4]map[uint64]bool
	a := newAnswers()
	var expected atomic.Int64
	for w := range 4 {
		ended[w] = map[uint64]bool{}
		workers.Go(func() { chaosWorker(t, l, w, a, &expected, ended[w]) })
	}
	watchers.Go(func() {
		for !stop.Load() {
			balanced(t, l)
			l.Stats()
			l.Find("0-1")
			if _, err := l.DeadLetters(0, 5); err != nil {
				t.Error(err)
			}
			l.SweepExpired(nil, time.Now().UnixMilli(), 10)
		}
	})
	watchers.Go(func() {
		for !stop.Load() {
			time.Sleep(3 * time.Millisecond)
			// The first time until somebody has met it: a fast machine is through before chance strikes.
			disk.set(func() { disk.full = l.Stats().DiskFull == 0 || rand.IntN(4) == 0 })
		}
	})
	workers.Wait()
	stop.Store(true)
	watchers.Wait()
	disk.set(func() { disk.full = false })
	eventually(t, "every waiter was told", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return int64(a.n) == expected.Load()
	})
	eventually(t, "the ends are written", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return !l.full && !l.open.lazy() && l.flushing == nil
	})
	before := balanced(t, l)
	checkNames(t, l)
	if before.Accepted < 500 || l.Stats().DiskFull == 0 {
		t.Fatalf("too little happened: %+v", l.Stats())
	}
	shut(t, l)
	cfg.files = nil
	l = open(t, cfg)
	defer shut(t, l)
	if after := balanced(t, l); after.Live != before.Live {
		t.Fatalf("%d live after the restart, want %d", after.Live, before.Live)
	}
	for w := range 4 {
		for _, q := range l.UserQueues(fmt.Sprint("user", w)) {
			checkNotEnded(t, l, q.ID, ended[w])
		}
	}
}

func chaosWorker(t *testing.T, l *Local, w int, a *answers, expected *atomic.Int64, ended map[uint64]bool) {
	r := rand.New(rand.NewPCG(7, uint64(w)))
	user := fmt.Append(nil, "user", w)
	var held []delivery.Ref
	var b delivery.Buffer
	for i := range 800 {
		now := time.Now().UnixMilli()
		id := fmt.Append(nil, w, "-", i)
		qs, dup, res := l.Targets(nil, user, nil, id, now)
		if dup || res != codec.ResultAccepted {
			t.Errorf("targets: %v %d", dup, res)
			return
		}
		ref, res := l.Append(qs[0], make([]byte, r.IntN(400)), delivery.Meta{MessageID: id, AcceptedMs: now, ExpireAtMs: now + dayMs}, a, w*10_000+i)
		for res == codec.ResultStorageFull {
			time.Sleep(time.Millisecond) // as a publisher does
			ref, res = l.Append(qs[0], make([]byte, r.IntN(400)), delivery.Meta{MessageID: id, AcceptedMs: now, ExpireAtMs: now + dayMs}, a, w*10_000+i)
		}
		if res == codec.ResultAccepted {
			expected.Add(1)
			held = append(held, ref)
		}
		l.Note(ref, uint16(i), true)
		if len(held) > 0 && r.IntN(10) < 8 {
			k := r.IntN(len(held))
			status := []delivery.Status{delivery.StatusAcked, delivery.StatusExpired, delivery.StatusCancelled, delivery.StatusDead}[r.IntN(4)]
			ends := []delivery.Ending{{Ref: held[k], Status: status}, {Ref: held[k], Status: status}}
			if n := l.End(ends, now); n > 1 {
				t.Errorf("ended %d times", n)
			} else if n == 1 {
				ended[held[k].Seq] = true
			}
			held[k] = held[len(held)-1]
			held = held[:len(held)-1]
		}
		if r.IntN(20) == 0 {
			if _, err := l.Next(&b, qs[0], 0, 0, 50, 1<<20); err != nil {
				t.Error(err)
			}
		}
		if i == 400 {
			if _, err := l.Claim(user, []byte("phone"), now); err != nil {
				t.Error(err)
			}
		}
	}
}

func checkNotEnded(t *testing.T, l *Local, q delivery.QueueID, ended map[uint64]bool) {
	t.Helper()
	var b delivery.Buffer
	after := uint64(0)
	for {
		items, err := l.Next(&b, q, codec.PriorityNormal, after, 100, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if len(items) == 0 {
			return
		}
		for _, it := range items {
			if after = it.Ref.Seq; ended[after] {
				t.Fatalf("seq %d had ended and is back", after)
			}
		}
	}
}
