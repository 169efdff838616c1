package delivery

import (
	"slices"

	"holdfast/codec"
)

// simConn is one connection: both directions of the network, the server's end (a Peer) and what was seen on it.
type simConn struct {
	w      *sim
	node   *simNode
	lane   *simLane
	device *simDevice
	link   *Link
	id     int

	// The server's end.
	asked    bool // the lane has the login
	open     bool // Open was called and said yes
	entry    int  // of the connections of its device that were let in, which one
	closing  bool // the server closes it; what the client has sent before is still heard
	replaced bool // closed by a takeover
	over     bool // the server is done with it
	outbox   []simFrame
	bytes    int  // in outbox
	full     bool // Send said no; Drained follows
	refused  bool // to a message that is to be confirmed
	frozen   bool // the client's TCP takes nothing
	slowMs   int64
	moving   bool
	arriveMs int64

	// On the way to the server, in order.
	inbound []simInbound
	sentMs  int64

	// The client's end.
	left bool // the client is gone from this connection
	mine simClientSide
	lied bool // it named a number that was never sent
	seen simSession
}

// simFrame is one frame on its way to the client. delivery is what it carries.
type simFrame struct {
	bytes    []byte
	delivery *simDelivery
	again    bool // see credit
	putMs    int64
	atMs     int64
}

// simInbound is one frame of the client, or its end of the connection.
type simInbound struct {
	frame []byte // nil: end of the connection
	atMs  int64
}

// Open implements Peer.
func (c *simConn) Open(attachment any, welcome []byte) bool {
	c.w.elsewhere()
	if c.over || c.closing {
		return false
	}
	if attachment != any(c.link) {
		c.w.fail("the connection got the link of somebody else")
	}
	if other := c.device.attached; other != nil && other.node == c.node && !other.over {
		c.w.fail("conn %d enters while conn %d of the same device is still heard", c.id, other.id)
	}
	c.open = true
	c.device.entries++
	c.entry = c.device.entries
	c.seen.openMs, c.seen.careful = c.w.now.MonoMs, c.device.silentFor(c.w.boots) >= streakCareful
	c.device.attached = c
	c.put(simFrame{bytes: slices.Clone(welcome)})
	c.w.after(0, c.hearAll) // what was pipelined behind the login
	return true
}

// Send implements Peer. Every frame is checked before it counts as written.
func (c *simConn) Send(frame []byte) bool {
	w := c.w
	f := simFrame{bytes: slices.Clone(frame)}
	x := parsePush(w, f.bytes)
	if x != nil && !x.NoAck {
		c.mayWrite(x)
	}
	if c.over || c.closing {
		return false
	}
	if x != nil && len(c.outbox) >= w.plan.outboxMax && !w.calm {
		// A Drained that is already on its way, of an earlier refusal, will end the hold too soon: one more try, refused again.
		c.full, c.refused = true, c.refused || !x.NoAck && !c.link.drainQueued.Load()
		return false
	}
	if x != nil {
		f.delivery = c.wrote(x)
	}
	c.put(f)
	if c.seen.heardMs == w.now.MonoMs { // within a millisecond, before and after are the same
		c.credit()
	}
	w.elsewhere()
	if x != nil && w.chance(w.plan.race) { // the client answers before Send returns
		for len(c.inbound) > 0 {
			c.hear()
		}
	}
	return true
}

// parsePush is the PUSH in a frame; nil for other frames.
func parsePush(w *sim, frame []byte) *codec.Push {
	f, n, err := codec.Parse(frame, codec.FrameBytesMax)
	if err != nil || n != len(frame) {
		w.fail("the server writes a bad frame: %v", err)
	}
	if f.Type != codec.TypePush {
		return nil
	}
	var x codec.Push
	if err := codec.DecodePush(f, &x); err != nil {
		w.fail("the server writes a bad PUSH: %v", err)
	}
	return &x
}

// Unsent implements Peer.
func (c *simConn) Unsent() int {
	c.w.elsewhere()
	if c.over {
		return 0
	}
	return c.bytes
}

// Close implements Peer.
func (c *simConn) Close(code codec.Code, reason string, retryAfterMs int64) {
	if c.over || c.closing {
		return
	}
	w := c.w
	w.logf("conn %d (%s) closed by the server: %s", c.id, c.device.name, code)
	c.closing, c.replaced = true, code == codec.CodeReplaced
	f := codec.AppendClose(nil, &codec.Close{Code: code, Reason: []byte(reason), RetryAfterMs: uint64(retryAfterMs)})
	c.put(simFrame{bytes: f})
	w.after(w.between(0, w.plan.hearMs), c.gone)
}

// move hands what waits in the outbox to the client's TCP.
func (c *simConn) move() {
	if c.moving || c.frozen || c.left || len(c.outbox) == 0 {
		return
	}
	if c.slowMs > 0 {
		c.moving = true
		c.w.after(c.slowMs, func() {
			c.moving = false
			if !c.frozen && !c.left && len(c.outbox) > 0 {
				c.take(1)
				c.move()
			}
		})
		return
	}
	c.take(len(c.outbox))
}

// put adds one frame to the outbox.
func (c *simConn) put(f simFrame) {
	f.putMs = c.w.now.MonoMs
	c.outbox = append(c.outbox, f)
	c.bytes += len(f.bytes)
	c.move()
}

// take moves n frames to the wire.
func (c *simConn) take(n int) {
	w := c.w
	frames := slices.Clone(c.outbox[:n])
	c.outbox = append(c.outbox[:0], c.outbox[n:]...)
	for _, f := range frames {
		c.bytes -= len(f.bytes)
		if f.delivery != nil && !f.again {
			f.delivery.reachable++
		}
		f.atMs = max(c.arriveMs, w.now.MonoMs+w.delay())
		first := c.arriveMs < w.now.MonoMs // nothing else is under way
		c.arriveMs = f.atMs
		if first && f.atMs == w.now.MonoMs && w.chance(w.plan.race) {
			c.arrive(f)
			continue
		}
		w.after(f.atMs-w.now.MonoMs, func() { c.arrive(f) })
	}
	if c.full && len(c.outbox) <= w.plan.outboxMax/2 && !c.over {
		c.full, c.refused = false, false
		if c.open && c.link.drainQueued.CompareAndSwap(false, true) {
			c.lane.post("drained", func(e *Engine, now Now) { e.Drained(c.link, now) })
		}
	}
}

func (w *sim) delay() int64 {
	if w.calm {
		return 1
	}
	return w.between(0, w.plan.delayMs)
}

// arrive is a frame at the client.
func (c *simConn) arrive(f simFrame) {
	if !c.left {
		c.device.receive(c, f)
	}
}

// send is a frame of the client's.
func (c *simConn) send(frame []byte) {
	if c.left {
		return
	}
	c.toServer(frame)
}

func (c *simConn) toServer(frame []byte) {
	at := max(c.sentMs, c.w.now.MonoMs+c.w.delay())
	c.sentMs = at
	c.inbound = append(c.inbound, simInbound{frame, at})
	c.w.after(at-c.w.now.MonoMs, c.hearAll)
}

// hearAll handles what has arrived at the server.
func (c *simConn) hearAll() {
	for len(c.inbound) > 0 && c.inbound[0].atMs <= c.w.now.MonoMs && c.hear() {
	}
}

// hear is the event loop taking one frame. It reports false when it has to wait for the login.
func (c *simConn) hear() bool {
	x := c.inbound[0]
	if c.over {
		c.inbound = nil
		return false
	}
	if x.frame == nil {
		c.inbound = nil
		c.gone()
		return true
	}
	if !c.open {
		return false
	}
	c.inbound = c.inbound[1:]
	c.handle(x.frame)
	return true
}

// handle is what main's handler and the dispatcher do with a frame.
func (c *simConn) handle(frame []byte) {
	w := c.w
	f, _, err := codec.Parse(frame, codec.FrameBytesMax)
	if err != nil {
		w.fail("the client writes a bad frame: %v", err)
	}
	var h heard
	core := c.node.core
	c.seen.heardMs = w.now.MonoMs
	c.credit()
	switch f.Type {
	case codec.TypeAck:
		var a codec.Ack
		must(w, codec.DecodeAck(f, &a))
		if a.Kind == codec.AckMessageID {
			c.link.asking.Add(1)
			id, level := string(a.MessageID), a.Level
			c.lane.post("ack by id", func(e *Engine, now Now) { e.AckMessageID(c.link, id, level, now) })
			return
		}
		if h = core.ack(c.link, &a, w.now); h.code == codec.CodeNone {
			c.seen.ackedMs = w.now.MonoMs
		}
	case codec.TypeNack:
		var n codec.Nack
		must(w, codec.DecodeNack(f, &n))
		c.seen.nacked(n.Number)
		h = core.nack(c.link, &n, w.now)
	case codec.TypeExtend:
		var x codec.Extend
		must(w, codec.DecodeExtend(f, &x))
		h = core.extend(c.link, &x, w.now)
	default:
		w.fail("the client writes a %s", f.Type)
	}
	if h.delay {
		c.lane.post("delay", func(e *Engine, now Now) { e.Delay(c.link, h.ref, h.dueMs, now) })
	}
	if h.wake && c.link.wakeQueued.CompareAndSwap(false, true) {
		c.lane.post("wake", func(e *Engine, now Now) { e.Wake(c.link, now) })
	}
	if h.code != codec.CodeNone {
		if !c.lied {
			w.fail("conn %d is told %q for an honest frame", c.id, h.reason)
		}
		c.Close(h.code, h.reason, 0)
	}
}

func must(w *sim, err error) {
	if err != nil {
		w.fail("the client writes a bad frame: %v", err)
	}
}

// gone is the server's event loop learning of the end, or having waited for it for long enough.
func (c *simConn) gone() {
	if c.over {
		return
	}
	c.w.logf("conn %d (%s) is over", c.id, c.device.name)
	c.end()
	if c.open {
		c.lane.post("gone", c.leave)
	}
	if !c.left { // the client learns of it, now or later
		c.w.after(c.w.between(0, c.w.plan.noticeMs), func() { c.device.lost(c, 0) })
	}
	c.w.after(0, c.w.forget)
}

// leave has the lane learn of the end. It counts connections in a row that ended without a word although something was in flight, and
// fails when a message is charged with an attempt for the lost connection that is not to blame: only one that the client skipped, or
// that was alone on a silent connection, may be.
func (c *simConn) leave(e *Engine, now Now) {
	w, table := c.w, c.node.core.table
	state, _ := table.State(c.link.session)
	silent := state.LastAckMs == 0
	if silent && state.InFlight+state.Parked > 0 {
		c.device.silent = c.device.silentFor(w.boots) + 1
	} else {
		c.device.silent = 0
	}
	c.device.silentLife = w.boots
	entries := table.Entries(c.link.session, nil)
	skippedBelow := c.link.ackedMax.Load()
	e.Gone(c.link, now)
	for i := range entries {
		x := &entries[i].Entry
		most := x.Attempts
		if x.Number < skippedBelow || silent && state.InFlight == 1 {
			most++
		}
		if it := w.store.at(toRef(x.Ref)); it != nil && it.attempts > most {
			w.fail("conn %d is lost, and %s is charged: %d attempts, at most %d", c.id, w.ledger.bySeq[x.Ref.Seq], it.attempts, most)
		}
	}
}

// severed is the end of the process at the other side.
func (c *simConn) severed() {
	c.end()
	if !c.left {
		c.w.after(c.w.between(0, c.w.plan.noticeMs), func() { c.device.lost(c, 0) })
	}
}

// finish is an orderly end by the client: what it has sent arrives before.
func (c *simConn) finish() {
	if c.left {
		return
	}
	c.toServer(nil)
	c.left = true
}

// vanish is a broken network or a dead client. The server notices later.
func (c *simConn) vanish() {
	if c.left {
		return
	}
	c.left = true
	if c.w.chance(0.5) {
		c.inbound = nil
	}
	c.w.after(c.w.between(0, c.w.plan.noticeMs), c.gone)
}

// end is where the server stops hearing. A message that was on this connection need not count as tried for it.
func (c *simConn) end() {
	c.over = true
	c.inbound = nil
	for _, x := range c.seen.byNumber {
		x.d.lost++
		x.d.free++
	}
}

// credit is the one liberty in what counts as an attempt: a copy under an old number that waits in the outbox passes for sent when
// the client confirms anything, for its place in the stream is not known. For the first copy, the numbers tell.
func (c *simConn) credit() {
	for i := range c.outbox {
		if f := &c.outbox[i]; f.delivery != nil && !f.again && c.seen.byDelivery[f.delivery].copies > 1 {
			f.again = true
			f.delivery.reachable++
		}
	}
}
