package delivery

import (
	"fmt"
	"slices"

	"holdfast/codec"
)

// simUser is one user and his devices.
type simUser struct {
	name    string
	devices []*simDevice
}

// simDevice is a device and the program on it. What it has received and kept outlives its connections and the server.
type simDevice struct {
	w      *sim
	user   *simUser
	device string
	name   string // user/device
	habit  simHabit

	windowMsgs, windowBytes int

	silent     int      // connections in a row that the server let in and that never confirmed anything
	silentLife int      // in this life of the process
	conn       *simConn // the latest connection it opened; nil: none
	attached   *simConn // the latest one that the server let in
	entries    int      // connections that were let in
	newest     int      // the latest of them that something arrived on
	waits      bool     // a login is planned
	kept       []string // ids received and not confirmed: confirmed by id later
}

// simHabit is how a client treats its server. Every device has its own.
type simHabit struct {
	style     string  // how ACKs are put together: one, range, list, up to
	gatherMs  int64   // ACKs are gathered for so long
	lateMs    int64   // and a late one comes so much later
	late      float64 // chances
	lose      float64
	swallow   float64
	double    float64
	shuffle   float64
	nack      float64
	never     float64
	extend    float64
	foreign   float64
	byID      float64
	slowMs    int64 // between two frames it reads
	dies      bool  // of poison
	fight     float64
	graceless float64
}

func (w *sim) newHabit() simHabit {
	h := simHabit{style: pick(w, "one", "range", "list", "up to"), gatherMs: pick[int64](w, 0, 0, 50, 500)}
	if w.chance(0.2) {
		return h // a good one
	}
	timeout := w.plan.config.AckTimeout.Milliseconds()
	h.lateMs = w.between(1, 5*timeout)
	for _, rate := range []*float64{&h.late, &h.lose, &h.swallow, &h.double, &h.shuffle, &h.nack, &h.extend, &h.byID} {
		*rate = w.sometimes(0.4)
	}
	h.never, h.foreign = w.sometimes(0.05), w.sometimes(0.02)
	if w.chance(0.1) {
		h.swallow = 1 // it never says anything
	}
	if w.chance(0.2) {
		h.slowMs = w.between(1, 300)
	}
	h.dies, h.fight, h.graceless = w.chance(0.5), w.sometimes(0.5), w.rand.Float64()
	return h
}

// simClientSide is what the program knows of one connection.
type simClientSide struct {
	got      map[uint64]*simDelivery
	highest  uint64
	owed     []uint64
	flushing bool
	welcomed bool
}

// connect opens a connection and logs in. The one before may still be there: then the new one takes over.
func (d *simDevice) connect() {
	w := d.w
	d.waits = false
	if w.node == nil {
		d.later(0)
		return
	}
	if old := d.conn; old != nil {
		switch {
		case w.chance(d.habit.fight) && !w.calm: // two programs with the same name; the old one lives on
		case w.chance(0.5):
			old.finish()
		default:
			old.vanish()
		}
	}
	w.opened++
	c := &simConn{w: w, node: w.node, lane: w.node.laneOfUser(d.user.name), device: d, id: w.opened}
	c.seen = simSession{byNumber: make(map[uint64]*simSent), byDelivery: make(map[*simDelivery]*simSent), noAcks: make(map[string]bool)}
	c.mine.got = make(map[uint64]*simDelivery)
	if !w.calm {
		c.slowMs = d.habit.slowMs
	}
	c.link = newLink(LoginRequest{Peer: c, User: []byte(d.user.name), Device: []byte(d.device), WindowMsgs: uint64(d.windowMsgs), WindowBytes: uint64(d.windowBytes)})
	d.conn = c
	w.conns = append(w.conns, c)
	w.after(w.delay(), func() { w.login(c) })
	if len(d.kept) > 0 && w.chance(0.5) { // confirmed right behind the login
		d.confirmKept(c)
	}
	w.after(30_000, func() { // a login that is not answered is given up
		if c.asked && !c.open && !c.closing && !c.over {
			w.fail("conn %d: the login of %s is not answered", c.id, d.name)
		}
		if !c.mine.welcomed && !c.left {
			c.vanish()
			d.lost(c, 0)
		}
	})
}

// login is a decoded CONNECT at the server.
func (w *sim) login(c *simConn) {
	if w.node != c.node || c.over {
		return
	}
	if c.node.draining {
		c.Close(codec.CodeGoingAway, stoppingReason, 0)
		return
	}
	w.logf("conn %d: %s logs in", c.id, c.device.name)
	c.asked = true
	c.lane.post("login", func(e *Engine, now Now) { e.Login(c.link, now) })
}

// later plans the next login.
func (d *simDevice) later(waitMs int64) {
	if d.waits {
		return
	}
	d.waits = true
	most := d.w.plan.reconnects
	if d.w.calm {
		most = 100
	}
	d.w.after(waitMs+d.w.between(1, most), func() {
		d.waits = false
		if d.conn == nil {
			d.connect()
		}
	})
}

// lost is a connection that has ended for the client.
func (d *simDevice) lost(c *simConn, waitMs int64) {
	c.left = true
	if d.conn == c {
		d.conn = nil
		d.later(waitMs)
	}
}

// receive is one frame at the client.
func (d *simDevice) receive(c *simConn, f simFrame) {
	w := d.w
	x, _, err := codec.Parse(f.bytes, codec.FrameBytesMax)
	must(w, err)
	switch x.Type {
	case codec.TypeWelcome:
		c.mine.welcomed = true
		if len(d.kept) > 0 && w.chance(0.8) {
			d.confirmKept(c)
		}
	case codec.TypeClose:
		var end codec.Close
		must(w, codec.DecodeClose(x, &end))
		d.flush(c)
		c.finish()
		d.lost(c, int64(end.RetryAfterMs))
	case codec.TypeGoAway:
		var away codec.GoAway
		must(w, codec.DecodeGoAway(x, &away))
		w.after(int64(away.ReconnectAfterMs), func() {
			d.flush(c)
			c.finish()
			d.lost(c, 0)
		})
	case codec.TypePush:
		if f.delivery != nil {
			d.message(c, f.delivery, parsePush(w, f.bytes))
		}
	default:
		w.fail("the client gets a %s", x.Type)
	}
}

// message is a message at the client: what becomes of it is a matter of habit.
func (d *simDevice) message(c *simConn, m *simDelivery, x *codec.Push) {
	w := d.w
	w.ledger.received(m, c)
	d.newest = max(d.newest, c.entry)
	c.mine.got[x.Number] = m
	c.mine.highest = max(c.mine.highest, x.Number)
	h := &d.habit
	switch {
	case w.calm:
		d.owe(c, x.Number, 0)
	case m.poison && h.dies:
		w.logf("%s dies of %s", d.name, m)
		c.vanish()
		d.lost(c, 0)
	case w.chance(h.nack):
		d.nack(c, m, x.Number, false)
	case w.chance(h.never):
		d.nack(c, m, x.Number, true)
	case w.chance(h.extend):
		c.send(codec.AppendExtend(nil, &codec.Extend{Number: x.Number, MoreMs: uint64(w.between(0, 30_000))}))
		w.after(w.between(0, h.lateMs), func() { d.owe(c, x.Number, h.gatherMs) })
	case w.chance(h.byID):
		d.kept = append(d.kept, string(x.MessageID))
	case w.chance(h.swallow):
	case w.chance(h.lose):
		d.kept = append(d.kept, string(x.MessageID)) // the client thinks it has confirmed it
	case w.chance(h.late):
		w.after(w.between(0, h.lateMs), func() { d.owe(c, x.Number, h.gatherMs) })
	default:
		d.owe(c, x.Number, h.gatherMs)
		if w.chance(h.double) {
			w.after(w.between(0, h.lateMs), func() { d.owe(c, x.Number, 0) })
		}
	}
	if w.chance(h.foreign) && !w.calm {
		d.lie(c)
	}
}

func (d *simDevice) nack(c *simConn, m *simDelivery, number uint64, never bool) {
	if !c.left && never {
		m.refused = true
	}
	c.send(codec.AppendNack(nil, &codec.Nack{Number: number, Never: never, DelayMs: uint64(d.w.between(0, 60_000))}))
}

// owe puts a number on the list of what is to be confirmed.
func (d *simDevice) owe(c *simConn, number uint64, gatherMs int64) {
	c.mine.owed = append(c.mine.owed, number)
	if gatherMs == 0 {
		d.flush(c)
		return
	}
	if !c.mine.flushing {
		c.mine.flushing = true
		d.w.after(gatherMs, func() {
			c.mine.flushing = false
			d.flush(c)
		})
	}
}

// flush confirms what is owed, put together as the client likes it.
func (d *simDevice) flush(c *simConn) {
	owed := c.mine.owed
	if len(owed) == 0 || c.left {
		return
	}
	c.mine.owed = nil
	if d.w.chance(d.habit.shuffle) {
		d.w.rand.Shuffle(len(owed), func(i, k int) { owed[i], owed[k] = owed[k], owed[i] })
	} else {
		slices.Sort(owed)
	}
	for _, n := range owed {
		c.mine.got[n].acked = true
	}
	level := codec.AckLevel(d.w.rand.IntN(3))
	switch {
	case d.habit.style == "up to" && (d.w.calm || d.w.chance(0.5)):
		for _, m := range c.mine.got {
			m.acked = true
		}
		c.send(codec.AppendAckUpTo(nil, c.mine.highest, level))
	case d.habit.style == "one" || !slices.IsSorted(owed):
		for _, n := range owed {
			c.send(codec.AppendAckOne(nil, n, level))
		}
	default:
		ranges := together(owed)
		if d.habit.style == "list" && len(ranges) <= codec.AckRangesMax {
			c.send(codec.AppendAckList(nil, ranges, level))
			return
		}
		for _, r := range ranges {
			c.send(codec.AppendAckRange(nil, r.From, r.Count, level))
		}
	}
}

// together makes ranges of sorted numbers.
func together(numbers []uint64) (ranges []codec.Range) {
	for _, n := range slices.Compact(numbers) {
		if k := len(ranges) - 1; k >= 0 && ranges[k].From+ranges[k].Count == n {
			ranges[k].Count++
			continue
		}
		ranges = append(ranges, codec.Range{From: n, Count: 1})
	}
	return ranges
}

// confirmKept confirms by message id what was received on earlier connections.
func (d *simDevice) confirmKept(c *simConn) {
	w := d.w
	for _, id := range d.kept {
		for _, m := range w.ledger.byUser[userKey([]byte(d.user.name), []byte(id))] {
			if q, ok := w.store.queue(d.user.name, d.device); ok && m.queue == q {
				m.acked = true
			}
		}
		c.send(codec.AppendAckMessageID(nil, []byte(id), codec.LevelReceived))
	}
	d.kept = nil
}

// lie confirms what is not this client's: numbers that were never sent, messages of others.
func (d *simDevice) lie(c *simConn) {
	w := d.w
	number := c.seen.last + uint64(w.between(1000, 2000))
	switch w.rand.IntN(6) {
	case 0:
		c.lied = true
		c.send(codec.AppendAckOne(nil, number, codec.LevelRead))
	case 1:
		c.lied = true
		c.send(codec.AppendAckUpTo(nil, number, codec.LevelRead))
	case 2:
		c.lied = true
		c.send(codec.AppendNack(nil, &codec.Nack{Number: number, Never: w.chance(0.5)}))
	case 3:
		c.lied = true
		c.send(codec.AppendExtend(nil, &codec.Extend{Number: number}))
	default:
		if len(w.ledger.all) == 0 {
			return
		}
		m := w.ledger.all[w.rand.IntN(len(w.ledger.all))]
		if string(m.command.User) == d.user.name {
			return
		}
		c.send(codec.AppendAckMessageID(nil, m.command.MessageID, codec.LevelRead))
	}
}

// trouble is something happening to a device and its connection.
func (d *simDevice) trouble() {
	w, c := d.w, d.conn
	switch what := w.rand.IntN(7); {
	case what == 0 || c == nil:
		d.connect()
	case what == 1 && w.chance(d.habit.graceless):
		c.vanish()
		d.lost(c, 0)
	case what == 1:
		d.flush(c)
		c.finish()
		d.lost(c, 0)
	case what == 2: // the server sees a reset at once, the client later
		c.gone()
	case what == 3:
		c.frozen = true
		w.after(w.between(1, 20_000), func() { c.thaw() })
	case what == 4:
		for range w.between(1, 3) {
			d.connect()
		}
	case what == 5:
		d.habit = w.newHabit()
	default:
		c.slowMs = w.between(0, 200)
	}
}

func (c *simConn) thaw() {
	c.frozen = false
	c.move()
}

// newUsers makes everybody there is.
func (w *sim) newUsers() {
	for i := range w.plan.users {
		u := &simUser{name: fmt.Sprintf("u%d", i)}
		w.users = append(w.users, u)
		for k := range w.between(1, int64(w.plan.devicesMax)) {
			device := fmt.Sprintf("d%d", k)
			d := &simDevice{w: w, user: u, device: device, name: u.name + "/" + device, habit: w.newHabit()}
			d.windowMsgs, d.windowBytes = pick(w, 1, 8, 1000), pick(w, 0, 700, 1<<20)
			u.devices = append(u.devices, d)
			w.after(w.between(0, 5000), d.connect)
		}
	}
}

// anyDevice is one of all devices.
func (w *sim) anyDevice() *simDevice {
	u := w.users[w.rand.IntN(len(w.users))]
	return u.devices[w.rand.IntN(len(u.devices))]
}

// silentFor is what a process of this life remembers of silent.
func (d *simDevice) silentFor(life int) int {
	if d.silentLife != life {
		return 0
	}
	return d.silent
}
