package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/codec"
	"holdfast/delivery"
)

// The rules of what is kept and for how long: elision, copy-forward, dead letters, dedup window, devices, limits.

func TestAMessageAckedBeforeItsBatchIsCutIsNeverWritten(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), CommitDelay: time.Hour, LazyDelay: time.Millisecond}
	l := open(t, cfg)
	q := must(t, l, "alice", "")[0]
	now := time.Now().UnixMilli()
	a := newAnswers()
	meta := delivery.Meta{MessageID: []byte("m"), AcceptedMs: now, ExpireAtMs: now + dayMs}
	ref, _ := l.Append(q, []byte("x"), meta, a, 0)
	if got := texts(t, l, q); !slices.Equal(got, []string{"x"}) {
		t.Fatalf("a pending message is not readable: %q", got)
	}
	if a.told(0) || balanced(t, l).Accepted != 0 {
		t.Fatal("its publisher was told too early")
	}
	l.End([]delivery.Ending{{Ref: ref, Status: delivery.StatusAcked}}, now)
	if !a.told(0) || a.wait(0) != codec.ResultAccepted {
		t.Fatal("its publisher was not told at the end")
	}
	if st := l.Stats(); st.Elided != 1 || st.Accepted != 1 || st.Acked != 1 || st.Live != 0 || st.PendingBytes != 0 {
		t.Fatalf("got %+v", st)
	}
	eventually(t, "its mark is written", func() bool { return l.Stats().Batches > 0 })
	shut(t, l)
	if n := l.Stats().Written; n != 0 {
		t.Fatalf("%d messages written", n)
	}
	l = open(t, cfg)
	defer shut(t, l)
	if _, dup, _ := l.Targets(nil, []byte("alice"), nil, []byte("m"), now); !dup {
		t.Fatal("the mark of an elided message is gone after a restart")
	}
}

// H3: a repeat is promised nothing that is not durable yet.
func TestH3ARepeatOfAPendingMessageWaitsWithIt(t *testing.T) {
	disk := &faultyDisk{}
	l := open(t, Config{Dir: t.TempDir(), files: disk.files(), CommitDelay: 20 * time.Millisecond, RetryDelay: time.Hour})
	defer shut(t, l)
	q := must(t, l, "alice", "")[0]
	now := time.Now().UnixMilli()
	push := func(id string, a *answers) delivery.Ref {
		ref, r := l.Append(q, []byte("x"), delivery.Meta{MessageID: []byte(id), AcceptedMs: now, ExpireAtMs: now + dayMs}, a, 0)
		if r != codec.ResultAccepted {
			t.Fatal(r)
		}
		return ref
	}
	a := newAnswers()
	push("stored", a)
	if !l.Join([]byte("alice"), []byte("stored"), a, 1) || a.told(1) {
		t.Fatal("a repeat of a pending message does not wait")
	}
	if r := a.wait(1); r != codec.ResultDuplicate || a.wait(0) != codec.ResultAccepted {
		t.Fatalf("stored: the repeat was told %d", r)
	}
	if l.Join([]byte("alice"), []byte("stored"), a, 2) || l.Join([]byte("bob"), []byte("stored"), a, 2) || l.Join([]byte("alice"), []byte("other"), a, 2) {
		t.Fatal("something waits for nothing")
	}
	a = newAnswers()
	ref := push("elided", a)
	l.Join([]byte("alice"), []byte("elided"), a, 1)
	l.End([]delivery.Ending{{Ref: ref, Status: delivery.StatusAcked}}, now)
	if r := a.wait(1); r != codec.ResultDuplicate {
		t.Fatalf("elided: the repeat was told %d", r)
	}
	disk.set(func() { disk.full = true })
	a = newAnswers()
	push("refused", a)
	l.Join([]byte("alice"), []byte("refused"), a, 1)
	if r := a.wait(1); r != codec.ResultStorageFull || a.wait(0) != codec.ResultStorageFull {
		t.Fatalf("refused: the repeat was told %d", r)
	}
	disk.set(func() { disk.full = false })
}

func TestCopyForwardUnderLoadKeepsReadersAndMessages(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), SegmentBytes: 32 << 10, StorageBytesMax: 1 << 27, CommitDelay: 50 * time.Microsecond,
		LazyDelay: time.Millisecond, QueueMessagesMax: 1 << 20, QueueBytesMax: 1 << 30}
	l := open(t, cfg)
	keeper := must(t, l, "keeper", "")[0]
	var want []string
	for i := range 60 {
		want = append(want, fmt.Sprint("kept ", i, strings.Repeat("k", i*10)))
		store1(t, l, keeper, fmt.Sprint("k", i), want[i])
	}
	dead := store1(t, l, keeper, "dead", "a dead letter")
	l.Note(dead, 3, true)
	l.End([]delivery.Ending{{Ref: dead, Status: delivery.StatusDead, Reason: delivery.ReasonRefused, Attempts: 3}}, time.Now().UnixMilli())
	var stop atomic.Bool
	var readers, writers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for !stop.Load() {
				if got := texts(t, l, keeper); !slices.Equal(got, want) {
					t.Errorf("a reader saw %d messages", len(got))
					return
				}
			}
		})
	}
	for w := range 2 {
		writers.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(w)))
			q := must(t, l, fmt.Sprint("churn", w), "")[0]
			now := time.Now().UnixMilli()
			for range 60 {
				a := newAnswers()
				var ends []delivery.Ending
				for i := range 10 {
					ref, _ := l.Append(q, make([]byte, r.IntN(2000)), delivery.Meta{AcceptedMs: now, ExpireAtMs: now + dayMs}, a, i)
					ends = append(ends, delivery.Ending{Ref: ref, Status: delivery.StatusAcked})
				}
				a.waitN(10)
				l.End(ends, now)
			}
		})
	}
	writers.Wait()
	eventually(t, "old segments were copied forward and removed", func() bool {
		st := l.Stats()
		return st.Moved >= 61 && st.LogBytes <= keepFactor*st.LiveBytes+4*cfg.SegmentBytes
	})
	stop.Store(true)
	readers.Wait()
	shut(t, l)
	l = open(t, cfg)
	defer shut(t, l)
	if got := texts(t, l, must(t, l, "keeper", "")[0]); !slices.Equal(got, want) {
		t.Fatalf("after a restart: %d messages", len(got))
	}
	letters, err := l.DeadLetters(0, 10)
	if err != nil || len(letters) != 1 || string(letters[0].Command) != "a dead letter" || letters[0].Record.Reason != delivery.ReasonRefused ||
		letters[0].Record.Attempts != 3 || !letters[0].Record.Sent {
		t.Fatalf("dead letters after a restart: %+v %v", letters, err)
	}
}

func TestDeadLettersStayReadableUpToTheirLimit(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), DeadLettersMax: 5}
	l := open(t, cfg)
	now := time.Now().UnixMilli()
	q := must(t, l, "alice", "")[0]
	var refs []delivery.Ref
	for i := range 8 {
		ref := store1(t, l, q, fmt.Sprint("m", i), fmt.Sprint("text", i))
		refs = append(refs, ref)
		l.End([]delivery.Ending{{Ref: ref, Status: delivery.StatusDead, Reason: delivery.ReasonAttempts, Attempts: 20}}, now)
	}
	for range 2 {
		letters, err := l.DeadLetters(0, 3)
		if err != nil || len(letters) != 3 || letters[0].Record.MessageID != "m3" || string(letters[0].Command) != "text3" {
			t.Fatalf("first page: %+v %v", letters, err)
		}
		letters, _ = l.DeadLetters(letters[2].Record.Ref.Seq, 3)
		if len(letters) != 2 || letters[1].Record.MessageID != "m7" || letters[1].Record.Attempts != 20 {
			t.Fatalf("second page: %+v", letters)
		}
		var b delivery.Buffer
		if _, ok, _ := l.Read(&b, letters[1].Record.Ref); ok {
			t.Fatal("a dead letter can be read as if it lived")
		}
		if g := balanced(t, l); g.Live != 0 {
			t.Fatalf("got %+v", g)
		}
		shut(t, l)
		l = open(t, cfg)
	}
	if ok, _ := l.DropDead(refs[4].Seq); !ok {
		t.Fatal("not dropped")
	}
	if ok, _ := l.DropDead(refs[4].Seq); ok {
		t.Fatal("dropped twice")
	}
	shut(t, l)
	l = open(t, cfg)
	defer shut(t, l)
	if letters, _ := l.DeadLetters(0, 10); len(letters) != 4 {
		t.Fatalf("%d letters after a drop and a restart", len(letters))
	}
	if found := l.Find("m4"); len(found) != 1 || found[0].Status != delivery.StatusDead || found[0].Reason != delivery.ReasonAttempts {
		t.Fatalf("a dropped letter is unknown: %+v", found)
	}
}

// H3: what is to be kept as a dead letter is accepted when the letter is on the disk, not when it died.
func TestH3ADeadLetterIsAnsweredWhenItIsWritten(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), CommitDelay: time.Hour, LazyDelay: time.Hour, DeadLettersMax: 2}
	l := open(t, cfg)
	q := must(t, l, "alice", "")[0]
	now := time.Now().UnixMilli()
	a := newAnswers()
	die := func(i int) {
		ref, r := l.Append(q, []byte("x"), delivery.Meta{MessageID: fmt.Append(nil, i), AcceptedMs: now, ExpireAtMs: now + dayMs}, a, i)
		if r != codec.ResultAccepted {
			t.Fatal(r)
		}
		l.End([]delivery.Ending{{Ref: ref, Status: delivery.StatusDead, Reason: delivery.ReasonRefused}}, now)
		balanced(t, l)
	}
	die(0)
	die(1)
	if a.told(0) || a.told(1) {
		t.Fatal("answered before the letter is kept")
	}
	die(2) // the oldest letter goes for want of room, by a rule that is stated and counted
	if !a.told(0) || a.wait(0) != codec.ResultAccepted || a.told(1) || a.told(2) {
		t.Fatalf("got %v", a.got)
	}
	if ok, err := l.DropDead(l.deadSeq(t, 0)); !ok || err != nil || !a.told(1) || a.wait(1) != codec.ResultAccepted {
		t.Fatalf("dropping: %v %v, told %v", ok, err, a.got)
	}
	shut(t, l)
	if a.wait(2) != codec.ResultAccepted {
		t.Fatalf("got %v", a.got)
	}
	l = open(t, cfg)
	defer shut(t, l)
	if letters, err := l.DeadLetters(0, 10); err != nil || len(letters) != 1 || letters[0].Record.MessageID != "2" {
		t.Fatalf("%+v, %v", letters, err)
	}
}

// deadSeq is the Seq of a kept dead letter.
func (l *Local) deadSeq(t *testing.T, i int) uint64 {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.slab.at(l.dead.slots[i]).seq
}

func TestALoweredLimitOfDeadLettersIsReachedStepByStep(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), DeadLettersMax: 50}
	l := open(t, cfg)
	die := func(i int) {
		ref := store1(t, l, must(t, l, "alice", "")[0], fmt.Sprint(i), "x")
		l.End([]delivery.Ending{{Ref: ref, Status: delivery.StatusDead}}, time.Now().UnixMilli())
	}
	for i := range 40 {
		die(i)
	}
	shut(t, l)
	cfg.DeadLettersMax = 10
	l = open(t, cfg)
	defer shut(t, l)
	for i := range 30 {
		die(100 + i)
		if n := l.Stats().DeadLetters; n != max(10, 39-i) {
			t.Fatalf("%d letters after %d deaths", n, i+1)
		}
	}
}

func TestDedupForgetsAfterItsWindowAndCountsWhenItIsShortened(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), DedupWindow: time.Hour, DedupMax: 1000}
	l := open(t, cfg)
	defer func() { shut(t, l) }()
	now := time.Now().UnixMilli()
	q := must(t, l, "alice", "")[0]
	end := func(id string) {
		ref, _ := l.Append(q, []byte("x"), delivery.Meta{MessageID: []byte(id), AcceptedMs: now, ExpireAtMs: now + dayMs}, nil, 0)
		l.End([]delivery.Ending{{Ref: ref, Status: delivery.StatusAcked}}, now)
	}
	known := func(id string, atMs int64) bool {
		_, dup, _ := l.Targets(nil, []byte("alice"), nil, []byte(id), atMs)
		return dup
	}
	end("first")
	if !known("first", now+59*60_000) || known("first", now+61*60_000) {
		t.Fatal("the window is not an hour")
	}
	for i := range 1000 {
		end(fmt.Sprint(i))
	}
	if known("first", now) || !known("0", now) || !known("999", now) || l.Stats().DedupShortened != 1 || l.Stats().Ended != 1000 {
		t.Fatalf("at the limit: %+v", l.Stats())
	}
	shut(t, l)
	l = open(t, cfg)
	if !known("0", now) || !known("999", now) {
		t.Fatal("the marks are gone after a restart")
	}
}

// H5: a clock that goes back swallows nothing fresh and repeats no Seq.
func TestH5AClockThatGoesBackIsHarmless(t *testing.T) {
	l := open(t, Config{Dir: t.TempDir()})
	defer shut(t, l)
	now := time.Now().UnixMilli()
	var last uint64
	for i, at := range []int64{now, now - 5000, now - 3_600_000, now + 10_000} {
		id := fmt.Append(nil, "m", i)
		qs, dup, r := l.Targets(nil, []byte("alice"), nil, id, at)
		if dup || r != codec.ResultAccepted {
			t.Fatalf("a fresh id is refused: %v %d", dup, r)
		}
		ref, r := l.Append(qs[0], []byte("x"), delivery.Meta{MessageID: id, AcceptedMs: at, ExpireAtMs: at + dayMs}, nil, 0)
		if r != codec.ResultAccepted || ref.Seq <= last {
			t.Fatalf("%d, seq %d after %d", r, ref.Seq, last)
		}
		last = ref.Seq
		if i%2 == 0 {
			l.End([]delivery.Ending{{Ref: ref, Status: delivery.StatusAcked}}, at)
			if _, dup, _ := l.Targets(nil, []byte("alice"), nil, id, now-7_200_000); !dup {
				t.Fatal("a step back forgot a mark")
			}
		}
	}
	if got := texts(t, l, must(t, l, "alice", "")[0]); len(got) != 2 {
		t.Fatalf("%d messages", len(got))
	}
}

func TestLimitsOfNamesDevicesAndSizesHaveResults(t *testing.T) {
	l := open(t, Config{Dir: t.TempDir(), DevicesPerUserMax: 3, QueuesMax: 5, QueueBytesMax: 3000, PendingBytesMax: 5000, CommitDelay: time.Hour,
		SegmentBytes: 4 << 10, StorageBytesMax: 16 << 10})
	defer shut(t, l)
	now := time.Now().UnixMilli()
	long := strings.Repeat("n", 300)
	for i := range 4 {
		if _, err := l.Claim([]byte("alice"), fmt.Append(nil, "d", i), now); (err != nil) != (i == 3) {
			t.Fatalf("device %d: %v", i, err)
		}
	}
	if l.reg.number([]byte("d3")) != 0 {
		t.Error("the name of a refused device is kept")
	}
	for _, c := range []struct {
		user, device, id string
		want             codec.Result
	}{
		{"", "", "", codec.ResultBadUser}, {long, "", "", codec.ResultBadUser}, {"bob", long, "", codec.ResultBadDevice},
		{"bob", "", long, codec.ResultBadMessageID}, {"nobody", "phone", "", codec.ResultUnknownDevice},
		{"u1", "", "", codec.ResultAccepted}, {"u2", "", "", codec.ResultAccepted}, {"u3", "", "", codec.ResultStorageFull},
	} {
		if _, _, r := l.Targets(nil, []byte(c.user), []byte(c.device), []byte(c.id), now); r != c.want {
			t.Errorf("targets of %.5s/%.5s/%.5s: %d, want %d", c.user, c.device, c.id, r, c.want)
		}
	}
	meta := delivery.Meta{AcceptedMs: now, ExpireAtMs: now + dayMs}
	q1, q2 := must(t, l, "u1", "")[0], must(t, l, "u2", "")[0]
	steps := []struct {
		q    delivery.QueueID
		n    int
		p    codec.Priority
		want codec.Result
	}{
		{q1, CommandBytesMax + 1, 0, codec.ResultTooLarge}, {q1, 2500, 0, codec.ResultAccepted}, {q1, 1000, 0, codec.ResultQueueFull},
		{q2, 2300, 0, codec.ResultAccepted}, {must(t, l, "alice", "d0")[0], 1000, 0, codec.ResultOverloaded},
		{q1, 1, 9, codec.ResultBadField}, {0, 1, 0, codec.ResultUnknownDevice}, {999, 1, 0, codec.ResultUnknownDevice},
	}
	for i, s := range steps {
		meta.Priority = s.p
		if _, r := l.Append(s.q, make([]byte, s.n), meta, nil, 0); r != s.want {
			t.Errorf("step %d: %d, want %d", i, r, s.want)
		}
	}
}

// H3: at the size limit of the directory publishers are refused, bulk first, and room comes back with what ends.
func TestH3TheSizeLimitRefusesBulkFirst(t *testing.T) {
	l := open(t, Config{Dir: t.TempDir(), SegmentBytes: 4 << 10, StorageBytesMax: 40 << 10, CommitDelay: 50 * time.Microsecond, LazyDelay: time.Millisecond})
	defer shut(t, l)
	q := must(t, l, "alice", "")[0]
	now := time.Now().UnixMilli()
	fill := func(p codec.Priority) (refs []delivery.Ending) {
		for i := range 1000 {
			a := newAnswers()
			ref, r := l.Append(q, make([]byte, 500), delivery.Meta{Priority: p, AcceptedMs: now, ExpireAtMs: now + dayMs}, a, 0)
			if r == codec.ResultStorageFull {
				return refs
			}
			if r != codec.ResultAccepted || a.wait(0) != codec.ResultAccepted {
				t.Fatalf("message %d: %d", i, r)
			}
			refs = append(refs, delivery.Ending{Ref: ref, Status: delivery.StatusAcked})
		}
		t.Fatal("no limit")
		return nil
	}
	ends := fill(codec.PriorityBulk)
	more := fill(codec.PriorityNormal)
	if len(ends) < 20 || len(more) < 3 || l.Stats().StorageBytes > 41<<10 {
		t.Fatalf("%d bulk and %d normal messages, %+v", len(ends), len(more), l.Stats())
	}
	l.End(ends, now)
	eventually(t, "there is room again", func() bool {
		_, r := l.Append(q, make([]byte, 500), delivery.Meta{AcceptedMs: now, ExpireAtMs: now + dayMs}, nil, 0)
		return r == codec.ResultAccepted
	})
}

// E7: memory falls back after a flood.
func TestE7TheIndexGivesItsMemoryBack(t *testing.T) {
	l := open(t, Config{Dir: t.TempDir(), QueueMessagesMax: 1 << 20, QueueBytesMax: 1 << 30, PendingBytesMax: 64 << 20, DedupMax: 1000})
	defer shut(t, l)
	now := time.Now().UnixMilli()
	q := must(t, l, "alice", "")[0]
	const n = 4 * chunkSlots
	a := newAnswers()
	var ends []delivery.Ending
	for i := range n {
		ref, r := l.Append(q, []byte("x"), delivery.Meta{MessageID: fmt.Append(nil, i), AcceptedMs: now, ExpireAtMs: now + dayMs}, a, i)
		if r != codec.ResultAccepted {
			t.Fatal(r)
		}
		ends = append(ends, delivery.Ending{Ref: ref, Status: delivery.StatusAcked})
	}
	a.waitN(n)
	if won := l.End(ends, now); won != n {
		t.Fatalf("%d ended", won)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	chunks, cells := 0, 0
	for _, c := range l.slab.chunks {
		if c != nil {
			chunks++
		}
	}
	for i := range l.index.parts {
		cells += len(l.index.parts[i].cells)
	}
	if chunks > 2 || cells > cellsMin*tableParts || l.slab.used != 0 {
		t.Fatalf("%d chunks and %d cells are left for %d messages", chunks, cells, l.slab.used)
	}
}
