package store

import (
	"time"

	"holdfast/delivery"
)

const (
	moveBytes  = 1 << 20              // copied forward with one batch
	movePause  = 5 * time.Millisecond // between two of them, so that copying leaves the disk to the messages
	keepFactor = 3                    // a log may be this many times what lives in it
)

// mover copies what lives in the oldest segment to the end of the log, so that the segment can go. The committer's own.
type mover struct {
	g      *segment
	scan   *scanner
	dueAt  time.Time
	ended  bool // all of the segment was read
	failed bool // a batch with moves was not written: begin again
}

// wantsMove reports whether the log holds much more than what lives.
func (l *Local) wantsMove() bool {
	if len(l.segs.order) < 3 || l.full || l.failure != nil || l.closed {
		return false
	}
	live, all := l.count.liveBytes, l.segs.bytes
	return all > keepFactor*live+3*l.cfg.SegmentBytes || (all > l.cfg.StorageBytesMax/10*7 && all > live+live/2+3*l.cfg.SegmentBytes)
}

// stepMover puts some frames that live into the open batch.
func (l *Local) stepMover(now time.Time) {
	l.mu.Lock()
	if l.mover != nil && l.mover.g.removed {
		l.mover = nil // the last of it ended since the step before, and removeHeads took it away
	}
	if l.mover == nil && l.wantsMove() {
		g := l.segs.order[0]
		l.mover = &mover{g: g, scan: newScanner(g.f, l.sums, g.num, g.size, nil)}
	}
	l.mu.Unlock()
	m := l.mover
	if m == nil || m.ended || now.Before(m.dueAt) {
		return
	}
	m.dueAt = now.Add(movePause)
	for moved := 0; moved < moveBytes; {
		frame, off, ok, err := m.scan.next()
		if err != nil {
			l.cfg.Log.Error("a segment cannot be read for copying", "error", err)
			m.scan, m.dueAt = newScanner(m.g.f, l.sums, m.g.num, m.g.size, nil), now.Add(time.Minute)
			return
		}
		if !ok {
			m.ended = true
			return
		}
		if l.moveFrame(m.g, frame, off) {
			moved += len(frame)
		}
	}
}

// moveFrame puts one frame of g into the open batch if its message lives and is still there.
func (l *Local) moveFrame(g *segment, frame []byte, off int64) bool {
	var p put
	if !parsePut(frame, &p) {
		return false
	}
	mid := l.hash(p.message, p.seq)
	l.mu.Lock()
	defer l.mu.Unlock()
	user := l.reg.number(p.user)
	if user == 0 {
		return false
	}
	found := uint32(0)
	l.index.each(home(mid, user), func(slot uint32) bool {
		if e := l.slab.at(slot); e.seq == p.seq && !e.is(flagOpen|flagFlush) && e.seg == g.slot && e.off == uint32(off) {
			found = slot
		}
		return found != 0
	})
	if found == 0 {
		return false
	}
	e := l.slab.at(found)
	b := l.open
	at := len(b.moveBuf)
	b.moveBuf = append(b.moveBuf, frame...)
	b.moveBuf = endFrame(b.moveBuf, at)
	patchMove(b.moveBuf[at:], e)
	b.moves = append(b.moves, move{seq: e.seq, slot: found, seg: e.seg, old: e.off, off: at, size: len(b.moveBuf) - at})
	return true
}

// finishMover ends a move whose last batch is durable. What still lives in the segment then has no readable frame.
func (l *Local) finishMover() {
	m := l.mover
	if m == nil || !m.ended {
		return
	}
	l.mover = nil
	if m.failed {
		return
	}
	l.mu.Lock()
	var lost []delivery.Ref
	if m.g.live > 0 {
		lost = l.inSegment(m.g)
	}
	l.mu.Unlock()
	for _, ref := range lost {
		l.lose(ref, "its frame was not found")
	}
}

// inSegment lists the entries of a segment. It walks the whole index; only after damage.
func (l *Local) inSegment(g *segment) (refs []delivery.Ref) {
	for i, c := range l.slab.chunks {
		if c == nil {
			continue
		}
		for j := range c.entries {
			if e := &c.entries[j]; e.seq != 0 && !e.is(flagOpen) && e.seg == g.slot {
				refs = append(refs, e.ref(uint32(i)<<chunkShift|uint32(j)))
			}
		}
	}
	return refs
}
