package store

import (
	"cmp"
	"fmt"
	"slices"

	"holdfast/delivery"
)

// deadList is the slots of the dead letters by rising Seq. Guarded by Local.mu. Messages die roughly in the order they came, so
// that most changes are at the ends.
type deadList struct{ slots []uint32 }

func (d *deadList) search(s *slab, seq uint64) (i int, found bool) {
	return slices.BinarySearchFunc(d.slots, seq, func(slot uint32, seq uint64) int { return cmp.Compare(s.at(slot).seq, seq) })
}

func (d *deadList) insert(s *slab, slot uint32) {
	i, _ := d.search(s, s.at(slot).seq)
	d.slots = slices.Insert(d.slots, i, slot)
}

func (d *deadList) remove(s *slab, e *entry) {
	i, found := d.search(s, e.seq)
	switch {
	case !found:
		panic("store: a dead letter is missing in its list")
	case i == 0:
		d.slots = d.slots[1:]
	default:
		d.slots = slices.Delete(d.slots, i, i+1)
	}
}

// DeadLetter is one delivery that was given up, with its command as it was stored.
type DeadLetter struct {
	Record  delivery.Record
	Command []byte
}

// deadEvictMax is how many old letters go for a new one: one keeps the limit, two come down to one that was lowered.
const deadEvictMax = 2

// bury makes a dead letter of an entry that was just unlinked from its queue. Over the limit the oldest of the others go. Called with
// the lock held; told must not be full.
func (l *Local) bury(slot uint32, e *entry, reason delivery.Reason, nowMs int64, told *notices) {
	e.kill(reason)
	e.expireS = expireSeconds(nowMs)
	l.reg.letter(e.queue, 1)
	l.dead.insert(&l.slab, slot)
	l.open.ends = appendEnd(l.open.ends, end{seq: e.seq, endedMs: nowMs, attempts: e.attempts, status: delivery.StatusDead, reason: reason})
	for n := 0; n < deadEvictMax && len(l.dead.slots) > l.cfg.DeadLettersMax; n++ {
		l.count.deadEvicted++
		oldest := l.dead.slots[0]
		if oldest == slot {
			oldest = l.dead.slots[1]
		}
		l.dropDead(oldest, nowMs, told)
	}
}

// dropDead takes a letter away. A publisher that still waited for it to be written is answered: its message was taken, and has ended.
func (l *Local) dropDead(slot uint32, nowMs int64, told *notices) {
	e := l.slab.at(slot)
	q := e.queue
	told.answer(l.pending(e))
	l.dead.remove(&l.slab, e)
	l.discard(slot, e, delivery.Ending{Status: delivery.StatusDead, Reason: e.reason()}, nowMs)
	l.reg.letter(q, -1)
}

// DropDead takes the dead letter with this Seq away for good; false: there is none. It stays known as ended for the dedup window.
func (l *Local) DropDead(seq uint64) (bool, error) {
	var told notices
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return false, ErrClosed
	}
	i, found := l.dead.search(&l.slab, seq)
	if found {
		l.dropDead(l.dead.slots[i], unixMs(), &told)
		l.wakeLazy()
	}
	l.mu.Unlock()
	told.tell()
	return found, nil
}

// DeadLetters returns up to n dead letters whose Seq is above after, the oldest message first, read from the disk. The result is
// the caller's.
func (l *Local) DeadLetters(after uint64, n int) ([]DeadLetter, error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, ErrClosed
	}
	i, found := l.dead.search(&l.slab, after)
	if found {
		i++
	}
	refs := make([]delivery.Ref, 0, max(0, min(n, len(l.dead.slots)-i)))
	for ; len(refs) < cap(refs); i++ {
		slot := l.dead.slots[i]
		refs = append(refs, l.slab.at(slot).ref(slot))
	}
	l.mu.Unlock()
	letters := make([]DeadLetter, 0, len(refs))
	for _, ref := range refs {
		var b delivery.Buffer // a new one each: the command is the caller's
		if r, command, ok := l.record(&b, ref); ok && r.Status == delivery.StatusDead {
			letters = append(letters, DeadLetter{Record: r, Command: command})
		}
	}
	return letters, nil
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
		l.dropDead(ref.Slot, nowMs, &told)
	}
	l.count.lost++
	l.wakeLazy()
	l.mu.Unlock()
	told.tell()
	l.cfg.Log.Error("a stored message is damaged and given up", "file", g.path, "offset", fmt.Sprint(off), "why", why)
}
