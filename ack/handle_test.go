package ack

import (
	"testing"
	"unsafe"
)

// harmless tries everything with a session and a handle that name nothing any more.
func harmless(t *testing.T, f *fixture, s Session, h Handle) {
	t.Helper()
	before := f.Stats()
	if got := f.Evict(s, nil); got != nil {
		t.Errorf("Evict gave %+v", got)
	}
	if _, _, r := f.Add(s, Add{NowMs: 1}); r != AddClosed {
		t.Errorf("Add: %v", r)
	}
	if got, r := f.Ack(s, 1, 1, 5, nil); got != nil || r != (AckResult{}) {
		t.Errorf("Ack: %+v, %+v", got, r)
	}
	if got, r := f.AckUpTo(s, 1, 5, nil); got != nil || r != (AckResult{}) {
		t.Errorf("AckUpTo: %+v, %+v", got, r)
	}
	if f.SetWindow(s, Window{MsgsMax: 1, BytesMax: 1}) {
		t.Error("SetWindow reports wake")
	}
	if _, ok := f.State(s); ok {
		t.Error("State says it is open")
	}
	if _, _, ok := f.Lookup(s, 1); ok {
		t.Error("Lookup found something")
	}
	if _, _, ok := f.Find(s, Ref{Seq: 1}); ok {
		t.Error("Find found something")
	}
	if f.Entries(s, nil) != nil || f.Parked(s, nil, 10) != nil {
		t.Error("Entries or Parked gave something")
	}
	stale(t, f, h)
	if after := f.Stats(); after != before {
		t.Errorf("something changed: %+v, before %+v", after, before)
	}
	f.Check()
}

// stale tries every decision with a handle that is not good any more.
func stale(t *testing.T, f *fixture, h Handle) {
	t.Helper()
	if _, r := f.Rearm(h, Update{Status: 9, DeadlineMs: 5}); r != RearmLost {
		t.Errorf("Rearm: %v", r)
	}
	if r, wake := f.Park(h, 9); r != ParkLost || wake {
		t.Errorf("Park: %v", r)
	}
	if _, r := f.Unpark(h, Update{Status: 9}); r != UnparkLost {
		t.Errorf("Unpark: %v", r)
	}
	if e, wake, ok := f.Take(h); ok || wake || e != (Entry{}) {
		t.Errorf("Take gave %+v", e)
	}
}

func TestStaleSessionsAndHandlesAreHarmless(t *testing.T) {
	t.Run("zero values", func(t *testing.T) {
		f := newFixture(t, Config{})
		harmless(t, f, Session{}, Handle{})
		f.add(f.openUser(0, 4, 100), 1)
		harmless(t, f, Session{}, Handle{})
	})
	t.Run("never given out", func(t *testing.T) {
		f := newFixture(t, Config{})
		s := Session{shard: 1 << 30, slot: 1 << 30, gen: 1}
		harmless(t, f, s, Handle{session: s, slot: 1 << 30, gen: 1})
	})
	t.Run("evicted", func(t *testing.T) {
		f := newFixture(t, Config{})
		s := f.openUser(1, 4, 100)
		h, _ := f.add(s, 1)
		f.Evict(s, nil)
		harmless(t, f, s, h)
	})
	t.Run("evicted, and its places taken by another", func(t *testing.T) {
		f := newFixture(t, Config{})
		for range 100 {
			s := f.openUser(1, 4, 100)
			h, _ := f.add(s, 1)
			f.Evict(s, nil)
			next := f.openUser(1, 4, 100)
			g, _ := f.add(next, 1)
			if next.slot != s.slot || g.slot != h.slot {
				t.Fatal("the places were not taken again: the test shows nothing")
			}
			harmless(t, f, s, h)
			if got := f.Evict(next, nil); len(got) != 1 {
				t.Fatalf("the other one holds %+v", got)
			}
		}
	})
}

func TestEachChangeMakesEarlierHandlesStale(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(f *fixture, s Session, h Handle)
	}{
		{"ack", func(f *fixture, s Session, h Handle) { f.Ack(s, 1, 1, 5, nil) }},
		{"take", func(f *fixture, s Session, h Handle) { f.Take(h) }},
		{"rearm", func(f *fixture, s Session, h Handle) { f.Rearm(h, Update{DeadlineMs: 9}) }},
		{"park", func(f *fixture, s Session, h Handle) { f.Park(h, 1) }},
		{"evict", func(f *fixture, s Session, h Handle) { f.Evict(s, nil) }},
		{"park and unpark", func(f *fixture, s Session, h Handle) {
			f.Park(h, 1)
			f.Unpark(f.Parked(s, nil, 1)[0].Handle, Update{DeadlineMs: 9})
		}},
		{"ack, and its place taken by the next", func(f *fixture, s Session, h Handle) {
			f.Ack(s, 1, 1, 5, nil)
			f.add(s, 1)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, Config{})
			s := f.openUser(1, 4, 100)
			h, _ := f.add(s, 1)
			c.change(f, s, h)
			stale(t, f, h)
			f.Check()
		})
	}
}

// A look and a fired timer see the same state; the decision made first is the one that counts.
func TestNackBetweenTimeoutAndItsDecisionWins(t *testing.T) {
	f := newFixture(t, Config{})
	s := f.openUser(1, 4, 100)
	_, number := f.add(s, 1)
	timeout := f.Expire(5000, nil, 10)
	if len(timeout) != 1 || timeout[0].Entry.Armed {
		t.Fatalf("expired: %+v", timeout)
	}
	h, _, _ := f.Lookup(s, number)
	if _, r := f.Rearm(h, Update{Status: 4, DeadlineMs: 9000}); r != RearmOK {
		t.Fatalf("NACK: %v", r)
	}
	stale(t, f, timeout[0].Handle)
	if _, e, _ := f.Lookup(s, number); e.Status != 4 || !e.Armed || e.DeadlineMs != 9000 {
		t.Fatalf("the NACK's decision was overwritten: %+v", e)
	}
}

func TestLateAckWinsBetweenTimeoutAndItsDecision(t *testing.T) {
	f := newFixture(t, Config{})
	s := f.openUser(1, 4, 100)
	_, number := f.add(s, 1)
	timeout := f.Expire(5000, nil, 10)
	if got, r := f.Ack(s, number, 1, 5001, nil); len(got) != 1 || r.Hits != 1 {
		t.Fatalf("the late ACK found %+v", got)
	}
	stale(t, f, timeout[0].Handle)
}

func TestExpireSharesItsLimitFairlyBetweenShards(t *testing.T) {
	f := newFixture(t, Config{})
	for user := range uint64(Shards) {
		s := f.openUser(user, 100, 1000)
		for range 10 {
			f.add(s, 1)
		}
	}
	seen := make(map[int]int)
	for range Shards {
		got := f.Expire(5000, nil, 10)
		if len(got) != 10 {
			t.Fatalf("%d expired, want 10", len(got))
		}
		for _, x := range got {
			seen[x.Handle.Session().Shard()]++
		}
	}
	for shard := range Shards {
		if seen[shard] != 10 {
			t.Fatalf("shard %d: %d expired, want 10", shard, seen[shard])
		}
	}
}

func TestEntriesTakeTheirSizeAndHoldNoPointers(t *testing.T) {
	if n := unsafe.Sizeof(record{}); n != 64 {
		t.Errorf("an entry takes %d bytes", n)
	}
	if n := unsafe.Sizeof(session{}); n != 64 {
		t.Errorf("a session takes %d bytes", n)
	}
}

func TestEmptyTableLetsGoOfAPeakAndOldHandlesStayStale(t *testing.T) {
	f := newFixture(t, Config{})
	sh := &f.shards[1]
	var handles []Handle
	var sessions []Session
	fill := func() {
		sessions = sessions[:0]
		for range 200 {
			s := f.openUser(1, 100, 1<<20)
			sessions = append(sessions, s)
			for range 100 {
				h, _ := f.add(s, 1)
				handles = append(handles, h)
			}
		}
	}
	empty := func() {
		for _, s := range sessions {
			f.AckUpTo(s, 100, 5, nil)
		}
	}
	fill()
	empty()
	f.Check()
	if len(sh.records.chunks) > chunksKept || len(sh.numbers.chunks) > chunksKeptIdle {
		t.Fatalf("%d chunks of entries and %d of numbers kept", len(sh.records.chunks), len(sh.numbers.chunks))
	}
	old := len(handles)
	for range 2 {
		fill()
		for _, h := range handles[:old] {
			if _, _, ok := f.Take(h); ok {
				t.Fatal("a handle from before was good again")
			}
		}
		empty()
		old = len(handles)
	}
	f.Check()
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	f := newFixture(t, Config{})
	s := f.openUser(1, 64, 1<<20)
	f.add(s, 1) // stuck
	dst := make([]Entry, 0, 64)
	due := make([]Expired, 0, 64)
	nowMs, number := int64(1000), uint64(1)
	round := func() {
		nowMs += 50
		for range 40 {
			_, number, _ = f.Add(s, Add{Ref: Ref{Seq: 9}, Bytes: 100, DeadlineMs: nowMs + 20, NowMs: nowMs})
		}
		dst, _ = f.Ack(s, number, 1, nowMs, dst[:0])
		dst, _ = f.Ack(s, number-30, 20, nowMs, dst[:0])
		due = f.Expire(nowMs+40, due[:0], 64)
		for _, x := range due {
			if h, r := f.Rearm(x.Handle, Update{DeadlineMs: nowMs + 100, Resend: true}); r == RearmOK {
				f.Park(h, 1)
			}
		}
		for _, x := range f.Parked(s, due[:0], 3) {
			f.Unpark(x.Handle, Update{DeadlineMs: nowMs + 100})
		}
		f.Lookup(s, number-5)
		dst, _ = f.AckUpTo(s, number, nowMs, dst[:0])
		f.add(s, 1)
	}
	for range 10 {
		round()
	}
	if allocs := testing.AllocsPerRun(200, round); allocs != 0 {
		t.Fatalf("%v allocations a round, want 0", allocs)
	}
}
