package store

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"holdfast/delivery"
)

const epochShift = 44 // of Seq: 17 million million messages a start, a million starts

// start reads the directory and makes it ready for writing.
func (l *Local) start() error {
	began := time.Now()
	fm, err := openFormat(l.cfg.files, l.cfg.Dir)
	if err != nil {
		return err
	}
	l.format, l.seed, l.sums = fm, fm.seed, newChecksums(fm.seed)
	if err := l.loadDevices(); err != nil {
		return err
	}
	if err := l.loadSegments(); err != nil {
		return err
	}
	if err := l.loadEnded(); err != nil {
		return err
	}
	l.doubt = doubtAfter(l.seq, fm.epoch<<epochShift)
	l.seq = max(l.seq, l.doubt.start)
	if len(l.segs.order) == 0 {
		g, err := l.createSegment(1)
		if err != nil {
			return err
		}
		if err := l.segs.add(g); err != nil {
			return err
		}
	}
	c := &l.count
	c.dead = int64(len(l.dead.slots))
	c.live = int64(l.slab.used) - c.dead
	c.accepted = c.live + c.dead
	if l.slab.used > chunkSlots {
		debug.FreeOSMemory() // what only recovery needed
	}
	l.cfg.Log.Info("the store is open", "dir", l.cfg.Dir, "messages", c.live, "deadLetters", c.dead, "queues", l.reg.used,
		"remembered", l.ended.len(), "segments", len(l.segs.order), "damaged", c.damaged, "took", time.Since(began).Round(time.Millisecond))
	if l.format.due != nil {
		l.writeFailed(l.format.due)
	}
	return nil
}

// closeFiles closes every file but the lock.
func (l *Local) closeFiles() (err error) {
	for _, g := range l.segs.slots {
		if g != nil {
			err = errors.Join(err, g.f.Close())
		}
	}
	if l.journal.f != nil {
		err = errors.Join(err, l.journal.f.Close())
	}
	if l.devices.f != nil {
		err = errors.Join(err, l.devices.f.Close())
	}
	return err
}

// damage reports bytes of a file that are no valid frames.
func (l *Local) damage(path string, from, to int64, what string) {
	l.count.damaged++
	l.cfg.Log.Error("a data file is damaged: "+what, "file", path, "from", from, "to", to)
}

// walk calls f with each valid frame of a file and returns where the last one ends. Damage between frames is reported; bytes
// behind the last one are left to the caller.
func (l *Local) walk(file *os.File, num uint64, size int64, window []byte, f func(frame []byte, off int64)) (end int64, err error) {
	s := newScanner(file, l.sums, num, size, window)
	for {
		frame, off, ok, err := s.next()
		if err != nil {
			return end, err
		}
		if !ok {
			return end, nil
		}
		if s.damagedAt >= 0 {
			l.damage(file.Name(), s.damagedAt, off, "records between were skipped, those behind are kept")
		}
		end = s.off
		f(frame, off)
	}
}

// loadSegments reads the log. Its last segment is the one to go on with: one for each start would pile up files in a crash loop, and
// could not be made on a full disk.
func (l *Local) loadSegments() error {
	nums, err := numbered(l.cfg.Dir, "", segmentSuffix)
	if err != nil {
		return err
	}
	if len(nums) == 0 {
		return nil
	}
	for i, num := range nums {
		if want := nums[0] + uint64(i); num != want {
			return fmt.Errorf("%w: %s does not exist, but later ones do; messages in it are gone, an empty file of that name accepts this",
				ErrMissing, segmentPath(l.cfg.Dir, want))
		}
	}
	rec := recovery{l: l, window: make([]byte, 0, scanWindowBytes)}
	rec.bySeq.home = func(slot uint32) uint64 { return mix(l.slab.at(slot).seq) }
	for i, num := range nums {
		if err := rec.segment(num, i == len(nums)-1); err != nil {
			return err
		}
		if i == 0 {
			rec.bySeq.reserve(l.slab.used * len(nums)) // as many as in the first one in each
		}
	}
	rec.build()
	return nil
}

// recovery is what reading the log needs and nobody later.
type recovery struct {
	l      *Local
	window []byte
	bySeq  table
	made   []uint32 // queues that only messages told of
}

// segment reads one file. The last one may have a torn tail, which goes; what is left of it is durable afterwards.
func (r *recovery) segment(num uint64, last bool) error {
	l := r.l
	path := segmentPath(l.cfg.Dir, num)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("store: opening a segment: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("store: opening a segment: %w", err), f.Close())
	}
	g := &segment{num: num, path: path, f: f, size: st.Size()}
	if err := l.segs.add(g); err != nil {
		return errors.Join(err, f.Close())
	}
	frames := 0
	end, err := l.walk(f, num, g.size, r.window, func(frame []byte, off int64) {
		frames++
		r.frame(g, frame, off)
	})
	if err != nil {
		return err
	}
	if !last {
		if end < g.size || frames == 0 {
			l.damage(path, end, g.size, "the end of the segment is missing or no valid record; what was there is lost")
		}
		return nil
	}
	if end < g.size {
		l.cfg.Log.Warn("the last segment had a torn tail: what was never answered was cut off", "file", path, "from", end, "to", g.size)
		if err := l.cfg.files.truncate(f, end); err != nil {
			return fmt.Errorf("store: cutting %s: %w", path, err)
		}
		l.segs.bytes -= g.size - end
		g.size = end
	}
	// A killed process may have written more than it synced. From now on that is taken for stored, and a repeat of it for a duplicate.
	if err := l.cfg.files.sync(f); err != nil {
		return fmt.Errorf("store: syncing %s: %w", path, err)
	}
	return nil
}

func (r *recovery) frame(g *segment, frame []byte, off int64) {
	switch frame[8] {
	case framePut, frameMove:
		var p put
		if !parsePut(frame, &p) {
			r.l.damage(g.path, off, off+int64(len(frame)), "a record with impossible lengths")
			return
		}
		r.put(g, &p, off, padded(len(frame)))
	case frameEnds:
		eachItem(frame, endBytes, func(item []byte) { r.end(parseEnd(item)) })
	case frameNotes:
		eachItem(frame, noteBytes, func(item []byte) {
			seq, attempts, sent := parseNote(item)
			if slot := r.find(seq); slot != 0 {
				e := r.l.slab.at(slot)
				e.attempts = attempts
				if sent {
					e.set(flagSent)
				}
			}
		})
	}
}

func (r *recovery) find(seq uint64) (found uint32) {
	if seq > r.l.seq {
		r.l.seq = seq // higher than all before: nothing to look for, the common case of a put
		return 0
	}
	r.bySeq.each(mix(seq), func(slot uint32) bool {
		if r.l.slab.at(slot).seq == seq {
			found = slot
		}
		return found != 0
	})
	return found
}

func (r *recovery) put(g *segment, p *put, off int64, size int) {
	l := r.l
	slot := r.find(p.seq)
	var e *entry
	if slot == 0 {
		slot, e = l.slab.alloc(expireSeconds(p.expireMs))
		e.seq, e.mid = p.seq, l.hash(p.message, p.seq)
		e.queue, e.acceptedMs = r.queue(p), uint32(p.acceptedMs)
		e.lenFlags = uint32(size) | uint32(p.class)<<classShift
		r.bySeq.insert(slot)
		l.count.liveBytes += int64(size)
	} else {
		e = l.slab.at(slot)
		old := l.segs.slots[e.seg]
		old.live--
		old.liveBytes -= int64(e.bytes())
	}
	e.seg, e.off, e.attempts = g.slot, uint32(off), max(e.attempts, p.attempts)
	g.live++
	g.liveBytes += int64(size)
	if p.flags&putSent != 0 {
		e.set(flagSent)
	}
	if p.flags&putDead != 0 && !e.is(flagDead) {
		die(e, p.reason, p.expireMs)
	}
}

// queue finds or makes the queue of a stored message. What was stored for the default queue belongs to the device that took it over.
func (r *recovery) queue(p *put) uint32 {
	reg := &r.l.reg
	u, d := reg.name(p.user), reg.name(p.device)
	if d == 0 {
		for q := reg.names[u].first; q != 0; q = reg.queues[q].next {
			if reg.queues[q].heir {
				return q
			}
		}
	}
	q := reg.find(u, d)
	if q == 0 {
		q = reg.add(u, d)
		r.made = append(r.made, q)
		if d != 0 {
			// The registry may have lost its tail. That the device got a message says that it was known then.
			reg.queues[q].seenMs = p.acceptedMs
		}
	}
	return q
}

func die(e *entry, reason delivery.Reason, endedMs int64) {
	e.kill(reason)
	e.expireS = expireSeconds(endedMs)
}

func (r *recovery) end(en end) {
	l := r.l
	slot := r.find(en.seq)
	if slot == 0 {
		return // its put went with an earlier segment
	}
	e := l.slab.at(slot)
	e.attempts = max(e.attempts, en.attempts)
	if en.status == delivery.StatusDead {
		if !e.is(flagDead) {
			die(e, en.reason, en.endedMs)
		}
		return
	}
	g := l.segs.slots[e.seg]
	g.live--
	g.liveBytes -= int64(e.bytes())
	l.count.liveBytes -= int64(e.bytes())
	r.bySeq.remove(slot)
	l.slab.release(slot)
}

// build links what is left, by Seq, and fills the index.
func (r *recovery) build() {
	l := r.l
	slots := make([]uint32, 0, l.slab.used)
	for i, c := range l.slab.chunks {
		if c == nil {
			continue
		}
		for j := range c.entries {
			if c.entries[j].seq != 0 {
				slots = append(slots, uint32(i)<<chunkShift|uint32(j))
			}
		}
	}
	r.bySeq = table{} // its memory serves the index
	l.index.reserve(len(slots))
	bySeq := func(a, b uint32) int { return cmp.Compare(l.slab.at(a).seq, l.slab.at(b).seq) }
	if !slices.IsSortedFunc(slots, bySeq) {
		slices.SortFunc(slots, bySeq)
	}
	for _, slot := range slots {
		e := l.slab.at(slot)
		l.index.insert(slot)
		if e.is(flagDead) {
			l.dead.slots = append(l.dead.slots, slot)
			l.reg.letter(e.queue, 1)
			continue
		}
		q := &l.reg.queues[e.queue]
		if q.device != 0 && !l.format.clean {
			e.set(flagSent) // it may have been, just before the crash; what waits for a first device was not
		}
		l.link(q, slot, e.class())
		q.messages++
		q.bytes += int64(e.bytes())
	}
	for _, q := range r.made {
		// Nothing lives in it: its messages ended or are dead letters. The device, if there is one, logs in again.
		if l.reg.queues[q].messages == 0 {
			l.reg.forget(q)
			l.reg.release(q)
		}
	}
}
