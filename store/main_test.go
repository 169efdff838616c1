package store

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/codec"
	"holdfast/delivery"
)

const childEnv = "HOLDFAST_STORE_CHILD" // data directory of a child that is to be killed

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		runChild(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

var _ delivery.Store = (*Local)(nil)

// answers collects what waiters are told.
type answers struct {
	mu   sync.Mutex
	more *sync.Cond
	got  map[int]codec.Result
	n    int
}

func newAnswers() *answers {
	a := &answers{got: map[int]codec.Result{}}
	a.more = sync.NewCond(&a.mu)
	return a
}

func (a *answers) Stored(i int, r codec.Result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, twice := a.got[i]; twice {
		panic(fmt.Sprintf("waiter %d was told twice", i))
	}
	a.got[i] = r
	a.n++
	a.more.Broadcast()
}

// wait returns the answer to message i.
func (a *answers) wait(i int) codec.Result {
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		if r, ok := a.got[i]; ok {
			return r
		}
		a.more.Wait()
	}
}

func (a *answers) waitN(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.n < n {
		a.more.Wait()
	}
}

func (a *answers) told(i int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.got[i]
	return ok
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func open(t testing.TB, cfg Config) *Local {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = quiet()
	}
	if cfg.SegmentBytes > 0 && cfg.StorageBytesMax == 0 {
		cfg.StorageBytesMax = 8192 * cfg.SegmentBytes // small segments would not do for the default
	}
	if cfg.SegmentBytes > 0 && cfg.blockBytes == 0 { // nor would they have a whole block
		cfg.blockBytes, cfg.ReadCacheBytes = 2<<10, 16<<10
	}
	l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func shut(t testing.TB, l *Local) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

const dayMs = 24 * 3600 * 1000

// must returns the queues a push goes to, and fails the test on a refusal.
func must(t testing.TB, s delivery.Store, user, device string) []delivery.QueueID {
	t.Helper()
	qs, dup, r := s.Targets(nil, []byte(user), []byte(device), nil, time.Now().UnixMilli())
	if dup || r != codec.ResultAccepted {
		t.Fatalf("targets of %s/%s: duplicate %v, %d", user, device, dup, r)
	}
	return qs
}

// store1 appends one message and waits until it is stored.
func store1(t testing.TB, s delivery.Store, q delivery.QueueID, id, text string) delivery.Ref {
	t.Helper()
	a := newAnswers()
	now := time.Now().UnixMilli()
	ref, r := s.Append(q, []byte(text), delivery.Meta{MessageID: []byte(id), AcceptedMs: now, ExpireAtMs: now + dayMs}, a, 0)
	if r != codec.ResultAccepted {
		t.Fatalf("append of %s: %d", id, r)
	}
	if r := a.wait(0); r != codec.ResultAccepted {
		t.Fatalf("stored %s: %d", id, r)
	}
	return ref
}

// texts returns the commands of a queue's normal class.
func texts(t testing.TB, s delivery.Store, q delivery.QueueID) (out []string) {
	t.Helper()
	var b delivery.Buffer
	after := uint64(0)
	for {
		items, err := s.Next(&b, q, codec.PriorityNormal, after, 50, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if len(items) == 0 {
			return out
		}
		for _, it := range items {
			out = append(out, string(it.Command))
			after = it.Ref.Seq
		}
	}
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !f(); {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func lastSegment(t testing.TB, dir string) string {
	t.Helper()
	nums, err := numbered(dir, "", segmentSuffix)
	if err != nil || len(nums) == 0 {
		t.Fatal("no segments", err)
	}
	return filepath.Join(dir, fmt.Sprintf("%08d%s", nums[len(nums)-1], segmentSuffix))
}

func balanced(t testing.TB, l *Local) Ledger {
	t.Helper()
	g := l.Ledger()
	if g.Accepted != g.Live+g.Acked+g.Expired+g.Cancelled+g.Dead {
		t.Fatalf("the ledger does not balance: %+v", g)
	}
	return g
}

// checkNames counts again who uses which name: one too few, and a user could get the name of another.
func checkNames(t testing.TB, l *Local) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &l.reg
	uses, letters := make([]uint32, len(r.names)), make([]uint32, len(r.queues))
	for _, slot := range l.dead.slots {
		letters[l.slab.at(slot).queue]++
	}
	for q := 1; q < len(r.queues); q++ {
		d := &r.queues[q]
		if d.letters != letters[q] {
			t.Fatalf("queue %d has %d dead letters, counted %d", q, letters[q], d.letters)
		}
		uses[d.user]++
		uses[d.device]++
	}
	for i := l.ended.tail; i < l.ended.head; i++ {
		e := l.ended.at(uint32(i % uint64(l.ended.max)))
		uses[e.user]++
		uses[e.device]++
	}
	for n := 1; n < len(uses); n++ {
		if uses[n] != r.names[n].uses || (uses[n] > 0) != (r.names[n].text != "") || uses[n] > 0 && r.number([]byte(r.names[n].text)) != uint32(n) {
			t.Fatalf("name %d (%q) is used %d times, counted %d", n, r.names[n].text, uses[n], r.names[n].uses)
		}
	}
}
