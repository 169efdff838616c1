package store

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"holdfast/codec"
)

const (
	commitBytes = 1 << 20 // an open batch of this size is cut at once
	housePeriod = time.Second
	fullPadding = 64 << 10 // room there must be before a full disk counts as usable again
)

// syncError marks an error of fdatasync: whatever its cause, it is never tried again, for the dirty pages may be gone.
type syncError struct{ error }

func (e syncError) Unwrap() error { return e.error }

// commitLoop is the one goroutine that writes.
func (l *Local) commitLoop() {
	defer close(l.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait := l.untilDue(time.Now())
		if wait <= 0 {
			l.commit(false)
			continue
		}
		timer.Reset(wait)
		select {
		case <-l.wake:
		case <-timer.C:
		case <-l.stop:
			l.commit(true)
			l.finalSync()
			return
		}
	}
}

// untilDue is how long the committer may sleep.
func (l *Local) untilDue(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure != nil || l.closed {
		return time.Hour // until stop
	}
	due := l.houseAt
	sooner := func(t time.Time) {
		if t.Before(due) {
			due = t
		}
	}
	if at, ok := l.batchDue(); ok {
		sooner(at)
	}
	if l.full {
		return due.Sub(now)
	}
	if l.mover != nil {
		sooner(l.mover.dueAt)
	}
	if l.dirty {
		sooner(l.lastSync.Add(l.cfg.SyncInterval))
	}
	return due.Sub(now)
}

// batchDue is when the open batch is to be cut; ok is false when it is empty. Called with the lock held.
func (l *Local) batchDue() (at time.Time, ok bool) {
	b := l.open
	switch {
	case l.full:
		return l.retryAt, true
	case len(b.buf) >= commitBytes, len(b.moves) > 0, len(b.flushes) > 0:
		return time.Time{}, true
	case b.live > 0, len(b.joined) > 0:
		at, ok = b.putAt.Add(l.cfg.CommitDelay), true
	}
	if lazy := b.lazyAt.Add(l.cfg.LazyDelay); !b.lazyAt.IsZero() && (!ok || lazy.Before(at)) {
		at, ok = lazy, true
	}
	return at, ok
}

// commit writes the open batch when it is due, or in any case when forced, and does the chores that are due. A store that has failed
// touches its files no more: a second sync that succeeds would say nothing about what the first one lost.
func (l *Local) commit(force bool) {
	if l.hasFailed() {
		return
	}
	now := time.Now()
	if !now.Before(l.houseAt) {
		l.houseAt = now.Add(housePeriod)
		l.cache.rest()
		if err := l.housekeeping(now); err != nil {
			l.writeFailed(err)
			return
		}
	}
	l.stepMover(now)
	b, err := l.cutBatch(now, force)
	if err == nil && b != nil {
		err = l.write(b)
		l.finish(b, err)
	}
	if err == nil && l.dirty && !now.Before(l.lastSync.Add(l.cfg.SyncInterval)) {
		err = l.syncActive()
	}
	if err != nil {
		l.writeFailed(err)
		return
	}
	l.finishMover()
	l.removeHeads()
}

// cutBatch cuts the open batch if it is due, with a new segment under it when it does not fit; nil: nothing to write.
func (l *Local) cutBatch(now time.Time, force bool) (*batch, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, due := l.batchDue(); !due || (now.Before(at) && !force) {
		return nil, nil
	}
	if g := l.segs.active(); g.size > fileHeadBytes && g.size+int64(len(l.open.buf)+len(l.open.moveBuf)) > l.cfg.SegmentBytes {
		l.mu.Unlock()
		next, err := l.roll(g.num + 1)
		l.mu.Lock()
		if err != nil {
			return nil, err
		}
		if err := l.segs.add(next); err != nil {
			return nil, err
		}
	}
	b := l.cut()
	if l.full {
		start := len(b.buf)
		b.buf = endFrame(append(beginFrame(b.buf, framePad), make([]byte, fullPadding)...), start)
	}
	return b, nil
}

// roll seals the active segment and makes the next one.
func (l *Local) roll(num uint64) (*segment, error) {
	if l.dirty {
		if err := l.syncActive(); err != nil {
			return nil, err
		}
	}
	return l.createSegment(num)
}

// write puts a cut batch on the disk. The journal of ended goes first: were it lost and the end not, a publisher's repeat would be
// taken for new. What has been written is taken out of the batch, so that a repeat does not write it again.
func (l *Local) write(b *batch) error {
	if l.format.due != nil { // no Seq of this start may reach the disk before the start itself is counted
		if err := l.format.write(l.cfg.files, l.cfg.Dir); err != nil {
			return err
		}
		l.format.due = nil
	}
	if err := l.journal.write(l, b); err != nil {
		return err
	}
	if err := l.devices.write(l, b.device); err != nil {
		return err
	}
	b.device = b.device[:0]
	if len(b.buf) == 0 {
		return nil
	}
	l.sums.seal(b.seg.num, b.base, b.buf)
	if err := writeAll(l.cfg.files, b.seg.f, b.buf, b.base); err != nil {
		// What was refused should not be there after a restart. If this fails too, it comes back as a message nobody was promised.
		_ = l.cfg.files.truncate(b.seg.f, b.base)
		return fmt.Errorf("store: writing %s at %d: %w", b.seg.path, b.base, err)
	}
	l.dirty = true
	if l.cfg.Sync == SyncAlways || len(b.moves) > 0 {
		return l.syncActive()
	}
	return nil
}

// syncActive makes the active segment durable. Earlier ones were when they were sealed.
func (l *Local) syncActive() error {
	l.mu.Lock()
	g := l.segs.active()
	l.mu.Unlock()
	start := time.Now()
	if err := l.cfg.files.sync(g.f); err != nil {
		return syncError{fmt.Errorf("store: syncing %s: %w", g.path, err)}
	}
	l.dirty, l.lastSync = false, time.Now()
	l.mu.Lock()
	l.count.syncs++
	l.count.syncTime += time.Since(start)
	l.mu.Unlock()
	return nil
}

// finish takes note of how the write of b went and tells the publishers.
func (l *Local) finish(b *batch, err error) {
	l.mu.Lock()
	l.flushing = nil
	if err == nil {
		l.settled(b)
		b.tellFlushed()
	} else {
		l.drop(b, flagFlush)
		l.open.takeLazy(b)
	}
	l.mu.Unlock()
	r := codec.ResultAccepted
	if err != nil {
		r = refusal(err)
	}
	tellAll(b, r)
	tellJoined(b, r)
	b.reset()
	l.mu.Lock()
	l.spare = b
	l.mu.Unlock()
}

func refusal(err error) codec.Result {
	if canPass(err) {
		return codec.ResultStorageFull
	}
	return codec.ResultUnavailable
}

// canPass reports whether the store goes on after err.
func canPass(err error) bool {
	_, atSync := errors.AsType[syncError](err)
	return !atSync && diskFull(err)
}

func tellAll(b *batch, r codec.Result) {
	for i := range b.puts {
		if p := &b.puts[i]; p.w != nil {
			p.w.Stored(p.i, r)
		}
	}
}

// settled makes what b wrote part of the store.
func (l *Local) settled(b *batch) {
	b.seg.size += int64(len(b.buf))
	l.segs.bytes += int64(len(b.buf))
	l.count.batches++
	l.count.bytesWritten += int64(len(b.buf))
	l.count.written += int64(len(b.puts))
	for i := range b.puts {
		p := &b.puts[i]
		if e := l.slab.live(p.ref()); e != nil {
			e.clear(flagFlush)
		}
		if !p.counted {
			l.count.accepted++
			l.count.live++
		}
	}
	for i := range b.moves {
		m := &b.moves[i]
		e := l.slab.live(m.ref())
		if m.elided || e == nil {
			continue
		}
		from := l.segs.slots[m.seg]
		from.live--
		from.liveBytes -= int64(m.size)
		e.seg, e.off = b.seg.slot, uint32(b.base)+uint32(m.off)
		b.seg.live++
		b.seg.liveBytes += int64(m.size)
		l.count.moved++
		l.count.movedBytes += int64(m.size)
	}
	if l.full {
		l.full = false
		l.cfg.Log.Info("the disk has room again: messages are accepted")
	}
}

// drop takes the puts of a batch that will not be written out of the index: they were never accepted, but for those that ended otherwise than as dead.
func (l *Local) drop(b *batch, state uint32) {
	for i := range b.puts {
		p := &b.puts[i]
		e := l.slab.live(p.ref())
		if e == nil || !e.is(state) {
			continue
		}
		if e.is(flagDead) {
			l.dead.remove(&l.slab, e)
			l.count.dead--
			l.count.accepted--
			p.counted = false
		} else {
			d := &l.reg.queues[e.queue]
			l.unlink(d, e, e.class())
			d.messages--
			d.bytes -= int64(e.bytes())
		}
		l.count.dropped++
		q, dead := e.queue, e.is(flagDead)
		l.free(p.slot, e)
		if dead {
			l.reg.letter(q, -1)
		}
	}
}

// writeFailed decides between waiting for room and stopping for good, and answers everybody who still waits.
func (l *Local) writeFailed(err error) {
	r := refusal(err)
	l.mu.Lock()
	b := l.open
	l.drop(b, flagOpen)
	waiting := batch{puts: slices.Clone(b.puts), joined: slices.Clone(b.joined)}
	b.joined = b.joined[:0]
	b.dropPuts()
	b.moveBuf, b.moves = b.moveBuf[:0], b.moves[:0]
	first := !l.full
	if canPass(err) {
		l.full = true
		l.retryAt = time.Now().Add(l.cfg.RetryDelay)
		l.count.diskFull++
	} else {
		l.failure = err
	}
	l.mu.Unlock()
	tellAll(&waiting, r)
	tellJoined(&waiting, r)
	if l.mover != nil {
		l.mover.failed = true
	}
	if !canPass(err) {
		l.cfg.Log.Error("the store cannot write and stops taking messages", "error", err)
		l.fatal <- err
		return
	}
	if first {
		l.cfg.Log.Error("the disk is full: messages are refused until there is room", "error", err)
	}
	l.removeHeads() // what has ended meanwhile may make room
}

func (l *Local) hasFailed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure != nil
}

// finalSync makes durable what an interval sync has left, at Close.
func (l *Local) finalSync() {
	if l.hasFailed() {
		return
	}
	var err error
	if l.dirty {
		err = l.syncActive()
	}
	if err == nil {
		err = l.syncSides()
	}
	if err != nil {
		l.writeFailed(err)
	}
}
