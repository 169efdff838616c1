package delivery

import (
	"fmt"

	"holdfast/ack"
	"holdfast/codec"
)

// simSession is what was written on one connection, as seen from outside.
type simSession struct {
	last       uint64 // highest request number
	byNumber   map[uint64]*simSent
	byDelivery map[*simDelivery]*simSent
	noAcks     map[string]bool
	openMs     int64
	heardMs    int64 // last ACK, NACK or EXTEND that the server took; 0: none
	ackedMs    int64 // last ACK by number
	stalled    bool
	careful    bool // two connections before it were silent: one message at a time until it says something
	resends    int
	parks      int // times it was parked
	parked     bool
	entries    []ack.Expired
}

// simSent is one message on one connection.
type simSent struct {
	d      *simDelivery
	number uint64
	copies int
	nacks  int
}

func (d *simDelivery) String() string {
	return fmt.Sprintf("%s/%s (%d, queue %d)", d.command.User, d.command.MessageID, d.ref.Seq, d.queue)
}

func (s *simSession) nacked(number uint64) {
	if x := s.byNumber[number]; x != nil {
		x.nacks++
		x.d.refusals++
	}
}

// watchParking counts how often a connection was parked; what it had in flight may be written once more for it. A connection is
// stalled only when nothing was confirmed since its probe was written.
func (c *simConn) watchParking() {
	stalled := c.link.hold&holdStalled != 0
	if stalled && !c.seen.stalled {
		_, probe, ok := c.node.core.table.Find(c.link.session, fromRef(c.link.rare().probe))
		if at := c.seen.ackedMs; ok && at > probe.SentMs && at < c.w.now.MonoMs { // now: it came while the lane was at it
			c.w.fail("conn %d is stalled, and confirmed something since its probe %d was written", c.id, probe.Ref.Seq)
		}
	}
	c.seen.stalled = stalled
	parked := c.link.hold&holdParked != 0
	if parked && !c.seen.parked {
		c.seen.parks++
		for _, x := range c.seen.byNumber {
			if x.d.live() {
				x.d.free++
			}
		}
	}
	c.seen.parked = parked
}

// mayWrite fails when the server tries to write a message to a connection on which it must not.
func (c *simConn) mayWrite(x *codec.Push) {
	w := c.w
	switch {
	case c.refused:
		w.fail("conn %d: %s is written although the outbox was full and has not drained", c.id, x.MessageID)
	case c.replaced:
		w.fail("conn %d: %s is written although the device has replaced the connection", c.id, x.MessageID)
	case c.lane.away:
		w.fail("conn %d: %s is written although the node sends its clients away", c.id, x.MessageID)
	case c.link.hold&holdAll != 0:
		w.fail("conn %d: %s is written although the link is held (%b)", c.id, x.MessageID, c.link.hold)
	case !c.open:
		w.fail("conn %d: %s is written before the login is done", c.id, x.MessageID)
	}
	if at := c.stuckSince(); at > 0 && !c.over && c.seen.byNumber[x.Number] == nil {
		w.fail("conn %d: %s is written, and the client's TCP has taken nothing for %d ms", c.id, x.MessageID, w.now.MonoMs-at)
	}
}

// stuckSince is when the oldest message in the outbox was put there, when that is so long ago that the server must have seen that it
// is stuck: it has timed out, and nothing was heard since; 0 otherwise.
func (c *simConn) stuckSince() int64 {
	p := &c.w.plan
	slack := 2*p.tickMs + 2*p.laneSlowMs + 100
	for _, f := range c.outbox {
		if f.delivery == nil || !f.delivery.live() {
			continue
		}
		if c.w.now.MonoMs-f.putMs > p.config.AckTimeout.Milliseconds()+slack && c.seen.heardMs < f.putMs {
			return f.putMs
		}
		return 0
	}
	return 0
}

// wrote takes a message that is written, and fails when it should not be there, or not look like that.
func (c *simConn) wrote(x *codec.Push) *simDelivery {
	w := c.w
	if x.NoAck {
		c.wroteNoAck(x)
		return nil
	}
	q, ok := w.store.queue(c.device.user.name, c.device.device)
	d := w.ledger.byQueue[q][string(x.MessageID)]
	if !ok || d == nil {
		w.fail("conn %d of %s: %s is not for this device", c.id, c.device.name, x.MessageID)
	}
	w.logf("conn %d (%s) <- %d %s attempt %d, redelivered %v, backlog %v", c.id, c.device.name, x.Number, d, x.Attempt, x.Redelivered, x.FromBacklog)
	cmd := &d.command
	switch {
	case string(cmd.User) != c.device.user.name || string(x.Payload) != string(cmd.Payload) || x.Priority != cmd.Priority:
		w.fail("conn %d: %s is not what was accepted", c.id, d)
	case d.status.End() || d.gone:
		w.fail("conn %d: %s is written after it has ended as %s", c.id, d, d.status)
	case cmd.ExpireAtMs <= w.now.WallMs:
		w.fail("conn %d: %s is written after its time", c.id, d)
	case cmd.OwnTTL != (x.ExpireAtMs != 0) || cmd.OwnTTL && int64(x.ExpireAtMs) != cmd.ExpireAtMs:
		w.fail("conn %d: %s says it expires at %d", c.id, d, x.ExpireAtMs)
	case x.Attempt < 1 || x.Attempt > uint64(w.plan.config.LifeAttemptsMax):
		w.fail("conn %d: %s attempt %d of %d", c.id, d, x.Attempt, w.plan.config.LifeAttemptsMax)
	case d.boot == w.boots && x.Attempt < d.attempt:
		w.fail("conn %d: %s attempt %d after %d", c.id, d, x.Attempt, d.attempt)
	case d.boot == w.boots && d.copies > 0 && !x.Redelivered:
		w.fail("conn %d: %s was sent before and does not say so", c.id, d)
	case d.copies == 0 && x.Redelivered:
		w.fail("conn %d: %s says redelivered the first time", c.id, d)
	case d.copies > int(x.Attempt)-1+d.free:
		w.fail("conn %d: %s attempt %d, but there are %d copies, %d of them uncounted", c.id, d, x.Attempt, d.copies, d.free)
	}
	c.number(x, d)
	d.copies++
	d.boot, d.attempt = w.boots, x.Attempt
	return d
}

// number checks the request number: the next one for a message that is new on this connection, the same again for a copy.
func (c *simConn) number(x *codec.Push, d *simDelivery) {
	w, s := c.w, &c.seen
	sent := s.byDelivery[d]
	if sent == nil {
		if x.Number != s.last+1 {
			w.fail("conn %d: %s has number %d after %d", c.id, d, x.Number, s.last)
		}
		s.last = x.Number
		sent = &simSent{d: d, number: x.Number}
		s.byDelivery[d], s.byNumber[x.Number] = sent, sent
		w.node.budget.fresh(w.now.MonoMs)
		sent.copies = 1
		if s.heardMs == 0 {
			c.mute(d)
		}
		return
	}
	sent.copies++
	s.resends++
	most := w.plan.config.LiveAttemptsMax + sent.nacks + s.parks
	switch {
	case x.Number != sent.number:
		w.fail("conn %d: %s has number %d and had %d", c.id, d, x.Number, sent.number)
	case sent.copies > most:
		w.fail("conn %d: copy %d of %s, at most %d on one connection", c.id, sent.copies, d, most)
	case c.link.hold&holdStalled != 0 && c.link.rare().probe != d.ref && c.probing():
		w.fail("conn %d is stalled, and %s is sent again beside the probe %d", c.id, d, c.link.rare().probe.Seq)
	case s.heardMs == 0 && s.resends > (w.plan.config.LiveAttemptsMax-1)*(1+c.endedHere()):
		w.fail("conn %d never said anything and got %d copies", c.id, s.resends)
	}
	if w.doing != "turn" { // what was parked with its link is sent again at its own pace
		w.node.budget.retry(w, &w.plan.config)
	}
}

// mute bounds what is new on a connection that has not said anything: the window, what left it by ending, and single tries.
func (c *simConn) mute(d *simDelivery) {
	w, s := c.w, &c.seen
	timeout := w.plan.config.AckTimeout.Milliseconds()
	most := min(w.plan.config.WindowMsgs, c.device.windowMsgs) + c.endedHere() + 2 + int((w.now.MonoMs-s.openMs)/timeout)
	if int(s.last) > most {
		w.fail("conn %d never said anything and got %d messages, %d at most", c.id, s.last, most)
	}
	if state, _ := c.node.core.table.State(c.link.session); s.careful && state.InFlight > 1 && !s.parked { // a parked one gets single tries
		w.fail("conn %d: %s is written beside another, and the two connections before were silent", c.id, d)
	}
}

// probing reports whether the probe of the link is in flight.
func (c *simConn) probing() bool {
	_, e, ok := c.node.core.table.Find(c.link.session, fromRef(c.link.rare().probe))
	return ok && !e.Parked
}

// endedHere is how many messages of this connection have ended.
func (c *simConn) endedHere() int {
	n := 0
	for _, x := range c.seen.byNumber {
		if !x.d.live() {
			n++
		}
	}
	return n
}

func (c *simConn) wroteNoAck(x *codec.Push) {
	item := c.w.ledger.noAcks[string(x.MessageID)]
	switch {
	case item == nil:
		c.w.fail("conn %d: %s was not sent as fire and forget", c.id, x.MessageID)
	case string(item.User) != c.device.user.name || len(item.Device) > 0 && string(item.Device) != c.device.device:
		c.w.fail("conn %d: %s is not for %s", c.id, x.MessageID, c.device.name)
	case c.seen.noAcks[string(x.MessageID)]:
		c.w.fail("conn %d: %s is sent again", c.id, x.MessageID)
	case string(item.Payload) != string(x.Payload):
		c.w.fail("conn %d: %s is not what was published", c.id, x.MessageID)
	}
	c.seen.noAcks[string(x.MessageID)] = true
}

// check recounts the window of an open link from what the ledger knows.
func (c *simConn) check() {
	w, s := c.w, &c.seen
	s.entries = c.node.core.table.Entries(c.link.session, s.entries[:0])
	count, bytes := 0, 0
	for i := range s.entries {
		e := &s.entries[i].Entry
		d := w.ledger.bySeq[e.Ref.Seq]
		sent := s.byNumber[e.Number]
		switch {
		case d == nil || sent == nil || sent.d != d:
			w.fail("conn %d: number %d is in flight and was never written", c.id, e.Number)
		case !d.live():
			w.fail("conn %d: %s is in flight and has ended as %s", c.id, d, d.status)
		case !e.Parked && !e.Armed && len(c.lane.fired) == 0:
			w.fail("conn %d: %s is in flight without a timer", c.id, d)
		}
		if !e.Parked {
			count++
			bytes += d.command.size()
		}
	}
	if limit := min(w.plan.config.WindowMsgs, c.device.windowMsgs); count > limit {
		w.fail("conn %d: %d messages in flight, %d allowed", c.id, count, limit)
	}
	if limit := int(smaller(int32(c.device.windowBytes), w.plan.config.WindowBytes)); bytes > limit && count > 1 {
		w.fail("conn %d: %d bytes in flight, %d allowed", c.id, bytes, limit)
	}
}

// simBudget counts retries against fresh deliveries, second by second.
type simBudget struct{ seconds []simSecond }

type simSecond struct{ at, fresh, retries int64 }

func (b *simBudget) second(nowMs int64) *simSecond {
	at := nowMs / 1000
	if n := len(b.seconds); n == 0 || b.seconds[n-1].at != at {
		b.seconds = append(b.seconds, simSecond{at: at})
	}
	return &b.seconds[len(b.seconds)-1]
}

func (b *simBudget) fresh(nowMs int64) { b.second(nowMs).fresh++ }

// retry counts one and fails when the last ten seconds hold more than a share of what was fresh in the last twenty plus the floor.
func (b *simBudget) retry(w *sim, c *Config) {
	x := b.second(w.now.MonoMs)
	x.retries++
	fresh, retries := int64(0), int64(0)
	for i := len(b.seconds) - 1; i >= 0 && b.seconds[i].at > x.at-20; i-- {
		fresh += b.seconds[i].fresh
		if b.seconds[i].at > x.at-10 {
			retries += b.seconds[i].retries
		}
	}
	if most := int64(c.RetryBudgetShare*float64(fresh)) + int64(c.RetryBudgetFloor)*11; retries > most {
		w.fail("%d retries in ten seconds, the budget is %d", retries, most)
	}
}
