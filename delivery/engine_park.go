package delivery

import (
	"holdfast/ack"
	"holdfast/codec"
)

// park stops sending on a link whose probe was never acknowledged: everything in flight waits. Its first sending is not counted,
// for nothing says that the client saw it. One new message is tried from time to time, at growing distances: a client that only
// fails on old ones is found healthy by it, a dead one costs next to nothing.
func (e *Engine) park(l *Link, now Now) {
	e.fired = e.core.table.Entries(l.session, e.fired[:0])
	for i := range e.fired {
		x := &e.fired[i]
		if x.Entry.Parked {
			continue
		}
		e.core.store.Note(toRef(x.Entry.Ref), x.Entry.Attempts, true)
		r, _ := e.core.table.Park(x.Handle, move(x.Entry.Status, StatusOffline))
		if r != ack.ParkLost {
			e.core.count.parkedStalled.Inc()
		}
	}
	l.clearHold(holdStalled)
	l.setHold(holdParked)
	more := l.rare()
	more.probe = Ref{}
	if more.trials == 0 {
		more.trialMs = now.MonoMs + e.core.ackTimeoutMs
	}
	if l.backlog {
		e.tend(l)
	}
}

// Wake follows an ACK (or NACK, or EXTEND) that made room or that the lane waits for: the client is there and works.
func (e *Engine) Wake(l *Link, now Now) {
	l.wakeQueued.Store(false) // before anything is looked at: what comes later queues again
	if l.state != linkOpen {
		return
	}
	if l.wantsAcks() {
		l.resume = l.resume || l.hold&holdParked != 0
		l.careful = false
		l.rare().trials, l.rare().probe = 0, Ref{}
		l.clearHold(holdStuck | holdStalled | holdParked)
	}
	e.enqueue(l)
}

// Drained follows the outbox's fall below its low watermark.
func (e *Engine) Drained(l *Link, now Now) {
	l.drainQueued.Store(false)
	l.clearHold(holdOutbox)
	e.enqueue(l)
}

// Delay takes a message that the client refused for longer than it may hold its place in the window: it comes back when dueMs
// (monotonic) has come, under its number, or at the next login.
func (e *Engine) Delay(l *Link, ref Ref, dueMs int64, now Now) {
	if l.state != linkOpen {
		return
	}
	h, entry, ok := e.core.table.Find(l.session, fromRef(ref))
	if !ok || entry.Parked || Status(entry.Status) != StatusRetrying {
		return
	}
	r, wake := e.core.table.Park(h, uint8(StatusRetrying))
	switch r {
	case ack.ParkKept:
		l.rare().delayed = append(l.rare().delayed, delayed{ref: ref, dueMs: dueMs})
		e.tend(l)
	case ack.ParkRemoved: // the store has it, for the next login
		e.core.count.parkedLimit.Inc()
	case ack.ParkLost:
	}
	e.freed(l, wake)
}

// lookDelayed sends again what was refused for a time that is over.
func (e *Engine) lookDelayed(l *Link, now Now) {
	more := l.rare()
	kept := more.delayed[:0]
	for _, d := range more.delayed {
		if d.dueMs > now.MonoMs || l.hold != 0 || now.MonoMs < l.retryMs {
			kept = append(kept, d)
			continue
		}
		h, entry, ok := e.core.table.Find(l.session, fromRef(d.ref))
		if !ok || !entry.Parked || Status(entry.Status) != StatusRetrying {
			continue // it has ended
		}
		x := ack.Expired{Handle: h, Owner: l.sessionID, Entry: entry}
		if !e.fits(l, &entry) || !e.core.budget.Take(now.MonoMs) || !e.unpark(l, &x, now) {
			kept = append(kept, d)
		}
	}
	clear(more.delayed[len(kept):])
	more.delayed = kept
}

// fits reports whether a parked message has room in the window now. It is asked before the retry budget is: a message that cannot go
// must not use up, tick after tick, what the one that is in its way needs to be sent again.
func (e *Engine) fits(l *Link, entry *ack.Entry) bool {
	state, _ := e.core.table.State(l.session)
	return state.InFlight == 0 ||
		state.InFlight < state.Window.MsgsMax && state.BytesInFlight+int(entry.Bytes) <= state.Window.BytesMax
}

// resumeParked sends again what was parked because the link acknowledged nothing, under the same request numbers, and reports
// whether all of it is out. What used up its live attempts stays for the next login; what the client refused for a time comes back
// when that is over.
func (e *Engine) resumeParked(l *Link, now Now) (done bool) {
	e.fired = e.core.table.Parked(l.session, e.fired[:0], e.core.config.UserParkedMax)
	for i := range e.fired {
		x := &e.fired[i]
		if Status(x.Entry.Status) != StatusOffline || int(x.Entry.Live) >= e.core.config.LiveAttemptsMax {
			continue
		}
		if l.hold&holdAll != 0 || !e.unpark(l, x, now) {
			return false
		}
	}
	l.resume = false
	return true
}

// unpark sends one parked message again and reports false when it has to wait.
func (e *Engine) unpark(l *Link, x *ack.Expired, now Now) bool {
	cmd, item, verdict := e.reread(l, x, now)
	if verdict == readLater {
		e.pauseUntil(l, now.MonoMs+storeRetryMs)
	}
	if verdict != readOK {
		return verdict == readGone
	}
	from := x.Entry.Status
	if Status(from) == StatusOffline {
		from = move(from, StatusResend)
	}
	h, r := e.core.table.Unpark(x.Handle, ack.Update{
		Status: move(from, StatusSent), DeadlineMs: now.MonoMs + e.core.ackTimeoutMs, SentMs: now.MonoMs,
		Attempts: int(x.Entry.Attempts), Live: x.Entry.Live, Flags: x.Entry.Flags,
	})
	switch r {
	case ack.UnparkOK:
		return e.resend(l, h, x, &cmd, &item, now)
	case ack.UnparkFull:
		return false
	default:
		return true // ACKed meanwhile
	}
}

// readVerdict says what a second look at a stored message found.
type readVerdict uint8

const (
	readOK    readVerdict = iota
	readGone              // it has ended, by somebody else or just now; it is out of the table
	readLater             // the store does not answer
)

// reread reads a message that is in the table, to send it again. Its time and its life are looked at before every write.
func (e *Engine) reread(l *Link, x *ack.Expired, now Now) (cmd Command, item Item, v readVerdict) {
	c := e.core
	ref := toRef(x.Entry.Ref)
	item, ok, err := c.store.Read(&e.buffer, ref)
	if err != nil {
		c.count.storeErrors.Inc()
		return cmd, item, readLater
	}
	end := Ending{Ref: ref, Status: StatusDead, Attempts: x.Entry.Attempts, Reason: ReasonUndecodable}
	over := !ok
	if ok {
		item.Attempts = x.Entry.Attempts
		if DecodeCommand(item.Command, &cmd) != nil {
			over = true
		} else {
			over, end = c.over(&cmd, &item, now)
		}
	}
	if !over {
		return cmd, item, readOK
	}
	_, wake, won := c.table.Take(x.Handle)
	if ok && won {
		c.endOne(end, now)
	}
	e.freed(l, wake)
	return cmd, item, readGone
}

// resend writes a message that is in the table, under the number it has there, and reports false when the outbox is full: then it
// waits like one in back-off, uncounted.
func (e *Engine) resend(l *Link, h ack.Handle, x *ack.Expired, cmd *Command, item *Item, now Now) bool {
	p := cmd.push()
	p.Number, p.Attempt, p.Redelivered = x.Entry.Number, uint64(item.Attempts)+1, true
	e.frame = codec.AppendPush(e.frame[:0], &p)
	if !l.peer.Send(e.frame) {
		l.setHold(holdOutbox)
		e.core.table.Rearm(h, ack.Update{
			Status: move(uint8(StatusSent), StatusRetrying), DeadlineMs: now.MonoMs + blockedRetryMs,
			Attempts: int(x.Entry.Attempts), Live: x.Entry.Live, Flags: x.Entry.Flags,
		})
		return false
	}
	e.core.count.retries.Inc()
	e.core.count.sent.Inc()
	return true
}
