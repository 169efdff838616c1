package delivery

import (
	"fmt"
	"testing"
	"time"

	"holdfast/codec"
	"holdfast/scheduler"
)

// keepAlive has the client confirm a fresh message, so that the link counts as one that works.
func (h *harness) keepAlive(l *Link, p *fakePeer, id string) {
	h.t.Helper()
	h.push(l.user, id, nil)
	for _, x := range p.pushes() {
		if string(x.MessageID) == id {
			h.ackOne(l, x.Number)
			return
		}
	}
	h.t.Fatalf("%s did not arrive", id)
}

// C4: one message is never ACKed, all others are, however slowly they come: the others are not slowed, and the one ends.
func TestC4OneUnackedMessageHoldsUpNothing(t *testing.T) {
	for _, every := range []time.Duration{600 * time.Millisecond, 7 * time.Second, 25 * time.Second, 2 * time.Minute} {
		h := newHarness(t, window(4))
		l, p := h.login("alice/phone")
		h.push("alice", "bad", nil)
		copies := 0
		for i := range max(10, int(time.Minute/every)) {
			h.advance(every)
			id := fmt.Sprintf("good%d", i)
			h.push("alice", id, nil)
			for _, x := range p.pushes() {
				if string(x.MessageID) == "bad" {
					copies++
					continue
				}
				h.ackOne(l, x.Number)
			}
			if h.status(id) != "ACKED" {
				t.Fatalf("every %s: %s is %s", every, id, h.status(id))
			}
		}
		if copies != 3 {
			t.Fatalf("every %s: %d copies of the bad message", every, copies)
		}
		h.wantStatus("bad", "OFFLINE_BUFFERED")
	}
}

func TestLastLiveAttemptCanBeADeadLetter(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.AfterLast = AfterLastDead })
	l, p := h.login("alice/phone")
	h.push("alice", "m1", nil)
	for i := range 30 {
		h.advance(2 * time.Second)
		h.keepAlive(l, p, fmt.Sprintf("alive%d", i))
	}
	h.wantStatus("m1", "DEAD_LETTER live_limit")
	if r := h.store.Find("m1")[0]; r.Attempts != 3 {
		t.Fatalf("record %+v", r)
	}
}

func TestBackOffFollowsThePreset(t *testing.T) {
	for name, backoff := range map[string]scheduler.Backoff{"standard": scheduler.Standard(), "steep": scheduler.Steep()} {
		h := newHarness(t, func(c *Config) { c.Backoff = backoff; c.LiveAttemptsMax = 6 })
		_, p := h.login("alice/phone")
		h.push("alice", "m1", nil)
		h.wantPushes(p, "m1")
		for retry := 1; retry < 6; retry++ {
			sentMs, waited := h.now.MonoMs, time.Duration(0)
			for p.count() == 0 {
				h.advance(10 * time.Millisecond)
				waited = time.Duration(h.now.MonoMs-sentMs) * time.Millisecond
			}
			most := 10*time.Second + backoff.Max(retry)
			if least := most - backoff.JitterMax + backoff.JitterMin; waited < least-30*time.Millisecond || waited > most+60*time.Millisecond {
				t.Errorf("%s, retry %d after %s, want %s to %s", name, retry, waited, least, most)
			}
			if got := h.wantPushes(p, "m1")[0]; got.Attempt != uint64(retry)+1 || got.Number != 1 {
				t.Fatalf("%s, retry %d: %+v", name, retry, got)
			}
		}
	}
}

// R18: an ACK that comes after the timeout, during the back-off or after the resend ends the message, and no copy follows.
func TestR18LateAcksEndTheMessage(t *testing.T) {
	for name, wait := range map[string]time.Duration{
		"before the timeout": 9 * time.Second, "in the back-off": 10*time.Second + 500*time.Millisecond, "after the resend": 15 * time.Second,
		"in the second back-off": 24 * time.Second, "when it is parked": 2 * time.Minute,
	} {
		h := newHarness(t, nil)
		l, p := h.login("alice/phone")
		h.push("alice", "m1", nil)
		h.advance(wait)
		p.pushes()
		h.ackOne(l, 1)
		if h.status("m1") != "ACKED" {
			t.Fatalf("%s: %s", name, h.status("m1"))
		}
		h.advance(2 * time.Minute)
		h.wantPushes(p)
	}
}

func TestAckByMessageIDEndsAMessageOfAnEarlierConnection(t *testing.T) {
	h := newHarness(t, window(1))
	l, _ := h.login("alice/phone")
	other, _ := h.login("bob/phone")
	h.pushMany("alice", 1, 3)
	h.gone(l)
	l, p := h.login("alice/phone")
	h.wantPushes(p, "m1")
	ask := func(l *Link, id string) {
		l.asking.Add(1)
		h.e.AckMessageID(l, id, codec.LevelProcessed, h.now)
		h.settle()
	}
	ask(other, "m1") // not his
	h.wantStatus("m1", "SENT")
	ask(l, "m3") // still in the store
	ask(l, "m1") // in flight
	ask(l, "m1")
	ask(l, "unknown")
	h.wantStatus("m1", "ACKED")
	h.wantStatus("m3", "ACKED")
	h.wantPushes(p, "m2") // the window is free again
	if l.asking.Load() != 0 {
		t.Fatalf("%d questions open", l.asking.Load())
	}
}

// Rule 7: what the peer's TCP did not take is no attempt; a link that takes nothing gets nothing new and is closed in the end.
func TestStuckLinkCountsNoAttemptsAndIsClosed(t *testing.T) {
	h := newHarness(t, nil)
	_, p := h.login("alice/phone")
	h.push("alice", "m1", nil)
	p.unsent = 5000
	h.advance(12 * time.Second)
	h.wantPushes(p, "m1")
	h.push("alice", "m2", nil)
	h.wantPushes(p)
	h.wantStatus("m2", "OFFLINE_BUFFERED")
	h.advance(25 * time.Second)
	if p.closed != 0 {
		t.Fatalf("closed after %s", 37*time.Second)
	}
	h.advance(5 * time.Second)
	if p.closed != codec.CodeSlowConsumer {
		t.Fatalf("close code %d", p.closed)
	}
	h.wantPushes(p)
	if r := h.store.Find("m1")[0]; r.Attempts != 0 {
		t.Fatalf("%d attempts counted", r.Attempts)
	}
}

func TestStuckLinkGoesOnWhenBytesMove(t *testing.T) {
	h := newHarness(t, nil)
	l, p := h.login("alice/phone")
	h.push("alice", "m1", nil)
	p.unsent = 5000
	h.advance(12 * time.Second)
	h.push("alice", "m2", nil)
	h.wantPushes(p, "m1")
	p.unsent = 0
	h.advance(1200 * time.Millisecond)
	h.wantPushes(p, "m2")
	h.take(l, &codec.Ack{Kind: codec.AckUpTo, From: 2})
	if h.store.live != 0 || p.closed != 0 {
		t.Fatalf("%d live, closed %d", h.store.live, p.closed)
	}
}

// A busy connection always has bytes on their way: what was confirmed behind the message shows that it arrived.
func TestBusyLinkIsNotTakenForStuck(t *testing.T) {
	h := newHarness(t, nil)
	l, p := h.login("alice/phone")
	h.push("alice", "bad", nil)
	h.keepAlive(l, p, "good1")
	p.unsent = 300
	h.advance(15 * time.Second)
	h.wantPushes(p, "bad")
	h.keepAlive(l, p, "good2")
	h.advance(20 * time.Second)
	if n := len(p.pushes()); n != 1 {
		t.Fatalf("%d copies", n)
	}
}

// R9: a link that acknowledges nothing gets copies of one message only, and then silence but for rare single tries.
func TestR9StalledLinkRetriesOneProbeAndIsParked(t *testing.T) {
	h := newHarness(t, window(32))
	l, p := h.login("alice/phone")
	h.pushMany("alice", 1, 100)
	h.wantPushes(p, ids(1, 32)...)
	h.advance(80 * time.Second)
	copies := make(map[string]int)
	for _, x := range p.pushes() {
		copies[string(x.MessageID)]++
	}
	if len(copies) > 4 || copies["m1"] != 2 { // the probe twice more; the rest single tries of new messages: none while the window is full
		t.Fatalf("copies %v", copies)
	}
	if l.describe() != "parked" {
		t.Fatalf("the link is %s", l.describe())
	}
	if r := h.store.Find("m2")[0]; r.Attempts != 0 || !r.Sent {
		t.Fatalf("the probe's neighbour: %+v", r)
	}
	h.advance(2 * time.Hour / 12)
	if n := len(p.pushes()); n > 8 {
		t.Fatalf("%d messages to a link that says nothing", n)
	}
}

// What was parked goes again under its old numbers when the client acknowledges anything, and then the backlog follows.
func TestParkedLinkResumesWithAnyAck(t *testing.T) {
	h := newHarness(t, window(8))
	l, p := h.login("alice/phone")
	h.pushMany("alice", 1, 12)
	h.wantPushes(p, ids(1, 8)...)
	h.advance(36 * time.Second)
	for _, x := range p.pushes() {
		if string(x.MessageID) != "m1" && string(x.MessageID) != "m9" {
			t.Fatalf("%s was sent to a stalled link", x.MessageID)
		}
	}
	if l.describe() != "parked" {
		t.Fatalf("the link is %s", l.describe())
	}
	h.ackOne(l, 5)
	got := make(map[string]uint64)
	for _, x := range p.pushes() {
		got[string(x.MessageID)] = x.Number
		if x.Number <= 8 && !x.Redelivered {
			t.Fatalf("frame %+v", x)
		}
	}
	for i := 2; i <= 8; i++ {
		if id := fmt.Sprintf("m%d", i); i != 5 && got[id] != uint64(i) {
			t.Fatalf("%s came as number %d: %v", id, got[id], got)
		}
	}
	for range 4 {
		state, _ := h.core.table.State(l.session)
		h.take(l, &codec.Ack{Kind: codec.AckUpTo, From: state.NumberLast})
	}
	if h.store.live != 0 {
		t.Fatalf("%d live", h.store.live)
	}
	h.pushMany("alice", 13, 13)
	if list := p.pushes(); string(list[len(list)-1].MessageID) != "m13" || list[len(list)-1].FromBacklog {
		t.Fatal("the link is not live again")
	}
}

func TestEmptyRetryBudgetDelaysRetries(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.RetryBudgetShare = 0; c.RetryBudgetFloor = 1 })
	var peers []*fakePeer
	for i := range 50 {
		_, p := h.login(fmt.Sprintf("user%d/phone", i))
		peers = append(peers, p)
		h.push(fmt.Sprintf("user%d", i), fmt.Sprintf("m%d", i), nil)
		p.pushes()
	}
	h.advance(15 * time.Second)
	copies := 0
	for _, p := range peers {
		copies += len(p.pushes())
	}
	if copies == 0 || copies > 20 || h.core.count.budgetEmpty.Get() == 0 {
		t.Fatalf("%d copies with a budget of 1 a second, %d refusals", copies, h.core.count.budgetEmpty.Get())
	}
	h.advance(3 * time.Minute)
	for _, p := range peers {
		copies += len(p.pushes())
	}
	if copies != 100 {
		t.Fatalf("%d copies in the end, want 2 a message", copies)
	}
}

// R11: beyond UserResendMax un-ACKed messages of one user wait for the next login instead of being resent.
func TestR11ResendPathOfAUserIsBounded(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.WindowMsgs = 50; c.UserResendMax = 5 })
	l, p := h.login("alice/phone")
	h.pushMany("alice", 1, 20)
	p.pushes()
	h.advance(5 * time.Second)
	h.keepAlive(l, p, "alive")
	h.advance(7 * time.Second)
	h.keepAlive(l, p, "alive2")
	h.advance(3 * time.Second)
	if h.core.count.parkedLimit.Get() != 15 || h.core.table.Stats().Resend > 5 {
		t.Fatalf("%d over the limit, stats %+v", h.core.count.parkedLimit.Get(), h.core.table.Stats())
	}
	h.wantStatus("m20", "OFFLINE_BUFFERED")
	h.gone(l)
	_, p = h.login("alice/phone")
	h.wantPushes(p, ids(1, 20)...)
}

// G5: attempts are counted over connections and restarts, and a message that is never ACKed ends once in the dead letters.
func TestG5LifeLimitHoldsOverReconnectsAndRestarts(t *testing.T) {
	h := newHarness(t, nil)
	copies := 0
	for round := range 40 {
		l, p := h.login("alice/phone")
		if round == 0 {
			h.push("alice", "m1", nil)
		}
		h.advance(time.Minute) // three copies at most
		copies += len(p.pushes())
		h.gone(l)
		if round%3 == 0 {
			h.boot(testConfig())
		}
	}
	if copies != 20 {
		t.Fatalf("%d copies, want 20", copies)
	}
	h.wantStatus("m1", "DEAD_LETTER attempts")
	if h.store.counts[StatusDead] != 1 {
		t.Fatalf("ends %v", h.store.counts)
	}
}

// G5: the same when the client leaves before every timeout while it confirms everything else.
func TestG5SkippedMessageIsCountedThoughTheClientLeavesInTime(t *testing.T) {
	h := newHarness(t, nil)
	copies := 0
	for round := range 40 {
		l, p := h.login("alice/phone")
		if round == 0 {
			h.push("alice", "bad", nil)
		}
		h.push("alice", fmt.Sprintf("good%d", round), nil)
		for _, x := range p.pushes() {
			if string(x.MessageID) == "bad" {
				copies++
			} else {
				h.ackOne(l, x.Number)
			}
		}
		h.advance(3 * time.Second)
		h.gone(l)
	}
	if copies != 20 {
		t.Fatalf("%d copies, want 20", copies)
	}
	h.wantStatus("bad", "DEAD_LETTER attempts")
}
