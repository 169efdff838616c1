package delivery

import (
	"testing"
	"time"

	"holdfast/codec"
)

func ttl(d time.Duration) func(x *codec.PublishItem) {
	return func(x *codec.PublishItem) { x.TTLMs = uint64(d.Milliseconds()) }
}

func TestExpiryIsLookedAtBeforeEveryWrite(t *testing.T) {
	h := newHarness(t, nil)
	h.push("alice", "m1", ttl(2*time.Second))
	h.push("alice", "m2", ttl(time.Hour))
	h.now.MonoMs += 3000 // no sweep in between
	h.now.WallMs += 3000
	_, p := h.login("alice/phone")
	if got := h.wantPushes(p, "m2")[0]; got.ExpireAtMs == 0 {
		t.Fatal("its own end is not told")
	}
	h.wantStatus("m1", "EXPIRED ttl")
	h.push("alice", "m3", ttl(10*time.Second+time.Millisecond)) // over between timeout and retry
	h.wantPushes(p, "m3")
	h.advance(15 * time.Second)
	for _, x := range p.pushes() {
		if string(x.MessageID) == "m3" {
			t.Fatal("sent after its end")
		}
	}
	h.wantStatus("m3", "EXPIRED ttl")
}

func TestSweeperEndsWhatNobodyTouches(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Retention = time.Minute })
	h.push("alice", "offline", ttl(5*time.Second))
	h.push("alice", "kept", nil)
	_, p := h.login("bob/phone")
	h.push("bob", "inflight", ttl(5*time.Second))
	h.wantPushes(p, "inflight")
	h.advance(6 * time.Second)
	h.wantStatus("offline", "EXPIRED ttl")
	h.wantStatus("inflight", "EXPIRED ttl")
	if n := h.core.table.Stats().Entries; n != 0 {
		t.Fatalf("%d entries", n)
	}
	h.advance(time.Minute)
	h.wantStatus("kept", "DEAD_LETTER retention") // nobody's message disappears silently
	h.wantPushes(p)
}

func TestCancelBeforeAndDuringDelivery(t *testing.T) {
	h := newHarness(t, window(1))
	l, p := h.login("alice/phone")
	h.pushMany("alice", 1, 3)
	h.wantPushes(p, "m1")
	cancel := func(id string) bool {
		r := h.store.Find(id)[0]
		won := h.e.Cancel(&r, h.now)
		h.settle()
		return won
	}
	if !cancel("m2") || cancel("m2") {
		t.Fatal("a waiting message can be cancelled once")
	}
	if !cancel("m1") {
		t.Fatal("a message in flight can be cancelled")
	}
	h.wantPushes(p, "m3")
	h.wantStatus("m1", "CANCELLED publisher")
	h.ackOne(l, 1) // too late: it changes nothing
	h.wantStatus("m1", "CANCELLED publisher")
	h.ackOne(l, 2)
	if cancel("m3") {
		t.Fatal("an acknowledged message was cancelled")
	}
	h.wantStatus("m3", "ACKED")
	h.advance(time.Minute)
	h.wantPushes(p)
}

// G8: our own copies are no duplicates, and a publisher's repeat is answered as success and not delivered.
func TestG8RetriesAndRepeatedPublishesHaveDifferentKeys(t *testing.T) {
	h := newHarness(t, nil)
	l, p := h.login("alice/phone")
	h.push("alice", "m1", nil)
	h.advance(14 * time.Second)
	if o := h.push("alice", "m1", nil); o.Result != codec.ResultDuplicate || string(o.MessageID) != "m1" {
		t.Fatalf("outcome %+v", o)
	}
	h.advance(20 * time.Second)
	list := h.wantPushes(p, "m1", "m1", "m1")
	for i := range list {
		if list[i].Attempt != uint64(i+1) {
			t.Fatalf("copy %d says attempt %d", i+1, list[i].Attempt)
		}
	}
	h.ackOne(l, 1)
	if o := h.push("alice", "m1", nil); o.Result != codec.ResultDuplicate {
		t.Fatalf("outcome %+v", o)
	}
	h.advance(time.Minute)
	h.wantPushes(p)
	if o := h.push("bob", "m1", nil); o.Result != codec.ResultAccepted { // the key is (user, id)
		t.Fatalf("outcome %+v", o)
	}
}

// Further 3: with an ACK as late as it can be, no id is seen more than twice.
func TestFurther3AckJustAtTheTimeoutGivesAtMostOneMoreCopy(t *testing.T) {
	for _, at := range []time.Duration{9990, 10_000, 10_010, 10_020, 13_990, 14_000, 14_010} {
		h := newHarness(t, nil)
		l, p := h.login("alice/phone")
		h.push("alice", "m1", nil)
		h.advance(at * time.Millisecond)
		h.ackOne(l, 1)
		h.advance(2 * time.Minute)
		if n := len(p.pushes()); n > 2 {
			t.Fatalf("ACK after %d ms: %d copies", at, n)
		}
		h.wantStatus("m1", "ACKED")
	}
}

func TestPublisherIsAnsweredWhenDurableOrWhenAllDevicesAcked(t *testing.T) {
	h := newHarness(t, nil)
	h.store.manualSync = true
	l, p := h.login("alice/phone")
	answered := 0
	b := NewBatch()
	for _, user := range []string{"alice", "bob"} {
		b.Add(&codec.PublishItem{User: []byte(user), MessageID: []byte("to-" + user)})
	}
	b.Done = func(*Batch) { answered++ }
	b.begin(h.core)
	for i := range 2 {
		if r := b.admit(h.core, i, h.now, h.rand.Uint64); r != codec.ResultAccepted {
			t.Fatal(r)
		}
		h.e.Push(b, i, h.now)
	}
	b.release()
	h.wantPushes(p, "to-alice") // on the socket before it is durable
	h.ackOne(l, 1)
	if answered != 0 {
		t.Fatal("answered although bob's message is not durable")
	}
	h.store.sync()
	if answered != 1 || b.Result(0) != codec.ResultAccepted || b.Result(1) != codec.ResultAccepted {
		t.Fatalf("answered %d times: %s, %s", answered, b.Result(0), b.Result(1))
	}
}

// A crash loses only what was never answered, and brings back what was in flight.
func TestCrashKeepsEverythingThatWasAnswered(t *testing.T) {
	h := newHarness(t, nil)
	h.store.manualSync = true
	l, p := h.login("alice/phone")
	h.pushMany("alice", 1, 4) // push syncs
	h.wantPushes(p, ids(1, 4)...)
	h.ackOne(l, 2)
	h.store.sync()
	h.ackOne(l, 1) // not durable
	h.store = h.store.crash()
	h.boot(testConfig())
	_, p = h.login("alice/phone")
	h.wantPushes(p, "m1", "m3", "m4")
}
