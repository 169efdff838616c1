package store

import (
	"slices"
	"sort"
	"time"

	"holdfast/codec"
	"holdfast/delivery"
)

// batch is what one commit writes. The open one is guarded by Local.mu. Of the one being flushed the committer owns the checksums
// and reads the rest; readers of messages in it and ends hold the lock.
type batch struct {
	buf   []byte // frames of puts; from the cut on everything for the segment
	puts  []pending
	live  int       // puts not elided so far
	putAt time.Time // of the first

	joined []joined // repeats that wait for one of the puts

	moveBuf []byte
	moves   []move

	ends   []byte // items of ends frames
	notes  []byte // items of notes frames
	ended  []byte // frames for the ended journal
	device []byte // frames for the devices file
	lazyAt time.Time

	notesSqueezed int // length of notes after squeezeNotes, 0: not called yet

	endedCount  int
	endedLastMs int64

	flushes []chan struct{} // closed when this is written; guarded by Local.mu, also while it is being flushed

	seg  *segment // set by the cut
	base int64    // where buf goes in it
}

// pending is a put whose publisher waits.
type pending struct {
	seq     uint64
	slot    uint32
	off     int // in buf
	size    int
	w       delivery.Waiter
	i       int
	counted bool // in the ledger already, for it ended before it was durable
}

// move is one frame copied forward. The entry points to the old place until the new one is durable.
type move struct {
	seq    uint64
	slot   uint32
	seg    uint16 // old place
	old    uint32
	off    int // in moveBuf, from the cut on in buf
	size   int
	elided bool
}

// ref names the message of p, which may be gone: only slab.live may follow it.
func (p *pending) ref() delivery.Ref { return delivery.Ref{Seq: p.seq, Slot: p.slot} }

// ref names the message of m, which may be gone: only slab.live may follow it.
func (m *move) ref() delivery.Ref { return delivery.Ref{Seq: m.seq, Slot: m.slot} }

// notice is a waiter to be told once the lock is let go.
type notice struct {
	w delivery.Waiter
	i int
}

// notices collects waiters under the lock; tell calls them after it: what ended is as good as
// stored.
type notices struct {
	list [32]notice
	n    int
}

func (n *notices) add(w delivery.Waiter, i int) {
	n.list[n.n] = notice{w, i}
	n.n++
}

// answer collects the waiter of p, if it was not answered before.
func (n *notices) answer(p *pending) {
	if p != nil && p.w != nil {
		n.add(p.w, p.i)
		p.w = nil
	}
}

// full reports whether there may be no room for what one more end has to tell: its own publisher, or those of the dead letters that
// have to go for it.
func (n *notices) full() bool { return n.n > len(n.list)-deadEvictMax }

func (n *notices) tell() {
	for i := range n.n {
		n.list[i].w.Stored(n.list[i].i, codec.ResultAccepted)
		n.list[i] = notice{}
	}
	n.n = 0
}

func (b *batch) lazy() bool {
	return len(b.ends) > 0 || len(b.notes) > 0 || len(b.ended) > 0 || len(b.device) > 0 || len(b.moves) > 0
}

// search returns the pending put of seq, nil when it is not in here. Puts stand by rising seq.
func (b *batch) search(seq uint64) *pending {
	i := sort.Search(len(b.puts), func(i int) bool { return b.puts[i].seq >= seq })
	if i == len(b.puts) || b.puts[i].seq != seq {
		return nil
	}
	return &b.puts[i]
}

// find is search for one that must be there.
func (b *batch) find(seq uint64) *pending {
	p := b.search(seq)
	if p == nil {
		panic("store: a pending message is in no batch")
	}
	return p
}

// dropPuts forgets the puts; the buffers stay.
func (b *batch) dropPuts() {
	clear(b.puts) // lets go of the waiters
	b.puts, b.buf, b.live = b.puts[:0], b.buf[:0], 0
}

// withRoom returns b with room for n more bytes. It doubles: append grows a large slice by a quarter, and what a flood of ends leaves
// until it is written would be copied five times over.
func withRoom(b []byte, n int) []byte {
	if cap(b)-len(b) < n {
		b = slices.Grow(b, max(n, cap(b)))
	}
	return b
}

const batchKeepBytes = 4 << 20

// reset readies a batch for use again. What a flood made large is given back.
func (b *batch) reset() {
	b.dropPuts()
	if cap(b.buf) > batchKeepBytes {
		b.buf = nil
	}
	for _, list := range []*[]byte{&b.moveBuf, &b.ends, &b.notes, &b.ended} {
		if cap(*list) > batchKeepBytes {
			*list = nil
		}
	}
	b.moveBuf, b.moves = b.moveBuf[:0], b.moves[:0]
	b.ends, b.notes, b.ended, b.device = b.ends[:0], b.notes[:0], b.ended[:0], b.device[:0]
	b.notesSqueezed, b.endedCount, b.endedLastMs, b.flushes, b.seg, b.base, b.lazyAt = 0, 0, 0, nil, nil, 0, time.Time{}
}

// takeLazy puts what a failed batch could not write in front of what came since. Moves are not kept: the old places are good.
func (b *batch) takeLazy(failed *batch) {
	b.ends = append(failed.ends, b.ends...)
	b.notes, b.notesSqueezed = append(failed.notes, b.notes...), failed.notesSqueezed
	b.squeezeNotes()
	b.ended = append(failed.ended, b.ended...)
	b.device = append(failed.device, b.device...)
	b.flushes = append(b.flushes, failed.flushes...)
	failed.ends, failed.notes, failed.ended, failed.device, failed.flushes = nil, nil, nil, nil, nil
	b.endedCount += failed.endedCount
	b.endedLastMs = max(b.endedLastMs, failed.endedLastMs)
	if b.lazyAt.IsZero() {
		b.lazyAt = failed.lazyAt
	}
}

// notesSlackBytes is what notes that say nothing new may take beside as much as those that do.
const notesSlackBytes = 1 << 20

// squeezeNotes keeps the last note of each message: while the disk is full messages are sent on, and each attempt leaves one.
func (b *batch) squeezeNotes() {
	if len(b.notes) < 2*b.notesSqueezed+notesSlackBytes {
		return
	}
	seen := map[uint64]bool{}
	at := len(b.notes)
	for i := at - noteBytes; i >= 0; i -= noteBytes {
		if note := b.notes[i : i+noteBytes]; !seen[noteSeq(note)] {
			seen[noteSeq(note)] = true
			at -= noteBytes
			copy(b.notes[at:], note)
		}
	}
	b.notes = append(b.notes[:0], b.notes[at:]...)
	b.notesSqueezed = len(b.notes)
}

// cut takes the open batch for writing: messages that ended meanwhile fall out, the others get their place in the segment.
// Called with the lock held.
func (l *Local) cut() *batch {
	b := l.open
	l.open, l.spare = l.spare, nil
	l.flushing = b
	b.seg = l.segs.active()
	b.base = b.seg.size
	w := 0
	kept := b.puts[:0]
	for _, p := range b.puts {
		e := l.slab.live(p.ref())
		if e == nil || !e.is(flagOpen) {
			continue
		}
		if w != p.off {
			copy(b.buf[w:], b.buf[p.off:p.off+p.size])
		}
		p.off = w
		w += p.size
		e.clear(flagOpen)
		e.set(flagFlush)
		e.seg, e.off = b.seg.slot, uint32(b.base)+uint32(p.off)
		b.seg.live++
		b.seg.liveBytes += int64(p.size)
		kept = append(kept, p)
	}
	clear(b.puts[len(kept):])
	b.puts, b.buf = kept, b.buf[:w]
	for i := range b.moves {
		m := &b.moves[i]
		e := l.slab.live(m.ref())
		if m.elided = e == nil || e.seg != m.seg || e.off != m.old; !m.elided {
			frame := b.moveBuf[m.off : m.off+m.size]
			m.off = len(b.buf)
			b.buf = append(b.buf, frame...)
		}
	}
	b.buf = appendList(b.buf, frameNotes, b.notes, noteBytes)
	b.buf = appendList(b.buf, frameEnds, b.ends, endBytes)
	b.device = append(b.device, l.reg.changed...)
	l.reg.changed = l.reg.changed[:0]
	return b
}
