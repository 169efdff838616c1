package client

import (
	"context"
	"errors"
	"time"

	"holdfast/codec"
)

// refusedMax bounds how many refused ids are remembered, to refuse them again if the refusal was lost with its
// connection.
const refusedMax = 256

// queue is a ring of messages that grows to what is needed. Its limits are the caller's.
type queue struct {
	ring       []*Message // a power of two
	head, size int
	bytes      int
}

func (q *queue) push(m *Message) {
	if q.size == len(q.ring) {
		ring := make([]*Message, max(2*len(q.ring), 8))
		for i := range q.size {
			ring[i] = q.ring[(q.head+i)&(len(q.ring)-1)]
		}
		q.ring, q.head = ring, 0
	}
	q.ring[(q.head+q.size)&(len(q.ring)-1)] = m
	q.size++
	q.bytes += len(m.Payload)
}

// pop returns nil when the queue is empty.
func (q *queue) pop() *Message {
	if q.size == 0 {
		return nil
	}
	m := q.ring[q.head]
	q.ring[q.head] = nil
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.size--
	q.bytes -= len(m.Payload)
	return m
}

// receive takes one PUSH on the read goroutine: a copy of something settled is answered, a copy of something still in
// work is only noted (its answer goes to the newest copy's number), the rest is handed over.
func (c *Client) receive(s *session, p *codec.Push) {
	c.mu.Lock()
	c.stats.Received++
	if c.draining {
		c.stats.Dropped++ // not confirmed, so it comes again at the next login
		c.mu.Unlock()
		return
	}
	var key dedupKey
	if !p.NoAck {
		s.numberSeen = max(s.numberSeen, p.Number)
		if c.o.DedupSize > 0 {
			key = c.dedup.key(p.MessageID)
			if c.copyLocked(s, p, key) {
				c.flushIfDue()
				return
			}
		}
	}
	if c.queue.size >= s.queueMsgsMax || c.queue.bytes > s.queueBytesMax {
		c.stats.Dropped++ // beyond what was announced, or fire and forget faster than the handler
		c.mu.Unlock()
		return
	}
	m := newMessage(c, s, p)
	m.key = key
	if !m.NoAck {
		c.unsettled++
		if c.o.DedupSize > 0 && (!c.o.Inline || c.o.AckMode == AckManual) { // inline, it is settled before a copy can come
			c.open[key] = m
		}
	}
	if c.o.Inline {
		c.workers++ // Shutdown waits for this goroutine as it does for workers
		c.mu.Unlock()
		c.callbacks.Add(1)
		c.handle(m)
		c.callbacks.Add(-1)
		c.mu.Lock()
		c.workers--
		c.wakeDrainLocked()
		c.mu.Unlock()
		return
	}
	c.queue.push(m)
	if c.workers < c.o.Concurrency {
		c.workers++
		go c.work()
	}
	c.mu.Unlock()
}

// copyLocked deals with a message that is known already; false: it is new.
func (c *Client) copyLocked(s *session, p *codec.Push, key dedupKey) bool {
	if level, ok := c.dedup.get(key); ok {
		c.stats.Duplicates++
		s.acks.pending.add(p.Number, level, string(p.MessageID))
		s.acks.hurry = true
		return true
	}
	if m := c.open[key]; m != nil {
		c.stats.Duplicates++
		m.epoch, m.number = s.epoch, p.Number
		return true
	}
	if reason, ok := c.refused[key]; ok {
		c.stats.Duplicates++
		s.sendNack(&codec.Nack{Number: p.Number, Never: true, Reason: reason})
		return true
	}
	return false
}

// work hands queued messages to the handler until there are none. It runs on its own goroutine, started when messages
// come and gone when they are done: an idle client has only its reader.
func (c *Client) work() {
	for {
		c.mu.Lock()
		m := c.queue.pop()
		if m == nil || c.closed {
			c.workers--
			c.wakeDrainLocked()
			c.flushIfDue()
			return
		}
		c.mu.Unlock()
		c.handle(m)
	}
}

// handle calls the handler and does what the AckMode says.
func (c *Client) handle(m *Message) {
	if c.o.AckMode == AckBefore {
		m.AckLevel(codec.LevelReceived)
	}
	err := c.o.Handler(c.ctx, m)
	c.handled.Add(1)
	switch {
	case c.o.AckMode == AckBefore:
	case err == nil:
		if c.o.AckMode == AckAfter && !m.NoAck {
			c.ackOpen(m)
		}
	default:
		var never *Refusal
		switch {
		case errors.As(err, &never):
			m.Refuse(never.Reason)
		case errors.Is(err, context.Canceled) && c.ctx.Err() != nil:
			// The client is closing: unsettled, the message comes again at the next login without a count against it.
		default:
			m.Nack(c.o.RetryDelay, err.Error())
		}
	}
}

// ackOpen confirms (processed) what the handler has left open.
func (c *Client) ackOpen(m *Message) {
	c.mu.Lock()
	c.ackMessage(m, codec.LevelProcessed, false)
}

func (c *Client) ack(m *Message, level codec.AckLevel) {
	c.mu.Lock()
	c.ackMessage(m, level, true)
}

// ackMessage is called with mu held and returns without it. raise: a message that is confirmed may be confirmed higher.
func (c *Client) ackMessage(m *Message, level codec.AckLevel, raise bool) {
	switch m.state {
	case messageOpen:
		c.settleLocked(m, messageAcked)
		c.stats.Acked++
	case messageAcked:
		if !raise || level <= m.level {
			c.mu.Unlock()
			return
		}
	case messageRefused:
		c.mu.Unlock()
		return
	}
	m.level = level
	if c.o.DedupSize > 0 {
		c.dedup.put(m.key, level)
	}
	c.ackLocked(m.epoch, m.number, level, m.ID)
	c.flushIfDue()
}

// settleLocked takes a message out of what is in work.
func (c *Client) settleLocked(m *Message, to messageState) {
	m.state = to
	c.unsettled--
	if c.open[m.key] == m {
		delete(c.open, m.key)
	}
}

func (c *Client) nack(m *Message, delay time.Duration, reason string) {
	c.mu.Lock()
	if m.state != messageOpen {
		c.mu.Unlock()
		return
	}
	c.settleLocked(m, messageRefused)
	c.stats.Nacked++
	s := c.live
	if s == nil || s.epoch != m.epoch {
		c.mu.Unlock() // its connection is gone: un-ACKed as it is, it comes again
		return
	}
	s.sendNack(&codec.Nack{Number: m.number, DelayMs: uint64(delay.Milliseconds()), Reason: cleanReason(reason)})
	c.flushIfDue()
	s.out.flush()
}

func (c *Client) refuse(m *Message, reason string) {
	c.mu.Lock()
	if m.state != messageOpen {
		c.mu.Unlock()
		return
	}
	c.settleLocked(m, messageRefused)
	c.stats.Refused++
	text := cleanReason(reason)
	if c.o.DedupSize > 0 {
		for k := range c.refused {
			if len(c.refused) < refusedMax {
				break
			}
			delete(c.refused, k)
		}
		c.refused[m.key] = text
	}
	s := c.live
	if s == nil || s.epoch != m.epoch {
		c.mu.Unlock() // said when the message comes again
		return
	}
	s.sendNack(&codec.Nack{Number: m.number, Never: true, Reason: text})
	c.flushIfDue()
	s.out.flush()
}

func (c *Client) extend(m *Message, d time.Duration) {
	c.mu.Lock()
	s := c.live
	if m.state != messageOpen || s == nil || s.epoch != m.epoch {
		c.mu.Unlock()
		return
	}
	buf := s.out.lock()
	s.out.unlock(codec.AppendExtend(buf, &codec.Extend{Number: m.number, MoreMs: uint64(d.Milliseconds())}))
	c.mu.Unlock()
	s.out.flush()
}
