package delivery

import (
	"time"

	"holdfast/ack"
)

// Fired takes one entry whose time came: no ACK so far (timeout), or the end of its back-off (retry). It stays in the table, so an
// ACK that comes first still wins; every decision below looks again under the table's lock and does nothing when it lost.
func (e *Engine) Fired(x *ack.Expired, now Now) {
	l := e.links[x.Owner]
	if l == nil {
		return // the session is over; its entries were evicted
	}
	switch Status(x.Entry.Status) {
	case StatusSent, StatusTimeout:
		e.timeout(l, x, now)
	case StatusRetrying:
		e.due(l, x, now)
	default:
		panic("an entry with a timer is in state " + Status(x.Entry.Status).String())
	}
}

// timeout decides about a message that was not acknowledged in time.
func (e *Engine) timeout(l *Link, x *ack.Expired, now Now) {
	ref := toRef(x.Entry.Ref)
	e.core.count.timeouts.Inc()
	if !reached(l, x) {
		e.stick(l, x, now)
		return
	}
	if x.LastAckMs < x.Entry.SentMs && l.hold&(holdStalled|holdParked) == 0 {
		e.stall(l, x, now)
	}
	if l.hold&holdStalled != 0 && l.rare().probe != ref {
		if e.probing(l) {
			e.rearm(x, StatusTimeout, now.MonoMs+e.core.ackTimeoutMs)
			return
		}
		l.rare().probe = ref
	}
	e.countTimeout(l, x, now)
}

// reached reports whether the frame can have reached the client (rule 7): its TCP took everything, or has confirmed something
// that was written behind it. A busy connection always has bytes on their way, so the first alone would count nothing.
func reached(l *Link, x *ack.Expired) bool {
	first := x.Entry.SentMs == x.Entry.AddedMs // the number of a later copy does not say where in the stream it is
	if first && l.ackedMax.Load() > x.Entry.Number {
		return true
	}
	if !first && x.LastAckMs >= x.Entry.SentMs {
		return true
	}
	return l.peer.Unsent() == 0
}

// stick marks a link whose TCP does not take bytes. The message is as if just written; nothing new goes out.
func (e *Engine) stick(l *Link, x *ack.Expired, now Now) {
	e.rearm(x, Status(x.Entry.Status), now.MonoMs+e.core.ackTimeoutMs)
	if l.hold&holdStuck != 0 {
		return
	}
	l.rare().stuckMs, l.rare().checkMs = now.MonoMs, now.MonoMs+stuckCheckMs
	l.setHold(holdStuck)
	e.tend(l)
}

// stall marks a link on which nothing was acknowledged since x was written; x becomes its probe (R9). The table is asked once more
// after the event loop can see the mark: an ACK between Expire and here must not leave the link stalled.
func (e *Engine) stall(l *Link, x *ack.Expired, now Now) {
	l.setHold(holdStalled)
	if state, _ := e.core.table.State(l.session); state.LastAckMs >= x.Entry.SentMs {
		l.clearHold(holdStalled)
		return
	}
	more := l.rare()
	more.probe, more.trialMs, more.trials = toRef(x.Entry.Ref), now.MonoMs, 0
	if l.backlog {
		e.tend(l)
	}
}

// probing reports whether the probe of a stalled link is still under way.
func (e *Engine) probing(l *Link) bool {
	_, entry, ok := e.core.table.Find(l.session, fromRef(l.rare().probe))
	return ok && !entry.Parked
}

// countTimeout counts the attempt and decides what follows: another one, the next login, or the dead letter.
func (e *Engine) countTimeout(l *Link, x *ack.Expired, now Now) {
	c := e.core
	ref := toRef(x.Entry.Ref)
	attempts, live := plusOne(x.Entry.Attempts), x.Entry.Live+1
	c.store.Note(ref, attempts, true)
	lastLive := int(live) >= c.config.LiveAttemptsMax
	switch {
	case int(attempts) >= c.config.LifeAttemptsMax:
		e.bury(l, x, attempts, ReasonAttempts, now)
	case lastLive && c.config.AfterLast == AfterLastDead:
		e.bury(l, x, attempts, ReasonLiveLimit, now)
	case l.hold&holdParked != 0:
		e.shelve(l, x, attempts, live)
		c.count.parkedStalled.Inc()
		return
	case lastLive:
		e.shelve(l, x, attempts, live)
		c.count.parkedLive.Inc()
	default:
		e.backOff(l, x, attempts, live, now)
		return
	}
	if l.hold&holdStalled != 0 && l.rare().probe == ref {
		e.park(l, now)
	}
}

// backOff arms the next attempt. The first one is capped, so that a second copy comes between 1 and 1.5 x the ACK timeout
// whatever the settings.
func (e *Engine) backOff(l *Link, x *ack.Expired, attempts uint16, live uint8, now Now) {
	delay := e.core.config.Backoff.Delay(int(live), e.rand)
	if live == 1 {
		delay = min(delay, time.Duration(firstRetryShare*float64(e.core.config.AckTimeout)))
	}
	_, r := e.core.table.Rearm(x.Handle, ack.Update{
		Status: move(x.Entry.Status, StatusRetrying), DeadlineMs: now.MonoMs + delay.Milliseconds(),
		Attempts: int(attempts), Live: live, Flags: x.Entry.Flags, Resend: true,
	})
	if r == ack.RearmUserLimit {
		e.shelve(l, x, attempts, live)
		e.core.count.parkedLimit.Inc()
	}
}

// due sends a message again, now that its back-off is over.
func (e *Engine) due(l *Link, x *ack.Expired, now Now) {
	switch {
	case l.hold&holdAll != 0:
		e.rearm(x, StatusRetrying, now.MonoMs+blockedRetryMs)
		return
	case l.hold&holdStalled != 0 && l.rare().probe != toRef(x.Entry.Ref) && e.probing(l):
		e.rearm(x, StatusRetrying, now.MonoMs+e.core.ackTimeoutMs)
		return
	case !e.core.budget.Take(now.MonoMs):
		e.core.count.budgetEmpty.Inc()
		e.rearm(x, StatusRetrying, now.MonoMs+budgetRetryMs)
		return
	}
	cmd, item, verdict := e.reread(l, x, now)
	switch verdict {
	case readGone:
	case readLater:
		e.rearm(x, StatusRetrying, now.MonoMs+storeRetryMs)
	case readOK:
		h, r := e.core.table.Rearm(x.Handle, ack.Update{
			Status: move(x.Entry.Status, StatusSent), DeadlineMs: now.MonoMs + e.core.ackTimeoutMs, SentMs: now.MonoMs,
			Attempts: int(x.Entry.Attempts), Live: x.Entry.Live, Flags: x.Entry.Flags, Resend: true,
		})
		switch r {
		case ack.RearmOK:
			e.resend(l, h, x, &cmd, &item, now)
		case ack.RearmUserLimit:
			e.shelve(l, x, x.Entry.Attempts, x.Entry.Live)
			e.core.count.parkedLimit.Inc()
		case ack.RearmLost: // ACKed meanwhile
		}
	}
}

// rearm gives an entry another timer without counting anything.
func (e *Engine) rearm(x *ack.Expired, to Status, deadlineMs int64) {
	e.core.table.Rearm(x.Handle, ack.Update{
		Status: move(x.Entry.Status, to), DeadlineMs: deadlineMs,
		Attempts: int(x.Entry.Attempts), Live: x.Entry.Live, Flags: x.Entry.Flags,
	})
}

// bury dead-letters a message, unless somebody else ended it first.
func (e *Engine) bury(l *Link, x *ack.Expired, attempts uint16, reason Reason, now Now) {
	_, wake, ok := e.core.table.Take(x.Handle)
	if !ok {
		return
	}
	e.core.endOne(Ending{Ref: toRef(x.Entry.Ref), Status: StatusDead, Attempts: attempts, Reason: reason}, now)
	e.freed(l, wake)
}

// shelve leaves a message to the next login. It keeps its place in the table for a late ACK, but neither timer nor window.
func (e *Engine) shelve(l *Link, x *ack.Expired, attempts uint16, live uint8) {
	h, r := e.core.table.Rearm(x.Handle, ack.Update{
		Status: x.Entry.Status, Attempts: int(attempts), Live: live, Flags: x.Entry.Flags,
	})
	if r != ack.RearmOK {
		return
	}
	_, wake := e.core.table.Park(h, move(x.Entry.Status, StatusOffline))
	e.freed(l, wake)
}
