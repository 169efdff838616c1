package store

import (
	"holdfast/codec"
	"holdfast/delivery"
)

// joined is a publisher that repeated a message id while the first copy was not durable yet.
type joined struct {
	seq uint64
	notice
}

// Join lets the publisher of a duplicate wait for the first copy: when Targets has called (user, messageID) a duplicate and it is
// not durable yet, w.Stored(i, …) follows once, with ResultDuplicate when it is, or with the reason why it could not be stored,
// just as the first publisher hears it. false: nothing is pending, the duplicate may be answered at once, and w is not told.
// Without this a repeat would be promised what only the next sync makes true. Of several deliveries the last one counts: what was
// pending before it is settled by then.
func (l *Local) Join(user, messageID []byte, w delivery.Waiter, i int) bool {
	mid := l.hash(messageID, 0)
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.reg.number(user)
	if u == 0 || len(messageID) == 0 || l.failure != nil || l.closed {
		return false
	}
	var last *entry
	l.index.each(home(mid, u), func(slot uint32) bool {
		e := l.slab.at(slot)
		if e.mid == mid && e.is(flagOpen|flagFlush) && l.reg.queues[e.queue].user == u && (last == nil || e.seq > last.seq) {
			last = e
		}
		return false
	})
	switch {
	case last == nil:
		return false
	case last.is(flagOpen):
		l.open.joined = append(l.open.joined, joined{last.seq, notice{w, i}})
	default:
		l.flushing.joined = append(l.flushing.joined, joined{last.seq, notice{w, i}})
	}
	return true
}

// tellJoined answers the repeats that wait for a batch. A message that is in it no more had ended, which is as good as stored.
// Called without the lock; the batch is the committer's.
func tellJoined(b *batch, r codec.Result) {
	for _, j := range b.joined {
		answer := codec.ResultDuplicate
		if p := b.search(j.seq); p != nil && !p.counted && r != codec.ResultAccepted {
			answer = r
		}
		j.w.Stored(j.i, answer)
	}
	clear(b.joined)
	b.joined = b.joined[:0]
}
