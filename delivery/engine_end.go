package delivery

import "holdfast/codec"

// Ends that come neither from an ACK by number nor from a timeout.

// AckMessageID confirms a message by its id: one that was sent in an earlier session, most often. It counts only for the device's
// own delivery.
func (e *Engine) AckMessageID(l *Link, messageID string, level codec.AckLevel, now Now) {
	l.asking.Add(-1)
	confirmed := false
	for _, r := range e.core.store.Find(messageID) {
		if r.User != l.user || r.Device != l.device || r.Status.End() {
			continue
		}
		attempts := r.Attempts
		if h, entry, ok := e.core.table.Find(l.session, fromRef(r.Ref)); ok {
			attempts = attemptsMade(&entry)
			e.core.table.Take(h)
		}
		confirmed = e.core.endOne(Ending{Ref: r.Ref, Status: StatusAcked, Level: level, Attempts: attempts}, now) || confirmed
	}
	if !confirmed {
		e.core.count.lateAcks.Inc()
	}
	if l.state == linkOpen {
		e.Wake(l, now)
	}
}

// Expire ends a delivery whose time is over.
func (e *Engine) Expire(o overdue, now Now) {
	e.endStored(o.ref, o.user, expiry(o.ref, o.attempts, o.ownTTL), now)
}

// Cancel ends a delivery for its publisher and reports whether it was still live.
func (e *Engine) Cancel(r *Record, now Now) bool {
	return e.endStored(r.Ref, r.User, Ending{Ref: r.Ref, Status: StatusCancelled, Attempts: r.Attempts, Reason: ReasonPublisher}, now)
}

// endStored ends a delivery wherever it is: only stored, or in flight on one of the user's links.
func (e *Engine) endStored(ref Ref, user string, end Ending, now Now) bool {
	for l := e.users[user]; l != nil; l = l.next {
		h, entry, ok := e.core.table.Find(l.session, fromRef(ref))
		if !ok {
			continue
		}
		_, wake, won := e.core.table.Take(h)
		if !won {
			return false // an ACK came first
		}
		end.Attempts = attemptsMade(&entry)
		e.freed(l, wake)
	}
	return e.core.endOne(end, now)
}

// overdue is what the sweeper knows of a delivery whose time is over.
type overdue struct {
	ref      Ref
	user     string
	attempts uint16
	ownTTL   bool
}

// sweep finds up to max deliveries whose time is over and calls yield for each; the caller takes them to their lanes. One that
// cannot be read is ended here. It reports whether there may be more.
func (c *core) sweep(s *sweepScratch, max int, now Now, yield func(overdue)) bool {
	s.refs = c.store.SweepExpired(s.refs[:0], now.WallMs, max)
	for _, ref := range s.refs {
		item, ok, err := c.store.Read(&s.buffer, ref)
		if err != nil {
			c.count.storeErrors.Inc()
			continue // the next sweep finds it again
		}
		if !ok {
			continue
		}
		var cmd Command
		if DecodeCommand(item.Command, &cmd) != nil {
			c.endOne(Ending{Ref: ref, Status: StatusDead, Attempts: item.Attempts, Reason: ReasonUndecodable}, now)
			continue
		}
		yield(overdue{ref: ref, user: string(cmd.User), attempts: item.Attempts, ownTTL: cmd.OwnTTL})
	}
	return len(s.refs) == max
}

type sweepScratch struct {
	refs   []Ref
	buffer Buffer
}
