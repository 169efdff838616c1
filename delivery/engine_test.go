package delivery

import (
	"testing"
	"time"

	"holdfast/codec"
)

func TestPushToAConnectedDeviceIsSentAtOnceAndEndsWithItsAck(t *testing.T) {
	h := newHarness(t, nil)
	l, p := h.login("alice/phone")
	if o := h.push("alice", "m1", nil); o.Result != codec.ResultAccepted || o.Deliveries != 1 {
		t.Fatalf("outcome %+v", o)
	}
	got := h.wantPushes(p, "m1")[0]
	if got.Number != 1 || got.Attempt != 1 || got.Redelivered || got.FromBacklog || string(got.Payload) != "payload of m1" {
		t.Fatalf("frame %+v", got)
	}
	h.wantStatus("m1", "SENT")
	h.ackOne(l, 1)
	h.wantStatus("m1", "ACKED")
	h.ackOne(l, 1) // a second ACK changes nothing
	h.advance(time.Minute)
	h.wantPushes(p)
	if h.store.live != 0 || h.store.counts[StatusAcked] != 1 {
		t.Fatalf("%d live, ends %v", h.store.live, h.store.counts)
	}
}

// Further 15: what is published for a device that is away arrives at its next login, after a restart too.
func TestFurther15OfflineMessagesArriveAtLoginInOrder(t *testing.T) {
	h := newHarness(t, nil)
	l, _ := h.login("alice/phone")
	h.gone(l)
	h.pushMany("alice", 1, 5)
	h.wantStatus("m1", "OFFLINE_BUFFERED")
	h.boot(testConfig())
	l, p := h.login("alice/phone")
	list := h.wantPushes(p, "m1", "m2", "m3", "m4", "m5")
	if !list[0].FromBacklog || list[0].Redelivered {
		t.Fatalf("frame %+v", list[0])
	}
	h.pushMany("alice", 6, 6)
	if list := h.wantPushes(p, "m6"); list[0].FromBacklog {
		t.Fatal("a live message is marked as backlog")
	}
	h.take(l, &codec.Ack{Kind: codec.AckUpTo, From: 6})
	if h.store.live != 0 {
		t.Fatalf("%d live", h.store.live)
	}
}

// C2: the second copy comes between 1 and 1.5 x the ACK timeout, under the same number; after its ACK no third one.
func TestC2SecondCopyThenAck(t *testing.T) {
	for _, timeout := range []time.Duration{200 * time.Millisecond, time.Second, 10 * time.Second} {
		h := newHarness(t, func(c *Config) { c.AckTimeout = timeout })
		l, p := h.login("alice/phone")
		h.push("alice", "m1", nil)
		h.wantPushes(p, "m1")
		h.advance(timeout - 20*time.Millisecond)
		h.wantPushes(p)
		h.advance(timeout/2 + 20*time.Millisecond)
		second := h.wantPushes(p, "m1")[0]
		if second.Number != 1 || second.Attempt != 2 || !second.Redelivered {
			t.Fatalf("second copy %+v", second)
		}
		h.ackOne(l, 1)
		h.wantStatus("m1", "ACKED")
		h.advance(10 * time.Minute)
		h.wantPushes(p)
		if s := h.core.table.Stats(); s.Entries != 0 {
			t.Fatalf("%d entries left", s.Entries)
		}
	}
}

// C2: a client that swallows a message for ever gets LiveAttemptsMax copies, then it waits for the next login.
func TestC2SwallowedForEverStopsAtTheLiveLimit(t *testing.T) {
	h := newHarness(t, nil)
	_, p := h.login("alice/phone")
	h.push("alice", "m1", nil)
	h.advance(2 * time.Minute)
	h.wantPushes(p, "m1", "m1", "m1")
	h.wantStatus("m1", "OFFLINE_BUFFERED")
	if r := h.store.Find("m1")[0]; r.Attempts != 3 || !r.Sent {
		t.Fatalf("record %+v", r)
	}
}

func TestTakeoverReplacesTheOldLinkAndItsEndChangesNothing(t *testing.T) {
	h := newHarness(t, nil)
	old, p1 := h.login("alice/phone")
	h.push("alice", "m1", nil)
	h.wantPushes(p1, "m1")
	l, p2 := h.login("alice/phone")
	if p1.closed != codec.CodeReplaced {
		t.Fatalf("the old connection was closed with %d", p1.closed)
	}
	if list := h.wantPushes(p2, "m1"); !list[0].Redelivered || list[0].Number != 1 {
		t.Fatalf("frame %+v", list[0])
	}
	h.after(old, h.core.ack(old, &codec.Ack{Kind: codec.AckOne, From: 1, Count: 1}, h.now)) // of a session that is over
	h.wantStatus("m1", "SENT")
	h.gone(old)
	h.push("alice", "m2", nil)
	h.wantPushes(p2, "m2")
	h.take(l, &codec.Ack{Kind: codec.AckUpTo, From: 2})
	if h.store.live != 0 {
		t.Fatalf("%d live", h.store.live)
	}
}
