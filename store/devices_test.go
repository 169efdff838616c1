package store

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"holdfast/codec"
	"holdfast/delivery"
)

func TestADeviceUnseenTooLongLeavesItsMessagesToTheDeadLetters(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), DeviceRetention: 24 * time.Hour}
	l := open(t, cfg)
	now := time.Now().UnixMilli()
	old, _ := l.Claim([]byte("alice"), []byte("old"), now-2*dayMs)
	fresh, _ := l.Claim([]byte("alice"), []byte("fresh"), now)
	for i := range 100 {
		store1(t, l, old, fmt.Sprint("m", i), "x")
	}
	if qs := must(t, l, "alice", ""); !slices.Equal(qs, []delivery.QueueID{fresh}) {
		t.Fatalf("targets %v", qs)
	}
	if _, _, r := l.Targets(nil, []byte("alice"), []byte("old"), nil, now); r != codec.ResultUnknownDevice {
		t.Fatalf("a push to the old device: %d", r)
	}
	l.SweepExpired(nil, now, 10)
	if st := l.Stats(); st.DeadLetters != 100 || st.DevicesForgotten != 1 || balanced(t, l).Dead != 100 {
		t.Fatalf("got %+v", st)
	}
	checkNames(t, l)
	letters, _ := l.DeadLetters(0, 1)
	if letters[0].Record.Reason != delivery.ReasonDeviceGone || letters[0].Record.Device != "old" {
		t.Fatalf("got %+v", letters[0].Record)
	}
	if _, r := l.Append(old, nil, delivery.Meta{}, nil, 0); r != codec.ResultUnknownDevice {
		t.Fatalf("append to a queue that is gone: %d", r)
	}
	shut(t, l)
	l = open(t, cfg)
	defer shut(t, l)
	l.SweepExpired(nil, now, 10)
	if qs := l.UserQueues("alice"); len(qs) != 1 || qs[0].Device != "fresh" {
		t.Fatalf("after a restart: %+v", qs)
	}
}

func TestWhatCameWhileEveryDeviceWasAwayIsAdoptedByTheOneThatReturns(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), DeviceRetention: 24 * time.Hour}
	l := open(t, cfg)
	now := time.Now().UnixMilli()
	phone, _ := l.Claim([]byte("alice"), []byte("phone"), now-2*dayMs)
	store1(t, l, phone, "m1", "old")
	spare := must(t, l, "alice", "")[0]
	if spare == phone {
		t.Fatal("a push went to a device unseen for too long")
	}
	store1(t, l, spare, "m2", "meanwhile")
	back, err := l.Claim([]byte("alice"), []byte("phone"), now)
	if err != nil || back != phone {
		t.Fatalf("claim: %d %v", back, err)
	}
	store1(t, l, phone, "m3", "new")
	want := []string{"old", "meanwhile", "new"}
	if got := texts(t, l, phone); !slices.Equal(got, want) {
		t.Fatalf("got %q", got)
	}
	if qs := l.UserQueues("alice"); len(qs) != 1 || qs[0].Messages != 3 {
		t.Fatalf("got %+v", qs)
	}
	shut(t, l)
	l = open(t, cfg)
	defer shut(t, l)
	phone, _ = l.Claim([]byte("alice"), []byte("phone"), now)
	if got := texts(t, l, phone); !slices.Equal(got, want) {
		t.Fatalf("after a restart: %q", got)
	}
}

// Pushes to users who never come must not use up the queues, the names or the memory for good.
func TestADefaultQueueIsForgottenOnceNothingWaitsInIt(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), QueuesMax: 4, DedupMax: 8, DeadLettersMax: 1}
	l := open(t, cfg)
	defer func() { shut(t, l) }()
	now := time.Now().UnixMilli()
	dead := store1(t, l, must(t, l, "stranger", "")[0], "dead", "x")
	l.End([]delivery.Ending{{Ref: dead, Status: delivery.StatusDead, Reason: delivery.ReasonRetention}}, now)
	for i := range 200 {
		qs, _, r := l.Targets(nil, fmt.Append(nil, "user", i), nil, nil, now)
		if r == codec.ResultStorageFull {
			l.SweepExpired(nil, now, 10)
			if l.Stats().Queues != cfg.QueuesMax {
				t.Fatal("a queue that was just handed out is forgotten")
			}
			now += 2 * 3_600_000
			l.SweepExpired(nil, now, 10)
			qs, _, r = l.Targets(nil, fmt.Append(nil, "user", i), nil, nil, now)
		}
		if r != codec.ResultAccepted {
			t.Fatalf("user %d is refused: %d", i, r)
		}
		if info := l.Queue(qs[0]); info.SeenMs != 0 || info.User != fmt.Sprint("user", i) {
			t.Fatalf("got %+v", info)
		}
		ref := store1(t, l, qs[0], fmt.Sprint(i), "x")
		l.End([]delivery.Ending{{Ref: ref, Status: delivery.StatusAcked}}, now)
	}
	l.mu.Lock()
	queues, names, numbers := len(l.reg.queues), len(l.reg.names), len(l.reg.names)-1-len(l.reg.freeNames)
	l.mu.Unlock()
	if queues > 10 || names > 20 || numbers > 14 {
		t.Errorf("%d queues, %d names, %d of them in use, are kept", queues, names, numbers)
	}
	checkNames(t, l)
	// What died keeps the name of its user, over a restart too.
	for range 2 {
		letters, err := l.DeadLetters(0, 10)
		if err != nil || len(letters) != 1 || letters[0].Record.User != "stranger" {
			t.Fatalf("%+v, %v", letters, err)
		}
		if _, dup, _ := l.Targets(nil, []byte("stranger"), nil, []byte("dead"), now); !dup {
			t.Fatal("its message id is no longer known")
		}
		shut(t, l)
		l = open(t, cfg)
	}
	if ok, err := l.DropDead(dead.Seq); !ok || err != nil {
		t.Fatal(ok, err)
	}
}

func TestAnAckCountsAsSeen(t *testing.T) {
	l := open(t, Config{Dir: t.TempDir(), DeviceRetention: 24 * time.Hour})
	defer shut(t, l)
	now := time.Now().UnixMilli()
	q, _ := l.Claim([]byte("alice"), []byte("phone"), now-dayMs+1000)
	ref := store1(t, l, q, "m", "x")
	l.End([]delivery.Ending{{Ref: ref, Status: delivery.StatusAcked}}, now)
	l.SweepExpired(nil, now+dayMs/2, 10)
	if got := l.Queue(q); got.SeenMs != now || got.Device != "phone" {
		t.Fatalf("got %+v", got)
	}
}
