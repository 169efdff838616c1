package delivery

import (
	"holdfast/codec"
)

// simLedger is what the world knows of every delivery that was ever appended, kept apart from the product: who was told that it is
// safe, what was written where, what the client confirmed, how it ended.
type simLedger struct {
	w       *sim
	all     []*simDelivery
	bySeq   map[uint64]*simDelivery
	byQueue map[QueueID]map[string]*simDelivery // the latest of an id
	byUser  map[string][]*simDelivery           // user + NUL + id
	pushes  map[*Batch]*simPush
	orders  map[QueueID]*[3]simOrder
	noAcks  map[string]*codec.PublishItem // fire and forget, by id
}

// simDelivery is one message for one device.
type simDelivery struct {
	ref     Ref
	queue   QueueID
	command Command // not borrowed
	push    *simPush
	poison  bool

	answered  bool // its publisher was told that it is accepted
	status    Status
	reason    Reason
	gone      bool // lost in a crash before anybody was promised anything
	risen     bool // its end was undone by a crash
	forgotten bool // ended, and a crash may have taken the memory of it

	// What was written and received.
	copies    int // written to an outbox
	free      int // of those, how many need not count as attempts
	lost      int // connections that ended after it was written to them
	reachable int // copies that left the outbox
	refusals  int // NACKs: each answers a copy, which may not be the latest one
	attempt   uint64
	boot      int // life of the process in which it was last written
	receipts  int

	// What the client and the publisher did.
	acked, refused, cancelled bool
}

func (d *simDelivery) live() bool { return d.status == 0 && !d.gone }

// simPush is one batch on its way.
type simPush struct {
	items []codec.PublishItem
	parts [][]*simDelivery // by item
	boot  int
}

// simOrder is the order of first receipts in one class of a queue.
type simOrder struct {
	list []*simDelivery // as accepted
	at   int            // everything before was received, or had ended
	last uint64         // Seq of the latest first receipt
}

func newSimLedger(w *sim) *simLedger {
	return &simLedger{
		w: w, bySeq: make(map[uint64]*simDelivery), byQueue: make(map[QueueID]map[string]*simDelivery),
		byUser: make(map[string][]*simDelivery), pushes: make(map[*Batch]*simPush),
		orders: make(map[QueueID]*[3]simOrder), noAcks: make(map[string]*codec.PublishItem),
	}
}

func userKey(user, id []byte) string { return string(user) + "\x00" + string(id) }

// appended is a message that the store took.
func (g *simLedger) appended(q QueueID, ref Ref, command []byte, b *Batch, i int) {
	d := &simDelivery{ref: ref, queue: q, push: g.pushes[b]}
	if d.push == nil {
		g.w.fail("a message of no batch was appended")
	}
	if err := DecodeCommand(append([]byte(nil), command...), &d.command); err != nil {
		g.w.fail("an unreadable command was appended: %v", err)
	}
	d.poison = string(d.command.Type) == "poison"
	key := userKey(d.command.User, d.command.MessageID)
	for _, o := range g.byUser[key] {
		if o.push != d.push && !o.gone && !o.forgotten && (o.queue == q || !g.cut(q, key)) {
			g.w.fail("%s was accepted twice: as %d and %d", d.command.MessageID, o.ref.Seq, ref.Seq)
		}
	}
	d.push.parts[i] = append(d.push.parts[i], d)
	g.all = append(g.all, d)
	g.bySeq[ref.Seq] = d
	if g.byQueue[q] == nil {
		g.byQueue[q] = make(map[string]*simDelivery)
		g.orders[q] = new([3]simOrder)
	}
	g.byQueue[q][string(d.command.MessageID)] = d
	g.byUser[key] = append(g.byUser[key], d)
	o := &g.orders[q][d.command.Priority]
	o.list = append(o.list, d)
}

// cut reports whether a crash has taken a copy for this queue.
func (g *simLedger) cut(q QueueID, key string) bool {
	for _, o := range g.byUser[key] {
		if o.queue == q && o.gone {
			return true
		}
	}
	return false
}

// torn reports whether d is a copy that a crash has taken, and its queue has no other.
func (g *simLedger) torn(d *simDelivery) bool {
	if !d.gone {
		return false
	}
	for _, o := range g.byUser[userKey(d.command.User, d.command.MessageID)] {
		if o.queue == d.queue && !o.gone {
			return false
		}
	}
	return true
}

// answered is a batch whose publisher hears.
func (g *simLedger) answered(b *Batch) {
	p := g.pushes[b]
	if p == nil {
		g.w.fail("a batch was answered twice")
	}
	delete(g.pushes, b)
	if g.w.node == nil || p.boot != g.w.boots {
		g.w.fail("a dead process answers")
	}
	for i := range p.items {
		r := b.Result(i)
		x := &p.items[i]
		g.w.logf("%s for %s: %s", x.MessageID, x.User, r)
		parts := p.parts[i]
		switch {
		case x.NoAck || !r.OK():
			if len(parts) > 0 {
				g.w.fail("%s was stored although the answer is %s", x.MessageID, r)
			}
		case r == codec.ResultDuplicate:
			parts = g.byUser[userKey(x.User, x.MessageID)]
			fallthrough
		default:
			if len(parts) == 0 {
				g.w.fail("%s was answered %s and is stored nowhere", x.MessageID, r)
			}
			for _, d := range parts {
				g.promised(d, r)
			}
			if o := b.Outcome(i); r == codec.ResultAccepted && (o.Deliveries != len(parts) || string(o.MessageID) != string(x.MessageID)) {
				g.w.fail("%s: %d deliveries reported, %d made", x.MessageID, o.Deliveries, len(parts))
			}
		}
	}
}

func (g *simLedger) promised(d *simDelivery, r codec.Result) {
	if d.forgotten || d.gone && !g.torn(d) {
		return
	}
	if d.gone {
		g.w.fail("%s was lost in a crash, and its repeat is answered %s", d, r)
	}
	if d.live() && !g.w.store.safe(d.ref) {
		g.w.fail("%s (%d) was answered %s before it was durable", d.command.MessageID, d.ref.Seq, r)
	}
	d.answered = true
}

// ending is a call of End; live: the store still has it.
func (g *simLedger) ending(e *Ending, live bool) {
	w := g.w
	d := g.bySeq[e.Ref.Seq]
	if d == nil {
		w.fail("the end of delivery %d, which never was", e.Ref.Seq)
	}
	if live != d.live() {
		w.fail("%s: the store has it: %v; it ended as %s", d, live, d.status)
	}
	if !live {
		return
	}
	d.status, d.reason = e.Status, e.Reason
	w.logf("%s ends: %s %s, %d attempts", d, e.Status, e.Reason, e.Attempts)
	over := d.command.ExpireAtMs <= w.now.WallMs
	holds := false
	switch e.Status {
	case StatusAcked:
		holds = d.acked
	case StatusExpired:
		holds = e.Reason == ReasonTTL && d.command.OwnTTL && over
	case StatusCancelled:
		holds = e.Reason == ReasonPublisher && d.cancelled
	case StatusDead:
		holds = g.deadFor(d, e, over)
	}
	if !holds {
		w.fail("%s ends as %s %s without cause", d, e.Status, e.Reason)
	}
	if int(e.Attempts) > d.copies || e.Reason == ReasonAttempts && int(e.Attempts) > d.reachable+d.lost+d.refusals {
		w.fail("%s ends with %d attempts, of %d copies, of which %d could reach the client", d, e.Attempts, d.copies, d.reachable)
	}
}

func (g *simLedger) deadFor(d *simDelivery, e *Ending, over bool) bool {
	c := &g.w.plan.config
	switch e.Reason {
	case ReasonAttempts:
		return int(e.Attempts) >= c.LifeAttemptsMax
	case ReasonRefused:
		return d.refused
	case ReasonRetention:
		return !d.command.OwnTTL && over
	case ReasonLiveLimit:
		return c.AfterLast == AfterLastDead && d.copies >= c.LiveAttemptsMax
	default:
		return false
	}
}

// noted is a count of attempts that is remembered: it never exceeds what could have reached the client.
func (g *simLedger) noted(ref Ref, attempts uint16) {
	d := g.bySeq[ref.Seq]
	if int(attempts) > d.reachable+d.lost+d.refusals {
		g.w.fail("%s: %d attempts noted, %d copies could reach the client", d, attempts, d.reachable)
	}
}

// crashed compares what a new process finds with what was promised.
func (g *simLedger) crashed(s *simStore, elided map[uint64]bool) {
	clear(g.pushes)
	found := make(map[uint64]Ref)
	for i := range s.items {
		if s.items[i].used {
			found[s.items[i].ref.Seq] = s.items[i].ref
		}
	}
	for _, d := range g.all {
		ref, there := found[d.ref.Seq]
		delete(found, d.ref.Seq)
		d.free = d.copies
		switch {
		case d.gone && there:
			g.w.fail("%s is back from nowhere", d)
		case d.gone:
		case there:
			d.ref = ref
			if d.status != 0 {
				d.status, d.reason, d.risen = 0, 0, true
			}
		case d.status != 0:
			d.forgotten = d.forgotten || elided[d.ref.Seq]
		case d.answered:
			g.w.fail("LOST: %s was accepted and is not there after the crash", d)
		default:
			d.gone = true
		}
	}
	if len(found) > 0 {
		g.w.fail("%d messages that nobody appended", len(found))
	}
}

// received is a copy that arrived at a device. First receipts come in the order of acceptance, and skip nothing that has not ended.
// Two things are not held to that: what arrives on a connection that its device has replaced by a newer one which has delivered
// already, and a message whose end a crash has undone.
func (g *simLedger) received(d *simDelivery, c *simConn) {
	d.receipts++
	if d.receipts > 1 || d.risen || c.entry < c.device.newest {
		return
	}
	o := &g.orders[d.queue][d.command.Priority]
	if d.ref.Seq < o.last {
		g.w.fail("%s arrives first behind %d", d, o.last)
	}
	o.last = d.ref.Seq
	for ; o.at < len(o.list) && o.list[o.at].ref.Seq < d.ref.Seq; o.at++ {
		if e := o.list[o.at]; e.live() && e.receipts == 0 && !e.risen {
			g.w.fail("%s arrives, and %s was skipped", d, e)
		}
	}
}

// arrived reports whether the device got the message: in this delivery, or in one of the same id that a crash took back or forgot. Its
// ACK by message id counts for the repeat, too: it has the message.
func (g *simLedger) arrived(d *simDelivery) bool {
	if d.receipts > 0 {
		return true
	}
	for _, e := range g.all {
		if e.receipts > 0 && e.queue == d.queue && string(e.command.MessageID) == string(d.command.MessageID) {
			return true
		}
	}
	return false
}

// balance compares the ledger with the store: each accepted message has ended once, or is held.
func (g *simLedger) balance() {
	live := 0
	for _, d := range g.all {
		if d.gone {
			continue
		}
		if held := g.w.store.at(d.ref) != nil; held != d.live() {
			g.w.fail("%s: held %v, status %s", d, held, d.status)
		}
		if d.live() {
			live++
		}
	}
	if live != g.w.store.live {
		g.w.fail("%d live messages in the ledger, %d in the store", live, g.w.store.live)
	}
}
