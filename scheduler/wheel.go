package scheduler

import "math/bits"

// TickMs is the resolution of a Wheel in milliseconds. A timer never fires early and at most one tick late (plus the time
// the caller lets pass between two calls of Advance).
const TickMs = 10

// TimerMax is the highest timer number a Wheel takes.
const TimerMax = 1<<31 - 1

// The levels hold 256, 64, 64 and 64 buckets, that is 2.56 s, 164 s, 2.9 h and 7.8 days; what is further away waits in one
// overflow bucket. A timer lives in the lowest level whose part of its tick differs from the current tick's, so every
// timer of a level is due before every timer of the next level, and no bucket ever mixes two turns of the wheel.
const (
	levels         = 4
	spanBits       = 26 // ticks of all levels together: 1 << spanBits
	bucketOverflow = 256 + 3*64
	bucketTurned   = bucketOverflow + 1 // what was in overflow when the whole wheel came round, still to be spread
	bucketCount    = bucketTurned + 1

	tickLast = 1<<52 - 1 // a million years

	nodesPerChunk = 1024 // 16 KiB, a size class of the allocator
	headBase      = 1 << 31
)

// levelShift and the others are functions because a package-level table would be a variable; they compile to constants.
func levelShift(level int) uint {
	if level == 0 {
		return 0
	}
	return uint(8 + 6*(level-1))
}

func levelMask(level int) int64 {
	if level == 0 {
		return 255
	}
	return 63
}

func levelFirst(level int) uint32 {
	if level == 0 {
		return 0
	}
	return uint32(256 + 64*(level-1))
}

// node links one timer into its bucket. A link is a timer number, or headBase plus the number of the bucket at both ends of
// a list.
type node struct {
	next, prev uint32 // 0, 0: in no bucket
	due        int64  // tick << bucketBits | bucket it lies in; a tick of 0: not armed
}

const bucketBits = 10

func (n *node) tick() int64    { return n.due >> bucketBits }
func (n *node) bucket() uint32 { return uint32(n.due & (1<<bucketBits - 1)) }
func (n *node) linked() bool   { return n.next|n.prev != 0 }

// Wheel is a hierarchical timing wheel over timer numbers the caller chooses (the slots of its slab). Numbers should be
// dense from 0: the wheel keeps 16 bytes for each number up to the highest in use, in chunks without pointers, so that the
// garbage collector does not look at them. Not safe for concurrent use: it lives under the lock of what it times, so that an
// entry and its timer change in one critical section.
//
// Disarm does not unlink, and Arm does not move a timer that lies in a bucket that comes round before its new time: both only
// write the timer's own node, and whoever empties the bucket drops or moves it then. Nearly every timer of ours is disarmed
// long before it fires and its number armed again soon for a later time; unlinking at once would touch two neighbours, which
// in a table of millions are two cache misses, and the later visit to the bucket is one per timeout, not one per message.
type Wheel struct {
	chunks   []*[nodesPerChunk]node
	heads    [bucketCount]node
	occupied [8]uint64 // a bit a bucket: words 0-3 level 0, then one word a level, then overflow

	baseTick int64 // absolute tick (ms / TickMs) of tick 0; ticks count from 1 so that 0 can mean "not armed"
	current  int64 // everything due before this tick has fired
	armed    int
}

// NewWheel returns a wheel that stands at nowMs.
func NewWheel(nowMs int64) *Wheel {
	w := &Wheel{baseTick: nowMs/TickMs - 1, current: 1}
	w.clearHeads()
	return w
}

func (w *Wheel) clearHeads() {
	for b := range w.heads {
		w.heads[b] = node{next: headBase + uint32(b), prev: headBase + uint32(b)}
	}
	w.occupied = [8]uint64{}
}

// Len is the number of armed timers.
func (w *Wheel) Len() int { return w.armed }

// Armed reports whether timer i is armed.
func (w *Wheel) Armed(i uint32) bool {
	c := int(i / nodesPerChunk)
	return c < len(w.chunks) && w.chunks[c] != nil && w.chunks[c][i%nodesPerChunk].tick() != 0
}

// Arm lets timer i fire at atMs; an armed timer is moved. A time that has passed fires at the next Advance.
func (w *Wheel) Arm(i uint32, atMs int64) {
	n := w.reserve(i)
	if n.tick() == 0 {
		w.armed++
	}
	tick := atMs / TickMs
	if atMs%TickMs > 0 {
		tick++ // up: never early
	}
	tick = min(max(tick-w.baseTick, w.current), tickLast)
	if n.linked() {
		if w.bucketStart(n.bucket()) <= tick {
			n.due = tick<<bucketBits | int64(n.bucket())
			return
		}
		w.unlink(n)
	}
	w.link(i, n, tick)
}

// Disarm stops timer i and reports whether it was armed.
func (w *Wheel) Disarm(i uint32) bool {
	if !w.Armed(i) {
		return false
	}
	n := w.node(i)
	n.due = int64(n.bucket())
	w.armed--
	return true
}

// Trim gives back the memory of all but the first keep timer numbers when nothing is armed; else it does nothing.
func (w *Wheel) Trim(keep int) {
	if c := (keep + nodesPerChunk - 1) / nodesPerChunk; w.armed == 0 && c < len(w.chunks) {
		clear(w.chunks[c:])
		w.chunks = w.chunks[:c]
		for _, chunk := range w.chunks {
			if chunk != nil {
				clear(chunk[:]) // disarmed timers may still be linked, to each other and to what has gone
			}
		}
		w.clearHeads()
	}
}

// Advance moves the wheel to nowMs and appends the timers that fire, disarmed and in the order they are due, to dst: at most
// limit of them, and after a bounded amount of work. When Behind(nowMs) still holds afterwards, the caller calls again,
// and may let go of its lock in between. A time before the last one is taken as the last one.
func (w *Wheel) Advance(nowMs int64, dst []uint32, limit int) []uint32 {
	target := max(nowMs/TickMs-w.baseTick, w.current)
	moves := 4*limit + 1024 // a crowded bucket of a high level is spread in several calls
	for {
		if !w.cascade(&moves) {
			return dst
		}
		head := headBase + uint32(w.current&255)
		for {
			i := w.node(head).next
			if i == head {
				break
			}
			n := w.node(i)
			tick := n.tick()
			if tick == w.current {
				if limit == 0 {
					return dst
				}
				limit--
				w.unlink(n)
				n.due = 0
				w.armed--
				dst = append(dst, i)
				continue
			}
			if tick != 0 && tick < w.current {
				panic("scheduler: a timer was missed")
			}
			if moves == 0 {
				return dst
			}
			moves--
			w.relink(i, n)
		}
		if w.current == target {
			return dst
		}
		w.moveTo(min(w.nextTick(), target))
	}
}

// Behind reports whether something is due at nowMs that Advance has not handed out yet.
func (w *Wheel) Behind(nowMs int64) bool {
	if w.armed == 0 {
		return false
	}
	if w.has(bucketTurned) || w.has(uint32(w.current&255)) {
		return true
	}
	for level := 1; level < levels; level++ {
		if w.has(w.bucketAt(level, w.current)) {
			return true
		}
	}
	return w.nextTick() <= nowMs/TickMs-w.baseTick
}

// cascade spreads the buckets of the higher levels that the current tick has reached over the lower ones. It reports false
// when moves are used up before that is done.
func (w *Wheel) cascade(moves *int) bool {
	for level := levels; level > 0; level-- {
		b := uint32(bucketTurned)
		if level < levels {
			b = w.bucketAt(level, w.current)
		}
		for w.has(b) {
			if *moves == 0 {
				return false
			}
			*moves--
			i := w.heads[b].next
			w.relink(i, w.node(i))
		}
	}
	return true
}

// moveTo makes tick the current one. The caller has seen that nothing lies between.
func (w *Wheel) moveTo(tick int64) {
	if tick>>spanBits != w.current>>spanBits && w.has(bucketOverflow) {
		from, to := &w.heads[bucketOverflow], &w.heads[bucketTurned]
		to.next, to.prev = from.next, from.prev
		w.node(to.next).prev = headBase + bucketTurned
		w.node(to.prev).next = headBase + bucketTurned // the nodes go on saying "overflow"; bucketStart knows
		from.next, from.prev = headBase+bucketOverflow, headBase+bucketOverflow
		w.mark(bucketOverflow, false)
		w.mark(bucketTurned, true)
	}
	w.current = tick
}

// nextTick is the first tick after the current one at which a bucket fires or is to be spread; far in the future when there
// is none. Whole empty stretches are stepped over by the bits, so a jump of days costs no more than what is armed.
func (w *Wheel) nextTick() int64 {
	for level := range levels {
		shift, mask := levelShift(level), levelMask(level)
		position := (w.current >> shift) & mask
		if p := w.nextBit(level, position+1); p >= 0 {
			above := shift + uint(bits.Len64(uint64(mask)))
			return w.current>>above<<above | p<<shift
		}
	}
	if w.has(bucketOverflow) {
		return (w.current>>spanBits + 1) << spanBits
	}
	return 1<<63 - 1
}

// nextBit is the first occupied position of a level that is not below from; -1 when there is none.
func (w *Wheel) nextBit(level int, from int64) int64 {
	if level > 0 {
		if from > 63 {
			return -1
		}
		if word := w.occupied[3+level] >> uint(from); word != 0 {
			return from + int64(bits.TrailingZeros64(word))
		}
		return -1
	}
	for k := from / 64; k < 4; k++ {
		word := w.occupied[k]
		if k == from/64 {
			word &= ^uint64(0) << uint(from%64)
		}
		if word != 0 {
			return k*64 + int64(bits.TrailingZeros64(word))
		}
	}
	return -1
}

// bucketAt is the bucket of a level that holds tick.
func (w *Wheel) bucketAt(level int, tick int64) uint32 {
	return levelFirst(level) + uint32((tick>>levelShift(level))&levelMask(level))
}

// bucketStart is the first tick of a bucket in which something lies: no timer in it is looked at before.
func (w *Wheel) bucketStart(bucket uint32) int64 {
	if bucket >= bucketOverflow {
		return (w.current>>spanBits + 1) << spanBits // or now, when the wheel has just come round: this is the safe side
	}
	level := 0
	if bucket >= 256 {
		level = 1 + int(bucket-256)/64
	}
	shift := levelShift(level)
	above := shift + uint(bits.Len64(uint64(levelMask(level))))
	return w.current>>above<<above | int64(bucket-levelFirst(level))<<shift
}

// bucketOf is the bucket a timer for tick belongs to now.
func (w *Wheel) bucketOf(tick int64) uint32 {
	switch far := tick ^ w.current; {
	case far < 1<<8:
		return uint32(tick & 255)
	case far < 1<<14:
		return w.bucketAt(1, tick)
	case far < 1<<20:
		return w.bucketAt(2, tick)
	case far < 1<<spanBits:
		return w.bucketAt(3, tick)
	}
	return bucketOverflow
}

func (w *Wheel) has(bucket uint32) bool {
	return w.occupied[bucket/64]&(1<<(bucket%64)) != 0
}

func (w *Wheel) mark(bucket uint32, occupied bool) {
	if occupied {
		w.occupied[bucket/64] |= 1 << (bucket % 64)
	} else {
		w.occupied[bucket/64] &^= 1 << (bucket % 64)
	}
}

// node is the node of timer i or, from headBase on, of a bucket's head.
func (w *Wheel) node(i uint32) *node {
	if i >= headBase {
		return &w.heads[i-headBase]
	}
	return &w.chunks[i/nodesPerChunk][i%nodesPerChunk]
}

// reserve is node for a number that may not have been used before.
func (w *Wheel) reserve(i uint32) *node {
	if i > TimerMax {
		panic("scheduler: timer number above TimerMax")
	}
	c := int(i / nodesPerChunk)
	for c >= len(w.chunks) {
		w.chunks = append(w.chunks, nil)
	}
	if w.chunks[c] == nil {
		w.chunks[c] = new([nodesPerChunk]node)
	}
	return &w.chunks[c][i%nodesPerChunk]
}

// link puts timer i, not linked, at the tail of the bucket of tick and arms it.
func (w *Wheel) link(i uint32, n *node, tick int64) {
	b := w.bucketOf(tick)
	head := &w.heads[b]
	last := head.prev
	n.prev, n.next = last, headBase+b
	n.due = tick<<bucketBits | int64(b)
	w.node(last).next = i
	head.prev = i
	w.mark(b, true)
}

// unlink takes n out of its bucket; its tick stays.
func (w *Wheel) unlink(n *node) {
	w.node(n.prev).next = n.next
	w.node(n.next).prev = n.prev
	if n.prev == n.next && n.next >= headBase { // both neighbours are the head: the bucket is empty now
		w.mark(n.next-headBase, false)
	}
	n.next, n.prev = 0, 0
}

// relink takes n out of a bucket that has come round, into the one it belongs to now if it is armed.
func (w *Wheel) relink(i uint32, n *node) {
	w.unlink(n)
	if tick := n.tick(); tick != 0 {
		w.link(i, n, tick)
	} else {
		n.due = 0
	}
}
