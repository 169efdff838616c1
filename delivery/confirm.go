package delivery

import (
	"time"

	"holdfast/ack"
	"holdfast/codec"
)

// What an event loop does with ACK, NACK and EXTEND, without the lane: one lock of the table's shard, then the store's memory.
// Whoever takes the entry out of the table, or re-arms it, decides; timeouts and cancelling find it gone (rule 2).

const (
	nackDelayMin   = 100 * time.Millisecond // a client that refuses at once for ever must not spin
	nackDelayMinMs = int64(nackDelayMin / time.Millisecond)
)

var neverSent = heard{code: codec.CodeBadField, reason: "a request number that was never sent"}

// ack confirms everything a names, but for AckMessageID (see Engine.AckMessageID). No allocation.
func (c *core) ack(l *Link, a *codec.Ack, now Now) heard {
	s := c.scratch.Get().(*ackScratch)
	defer c.scratch.Put(s)
	entries, r := s.entries[:0], ack.AckResult{}
	switch a.Kind {
	case codec.AckOne, codec.AckRange:
		entries, r = c.table.Ack(l.session, a.From, a.Count, now.MonoMs, entries)
	case codec.AckUpTo:
		entries, r = c.table.AckUpTo(l.session, a.From, now.MonoMs, entries)
	case codec.AckList:
		if c.listBeyond(l, a) {
			return neverSent
		}
		for part := range a.Ranges {
			var p ack.AckResult
			entries, p = c.table.Ack(l.session, part.From, part.Count, now.MonoMs, entries)
			r.Wake, r.Never = r.Wake || p.Wake, r.Never || p.Never
			r.Hits, r.Late, r.Parked = r.Hits+p.Hits, r.Late+p.Late, p.Parked
		}
	case codec.AckMessageID:
		panic("an ACK by message id belongs to the lane")
	}
	s.entries = entries
	c.confirm(l, s, a.Level, now)
	c.count.lateAcks.Add(r.Late)
	if r.Never {
		return neverSent
	}
	return heard{wake: r.Wake || r.Hits+r.Late > 0 && l.troubled.Load()}
}

// listBeyond reports whether a list names a number that was never sent. It is asked before the first range counts: a frame takes
// effect whole or not at all. Ranges rise, so the last one decides.
func (c *core) listBeyond(l *Link, a *codec.Ack) bool {
	var last codec.Range
	for part := range a.Ranges {
		last = part
	}
	state, open := c.table.State(l.session)
	return open && last.From+(last.Count-1) > state.NumberLast
}

// confirm ends the deliveries of s.entries as acknowledged.
func (c *core) confirm(l *Link, s *ackScratch, level codec.AckLevel, now Now) {
	if len(s.entries) == 0 {
		return
	}
	s.ends = s.ends[:0]
	numberMax := l.ackedMax.Load()
	for i := range s.entries {
		e := &s.entries[i]
		numberMax = max(numberMax, e.Number)
		s.ends = append(s.ends, Ending{Ref: toRef(e.Ref), Status: StatusAcked, Level: level, Attempts: attemptsMade(e)})
		c.count.ackLatency.observe(now.MonoMs - e.AddedMs)
	}
	l.ackedMax.Store(numberMax)
	c.end(s.ends, now)
}

// nack takes a refusal: never (dead letter), or again after a delay. The sending counts as an attempt of the message's life but
// not as one of the live ones: the client is there and says so.
func (c *core) nack(l *Link, n *codec.Nack, now Now) heard {
	h, e, ok := c.table.Lookup(l.session, n.Number)
	if !ok {
		return c.unknown(l, n.Number)
	}
	from := Status(e.Status)
	if n.Never {
		if e, _, ok = c.table.Take(h); ok {
			c.count.nacks.Inc()
			c.endOne(Ending{Ref: toRef(e.Ref), Status: StatusDead, Attempts: attemptsMade(&e), Reason: ReasonRefused}, now)
		}
		return heard{wake: ok}
	}
	if from != StatusSent && from != StatusTimeout || e.Parked {
		return heard{} // it waits already
	}
	c.count.nacks.Inc()
	attempts := attemptsMade(&e)
	c.store.Note(toRef(e.Ref), attempts, true)
	if int(attempts) >= c.config.LifeAttemptsMax {
		if e, _, ok = c.table.Take(h); ok {
			c.endOne(Ending{Ref: toRef(e.Ref), Status: StatusDead, Attempts: attempts, Reason: ReasonAttempts}, now)
		}
		return heard{wake: true}
	}
	dueMs := now.MonoMs + c.nackDelayMs(n.DelayMs)
	_, r := c.table.Rearm(h, ack.Update{
		Status: move(e.Status, StatusRetrying), DeadlineMs: dueMs,
		Attempts: int(attempts), Live: e.Live, Flags: e.Flags,
	})
	if r != ack.RearmOK {
		return heard{} // an ACK came first
	}
	return heard{wake: l.troubled.Load(), delay: dueMs-now.MonoMs > c.ackTimeoutMs, ref: toRef(e.Ref), dueMs: dueMs}
}

func (c *core) nackDelayMs(wished uint64) int64 {
	most := c.config.NackDelayMax.Milliseconds()
	return max(nackDelayMinMs, int64(min(wished, uint64(most))))
}

// extend gives a message more time before it counts as timed out; all extensions of one sending together are bounded.
func (c *core) extend(l *Link, x *codec.Extend, now Now) heard {
	h, e, ok := c.table.Lookup(l.session, x.Number)
	if !ok {
		return c.unknown(l, x.Number)
	}
	more := int64(min(x.MoreMs, 1<<40))
	if more == 0 {
		more = c.ackTimeoutMs
	}
	deadline := min(now.MonoMs+more, e.SentMs+c.ackTimeoutMs+c.config.ExtendMax.Milliseconds())
	if Status(e.Status) != StatusSent || e.Parked || deadline <= e.DeadlineMs {
		c.count.extendsRefused.Inc()
		return heard{}
	}
	_, r := c.table.Rearm(h, ack.Update{
		Status: e.Status, DeadlineMs: deadline, Attempts: int(e.Attempts), Live: e.Live, Flags: e.Flags,
	})
	return heard{wake: r == ack.RearmOK && l.troubled.Load()}
}

// unknown sorts a number that is not in flight: ended meanwhile (nothing to do), or never sent (a fault).
func (c *core) unknown(l *Link, number uint64) heard {
	state, open := c.table.State(l.session)
	if open && number > state.NumberLast {
		return neverSent
	}
	c.count.lateAcks.Inc()
	return heard{}
}
