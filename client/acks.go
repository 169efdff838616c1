package client

import (
	"strings"
	"time"

	"holdfast/codec"
)

// carryMax bounds how many confirmations are kept for the next login: what may be sent ahead of WELCOME [P-LOGIN-2]
// holds them all. What is beyond comes again from the server and is recognised as a copy then.
const carryMax = 2048

// confirmedRangesMax bounds the memory of what was confirmed in a session: with more holes than that, up-to ACKs are
// given up for the session.
const confirmedRangesMax = 256

// ackRef is a confirmation by message id, as a later session has to say it.
type ackRef struct {
	id    string
	level codec.AckLevel
}

// ackBatch is what waits to be said to the server: request numbers as ranges, by level, and the ids they stand for.
type ackBatch struct {
	ranges [3]rangeSet // index: AckLevel
	refs   []ackRef
}

func (b *ackBatch) add(number uint64, level codec.AckLevel, id string) {
	if b.ranges[level].add(number) {
		b.refs = append(b.refs, ackRef{id, level})
	}
}

// reset empties the batch and keeps its memory.
func (b *ackBatch) reset() {
	for i := range b.ranges {
		b.ranges[i].reset()
	}
	clear(b.refs)
	b.refs = b.refs[:0]
}

// ackState is a session's side of the confirmations. Guarded by Client.mu.
type ackState struct {
	pending   ackBatch
	confirmed rangeSet // every number that was said to the server in this session
	holes     bool     // confirmed was given up
	hurry     bool     // an answer to a copy is among the pending: no waiting for company
	// sent are the ids of frames that may still be in the outbox, up to the stream position sentEnd.
	sent    []ackRef
	sentEnd uint64
}

// encode appends the frames for a batch: one frame a level and 256 ranges.
func (a *ackState) encode(dst []byte, b *ackBatch) (buf []byte, frames uint64) {
	for level := range b.ranges {
		ranges := b.ranges[level].ranges
		for len(ranges) > 0 {
			n := min(len(ranges), codec.AckRangesMax)
			dst = a.encodeRanges(dst, ranges[:n], codec.AckLevel(level))
			ranges = ranges[n:]
			frames++
		}
	}
	return dst, frames
}

// encodeRanges picks the shortest frame that says exactly these ranges and nothing that was not confirmed.
func (a *ackState) encodeRanges(dst []byte, ranges []codec.Range, level codec.AckLevel) []byte {
	floor := a.confirm(ranges)
	one := ranges[0]
	switch last := one.From + one.Count - 1; {
	case len(ranges) > 1:
		return codec.AppendAckList(dst, ranges, level)
	case one.Count == 1:
		return codec.AppendAckOne(dst, one.From, level)
	case floor == last:
		return codec.AppendAckUpTo(dst, last, level) // all of 1..last was confirmed, now or before
	default:
		return codec.AppendAckRange(dst, one.From, one.Count, level)
	}
}

// confirm notes what is being said and returns the number up to which everything was confirmed.
func (a *ackState) confirm(ranges []codec.Range) (floor uint64) {
	if a.holes {
		return 0
	}
	for _, r := range ranges {
		a.confirmed.addRange(r)
	}
	if a.confirmed.len() > confirmedRangesMax {
		a.holes, a.confirmed = true, rangeSet{}
		return 0
	}
	return a.confirmed.floor()
}

// ackLocked takes a confirmation for the session the message is now known in, or keeps it for the next one.
func (c *Client) ackLocked(epoch, number uint64, level codec.AckLevel, id string) {
	if c.store != nil {
		c.unstored = append(c.unstored, id)
	}
	if s := c.live; s != nil && s.epoch == epoch {
		s.acks.pending.add(number, level, id)
		return
	}
	c.carryLocked(ackRef{id, level})
}

// carryLocked keeps a confirmation by message id.
func (c *Client) carryLocked(r ackRef) {
	if len(c.carry) == carryMax {
		c.carry = append(c.carry[:0], c.carry[carryMax/2:]...)
	}
	r.id = strings.Clone(r.id) // the id shares its memory with the payload, which may be large
	c.carry = append(c.carry, r)
}

// flushIfDue sends what is pending when nothing more is waiting, when a batch is full or when a copy wants its answer;
// otherwise it makes sure that the timer does it. It is called with mu held and returns without it.
func (c *Client) flushIfDue() {
	s := c.live
	if s == nil {
		c.storeMarks() // they belong to what the handler did, and that may be long before the next login
		return
	}
	if len(s.acks.pending.refs)+len(c.carry) == 0 {
		c.mu.Unlock()
		return
	}
	// A confirmation by id is in a hurry: the server is about to send that message again.
	idle := c.unsettled == 0 || c.o.AckDelay < 0 || s.acks.hurry || len(c.carry) > 0
	if len(s.acks.pending.refs) >= c.o.AckBatch || (idle && !c.reading) {
		c.flushAcks()
		return
	}
	if !c.timerArmed {
		c.timerArmed = true
		if c.timer == nil {
			c.timer = time.AfterFunc(c.o.AckDelay, c.ackTimer)
		} else {
			c.timer.Reset(c.o.AckDelay)
		}
	}
	c.mu.Unlock()
}

// ackTimer runs on a timer's goroutine. The timer is never stopped while the client lives: one that finds nothing to
// do is cheaper than arming it anew with every flush.
func (c *Client) ackTimer() {
	c.mu.Lock()
	c.timerArmed = false
	c.flushAcks()
}

// flushAcks sends everything that is pending. It is called with mu held and returns without it. Ids go to the
// DedupStore first: a mark is written before the server forgets the message.
func (c *Client) flushAcks() {
	s := c.live
	if s == nil {
		c.mu.Unlock()
		return
	}
	a := &s.acks
	a.hurry = false
	if c.store == nil {
		c.sendBatch(s, &a.pending)
		a.pending.reset()
		c.mu.Unlock()
		s.out.flush()
		return
	}
	batch := a.pending
	a.pending = ackBatch{}
	c.storeMarks()
	c.mu.Lock()
	if c.live == s {
		c.sendBatch(s, &batch)
		c.mu.Unlock()
		s.out.flush()
		return
	}
	for _, r := range batch.refs {
		c.carryLocked(r) // the session ended meanwhile
	}
	c.flushIfDue()
}

// sendBatch puts the frames of a batch, and of what was carried over, into the outbox. mu is held; nothing is written.
func (c *Client) sendBatch(s *session, b *ackBatch) {
	a := &s.acks
	if len(a.sent) > 0 && s.out.sent(a.sentEnd) {
		clear(a.sent)
		a.sent = a.sent[:0]
	}
	buf := s.out.lock()
	buf, frames := a.encode(buf, b)
	for _, r := range c.carry {
		buf = codec.AppendAckMessageID(buf, borrow(r.id), r.level)
	}
	frames += uint64(len(c.carry))
	end := s.out.unlock(buf)
	c.stats.AckFrames += frames
	a.sent = append(append(a.sent, b.refs...), c.carry...)
	a.sentEnd = end
	clear(c.carry)
	c.carry = c.carry[:0]
}

// storeMarks writes the ids of what was confirmed to the DedupStore, one batch at a time. It is called with mu held and
// returns without it.
func (c *Client) storeMarks() {
	ids := c.unstored
	c.unstored = nil
	c.mu.Unlock()
	if len(ids) == 0 {
		return
	}
	c.storeMu.Lock()
	err := c.store.Append(ids)
	c.storeMu.Unlock()
	if err != nil {
		c.warn("remember message ids", err)
	}
}

// salvageLocked keeps what a session that ended has not told the server, for the next login.
func (c *Client) salvageLocked(s *session) {
	if !s.out.sent(s.acks.sentEnd) {
		for _, r := range s.acks.sent {
			c.carryLocked(r)
		}
	}
	for _, r := range s.acks.pending.refs {
		c.carryLocked(r)
	}
	s.acks = ackState{}
}
