package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"holdfast/codec"
	"holdfast/delivery"
)

const (
	nextMax    = 128       // messages of one Next
	spanGapMax = 4 << 10   // bytes of others that one pread may bring along between two messages
	spanMax    = 512 << 10 // bytes of one pread
)

// place is where one message is read from, noted under the lock.
type place struct {
	ref      delivery.Ref
	seg      *segment // pinned; nil: the frame was in memory and is in the buffer already
	off      int64
	size     int
	at       int  // of the frame in the buffer's bytes; -1: it was not read yet
	whole    bool // it lies in blocks that the read cache may keep
	attempts uint16
	sent     bool
}

func unixMs() int64 { return time.Now().UnixMilli() }

// Next implements delivery.Messages. It returns at most 128 messages a call. A message whose bytes turn out to be damaged is left
// out, ended as dead and counted; one that cannot be read stays, and ends the result: it is the error of the next call.
func (l *Local) Next(b *delivery.Buffer, q delivery.QueueID, p codec.Priority, after uint64, n, maxBytes int) ([]delivery.Item, error) {
	b.Items, b.Bytes = b.Items[:0], b.Bytes[:0]
	if p > codec.PriorityBulk {
		return nil, fmt.Errorf("store: no such priority: %d", p)
	}
	for {
		var places [nextMax]place
		k, err := l.plan(places[:0:min(max(n, 1), nextMax)], b, q, p, after, maxBytes)
		if err != nil || k == 0 {
			return b.Items, err
		}
		k, err = l.fetch(b, places[:k])
		if err != nil || len(b.Items) > 0 {
			return b.Items, err
		}
		after = places[k-1].ref.Seq // all of them were damaged
	}
}

// plan notes the places of the next messages and copies those that are still in memory.
func (l *Local) plan(places []place, b *delivery.Buffer, q delivery.QueueID, p codec.Priority, after uint64, maxBytes int) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0, ErrClosed
	}
	if int(q) >= len(l.reg.queues) {
		return 0, fmt.Errorf("store: no such queue: %d", q)
	}
	total := 0
	for slot := l.reg.queues[q].head[p]; slot != 0 && len(places) < cap(places); {
		e := l.slab.at(slot)
		if e.seq > after {
			if total += e.bytes(); total > maxBytes && len(places) > 0 {
				break
			}
			places = append(places, l.place(b, e, slot))
		}
		slot = e.next
	}
	return len(places), nil
}

// place notes one message's place. Called with the lock held.
func (l *Local) place(b *delivery.Buffer, e *entry, slot uint32) place {
	pl := place{ref: e.ref(slot), size: e.bytes(), attempts: e.attempts, sent: e.is(flagSent), at: -1}
	var frame []byte
	switch {
	case e.is(flagOpen):
		frame = l.open.buf[e.off : int(e.off)+pl.size]
	case e.is(flagFlush):
		from := int64(e.off) - l.flushing.base
		frame = l.flushing.buf[from : from+int64(pl.size)]
	default:
		pl.seg, pl.off = l.segs.slots[e.seg], int64(e.off)
		pl.whole = l.cache.whole(pl.off+int64(pl.size), pl.seg.size)
		pl.seg.pins++
		return pl
	}
	pl.at = len(b.Bytes)
	// Not the checksum: the committer may be writing it.
	b.Bytes = append(append(b.Bytes, 0, 0, 0, 0), frame[4:]...)
	return pl
}

// fetch reads what is on the disk, neighbours together, and makes items of the first n places: all, or those before one that cannot be
// read. It fails when that is the first.
func (l *Local) fetch(b *delivery.Buffer, places []place) (n int, err error) {
	for n < len(places) {
		if places[n].seg == nil {
			n++
			continue
		}
		k, size := span(places[n:])
		if err = l.readSpan(b, places[n:n+k], size); err != nil && k > 1 {
			k = 1 // which of them is it?
			err = l.readSpan(b, places[n:n+1], places[n].size)
		}
		if err != nil {
			break
		}
		n += k
	}
	l.mu.Lock()
	for i := range places {
		if places[i].seg != nil {
			l.unpin(places[i].seg)
		}
	}
	l.mu.Unlock()
	if n == 0 {
		return 0, err
	}
	for i := range places[:n] {
		l.item(b, &places[i])
	}
	return n, nil
}

// span says how many of places lie so close that one read of size bytes takes them all.
func span(places []place) (n, size int) {
	first := &places[0]
	end := first.off + int64(first.size)
	for n = 1; n < len(places) && places[n].seg == first.seg; n++ {
		if gap := places[n].off - end; gap < 0 || gap > spanGapMax || places[n].off-first.off > spanMax {
			break
		}
		end = places[n].off + int64(places[n].size)
	}
	return n, int(end - first.off)
}

// readSpan reads n bytes that hold all of places. What a file that was cut short no longer has reads as zeros: damage, which waiting
// would not heal.
func (l *Local) readSpan(b *delivery.Buffer, places []place, n int) error {
	at := len(b.Bytes)
	b.Bytes = slices.Grow(b.Bytes, n)[:at+n]
	first := &places[0]
	if !places[len(places)-1].whole || !l.readCached(b.Bytes[at:], first.seg, first.off) {
		got, err := l.cfg.files.read(first.seg.f, b.Bytes[at:], first.off)
		if errors.Is(err, io.EOF) {
			clear(b.Bytes[at+got:])
		} else if err != nil {
			return fmt.Errorf("store: reading %s at %d: %w", first.seg.path, first.off, err)
		}
	}
	for i := range places {
		places[i].at = at + int(places[i].off-first.off)
	}
	return nil
}

// readCached reads from the cache what is there, or what another reader of the same block makes worth having there. false: it is
// to be read from the disk; so is a block that cannot be read, for the error of the smaller read says which messages it concerns.
func (l *Local) readCached(dst []byte, g *segment, off int64) bool {
	if len(dst) > l.cache.spanMax() || l.cache.most == 0 {
		return false
	}
	for range 3 { // at most two blocks are missing
		block, ok := l.cache.take(dst, g.num, off)
		if block == nil {
			return ok
		}
		_, err := l.cfg.files.read(g.f, block.data, block.key.at*l.cache.blockBytes)
		l.cache.loaded(block, err == nil)
		if err != nil {
			return false
		}
	}
	return false
}

// item makes one item of the frame at a place, or gives the message up.
func (l *Local) item(b *delivery.Buffer, pl *place) {
	frame := b.Bytes[pl.at : pl.at+pl.size]
	n := int(binary.LittleEndian.Uint32(frame[4:]))
	var p put
	ok := n <= len(frame) && n >= putHeadBytes && parsePut(frame[:n], &p) && p.seq == pl.ref.Seq
	if ok && pl.seg != nil {
		ok = l.sums.valid(pl.seg.num, pl.off, frame[:n])
	}
	if !ok {
		l.lose(pl.ref, "its checksum does not fit")
		return
	}
	b.Items = append(b.Items, delivery.Item{Ref: pl.ref, Command: p.command, Attempts: pl.attempts, Sent: pl.sent})
}

// Read implements delivery.Messages. Dead letters are not read.
func (l *Local) Read(b *delivery.Buffer, ref delivery.Ref) (item delivery.Item, ok bool, err error) {
	b.Items, b.Bytes = b.Items[:0], b.Bytes[:0]
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return item, false, ErrClosed
	}
	e := l.slab.live(ref)
	if e == nil || e.is(flagDead) {
		l.mu.Unlock()
		return item, false, nil
	}
	var places [1]place
	places[0] = l.place(b, e, ref.Slot)
	l.mu.Unlock()
	if _, err := l.fetch(b, places[:]); err != nil || len(b.Items) == 0 {
		return item, false, err
	}
	return b.Items[0], true, nil
}
