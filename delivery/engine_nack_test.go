package delivery

import (
	"fmt"
	"testing"
	"time"

	"holdfast/codec"
)

func (h *harness) nack(l *Link, number uint64, delay time.Duration) {
	h.t.Helper()
	h.after(l, h.core.nack(l, &codec.Nack{Number: number, DelayMs: uint64(delay.Milliseconds())}, h.now))
}

func (h *harness) refuse(l *Link, number uint64) {
	h.t.Helper()
	h.after(l, h.core.nack(l, &codec.Nack{Number: number, Never: true}, h.now))
}

func (h *harness) extend(l *Link, number uint64, more time.Duration) {
	h.t.Helper()
	h.after(l, h.core.extend(l, &codec.Extend{Number: number, MoreMs: uint64(more.Milliseconds())}, h.now))
}

func TestNackWithADelayComesBackThenUnderTheSameNumber(t *testing.T) {
	h := newHarness(t, nil)
	l, p := h.login("alice/phone")
	h.push("alice", "m1", nil)
	h.wantPushes(p, "m1")
	h.nack(l, 1, 2*time.Second)
	h.wantStatus("m1", "RETRYING")
	h.nack(l, 1, 0) // it waits already
	h.advance(1900 * time.Millisecond)
	h.wantPushes(p)
	h.advance(200 * time.Millisecond)
	if got := h.wantPushes(p, "m1")[0]; got.Number != 1 || got.Attempt != 2 || !got.Redelivered {
		t.Fatalf("frame %+v", got)
	}
	h.ackOne(l, 1)
	h.wantStatus("m1", "ACKED")
}

func TestNackWithoutADelayDoesNotSpinAndEndsAtTheLifeLimit(t *testing.T) {
	h := newHarness(t, nil)
	l, p := h.login("alice/phone")
	h.push("alice", "m1", nil)
	copies := 0
	for range 1000 {
		for range p.pushes() {
			copies++
			h.nack(l, 1, 0)
		}
		h.advance(10 * time.Millisecond)
	}
	if copies != 20 {
		t.Fatalf("%d copies", copies)
	}
	h.wantStatus("m1", "DEAD_LETTER attempts")
}

func TestNacksDoNotUseUpLiveAttempts(t *testing.T) {
	h := newHarness(t, nil)
	l, p := h.login("alice/phone")
	h.push("alice", "m1", nil)
	for range 5 {
		h.wantPushes(p, "m1")
		h.nack(l, 1, time.Second)
		h.advance(1100 * time.Millisecond)
	}
	p.pushes()
	h.advance(2 * time.Minute)
	if n := len(p.pushes()); n != 2 {
		t.Fatalf("%d copies after the last NACK's", n)
	}
}

// A long delay does not hold a place in the window: other messages go on.
func TestLongNackDelayFreesItsPlaceInTheWindow(t *testing.T) {
	h := newHarness(t, window(2))
	l, p := h.login("alice/phone")
	h.pushMany("alice", 1, 4)
	h.wantPushes(p, "m1", "m2")
	h.nack(l, 1, 10*time.Minute)
	h.wantPushes(p, "m3")
	h.wantStatus("m1", "RETRYING")
	h.nack(l, 2, 24*time.Hour) // bounded to an hour
	h.wantPushes(p, "m4")
	h.ackOne(l, 3)
	h.ackOne(l, 4)
	h.advance(9 * time.Minute)
	h.wantPushes(p)
	h.advance(time.Minute + time.Second)
	if got := h.wantPushes(p, "m1")[0]; got.Number != 1 || got.Attempt != 2 {
		t.Fatalf("frame %+v", got)
	}
	h.ackOne(l, 1)
	h.ackOne(l, 2) // it can be confirmed while it waits
	if h.store.live != 0 {
		t.Fatalf("%d live", h.store.live)
	}
	h.advance(time.Second)
	if len(l.rare().delayed) != 1 {
		t.Fatalf("%d delayed", len(l.rare().delayed))
	}
}

func TestRefusedForGoodIsADeadLetter(t *testing.T) {
	h := newHarness(t, window(1))
	l, p := h.login("alice/phone")
	h.pushMany("alice", 1, 2)
	h.wantPushes(p, "m1")
	h.refuse(l, 1)
	h.wantStatus("m1", "DEAD_LETTER refused")
	h.wantPushes(p, "m2")
	h.refuse(l, 1) // twice changes nothing
	h.ackOne(l, 2)
	if h.store.counts[StatusDead] != 1 || h.store.live != 0 {
		t.Fatalf("ends %v, %d live", h.store.counts, h.store.live)
	}
}

func TestExtendMovesTheTimeoutWithinItsBound(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.ExtendMax = 30 * time.Second })
	l, p := h.login("alice/phone")
	h.push("alice", "m1", nil)
	h.wantPushes(p, "m1")
	h.extend(l, 1, 15*time.Second)
	h.extend(l, 1, time.Second) // never shortens
	h.advance(14900 * time.Millisecond)
	h.wantPushes(p)
	h.wantStatus("m1", "SENT")
	h.extend(l, 1, 0) // another ACK timeout
	h.advance(9 * time.Second)
	h.wantStatus("m1", "SENT")
	h.extend(l, 1, time.Hour) // only up to 10 s + 30 s after the sending
	h.advance(16 * time.Second)
	h.wantStatus("m1", "SENT")
	h.advance(time.Second)
	h.wantStatus("m1", "RETRYING")
	if n := h.core.count.extendsRefused.Get(); n != 1 {
		t.Fatalf("%d refused", n)
	}
}

// Further 4: what a client claims beyond what it was sent is a fault with a name, and confirms nothing.
func TestFurther4NumbersThatWereNeverSentAreAFault(t *testing.T) {
	h := newHarness(t, nil)
	l, p := h.login("alice/phone")
	h.pushMany("alice", 1, 3)
	h.wantPushes(p, ids(1, 3)...)
	for _, a := range []codec.Ack{
		{Kind: codec.AckOne, From: 4, Count: 1}, {Kind: codec.AckRange, From: 2, Count: 5}, {Kind: codec.AckUpTo, From: 1 << 40},
	} {
		if x := h.core.ack(l, &a, h.now); x.code != codec.CodeBadField {
			t.Errorf("%+v: code %d", a, x.code)
		}
	}
	if x := h.core.nack(l, &codec.Nack{Number: 9, Never: true}, h.now); x.code != codec.CodeBadField {
		t.Errorf("NACK: code %d", x.code)
	}
	if x := h.core.extend(l, &codec.Extend{Number: 9}, h.now); x.code != codec.CodeBadField {
		t.Errorf("EXTEND: code %d", x.code)
	}
	if h.store.live != 3 {
		t.Fatalf("%d live", h.store.live)
	}
	h.take(l, &codec.Ack{Kind: codec.AckRange, From: 1, Count: 3})
	h.take(l, &codec.Ack{Kind: codec.AckUpTo, From: 2}) // behind: nothing
	if h.store.counts[StatusAcked] != 3 {
		t.Fatalf("ends %v", h.store.counts)
	}
}

func TestAckListConfirmsItsRanges(t *testing.T) {
	h := newHarness(t, nil)
	l, p := h.login("alice/phone")
	h.pushMany("alice", 1, 10)
	p.pushes()
	f, _, err := codec.Parse(codec.AppendAckList(nil, []codec.Range{{From: 1, Count: 2}, {From: 5, Count: 1}, {From: 9, Count: 2}}, codec.LevelRead), 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	var a codec.Ack
	if err := codec.DecodeAck(f, &a); err != nil {
		t.Fatal(err)
	}
	h.take(l, &a)
	for i, want := range []string{"ACKED", "ACKED", "SENT", "SENT", "ACKED", "SENT", "SENT", "SENT", "ACKED", "ACKED"} {
		h.wantStatus(ids(1, 10)[i], want)
	}
	if r := h.store.Find("m1")[0]; r.Level != codec.LevelRead || r.Attempts != 1 {
		t.Fatalf("record %+v", r)
	}
}

// A message that was refused for a time and finds no room when it is due leaves the retry budget to those that can be sent.
func TestDelayedMessageWithoutRoomLeavesTheRetryBudgetAlone(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.WindowBytes, c.RetryBudgetShare, c.RetryBudgetFloor = 1000, 0, 1 })
	l, p := h.login("alice/phone")
	large := func(x *codec.PublishItem) { x.Payload = make([]byte, 600) }
	h.push("alice", "refused", large)
	h.wantPushes(p, "refused")
	h.nack(l, 1, 12*time.Second)
	h.push("alice", "silent", large)
	copies := len(h.wantPushes(p, "silent"))
	for i := range 20 {
		h.advance(2 * time.Second)
		id := fmt.Sprintf("alive%d", i)
		h.push("alice", id, func(x *codec.PublishItem) { x.Payload = nil })
		for _, x := range p.pushes() {
			switch string(x.MessageID) {
			case "silent":
				copies++
			case id:
				h.ackOne(l, x.Number)
			}
		}
	}
	if copies != 3 {
		t.Fatalf("%d copies of the message that holds the window", copies)
	}
}

// Rule 7 for a copy the client asked for: that a later number was confirmed before it was written says nothing about it.
func TestCopyAfterANackIsNotCountedOnAStuckLink(t *testing.T) {
	h := newHarness(t, nil)
	l, p := h.login("alice/phone")
	h.pushMany("alice", 1, 2)
	h.ackOne(l, 2)
	h.nack(l, 1, 200*time.Millisecond)
	p.unsent = 100
	h.advance(time.Second)
	h.wantPushes(p, "m1", "m2", "m1")
	h.advance(12 * time.Second)
	if r := h.store.Find("m1")[0]; r.Attempts != 1 || l.describe() != "stuck" {
		t.Fatalf("%d attempts counted, the link is %s", r.Attempts, l.describe())
	}
}
