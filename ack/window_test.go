package ack

import (
	"math"
	"testing"
)

// fixture is a table with helpers that fail the test when the table does not do what the test takes for granted.
type fixture struct {
	*Table
	t    testing.TB
	refs uint64
}

func newFixture(t testing.TB, c Config) *fixture { return &fixture{Table: NewTable(c, 1), t: t} }

func (f *fixture) openUser(user uint64, msgs, bytes int) Session {
	return f.Open(Open{UserHash: user, Window: Window{MsgsMax: msgs, BytesMax: bytes}})
}

func (f *fixture) tryAdd(s Session, bytes int) (Handle, uint64, AddResult) {
	f.refs++
	return f.Add(s, Add{Ref: Ref{Seq: f.refs}, Bytes: bytes, DeadlineMs: 1000, NowMs: 1})
}

func (f *fixture) add(s Session, bytes int) (Handle, uint64) {
	f.t.Helper()
	h, number, r := f.tryAdd(s, bytes)
	if r != AddOK {
		f.t.Fatalf("Add: %v", r)
	}
	return h, number
}

func (f *fixture) numbers(s Session) (out []uint64) {
	for _, x := range f.Entries(s, nil) {
		out = append(out, x.Entry.Number)
	}
	return out
}

func TestWindowIsBoundedByCountAndBytes(t *testing.T) {
	for _, c := range []struct {
		name        string
		msgs, bytes int
		sizes       []int // added in this order
		fits        int   // that many of them
	}{
		{"count", 3, 1000, []int{1, 1, 1, 1}, 3},
		{"count of one", 1, 1000, []int{1, 1}, 1},
		{"bytes", 10, 100, []int{40, 60, 1}, 2},
		{"bytes exactly", 10, 100, []int{100, 0}, 2},
		{"one message above the limit goes alone", 10, 100, []int{5000, 1}, 1},
		{"but not behind another", 10, 100, []int{1, 5000}, 1},
		{"empty messages count", 2, 100, []int{0, 0, 0}, 2},
		{"limits below one are one", 0, 0, []int{7, 1}, 1},
		{"limits above the largest are the largest", 1 << 30, math.MaxInt, []int{1 << 30, 1 << 30}, 1},
		{"a negative size is none", 5, 10, []int{-5, 10, 1}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, Config{})
			s := f.openUser(1, c.msgs, c.bytes)
			for i, size := range c.sizes {
				want := AddOK
				if i >= c.fits {
					want = AddFull
				}
				if _, _, r := f.tryAdd(s, size); r != want {
					t.Fatalf("message %d: %v, want %v", i, r, want)
				}
			}
			f.Check()
			if st := f.Stats(); st.WindowFull != uint64(len(c.sizes)-c.fits) {
				t.Fatalf("%d refusals counted", st.WindowFull)
			}
		})
	}
}

func TestLargestWindowCanBeFilledParkedAndFilledAgain(t *testing.T) {
	f := newFixture(t, Config{UserParkedMax: 1 << 30})
	s := f.openUser(1, 1<<30, 1<<30)
	fill := func() {
		for range WindowMsgsLimit {
			f.add(s, 1)
		}
		if _, _, r := f.tryAdd(s, 1); r != AddFull {
			t.Fatalf("a window of more than WindowMsgsLimit: %v", r)
		}
	}
	fill()
	kept := 0
	for _, x := range f.Entries(s, nil) {
		if r, _ := f.Park(x.Handle, 1); r == ParkKept {
			kept++
		}
	}
	fill()
	f.Check()
	if kept != 2048 {
		t.Fatalf("%d parked, want 2048", kept)
	}
	if got, r := f.AckUpTo(s, 2*WindowMsgsLimit, 5, nil); len(got) != kept+WindowMsgsLimit || !r.Wake {
		t.Fatalf("%d confirmed, %+v", len(got), r)
	}
	f.Check()
}

func TestWakeComesOnceWhenHalfTheWindowIsFree(t *testing.T) {
	f := newFixture(t, Config{})
	s := f.openUser(1, 8, 1000)
	for range 8 {
		f.add(s, 1)
	}
	if _, r := f.Ack(s, 1, 4, 5, nil); r.Wake {
		t.Fatal("wake though nobody was refused")
	}
	for range 4 {
		f.add(s, 1)
	}
	if _, _, r := f.tryAdd(s, 1); r != AddFull {
		t.Fatalf("Add: %v", r)
	}
	var wakes []uint64
	for number := uint64(5); number <= 12; number++ {
		if _, r := f.Ack(s, number, 1, 5, nil); r.Wake {
			wakes = append(wakes, number)
		}
	}
	if len(wakes) != 1 || wakes[0] != 8 {
		t.Fatalf("wake at %v, want once at 8", wakes)
	}
}

func TestWakeComesFromTakeParkAndSetWindowToo(t *testing.T) {
	for _, c := range []struct {
		name string
		free func(f *fixture, s Session, h Handle) bool
	}{
		{"take", func(f *fixture, s Session, h Handle) bool { _, wake, _ := f.Take(h); return wake }},
		{"park", func(f *fixture, s Session, h Handle) bool { _, wake := f.Park(h, 1); return wake }},
		{"set window", func(f *fixture, s Session, h Handle) bool { return f.SetWindow(s, Window{MsgsMax: 64, BytesMax: 1000}) }},
		{"ack", func(f *fixture, s Session, h Handle) bool { _, r := f.Ack(s, 1, 1, 5, nil); return r.Wake }},
		{"ack up to", func(f *fixture, s Session, h Handle) bool { _, r := f.AckUpTo(s, 1, 5, nil); return r.Wake }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, Config{})
			s := f.openUser(1, 1, 1000)
			h, _ := f.add(s, 1)
			f.tryAdd(s, 1)
			if !c.free(f, s, h) {
				t.Fatal("no wake")
			}
			f.add(s, 1)
		})
	}
}

// R11: at most so many messages of a user are sent again while he is connected, over all his devices; the rest is parked or leaves.
func TestR11ResendPathIsBoundedByUser(t *testing.T) {
	f := newFixture(t, Config{})
	phone, tablet := f.openUser(1, 300, 1<<20), f.openUser(1, 300, 1<<20)
	other := f.openUser(1+Shards, 300, 1<<20) // another user of the same shard
	resend := Update{DeadlineMs: 2000, Live: 1, Resend: true}
	results := func(s Session) (ok, limit int) {
		for range 150 {
			h, _ := f.add(s, 1)
			switch h, r := f.Rearm(h, resend); r {
			case RearmOK:
				ok++
				if _, r := f.Rearm(h, resend); r != RearmOK {
					t.Fatalf("an entry in the resend path may be sent a third time: %v", r)
				}
			case RearmUserLimit:
				limit++
				if _, r := f.Rearm(h, Update{DeadlineMs: 2000}); r != RearmOK {
					t.Fatalf("the handle was not good after RearmUserLimit: %v", r)
				}
			case RearmLost:
				t.Fatal("lost")
			}
		}
		f.Check()
		return ok, limit
	}
	if ok, limit := results(phone); ok != 150 || limit != 0 {
		t.Fatalf("first device: %d sent again, %d refused", ok, limit)
	}
	if ok, limit := results(tablet); ok != 50 || limit != 100 {
		t.Fatalf("second device: %d sent again, %d refused", ok, limit)
	}
	if ok, limit := results(other); ok != 150 || limit != 0 {
		t.Fatalf("another user: %d sent again, %d refused", ok, limit)
	}
	if st := f.Stats(); st.Resend != 350 || st.ResendRefused != 100 {
		t.Fatalf("counted %+v", st)
	}
	f.AckUpTo(phone, 150, 5, nil)
	if ok, _ := results(tablet); ok != 150 {
		t.Fatalf("after an ACK of 150: %d sent again", ok)
	}
}

func TestParkedEntriesAreBoundedByUserAndLeaveTheWindow(t *testing.T) {
	f := newFixture(t, Config{UserParkedMax: 5})
	s := f.openUser(1, 8, 1000)
	var kept, removed int
	for range 12 {
		h, _ := f.add(s, 10)
		switch r, _ := f.Park(h, 4); r {
		case ParkKept:
			kept++
			if r, _ := f.Park(h, 4); r != ParkLost {
				t.Fatal("the handle was good twice")
			}
		case ParkRemoved:
			removed++
		case ParkLost:
			t.Fatal("lost")
		}
	}
	if kept != 5 || removed != 7 {
		t.Fatalf("%d kept, %d removed", kept, removed)
	}
	if msgs, bytes := f.Room(s); msgs != 8 || bytes != 1000 {
		t.Fatalf("room for %d messages and %d bytes: parked entries hold the window", msgs, bytes)
	}
	if got := f.Expire(1<<40, nil, 100); len(got) != 0 {
		t.Fatalf("a parked entry expired: %+v", got)
	}
	// A late ACK still finds those that were kept, and knows the others as late.
	if got, r := f.Ack(s, 1, 12, 5, nil); len(got) != 5 || r.Late != 7 || r.Parked != 0 || !got[0].Parked {
		t.Fatalf("the late ACK found %d, %+v", len(got), r)
	}
	if st := f.Stats(); st.ParkRemoved != 7 || st.Parked != 0 || st.Late != 7 {
		t.Fatalf("counted %+v", st)
	}
	f.Check()
}

func TestUnparkKeepsTheNumberAndTheLimits(t *testing.T) {
	f := newFixture(t, Config{UserResendMax: 2})
	s := f.openUser(1, 2, 1000)
	for range 4 {
		h, _ := f.add(s, 10)
		f.Park(h, 4)
	}
	_, r := f.Ack(s, 1, 1, 5, nil)
	if r.Parked != 3 || !r.FirstAck {
		t.Fatalf("%+v", r)
	}
	parked := f.Parked(s, nil, 100)
	u := Update{Status: 2, DeadlineMs: 3000, Live: 1, Attempts: 2, SentMs: 77, Resend: true}
	for i, want := range []UnparkResult{UnparkOK, UnparkOK, UnparkUserLimit} {
		if _, got := f.Unpark(parked[i].Handle, u); got != want {
			t.Fatalf("entry %d: %v, want %v", i, got, want)
		}
	}
	u.Resend = false
	if _, got := f.Unpark(parked[2].Handle, u); got != UnparkFull {
		t.Fatalf("into a full window: %v", got)
	}
	if _, got := f.Unpark(parked[0].Handle, u); got != UnparkLost {
		t.Fatalf("twice: %v", got)
	}
	if _, e, ok := f.Lookup(s, 2); !ok || e.Parked || !e.Resend || e.SentMs != 77 || e.AddedMs != 1 || e.Ref.Seq != 2 || !e.Armed {
		t.Fatalf("number 2 is now %+v", e)
	}
	if _, r := f.Ack(s, 3, 1, 5, nil); !r.Wake || r.Parked != 1 {
		t.Fatalf("an ACK after UnparkFull: %+v", r)
	}
	f.Check()
}

func TestTableFullIsARefusalWithAName(t *testing.T) {
	f := newFixture(t, Config{ShardEntriesMax: 3})
	s := f.openUser(1, 100, 1000)
	for range 3 {
		f.add(s, 1)
	}
	if _, _, r := f.tryAdd(s, 1); r != AddTableFull {
		t.Fatalf("%v", r)
	}
	if _, _, r := f.tryAdd(f.openUser(2, 1, 1), 1); r != AddOK {
		t.Fatalf("another shard: %v", r)
	}
	f.Ack(s, 2, 1, 5, nil)
	if _, number := f.add(s, 1); number != 4 {
		t.Fatalf("number %d: a refused Add must not use one up", number)
	}
	if st := f.Stats(); st.TableFull != 1 {
		t.Fatalf("counted %+v", st)
	}
}
