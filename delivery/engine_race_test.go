package delivery

import (
	"fmt"
	"testing"
	"time"

	"holdfast/ack"
	"holdfast/codec"
)

// What the event loop and the lane do at the same time, in the orders that matter: a timer has fired and is on its way to the lane
// when something else decides.

// fire takes what has timed out by then, but does not hand it to the engine.
func (h *harness) fire(after time.Duration) []ack.Expired {
	h.now.MonoMs += after.Milliseconds()
	h.now.WallMs += after.Milliseconds()
	return h.core.table.Expire(h.now.MonoMs, nil, 100)
}

func (h *harness) decide(fired []ack.Expired) {
	for i := range fired {
		h.e.Fired(&fired[i], h.now)
	}
	h.settle()
}

func TestAckThatOvertakesItsTimeoutWins(t *testing.T) {
	h := newHarness(t, nil)
	l, p := h.login("alice/phone")
	h.push("alice", "m1", nil)
	h.wantPushes(p, "m1")
	fired := h.fire(10*time.Second + 20*time.Millisecond)
	if len(fired) != 1 {
		t.Fatalf("%d fired", len(fired))
	}
	h.ackOne(l, 1)
	h.decide(fired)
	h.wantStatus("m1", "ACKED")
	h.advance(time.Minute)
	h.wantPushes(p)
	if h.core.count.timeouts.Get() != 1 || h.core.table.Stats().Entries != 0 {
		t.Fatalf("%d timeouts, %d entries", h.core.count.timeouts.Get(), h.core.table.Stats().Entries)
	}
}

func TestAckThatOvertakesADueRetryWins(t *testing.T) {
	h := newHarness(t, nil)
	l, p := h.login("alice/phone")
	h.push("alice", "m1", nil)
	h.advance(10*time.Second + 20*time.Millisecond)
	h.wantPushes(p, "m1")
	fired := h.fire(4 * time.Second)
	if len(fired) != 1 {
		t.Fatalf("%d fired", len(fired))
	}
	h.ackOne(l, 1)
	h.decide(fired)
	h.wantPushes(p)
	h.wantStatus("m1", "ACKED")
}

func TestAckBetweenATimeoutAndItsDecisionKeepsTheLinkOutOfTheStall(t *testing.T) {
	h := newHarness(t, nil)
	l, p := h.login("alice/phone")
	h.pushMany("alice", 1, 2)
	h.wantPushes(p, ids(1, 2)...)
	fired := h.fire(10*time.Second + 20*time.Millisecond)
	h.ackOne(l, 2)
	h.decide(fired)
	if got := l.describe(); got != "live" {
		t.Fatalf("the link is %s", got)
	}
	h.push("alice", "m3", nil)
	h.wantPushes(p, "m3")
}

func TestTimerOfASessionThatIsOverDoesNothing(t *testing.T) {
	h := newHarness(t, nil)
	l, _ := h.login("alice/phone")
	h.push("alice", "m1", nil)
	fired := h.fire(10*time.Second + 20*time.Millisecond)
	h.gone(l)
	h.decide(fired)
	_, p := h.login("alice/phone")
	h.decide(fired)
	if got := h.wantPushes(p, "m1")[0]; got.Attempt != 2 { // alone on a link that said nothing: charged once
		t.Fatalf("attempt %d", got.Attempt)
	}
}

func TestLateEventsOfALinkThatIsOverDoNothing(t *testing.T) {
	h := newHarness(t, nil)
	l, _ := h.login("alice/phone")
	h.push("alice", "m1", nil)
	h.gone(l)
	h.gone(l)
	h.e.Wake(l, h.now)
	h.e.Drained(l, h.now)
	h.e.Delay(l, Ref{Seq: 1}, h.now.MonoMs+1, h.now)
	l.asking.Add(1)
	h.e.AckMessageID(l, "m1", codec.LevelReceived, h.now) // this one counts: the message is his
	h.settle()
	h.wantStatus("m1", "ACKED")
	if h.e.Ticking() || len(h.e.links) != 0 {
		t.Fatal("something of the link is left")
	}
}

func TestCancelThatMeetsAnAckLosesOrWinsOnce(t *testing.T) {
	h := newHarness(t, nil)
	l, _ := h.login("alice/phone")
	h.pushMany("alice", 1, 1)
	r := h.store.Find("m1")[0]
	h.ackOne(l, 1)
	if h.e.Cancel(&r, h.now) {
		t.Fatal("cancelled what was acknowledged")
	}
	if h.core.count.acked.Get() != 1 || h.core.count.cancelled.Get() != 0 {
		t.Fatal("one delivery was counted twice")
	}
}

func TestResumeOfAParkedLinkWaitsForRoomAndForTheOutbox(t *testing.T) {
	h := newHarness(t, window(4))
	l, p := h.login("alice/phone")
	h.pushMany("alice", 1, 4)
	h.advance(36 * time.Second)
	if l.describe() != "parked" {
		t.Fatalf("the link is %s", l.describe())
	}
	p.pushes()
	h.advance(20 * time.Second) // the window is free: single tries may use it
	h.pushMany("alice", 5, 6)
	p.pushes()
	p.full = true
	h.ackOne(l, 3)
	h.wantPushes(p)
	p.full = false
	h.e.Drained(l, h.now)
	h.settle()
	for range 6 {
		h.advance(3 * time.Second)
		for _, x := range p.pushes() {
			h.ackOne(l, x.Number)
		}
	}
	for i := 2; i <= 6; i++ {
		h.wantStatus(fmt.Sprintf("m%d", i), "ACKED")
	}
	if h.wantStatus("m1", "OFFLINE_BUFFERED"); l.describe() != "live" { // the probe had its three copies
		t.Fatalf("the link is %s", l.describe())
	}
}

// stalledAnew is a link that was parked, spoke again, could not take everything back into its window, and fell silent.
func stalledAnew(t *testing.T) (h *harness, l *Link, p *fakePeer) {
	h = newHarness(t, window(2))
	l, p = h.login("alice/phone")
	h.pushMany("alice", 1, 5)
	for acked := false; !acked; { // parked; single tries go unanswered but for m5
		h.advance(time.Second)
		for _, x := range p.pushes() {
			if string(x.MessageID) == "m5" {
				h.ackOne(l, x.Number)
				acked = true
			}
		}
	}
	h.wantPushes(p, "m2", "m3") // m4 finds no room
	for l.describe() != "stalled" {
		h.advance(time.Second)
	}
	p.pushes()
	return h, l, p
}

// R9: what is left to be resumed waits when the link stalls anew, even if room turns up.
func TestResumeWaitsWhileTheLinkIsStalledAgain(t *testing.T) {
	h, l, p := stalledAnew(t)
	h.e.Cancel(&h.store.Find("m3")[0], h.now)
	h.settle()
	h.wantPushes(p)
	h.ackOne(l, 2)
	h.wantPushes(p, "m4")
}

func TestParkedLinkGetsSingleTriesWhateverIsLeftToResume(t *testing.T) {
	h, l, p := stalledAnew(t)
	for l.describe() != "parked" {
		h.advance(time.Second)
	}
	p.pushes()
	h.push("alice", "m6", nil)
	h.advance(30 * time.Second)
	l6 := h.wantPushes(p, "m6")[0]
	h.ackOne(l, l6.Number)
	h.wantPushes(p, "m3", "m4")
}

func TestFrameLimitThatWasLoweredEndsWhatNoLongerFits(t *testing.T) {
	h := newHarness(t, nil)
	h.push("alice", "big", func(x *codec.PublishItem) { x.Payload = make([]byte, 50<<10) })
	h.push("alice", "small", nil)
	c := testConfig()
	c.PayloadBytesMax, c.FrameBytesMax = 8<<10, 16<<10
	h.boot(c)
	_, p := h.login("alice/phone")
	h.wantPushes(p, "small")
	h.wantStatus("big", "DEAD_LETTER undecodable")
}

func TestStorageThatFailsAfterItTookAMessageRefusesIt(t *testing.T) {
	h := newHarness(t, nil)
	var got codec.Result
	b := NewBatch()
	b.Add(&codec.PublishItem{User: []byte("alice"), MessageID: []byte("m1")})
	b.Done = func(b *Batch) { got = b.Result(0) }
	b.begin(h.core)
	b.expect(0)
	b.settle(0, codec.ResultAccepted)
	b.release()
	b.Stored(0, codec.ResultUnavailable)
	if got != codec.ResultUnavailable {
		t.Fatalf("result %s", got)
	}
}
