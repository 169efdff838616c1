package delivery

import (
	"math/rand/v2"
	"strings"

	"github.com/cespare/xxhash/v2"

	"holdfast/ack"
	"holdfast/codec"
)

// What the event loops call. Nothing here waits: ACKs are taken on the spot, everything else goes to the link's lane.

// Login takes a good login to its lane. The answer comes from there: Peer.Open with the *Link as attachment, or Peer.Close.
func (d *Dispatcher) Login(r LoginRequest) {
	l := newLink(r)
	switch {
	case d.draining.Load():
		r.Peer.Close(codec.CodeGoingAway, stoppingReason, 0)
	case r.Publisher:
		d.openPublisher(l)
	case !d.laneOfLink(l).post(event{kind: eventLogin, link: l}):
		r.Peer.Close(codec.CodeGoingAway, stoppingReason, 0)
	}
}

// openPublisher answers the login of a connection that only publishes: it has no queue, no lane and no session in the table.
func (d *Dispatcher) openPublisher(l *Link) {
	l.sessionID = rand.Uint64()
	l.state = linkOpen
	w := d.core.welcome(l, d.now())
	w.SessionID = l.sessionID
	d.mu.Lock()
	d.publishers[l] = struct{}{}
	d.mu.Unlock()
	d.core.count.publishers.Add(1)
	if !l.peer.Open(l, codec.AppendWelcome(nil, &w)) {
		d.gonePublisher(l)
	}
}

func (d *Dispatcher) gonePublisher(l *Link) {
	d.mu.Lock()
	_, known := d.publishers[l]
	delete(d.publishers, l)
	d.mu.Unlock()
	if known {
		d.core.count.publishers.Add(-1)
	}
}

// Gone follows the end of a connection that Peer.Open gave this link.
func (d *Dispatcher) Gone(l *Link) {
	if l.publisher {
		d.gonePublisher(l)
		return
	}
	d.laneOfLink(l).post(event{kind: eventGone, link: l})
}

// Drained follows the fall of the connection's outbox below its low watermark.
func (d *Dispatcher) Drained(l *Link) {
	if !l.publisher && l.drainQueued.CompareAndSwap(false, true) {
		d.laneOfLink(l).post(event{kind: eventDrained, link: l})
	}
}

// Ack confirms messages. A code that is not CodeNone is a protocol fault: the connection is to be closed with it.
func (d *Dispatcher) Ack(l *Link, a *codec.Ack) (codec.Code, string) {
	if l.publisher {
		return publisherFault()
	}
	if a.Kind == codec.AckMessageID {
		d.ackMessageID(l, a)
		return codec.CodeNone, ""
	}
	return d.after(l, d.core.ack(l, a, d.now()))
}

// ackMessageID takes an ACK by message id to the lane: it needs the store's index. Over the limit it is dropped and counted; the
// message comes again, and can be confirmed by its number then.
func (d *Dispatcher) ackMessageID(l *Link, a *codec.Ack) {
	if l.asking.Add(1) > askingMax {
		l.asking.Add(-1)
		d.core.count.ackIDsDropped.Inc()
		return
	}
	id, level := strings.Clone(string(a.MessageID)), a.Level
	d.laneOfLink(l).call(func(e *Engine, now Now) { e.AckMessageID(l, id, level, now) })
}

// Nack refuses a message; result as in Ack.
func (d *Dispatcher) Nack(l *Link, n *codec.Nack) (codec.Code, string) {
	if l.publisher {
		return publisherFault()
	}
	if n.Never {
		d.log.Info("a device refused a message for good", "user", l.user, "device", l.device, "number", n.Number, "reason", string(n.Reason))
	}
	defer d.hurry() // it may come again sooner than after an ACK timeout
	return d.after(l, d.core.nack(l, n, d.now()))
}

// Extend asks for more time for a message; result as in Ack.
func (d *Dispatcher) Extend(l *Link, x *codec.Extend) (codec.Code, string) {
	if l.publisher {
		return publisherFault()
	}
	return d.after(l, d.core.extend(l, x, d.now()))
}

func publisherFault() (codec.Code, string) {
	return codec.CodeUnexpectedFrame, "a publisher is sent nothing to confirm"
}

// after passes on what the event loop could not do itself.
func (d *Dispatcher) after(l *Link, h heard) (codec.Code, string) {
	if h.delay {
		d.laneOfLink(l).call(func(e *Engine, now Now) { e.Delay(l, h.ref, h.dueMs, now) })
	}
	if h.wake && l.wakeQueued.CompareAndSwap(false, true) {
		d.laneOfLink(l).post(event{kind: eventWake, link: l})
	}
	return h.code, h.reason
}

func (d *Dispatcher) laneOfUser(user string) *lane {
	return d.laneOf(ack.ShardOf(xxhash.Sum64String(user)))
}
