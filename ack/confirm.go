package ack

import "math"

// AckResult says what an ACK met.
type AckResult struct {
	Wake     bool // room was refused since the last wake and at least half the window is free now: send on
	Hits     int  // entries removed
	Late     int  // numbers that had left the table before: acknowledged twice, ended otherwise. Not counted by AckUpTo
	Never    bool // it names a number that was never given out: nothing was removed, the client is at fault
	Parked   int  // entries of the session that are parked still: it acknowledges again, they may be unparked
	FirstAck bool // the first ACK of the session
}

// Ack confirms count request numbers from from on: their entries are appended to dst, in order, and are the caller's. Numbers
// that are not in flight are skipped. The cost follows the entries in the range, not count.
func (t *Table) Ack(s Session, from, count uint64, nowMs int64, dst []Entry) ([]Entry, AckResult) {
	if count == 0 {
		return dst, AckResult{}
	}
	last := from + (count - 1)
	if last < from {
		last = math.MaxUint64
	}
	return t.confirm(s, from, last, nowMs, dst, true)
}

// AckUpTo confirms every request number of the session up to number; 0 confirms nothing.
func (t *Table) AckUpTo(s Session, number uint64, nowMs int64, dst []Entry) ([]Entry, AckResult) {
	if number == 0 {
		return dst, AckResult{}
	}
	return t.confirm(s, 1, number, nowMs, dst, false)
}

func (t *Table) confirm(s Session, from, last uint64, nowMs int64, dst []Entry, countLate bool) ([]Entry, AckResult) {
	sh, x := t.lock(s)
	defer sh.mu.Unlock()
	if x == nil {
		return dst, AckResult{}
	}
	if from == 0 || last < from || last >= x.numberNext {
		sh.counts.never++
		return dst, AckResult{Never: true, Parked: int(x.parked)}
	}
	r := AckResult{FirstAck: x.lastAckMs == 0}
	x.lastAckMs = nowMs
	dst, r.Hits = sh.removeRange(x, from, last, dst)
	if countLate {
		r.Late = int(last-from+1) - r.Hits
		sh.counts.late += uint64(r.Late)
	}
	r.Parked = int(x.parked)
	r.Wake = x.wake()
	return dst, r
}

// sweepMax is how many entries of a range are looked at before the first of them is changed.
const sweepMax = 16

// removeRange removes the entries whose numbers lie between from and last. What goes is the caller's.
//
// It looks at up to sweepMax entries in a short loop before it works on them. In a table of millions each of them is a cache
// miss, and the misses of the short loop are under way together, while the work on one entry is too long for the processor to
// reach the next one's miss before it is done.
func (sh *shard) removeRange(x *session, from, last uint64, dst []Entry) ([]Entry, int) {
	if x.length == 0 {
		return dst, 0
	}
	first, hits := sh.numbers.place(x, from), 0
	k := first
	for more := true; more; {
		var slots [sweepMax]uint32
		var armed [sweepMax]bool
		n := 0
		for ; n < sweepMax; k++ {
			if more = k < int(x.length); !more {
				break
			}
			w := *sh.numbers.at(x, k)
			if more = numberOf(w) <= last; !more {
				break
			}
			slot := slotOf(w)
			if slot == slotNone {
				continue // holes inside the list stay until it is rebuilt
			}
			if sh.records.at(slot).number != numberOf(w) {
				panic("ack: a number list leads to the entry of another number")
			}
			slots[n], armed[n] = slot, sh.wheel.Armed(slot)
			n++
		}
		for i, slot := range slots[:n] {
			e := sh.records.at(slot)
			dst = append(dst, e.entry(armed[i]))
			sh.release(x, slot, e)
		}
		hits += n
	}
	sh.numbers.cut(x, first, k)
	return dst, hits
}
