package delivery

import (
	"fmt"
	"slices"
	"strings"

	"holdfast/codec"
)

// publish has a publisher push a batch now, and again some time later.
func (w *sim) publish() {
	if w.calm {
		return
	}
	w.pushBatch(int(w.between(1, 3)), w.newItem)
	w.follow()
	w.after(w.between(1, 2*w.plan.publishMs), w.publish)
}

// pushBatch is Dispatcher.Push: what is admitted goes to the lanes of its users.
func (w *sim) pushBatch(n int, item func() codec.PublishItem) {
	node := w.node
	if node == nil {
		return
	}
	b := NewBatch()
	p := &simPush{parts: make([][]*simDelivery, n), boot: w.boots}
	for range n {
		x := item()
		p.items = append(p.items, x)
		b.Add(&x)
	}
	w.ledger.pushes[b] = p
	if w.chance(0.1) {
		b.Follow()
	}
	b.Done = func(b *Batch) {
		w.ledger.answered(b)
		if b.watch != nil {
			w.followed = append(w.followed, simFollowed{b, p})
			return
		}
		b.Release()
	}
	b.begin(node.core)
	for i := range p.items {
		if node.draining {
			b.settle(i, codec.ResultDraining)
			continue
		}
		if r := b.admit(node.core, i, w.now, w.rand.Uint64); r != codec.ResultAccepted {
			b.settle(i, r)
			continue
		}
		node.laneOfUser(string(p.items[i].User)).post("push", func(e *Engine, now Now) { e.Push(b, i, now) })
	}
	b.release()
}

// simFollowed is a batch whose publisher waits for the end of every delivery.
type simFollowed struct {
	batch *Batch
	push  *simPush
}

// follow fails when a publisher who waits was told too early, or not at all.
func (w *sim) follow() {
	w.followed = slices.DeleteFunc(w.followed, func(x simFollowed) bool {
		live := 0
		for _, parts := range x.push.parts {
			for _, d := range parts {
				if d.live() {
					live++
				}
			}
		}
		told := false
		select {
		case <-x.batch.watch.done:
			told = true
		default:
		}
		if told != (live == 0) {
			w.fail("a publisher waits for %s: told %v, %d deliveries live", x.push.items[0].MessageID, told, live)
		}
		if told {
			x.batch.Release()
		}
		return told
	})
}

// newItem makes a message, or repeats one that was published before.
func (w *sim) newItem() codec.PublishItem {
	if n := len(w.published); n > 0 && w.chance(w.plan.repeat) {
		return w.published[n-1-w.rand.IntN(min(n, 20))]
	}
	u := w.users[w.rand.IntN(len(w.users))]
	id := w.newID()
	x := codec.PublishItem{User: []byte(u.name), MessageID: []byte(id), NoAck: w.chance(w.plan.noAck)}
	x.Payload = fmt.Appendf(nil, "%s for %s %s", id, u.name, strings.Repeat(".", int(w.between(0, int64(w.plan.payload)))))
	if w.chance(w.plan.named) {
		x.Device = []byte(u.devices[w.rand.IntN(len(u.devices))].device)
	}
	switch {
	case w.chance(w.plan.urgent):
		x.Priority = codec.PriorityUrgent
	case w.chance(w.plan.bulk):
		x.Priority = codec.PriorityBulk
	}
	if w.chance(w.plan.ttl) {
		x.TTLMs = uint64(w.between(1, min(w.plan.ttlMaxMs, w.plan.config.Retention.Milliseconds())))
	}
	if w.chance(w.plan.poison) {
		x.Type = []byte("poison")
	}
	if x.NoAck {
		w.ledger.noAcks[id] = &x
		return x // published once, so that a second copy is the server's fault
	}
	w.published = append(w.published, x)
	return x
}

// cancel takes back a recent message, as Dispatcher.Cancel does.
func (w *sim) cancel() {
	if w.node == nil || len(w.published) == 0 {
		return
	}
	n := len(w.published)
	x := w.published[n-1-w.rand.IntN(min(n, 30))]
	for _, r := range w.store.Find(string(x.MessageID)) {
		if r.Status.End() {
			continue
		}
		d := w.ledger.bySeq[r.Ref.Seq]
		w.node.laneOfUser(r.User).post("cancel", func(e *Engine, now Now) {
			d.cancelled = true
			before := d.live()
			if won := e.Cancel(&r, now); won != (before && d.status == StatusCancelled) {
				w.fail("%s: cancelled %v, and it is %s", d, won, d.status)
			}
		})
	}
}

// ask is an operator who looks, and the clock that says which devices are still there.
func (w *sim) ask() {
	if w.node == nil || len(w.ledger.all) == 0 {
		return
	}
	d := w.ledger.all[w.rand.IntN(len(w.ledger.all))]
	user := string(d.command.User)
	w.node.laneOfUser(user).post("ask", func(e *Engine, now Now) {
		for _, r := range w.store.Find(string(d.command.MessageID)) {
			x := e.describe(r, now)
			known := w.ledger.bySeq[r.Ref.Seq]
			if known.live() == x.Status.End() || x.Status.End() && x.Status != known.status {
				w.fail("%s is described as %s and is %s", known, x.Status, known.status)
			}
		}
		e.describeUser(user, now)
	})
	for _, l := range w.node.lanes {
		l.post("refresh", (*Engine).Refresh)
	}
}

// troubles is everything that goes wrong by itself.
func (w *sim) troubles() {
	if w.calm {
		return
	}
	switch {
	case w.chance(w.plan.crash):
		w.crash()
	case w.chance(w.plan.drain):
		w.drain()
	case w.chance(w.plan.cancel):
		w.cancel()
	case w.chance(0.05):
		w.ask()
	default:
		w.anyDevice().trouble()
	}
	w.after(w.between(1, 2*w.plan.troubleMs), w.troubles)
}

func (w *sim) newID() string {
	w.ids++
	return fmt.Sprintf("m%d", w.ids)
}
