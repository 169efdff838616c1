package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/codec"
	"holdfast/delivery"
)

// The contract of delivery.Store, for every implementation. A new one adds a constructor to the table.

// subject is one implementation under test; reopen closes it and opens the same data again.
type subject struct {
	delivery.Store
	reopen func() delivery.Store
}

func subjects() map[string]func(t *testing.T) subject {
	return map[string]func(t *testing.T) subject{
		"Local": func(t *testing.T) subject {
			cfg := Config{Dir: t.TempDir(), QueueMessagesMax: 1000}
			l := open(t, cfg)
			t.Cleanup(func() { shut(t, l) })
			return subject{Store: l, reopen: func() delivery.Store {
				shut(t, l)
				l = open(t, cfg)
				return l
			}}
		},
	}
}

func contract(t *testing.T, f func(t *testing.T, s subject)) {
	for name, make := range subjects() {
		t.Run(name, func(t *testing.T) { f(t, make(t)) })
	}
}

func TestMessagesComeBackOldestFirstAndStayUntilTheyEnd(t *testing.T) {
	contract(t, func(t *testing.T, s subject) {
		q := must(t, s, "alice", "")[0]
		var refs []delivery.Ref
		var want []string
		for i := range 120 {
			refs = append(refs, store1(t, s, q, fmt.Sprint("m", i), fmt.Sprint("text ", i)))
			want = append(want, fmt.Sprint("text ", i))
		}
		if got := texts(t, s, q); !slices.Equal(got, want) {
			t.Fatalf("got %q", got)
		}
		ends := []delivery.Ending{{Ref: refs[0], Status: delivery.StatusAcked}, {Ref: refs[50], Status: delivery.StatusCancelled},
			{Ref: refs[119], Status: delivery.StatusExpired}, {Ref: refs[0], Status: delivery.StatusExpired}, {}}
		if n := s.End(ends, time.Now().UnixMilli()); n != 3 {
			t.Fatalf("%d ended, want 3", n)
		}
		if !ends[0].Won || !ends[1].Won || !ends[2].Won || ends[3].Won || ends[4].Won {
			t.Fatalf("the first to end wins: %+v", ends)
		}
		want = slices.Concat(want[1:50], want[51:119])
		if got := texts(t, s, q); !slices.Equal(got, want) {
			t.Fatalf("after the ends: got %q", got)
		}
		again := s.reopen()
		q = must(t, again, "alice", "")[0]
		if got := texts(t, again, q); !slices.Equal(got, want) {
			t.Fatalf("after a restart: got %q", got)
		}
	})
}

func TestNextKeepsToItsClassCountAndBytes(t *testing.T) {
	contract(t, func(t *testing.T, s subject) {
		q := must(t, s, "alice", "")[0]
		now := time.Now().UnixMilli()
		for i := range 30 {
			m := delivery.Meta{MessageID: fmt.Append(nil, i), Priority: codec.Priority(i % 3), AcceptedMs: now, ExpireAtMs: now + dayMs}
			if _, r := s.Append(q, []byte(strings.Repeat("x", 1000)), m, nil, 0); r != codec.ResultAccepted {
				t.Fatal(r)
			}
		}
		var b delivery.Buffer
		for p := codec.PriorityNormal; p <= codec.PriorityBulk; p++ {
			items, err := s.Next(&b, q, p, 0, 100, 1<<20)
			if err != nil || len(items) != 10 {
				t.Fatalf("class %d: %d items, %v", p, len(items), err)
			}
			third := items[2].Ref.Seq
			if items, _ = s.Next(&b, q, p, third, 4, 1<<20); len(items) != 4 || items[0].Ref.Seq <= third {
				t.Fatalf("class %d: %d items behind the third", p, len(items))
			}
			if items, _ = s.Next(&b, q, p, 0, 100, 2500); len(items) != 2 {
				t.Fatalf("class %d: %d items in 2500 bytes", p, len(items))
			}
			if items, _ = s.Next(&b, q, p, 0, 100, 1); len(items) != 1 {
				t.Fatalf("class %d: %d items in 1 byte, want one at least", p, len(items))
			}
		}
	})
}

func TestSeqRisesOverRestarts(t *testing.T) {
	contract(t, func(t *testing.T, s subject) {
		var last uint64
		store := s.Store
		for range 4 {
			q := must(t, store, "alice", "")[0]
			ref := store1(t, store, q, "", "x")
			if ref.Seq <= last {
				t.Fatalf("seq %d after %d", ref.Seq, last)
			}
			// One that ends before it is written must not have its number given again either.
			now := time.Now().UnixMilli()
			gone, _ := store.Append(q, []byte("y"), delivery.Meta{AcceptedMs: now, ExpireAtMs: now + dayMs}, nil, 0)
			store.End([]delivery.Ending{{Ref: gone, Status: delivery.StatusAcked}}, now)
			last = gone.Seq
			store = s.reopen()
		}
	})
}

func TestAttemptsAndSentSurviveARestart(t *testing.T) {
	contract(t, func(t *testing.T, s subject) {
		ref := store1(t, s, must(t, s, "alice", "")[0], "m", "x")
		var b delivery.Buffer
		if it, ok, err := s.Read(&b, ref); err != nil || !ok || it.Attempts != 0 || it.Sent {
			t.Fatalf("fresh: %+v %v %v", it, ok, err)
		}
		s.Note(ref, 300, true)
		again := s.reopen()
		items, err := again.Next(&b, must(t, again, "alice", "")[0], 0, 0, 1, 100)
		if err != nil || len(items) != 1 || items[0].Attempts != 300 || !items[0].Sent {
			t.Fatalf("got %+v, %v", items, err)
		}
	})
}

func TestR18ARepeatedMessageIDIsADuplicateForItsUserOnly(t *testing.T) {
	contract(t, func(t *testing.T, s subject) {
		now := time.Now().UnixMilli()
		check := func(st delivery.Store, user, id string, want bool) {
			t.Helper()
			qs, dup, r := st.Targets(nil, []byte(user), nil, []byte(id), now)
			if dup != want || (dup && (len(qs) != 0 || r != codec.ResultDuplicate)) {
				t.Fatalf("%s %s: duplicate %v, %d queues, %d", user, id, dup, len(qs), r)
			}
		}
		q := must(t, s, "alice", "")[0]
		check(s, "alice", "m1", false)
		live := store1(t, s, q, "m1", "x")
		ended := store1(t, s, q, "m2", "x")
		s.End([]delivery.Ending{{Ref: ended, Status: delivery.StatusAcked}}, now)
		elided, _ := s.Append(q, []byte("x"), delivery.Meta{MessageID: []byte("m3"), AcceptedMs: now, ExpireAtMs: now + dayMs}, nil, 0)
		s.End([]delivery.Ending{{Ref: elided, Status: delivery.StatusAcked}}, now)
		for range 2 {
			for _, id := range []string{"m1", "m2", "m3"} {
				check(s, "alice", id, true)
				check(s, "bob", id, false)
			}
			check(s, "alice", "m4", false)
			s.Store = s.reopen()
		}
		_ = live
	})
}

func TestFirstDeviceTakesTheDefaultQueueOver(t *testing.T) {
	contract(t, func(t *testing.T, s subject) {
		now := time.Now().UnixMilli()
		q := must(t, s, "alice", "")[0]
		store1(t, s, q, "m1", "before")
		if _, _, r := s.Targets(nil, []byte("alice"), []byte("phone"), nil, now); r != codec.ResultUnknownDevice {
			t.Fatalf("a device never seen: %d", r)
		}
		phone, err := s.Claim([]byte("alice"), []byte("phone"), now)
		if err != nil || !slices.Equal(texts(t, s, phone), []string{"before"}) {
			t.Fatalf("phone: %v %q", err, texts(t, s, phone))
		}
		tablet, _ := s.Claim([]byte("alice"), []byte("tablet"), now)
		if got := texts(t, s, tablet); len(got) != 0 {
			t.Fatalf("tablet: %q", got)
		}
		if qs := must(t, s, "alice", ""); len(qs) != 2 || !slices.Contains(qs, phone) || !slices.Contains(qs, tablet) {
			t.Fatalf("targets %v, want %d and %d", qs, phone, tablet)
		}
		if qs := must(t, s, "alice", "phone"); !slices.Equal(qs, []delivery.QueueID{phone}) {
			t.Fatalf("targets %v, want %d", qs, phone)
		}
		store1(t, s, phone, "m2", "after")
		again := s.reopen()
		phone, _ = again.Claim([]byte("alice"), []byte("phone"), now)
		if got := texts(t, again, phone); !slices.Equal(got, []string{"before", "after"}) {
			t.Fatalf("phone after a restart: %q", got)
		}
		if qs := must(t, again, "alice", ""); len(qs) != 2 {
			t.Fatalf("targets after a restart: %v", qs)
		}
	})
}

func TestH3AFullQueueRefuses(t *testing.T) {
	contract(t, func(t *testing.T, s subject) {
		q := must(t, s, "alice", "")[0]
		now := time.Now().UnixMilli()
		meta := delivery.Meta{AcceptedMs: now, ExpireAtMs: now + dayMs}
		a := newAnswers()
		var first delivery.Ref
		for i := range 1000 {
			ref, r := s.Append(q, []byte("x"), meta, a, i)
			if r != codec.ResultAccepted {
				t.Fatalf("message %d: %d", i, r)
			}
			if i == 0 {
				first = ref
			}
		}
		if _, r := s.Append(q, []byte("x"), meta, a, 1000); r != codec.ResultQueueFull {
			t.Fatalf("over the limit: %d", r)
		}
		a.waitN(1000)
		if a.told(1000) {
			t.Fatal("a refused message's waiter was told")
		}
		s.End([]delivery.Ending{{Ref: first, Status: delivery.StatusAcked}}, now)
		if _, r := s.Append(q, []byte("x"), meta, nil, 0); r != codec.ResultAccepted {
			t.Fatalf("after one ended: %d", r)
		}
	})
}

func TestFindTellsLiveDeadAndEnded(t *testing.T) {
	contract(t, func(t *testing.T, s subject) {
		users := []string{"live", "dead", "acked", "expired"}
		var refs []delivery.Ref
		for _, u := range users {
			refs = append(refs, store1(t, s, must(t, s, u, "")[0], "broadcast", "x"))
		}
		now := time.Now().UnixMilli()
		s.End([]delivery.Ending{{Ref: refs[1], Status: delivery.StatusDead, Reason: delivery.ReasonAttempts, Attempts: 20},
			{Ref: refs[2], Status: delivery.StatusAcked, Level: codec.LevelRead, Attempts: 2},
			{Ref: refs[3], Status: delivery.StatusExpired, Reason: delivery.ReasonTTL}}, now)
		for range 2 {
			got := map[string]delivery.Record{}
			for _, r := range s.Find("broadcast") {
				if r.MessageID != "broadcast" || r.AcceptedMs > now || r.AcceptedMs < now-10_000 {
					t.Fatalf("record %+v", r)
				}
				got[r.User] = r
			}
			if len(got) != 4 || got["live"].Status != delivery.StatusOffline || got["live"].ExpireAtMs == 0 ||
				got["dead"].Status != delivery.StatusDead || got["dead"].Reason != delivery.ReasonAttempts || got["dead"].Attempts != 20 ||
				got["acked"].Status != delivery.StatusAcked || got["acked"].Level != codec.LevelRead || got["acked"].EndedMs != now ||
				got["expired"].Status != delivery.StatusExpired || got["expired"].Reason != delivery.ReasonTTL {
				t.Fatalf("got %+v", got)
			}
			if other := s.Find("unknown"); len(other) != 0 {
				t.Fatalf("unknown: %+v", other)
			}
			s.Store = s.reopen()
		}
	})
}

func TestSweepFindsWhatIsOverAndGoesOn(t *testing.T) {
	contract(t, func(t *testing.T, s subject) {
		now := time.Now().UnixMilli()
		q := must(t, s, "alice", "")[0]
		for i := range 100 {
			m := delivery.Meta{AcceptedMs: now, ExpireAtMs: now + 1000 + int64(i%2)*dayMs}
			if _, r := s.Append(q, []byte("x"), m, nil, 0); r != codec.ResultAccepted {
				t.Fatal(r)
			}
		}
		if early := s.SweepExpired(nil, now, 100); len(early) != 0 {
			t.Fatalf("%d are over too early", len(early))
		}
		total := 0
		for range 10 {
			refs := s.SweepExpired(nil, now+3000, 7)
			if len(refs) > 7 {
				t.Fatalf("%d, want 7 at most", len(refs))
			}
			for _, ref := range refs {
				total += s.End([]delivery.Ending{{Ref: ref, Status: delivery.StatusExpired}}, now+3000)
			}
		}
		if total != 50 {
			t.Fatalf("%d found, want 50", total)
		}
	})
}

func TestAcceptanceTimesOfWeeksAgoAreTold(t *testing.T) {
	const hourMs = 3_600_000
	nowMs := time.Now().UnixMilli()
	for _, ageMs := range []int64{0, 1, -hourMs, hourMs, 7 * dayMs, 30 * dayMs, 48 * dayMs} {
		e := entry{acceptedMs: uint32(nowMs - ageMs)}
		if got := e.acceptedAt(nowMs); got != nowMs-ageMs {
			t.Errorf("accepted %d ms ago is told as %d ms ago", ageMs, nowMs-got)
		}
	}
}

func TestQueueInfoCounts(t *testing.T) {
	contract(t, func(t *testing.T, s subject) {
		now := time.Now().UnixMilli()
		q, _ := s.Claim([]byte("alice"), []byte("phone"), now)
		store1(t, s, q, "m1", "one")
		store1(t, s, q, "m2", "two")
		for range 2 {
			infos := s.UserQueues("alice")
			if len(infos) != 1 {
				t.Fatalf("got %+v", infos)
			}
			in := infos[0]
			if in.User != "alice" || in.Device != "phone" || in.Messages != 2 || in.Bytes < 6 || in.SeenMs < now || in.OldestMs < now {
				t.Fatalf("got %+v", in)
			}
			if in != s.Queue(in.ID) {
				t.Fatalf("got %+v", s.Queue(in.ID))
			}
			s.Store = s.reopen()
		}
		if none := s.UserQueues("nobody"); len(none) != 0 {
			t.Fatalf("nobody: %+v", none)
		}
	})
}
