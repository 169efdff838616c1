package store

import (
	"fmt"

	"holdfast/delivery"
)

// deadList is the dead letters, oldest death first, linked through their entries. Guarded by Local.mu.
type deadList struct {
	head, tail uint32
	n          int
}

func (d *deadList) push(s *slab, slot uint32) {
	e := s.at(slot)
	e.prev, e.next = d.tail, 0
	if d.tail == 0 {
		d.head = slot
	} else {
		s.at(d.tail).next = slot
	}
	d.tail = slot
	d.n++
}

func (d *deadList) remove(s *slab, e *entry) {
	if e.prev == 0 {
		d.head = e.next
	} else {
		s.at(e.prev).next = e.next
	}
	if e.next == 0 {
		d.tail = e.prev
	} else {
		s.at(e.next).prev = e.prev
	}
	e.next, e.prev = 0, 0
	d.n--
}

// bury makes a dead letter of an entry that was just unlinked from its queue. Over the limit the oldest one goes.
func (l *Local) bury(slot uint32, e *entry, reason delivery.Reason, nowMs int64) {
	e.kill(reason)
	e.expireS = expireSeconds(nowMs)
	l.dead.push(&l.slab, slot)
	l.open.ends = appendEnd(l.open.ends, end{seq: e.seq, endedMs: nowMs, attempts: e.attempts, status: delivery.StatusDead, reason: reason})
	for l.dead.n > l.cfg.DeadLettersMax {
		l.count.deadEvicted++
		l.dropDead(l.dead.head, nowMs)
	}
}

func (l *Local) dropDead(slot uint32, nowMs int64) {
	e := l.slab.at(slot)
	l.dead.remove(&l.slab, e)
	l.discard(slot, e, delivery.Ending{Status: delivery.StatusDead, Reason: e.reason()}, nowMs)
}

// DropDead takes one dead letter away for good and reports whether it was there. It stays known as ended for the dedup window.
func (l *Local) DropDead(ref delivery.Ref, nowMs int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.slab.live(ref)
	if e == nil || !e.is(flagDead) {
		return false
	}
	l.dropDead(ref.Slot, nowMs)
	l.wakeLazy()
	return true
}

// DeadLetters returns up to n dead letters, those that died first in front, from the one behind after on. With the zero Ref, or one
// that is no dead letter any more, it begins at the first. It reads from the disk what the index does not hold.
func (l *Local) DeadLetters(after delivery.Ref, n int) []delivery.Record {
	l.mu.Lock()
	slot := l.dead.head
	if e := l.slab.live(after); e != nil && e.is(flagDead) {
		slot = e.next
	}
	var slots []delivery.Ref
	for ; slot != 0 && len(slots) < n; slot = l.slab.at(slot).next {
		slots = append(slots, l.slab.at(slot).ref(slot))
	}
	l.mu.Unlock()
	records := make([]delivery.Record, 0, len(slots))
	var b delivery.Buffer
	for _, ref := range slots {
		if r, ok := l.record(&b, ref); ok {
			records = append(records, r)
		}
	}
	return records
}

// ReadDead is Read for a dead letter.
func (l *Local) ReadDead(b *delivery.Buffer, ref delivery.Ref) (item delivery.Item, ok bool, err error) {
	return l.readOne(b, ref, true)
}

// lose gives up a message whose stored bytes are damaged: it ends as dead, without a letter, and is counted.
func (l *Local) lose(ref delivery.Ref, why string) {
	var told notices
	l.mu.Lock()
	e := l.slab.live(ref)
	if e == nil || e.is(flagOpen|flagFlush) {
		l.mu.Unlock()
		return
	}
	g, off := l.segs.slots[e.seg], e.off
	nowMs := unixMs()
	if !e.is(flagDead) {
		l.end(delivery.Ending{Ref: ref, Status: delivery.StatusDead, Reason: delivery.ReasonUndecodable}, nowMs, &told)
	}
	// Dying may have pushed it out of a full list already.
	if e = l.slab.live(ref); e != nil {
		l.dropDead(ref.Slot, nowMs)
	}
	l.count.lost++
	l.wakeLazy()
	l.mu.Unlock()
	l.cfg.Log.Error("a stored message is damaged and given up", "file", g.path, "offset", fmt.Sprint(off), "why", why)
}
