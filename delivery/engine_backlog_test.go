package delivery

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"holdfast/codec"
)

func ids(from, to int) (list []string) {
	for i := from; i <= to; i++ {
		list = append(list, fmt.Sprintf("m%d", i))
	}
	return list
}

func window(msgs int) func(*Config) { return func(c *Config) { c.WindowMsgs = msgs } }

// R14: a slow reader is caught up from the store, oldest first, and live messages never overtake.
func TestR14FullWindowJoinsTheBacklogAndOrderHolds(t *testing.T) {
	h := newHarness(t, window(4))
	l, p := h.login("alice/phone")
	h.pushMany("alice", 1, 10)
	h.wantPushes(p, ids(1, 4)...)
	h.wantStatus("m5", "OFFLINE_BUFFERED")
	h.ackOne(l, 1) // one free of four: not worth a wake-up
	h.pushMany("alice", 11, 11)
	h.wantPushes(p)
	h.ackOne(l, 2) // half of the window is free
	h.wantPushes(p, ids(5, 6)...)
	for n := uint64(3); n <= 11; n++ {
		h.ackOne(l, n)
	}
	h.wantPushes(p, ids(7, 11)...)
	if l.backlog || h.store.live != 0 {
		t.Fatalf("backlog %v, %d live", l.backlog, h.store.live)
	}
	h.pushMany("alice", 12, 12)
	h.wantPushes(p, "m12")
}

func TestWindowCountsBytesAndOneLargeMessageAlwaysFits(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.WindowBytes = 1000 })
	l, p := h.login("alice/phone")
	big := func(x *codec.PublishItem) { x.Payload = make([]byte, 5000) }
	h.push("alice", "m1", big)
	h.push("alice", "m2", big)
	h.wantPushes(p, "m1")
	h.ackOne(l, 1)
	h.wantPushes(p, "m2")
}

func TestClientMayAskForASmallerWindowOnly(t *testing.T) {
	for wished, holds := range map[uint64]int{0: 64, 8: 8, 100_000: 64} {
		h := newHarness(t, nil)
		p := &fakePeer{}
		l := newLink(LoginRequest{Peer: p, User: []byte("alice"), Device: []byte("phone"), WindowMsgs: wished, KeepaliveS: 60})
		h.e.Login(l, h.now)
		h.settle()
		f, _, err := codec.Parse(p.welcome, codec.FrameBytesMax)
		if err != nil {
			t.Fatal(err)
		}
		var w codec.Welcome
		if err := codec.DecodeWelcome(f, &w); err != nil {
			t.Fatal(err)
		}
		if int(w.WindowMsgs) != holds || w.SessionID == 0 || w.RequestIDBase >= 1<<52 || w.KeepaliveS != 60 || string(w.User) != "alice" || w.AckTimeoutMs != 10_000 {
			t.Fatalf("wished %d: welcome %+v", wished, w)
		}
	}
}

// C1: what was read and not ACKed comes again after the connection is gone, in order; what was ACKed does not.
func TestC1UnackedMessagesComeAgainAtTheNextLogin(t *testing.T) {
	for _, away := range []time.Duration{0, 10 * time.Second, time.Minute} {
		h := newHarness(t, nil)
		l, p := h.login("alice/phone")
		h.pushMany("alice", 1, 10)
		h.wantPushes(p, ids(1, 10)...)
		h.take(l, &codec.Ack{Kind: codec.AckUpTo, From: 5})
		h.gone(l)
		h.advance(away)
		h.wantStatus("m6", "OFFLINE_BUFFERED")
		_, p = h.login("alice/phone")
		list := h.wantPushes(p, ids(6, 10)...)
		if !list[0].Redelivered || !list[0].FromBacklog || list[0].Attempt != 1 || list[0].Number != 1 {
			t.Fatalf("away %s: frame %+v", away, list[0])
		}
	}
}

func TestClassesAreDrainedUrgentFirstAndEachInOrder(t *testing.T) {
	h := newHarness(t, window(3))
	for i, class := range []codec.Priority{2, 0, 1, 2, 0, 1} {
		h.push("alice", fmt.Sprintf("m%d", i), func(x *codec.PublishItem) { x.Priority = class })
	}
	l, p := h.login("alice/phone")
	h.wantPushes(p, "m2", "m5", "m1")
	h.take(l, &codec.Ack{Kind: codec.AckUpTo, From: 3})
	h.wantPushes(p, "m4", "m0", "m3")
}

func TestOutboxFullWaitsForDrainedAndKeepsNumbersConsecutive(t *testing.T) {
	h := newHarness(t, nil)
	l, p := h.login("alice/phone")
	h.pushMany("alice", 1, 1)
	p.full = true
	h.pushMany("alice", 2, 4)
	h.wantStatus("m2", "OFFLINE_BUFFERED")
	h.ackOne(l, 1)
	h.advance(5 * time.Second)
	h.wantPushes(p, "m1")
	p.full = false
	h.e.Drained(l, h.now)
	h.settle()
	list := h.wantPushes(p, "m2", "m3", "m4")
	for i := range list {
		if list[i].Number != uint64(i+2) {
			t.Fatalf("number %d, want %d", list[i].Number, i+2)
		}
	}
}

// E6: a burst far above what the reader takes arrives completely and in order.
func TestE6BurstToASlowReaderArrivesCompletely(t *testing.T) {
	const burst = 3000
	h := newHarness(t, nil)
	l, p := h.login("alice/phone")
	h.pushMany("alice", 1, burst)
	next := 1
	for next <= burst {
		if p.count() == 0 {
			h.advance(100 * time.Millisecond) // over the pace: it goes on with the next tick
		}
		list := p.pushes()
		if len(list) == 0 || len(list) > 64 {
			t.Fatalf("%d messages at once, %d so far", len(list), next-1)
		}
		for i := range list {
			if string(list[i].MessageID) != fmt.Sprintf("m%d", next) || list[i].Number != uint64(next) {
				t.Fatalf("%s as number %d, want m%d", list[i].MessageID, list[i].Number, next)
			}
			next++
		}
		h.take(l, &codec.Ack{Kind: codec.AckUpTo, From: uint64(next - 1)})
	}
	if h.store.live != 0 {
		t.Fatalf("%d live", h.store.live)
	}
}

func TestBacklogIsPacedPerDevice(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.PaceUserPerSecond = 100; c.WindowMsgs = 1000; c.WindowBytes = 1 << 20 })
	h.pushMany("alice", 1, 300)
	_, p := h.login("alice/phone")
	if n := len(p.pushes()); n > 10 {
		t.Fatalf("%d at once", n)
	}
	h.advance(time.Second)
	if n := len(p.pushes()); n < 80 || n > 120 {
		t.Fatalf("%d in a second at a pace of 100", n)
	}
	h.advance(2 * time.Second)
	if n := len(p.pushes()); n < 170 {
		t.Fatalf("only %d more in two seconds", n)
	}
}

func TestStoreErrorsDelayTheBacklogAndRetriesAndLoseNothing(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.AckTimeout = time.Second })
	h.pushMany("alice", 1, 3)
	h.store.failReads = true
	l, p := h.login("alice/phone")
	h.advance(3 * time.Second)
	h.wantPushes(p)
	h.store.failReads = false
	h.advance(2 * time.Second)
	h.wantPushes(p, ids(1, 3)...)
	h.take(l, &codec.Ack{Kind: codec.AckRange, From: 2, Count: 2})
	h.store.failReads = true
	h.advance(10 * time.Second)
	h.wantPushes(p)
	h.store.failReads = false
	h.advance(3 * time.Second)
	if list := p.pushes(); len(list) == 0 || string(list[0].MessageID) != "m1" {
		t.Fatal("the retry was lost with the store's errors")
	}
}

func TestUnreadableStoredCommandIsADeadLetterAndBlocksNobody(t *testing.T) {
	h := newHarness(t, nil)
	h.pushMany("alice", 1, 3)
	h.store.items[1].command[0] = 99
	_, p := h.login("alice/phone")
	h.wantPushes(p, "m1", "m3")
	h.wantStatus("m2", "DEAD_LETTER undecodable")
}

func TestMessageOfAnotherUserInAQueueIsNeverSent(t *testing.T) {
	h := newHarness(t, nil)
	h.pushMany("alice", 1, 2)
	h.store.items[0].command = AppendCommand(nil, &Command{User: []byte("bob"), MessageID: []byte("m1"), ExpireAtMs: 1 << 60})
	_, p := h.login("alice/phone")
	h.wantPushes(p, "m2")
	h.wantStatus("m1", "DEAD_LETTER undecodable")
}

func TestEveryDeviceGetsItsOwnDelivery(t *testing.T) {
	h := newHarness(t, nil)
	a, pa := h.login("alice/phone")
	b, pb := h.login("alice/tablet")
	if o := h.push("alice", "m1", nil); o.Deliveries != 2 {
		t.Fatalf("outcome %+v", o)
	}
	h.wantPushes(pa, "m1")
	h.wantPushes(pb, "m1")
	h.ackOne(a, 1)
	h.gone(b)
	_, pb = h.login("alice/tablet")
	h.wantPushes(pb, "m1")
	h.push("alice", "m2", func(x *codec.PublishItem) { x.Device = []byte("tablet") })
	h.wantPushes(pa)
	h.wantPushes(pb, "m2")
	if o := h.push("alice", "m3", func(x *codec.PublishItem) { x.Device = []byte("car") }); o.Result != codec.ResultUnknownDevice {
		t.Fatalf("outcome %+v", o)
	}
}

func TestPartlyRefusedMessageIsAcceptedAndNamesTheDevice(t *testing.T) {
	h := newHarness(t, nil)
	h.login("alice/phone")
	b, _ := h.login("alice/tablet")
	full := b.queue
	h.store.refuse = func(q QueueID, _ Meta) codec.Result {
		if q == full {
			return codec.ResultQueueFull
		}
		return codec.ResultAccepted
	}
	o := h.push("alice", "m1", nil)
	if o.Result != codec.ResultAccepted || o.Deliveries != 1 || !slices.Equal(o.Refused, []string{"tablet"}) || o.RefusedBy != codec.ResultQueueFull {
		t.Fatalf("outcome %+v", o)
	}
	h.store.refuse = func(QueueID, Meta) codec.Result { return codec.ResultStorageFull }
	if o := h.push("alice", "m2", nil); o.Result != codec.ResultStorageFull || o.Deliveries != 0 {
		t.Fatalf("outcome %+v", o)
	}
}

func TestFireAndForgetGoesToWhoIsThereAndIsNeverStored(t *testing.T) {
	h := newHarness(t, window(1))
	noAck := func(x *codec.PublishItem) { x.NoAck = true }
	if o := h.push("alice", "n0", noAck); o.Result != codec.ResultAccepted || o.Sent != 0 {
		t.Fatalf("outcome %+v", o)
	}
	_, p := h.login("alice/phone")
	_, q := h.login("alice/tablet")
	h.push("alice", "m1", nil) // fills the window
	h.wantPushes(p, "m1")
	q.full = true
	if o := h.push("alice", "n1", noAck); o.Sent != 1 {
		t.Fatalf("outcome %+v", o)
	}
	if got := h.wantPushes(p, "n1")[0]; !got.NoAck || got.Number != 0 {
		t.Fatalf("frame %+v", got)
	}
	h.advance(time.Minute)
	if n := h.store.live; n != 2 { // m1 for two devices
		t.Fatalf("%d stored", n)
	}
	c := h.core.count
	if c.noAckSent.Get() != 1 || c.noAckOutbox.Get() != 1 || c.noAckOffline.Get() != 1 {
		t.Fatalf("sent %d, outbox %d, offline %d", c.noAckSent.Get(), c.noAckOutbox.Get(), c.noAckOffline.Get())
	}
}
