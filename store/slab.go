package store

import (
	"math/bits"
	"slices"

	"holdfast/delivery"
)

// entry is the index's knowledge of one stored message: 48 bytes without a pointer, so that ten million of them are nothing to the
// garbage collector.
type entry struct {
	seq        uint64 // 0: free
	mid        uint64 // hash of the message id
	off        uint32 // in its segment; while open: in the batch's buffer
	lenFlags   uint32 // length of the frame in the low 21 bits, flags above
	seg        uint16 // slot of the segment
	attempts   uint16
	expireS    uint32 // Unix seconds, rounded up; for a dead letter: when it ended
	acceptedMs uint32 // low bits of Unix milliseconds; see acceptedAt
	queue      uint32
	next, prev uint32 // neighbours in the class of its queue, or among the dead letters; next also links free ones
}

const (
	lenMask    = 1<<21 - 1
	flagSent   = 1 << 21
	flagDead   = 1 << 22
	flagOpen   = 1 << 23 // its frame is in the open batch
	flagFlush  = 1 << 24 // its frame is being written
	classShift = 25      // two bits
	reasonBits = 27      // five bits
)

func (e *entry) bytes() int              { return int(e.lenFlags & lenMask) }
func (e *entry) is(flag uint32) bool     { return e.lenFlags&flag != 0 }
func (e *entry) set(flag uint32)         { e.lenFlags |= flag }
func (e *entry) clear(flag uint32)       { e.lenFlags &^= flag }
func (e *entry) class() int              { return int(e.lenFlags>>classShift) & 3 }
func (e *entry) reason() delivery.Reason { return delivery.Reason(e.lenFlags >> reasonBits) }
func (e *entry) kill(r delivery.Reason) {
	e.lenFlags = e.lenFlags&^(31<<reasonBits) | uint32(r)<<reasonBits | flagDead
}
func (e *entry) ref(s uint32) delivery.Ref { return delivery.Ref{Seq: e.seq, Slot: s} }

// acceptedAt completes the acceptance time: right for anything up to 48 days old, and for a clock that went back by up to a day. An
// older message looks younger; only people look at it.
func (e *entry) acceptedAt(nowMs int64) int64 {
	const aheadMs = 24 * 3600 * 1000
	return nowMs + aheadMs - int64(uint32(nowMs+aheadMs)-e.acceptedMs)
}

const (
	chunkShift = 13
	chunkSlots = 1 << chunkShift
	noExpiry   = ^uint32(0)
)

// chunk is a block of entries that comes and goes as one, so that memory falls back after a flood.
type chunk struct {
	entries [chunkSlots]entry
	used    int
	free    uint32 // first free slot in it, as slot number; 0: none
	// soonestS is not above the expiry of any live entry in it: a sweep passes over the chunk until then.
	soonestS uint32
}

// slab hands out entries. Slot 0 is nobody.
type slab struct {
	chunks  []*chunk
	partial []uint32 // the chunks with room, each once; the last one is filled
	holes   []uint32 // chunk numbers given back
	idle    uint32   // 1 + number of the one empty chunk that is kept, 0: none
	used    int
}

// at is the entry in a slot that is in use. The chunk of one that was given back may be gone; see live.
func (s *slab) at(slot uint32) *entry {
	return &s.chunks[slot>>chunkShift].entries[slot&(chunkSlots-1)]
}

// live returns the entry of ref, dead letters included, or nil when it is gone.
func (s *slab) live(ref delivery.Ref) *entry {
	if i := ref.Slot >> chunkShift; ref.Seq == 0 || int(i) >= len(s.chunks) || s.chunks[i] == nil {
		return nil
	}
	if e := s.at(ref.Slot); e.seq == ref.Seq {
		return e
	}
	return nil
}

func (s *slab) alloc(expireS uint32) (uint32, *entry) {
	if len(s.partial) == 0 {
		s.grow()
	}
	top := s.partial[len(s.partial)-1]
	c := s.chunks[top]
	slot := c.free
	e := s.at(slot)
	c.free = e.next
	*e = entry{expireS: expireS}
	c.used++
	s.used++
	c.soonestS = min(c.soonestS, expireS)
	if s.idle == top+1 {
		s.idle = 0
	}
	if c.free == 0 {
		s.partial = s.partial[:len(s.partial)-1]
	}
	return slot, e
}

func (s *slab) grow() {
	c := &chunk{soonestS: noExpiry}
	var i uint32
	if n := len(s.holes); n > 0 {
		i, s.holes = s.holes[n-1], s.holes[:n-1]
		s.chunks[i] = c
	} else {
		i = uint32(len(s.chunks))
		s.chunks = append(s.chunks, c)
	}
	first := i << chunkShift
	for n := uint32(chunkSlots); n > 0; n-- {
		if slot := first + n - 1; slot != 0 {
			c.entries[n-1].next = c.free
			c.free = slot
		}
	}
	s.partial = append(s.partial, i)
}

func (s *slab) release(slot uint32) {
	i := slot >> chunkShift
	c := s.chunks[i]
	e := s.at(slot)
	if e.seq == 0 {
		panic("store: an entry was freed twice")
	}
	if c.free == 0 {
		s.partial = append(s.partial, i)
	}
	*e = entry{next: c.free}
	c.free = slot
	c.used--
	s.used--
	if c.used > 0 {
		return
	}
	// One empty chunk stays, so that a trickle around a boundary does not come and go with its memory.
	if s.idle == 0 {
		s.idle = i + 1
		return
	}
	at := slices.Index(s.partial, i)
	s.partial = slices.Delete(s.partial, at, at+1)
	s.chunks[i] = nil
	s.holes = append(s.holes, i)
}

// table finds slots by a hash: open addressing in many small parts, so that growing never stops everybody for long.
type table struct {
	home  func(slot uint32) uint64 // the hash a slot was put under
	parts [tableParts]tablePart
}

// A cell is a slot in its low bits, as many as the highest slot of the part needs, and a tag above it: bits of its hash that neither
// chose the part nor the place. Most searches are for what is not there and meet cells of others; without tags each of those would
// cost a look at an entry that nobody has touched for long.
//
// A removed slot leaves a mark in its cell where others may stand behind it. Closing the gap instead would need the whole hash of
// each of those, and so a look at its entry.
type tablePart struct {
	cells    []uint32
	n        int // slots
	marks    int
	slotBits uint8 // of a cell; what is above is the tag
}

// cellMark is no slot, with whatever tag: slotBits always leave the highest number free, and the slab ends before 1<<32 - 1.
const cellMark = 1<<32 - 1

const (
	tablePartBits = 10
	tableParts    = 1 << tablePartBits
	cellsMin      = 8

	// cellsQuick is the size up to which a part grows fourfold. To resize costs a look at every entry in it, and a small table does not
	// cost memory that anybody would miss.
	cellsQuick  = 256
	slotBitsMin = 10 // a tag has at most the 22 bits between the low half of the hash, which is the place, and the part's number
)

func (t *table) part(h uint64) *tablePart { return &t.parts[h>>(64-tablePartBits)] }

// cell is what stands for a slot under h.
func (p *tablePart) cell(h uint64, slot uint32) uint32 { return uint32(h>>32)<<p.slotBits | slot }

// slot is the slot of a cell that holds one.
func (p *tablePart) slot(cell uint32) uint32 { return cell & (1<<p.slotBits - 1) }

func (t *table) insert(slot uint32) {
	h := t.home(slot)
	p := t.part(h)
	if (p.n+p.marks+1)*4 > len(p.cells)*3 {
		n := len(p.cells)
		if p.n*2 >= n { // or the marks would be back soon
			n *= 2
			if n <= cellsQuick {
				n *= 2
			}
		}
		t.resize(p, max(cellsMin, n))
	}
	p.admit(slot)
	p.place(h, slot)
	p.n++
}

// admit shortens the tags of a part if slot needs their room.
func (p *tablePart) admit(slot uint32) {
	before, after := p.slotBits, uint8(max(slotBitsMin, bits.Len32(slot+1)))
	if after <= before {
		return
	}
	for i, cell := range p.cells {
		if cell != 0 && cell != cellMark {
			p.cells[i] = cell>>before<<after | p.slot(cell)
		}
	}
	p.slotBits = after
}

// reserve makes room for n slots, so that filling the table grows nothing.
func (t *table) reserve(n int) {
	const spread = 1.2 // parts do not fill alike
	each := float64(n) / tableParts * spread * 4 / 3
	cells := cellsMin
	for float64(cells) < each {
		cells *= 2
	}
	for i := range t.parts {
		if p := &t.parts[i]; len(p.cells) < cells {
			t.resize(p, cells)
		}
	}
}

func (p *tablePart) place(h uint64, slot uint32) {
	mask := uint32(len(p.cells) - 1)
	i := uint32(h) & mask
	for p.cells[i] != 0 && p.cells[i] != cellMark {
		i = (i + 1) & mask
	}
	if p.cells[i] == cellMark {
		p.marks--
	}
	p.cells[i] = p.cell(h, slot)
}

func (t *table) resize(p *tablePart, n int) {
	old := p.cells
	p.cells, p.marks = make([]uint32, n), 0
	for _, cell := range old {
		if cell != 0 && cell != cellMark {
			slot := p.slot(cell)
			p.place(t.home(slot), slot)
		}
	}
}

// remove takes slot out; it must be in.
func (t *table) remove(slot uint32) {
	h := t.home(slot)
	p := t.part(h)
	mask := uint32(len(p.cells) - 1)
	i, cell := uint32(h)&mask, p.cell(h, slot)
	for p.cells[i] != cell {
		if p.cells[i] == 0 {
			panic("store: an entry is missing in the index")
		}
		i = (i + 1) & mask
	}
	if p.cells[(i+1)&mask] != 0 {
		p.cells[i] = cellMark
		p.marks++
	} else {
		p.cells[i] = 0
		for i = (i - 1) & mask; p.cells[i] == cellMark; i = (i - 1) & mask { // nobody stands behind these either
			p.cells[i] = 0
			p.marks--
		}
	}
	p.n--
	if len(p.cells) > cellsMin && p.n*16 < len(p.cells) {
		t.resize(p, max(cellsMin, len(p.cells)/4))
	}
}

// each calls f with the slots that may stand under h until f returns true.
func (t *table) each(h uint64, f func(slot uint32) (stop bool)) {
	p := t.part(h)
	if p.n == 0 {
		return
	}
	mask := uint32(len(p.cells) - 1)
	tag := p.cell(h, 0)
	for i := uint32(h) & mask; p.cells[i] != 0; i = (i + 1) & mask {
		cell := p.cells[i]
		if slot := p.slot(cell); cell == tag|slot && cell != cellMark && f(slot) {
			return
		}
	}
}
