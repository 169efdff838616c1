package delivery

import (
	"context"
	"math/rand/v2"

	"holdfast/ack"
	"holdfast/codec"
)

// Push takes a batch and answers by calling its Done. It never blocks: what a lane has no room for is refused with
// ResultOverloaded, bulk first.
func (d *Dispatcher) Push(b *Batch) {
	now := d.now()
	b.begin(d.core)
	defer b.release()
	if d.draining.Load() {
		for i := range b.items {
			b.settle(i, codec.ResultDraining)
		}
		return
	}
	for i := range d.lanes {
		b.first[i], b.last[i] = -1, -1
	}
	for i := range b.items {
		if r := b.admit(d.core, i, now, rand.Uint64); r != codec.ResultAccepted {
			b.settle(i, r)
			continue
		}
		b.chain(i, ack.ShardOf(b.items[i].userHash)%len(d.lanes))
	}
	for i, l := range d.lanes {
		if b.first[i] >= 0 {
			l.push(b, b.first[i])
		}
	}
}

// chain appends item i to what the batch has for a lane.
func (b *Batch) chain(i, lane int) {
	b.items[i].next = -1
	if last := b.last[lane]; last >= 0 {
		b.items[last].next = int32(i)
	} else {
		b.first[lane] = int32(i)
	}
	b.last[lane] = int32(i)
}

// push handles the items of b that are chained from first: at once when the lane is at rest, which is the fast way, or in their turn.
func (l *lane) push(b *Batch, first int32) {
	if len(b.items) > driveItemsMax || !l.tryDrive() {
		l.queue(b, first)
		return
	}
	l.engine.pushChain(b, first, l.dispatcher.now())
	l.endDrive()
}

// queue puts the items of b that are chained from first into the inbox, as far as there is room. In what is refused the chain goes on,
// and the answers are given when the lane's lock is free again.
func (l *lane) queue(b *Batch, first int32) {
	refused, r := int32(-1), codec.ResultOverloaded
	l.mu.Lock()
	admitted, last, tail := int32(-1), int32(-1), int32(-1)
	for i := first; i >= 0; {
		it := &b.items[i]
		next := it.next
		it.next = -1
		switch size := it.cmd.size(); {
		case l.inbox.closed || !l.room(it.cmd.Priority, size):
			if tail >= 0 {
				b.items[tail].next = i
			} else {
				refused = i
			}
			tail = i
		default:
			l.inbox.items++
			l.inbox.bytes += size
			if last >= 0 {
				b.items[last].next = i
			} else {
				admitted = i
			}
			last = i
		}
		i = next
	}
	if admitted >= 0 {
		l.inbox.events = append(l.inbox.events, event{kind: eventPush, batch: b, first: admitted})
	}
	if l.inbox.closed {
		r = codec.ResultDraining
	}
	l.mu.Unlock()
	l.wake()
	for i := refused; i >= 0; {
		next := b.items[i].next
		b.settle(int(i), r)
		i = next
	}
}

// room reports whether a push of this class still fits: bulk up to half of the inbox, normal up to nine tenths. Called with mu held.
func (l *lane) room(p codec.Priority, size int) bool {
	c := &l.dispatcher.core.config
	tenths := 9
	switch p {
	case codec.PriorityUrgent:
		tenths = 10
	case codec.PriorityBulk:
		tenths = 5
	case codec.PriorityNormal:
	}
	return l.inbox.items < c.LaneItemsMax*tenths/10 && l.inbox.bytes+size <= c.LaneBytesMax*tenths/10
}

// WaitBatch returns when every delivery of a batch has ended, whichever way, or ctx has. The batch was told to Follow before Push,
// its Done has been called, and it is not released before WaitBatch returns.
func (d *Dispatcher) WaitBatch(ctx context.Context, b *Batch) error {
	if b.watch == nil {
		panic("WaitBatch needs Follow before Push")
	}
	select {
	case <-b.watch.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
