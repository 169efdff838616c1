package store

import (
	"encoding/binary"

	"holdfast/codec"
	"holdfast/delivery"
)

// endedEntry is one delivery that ended: the dedup mark of its message id and the answer to a look-up.
type endedEntry struct {
	mid        uint64
	seq        uint64
	acceptedMs int64
	endedMs    int64
	user       uint32 // name numbers
	device     uint32
	bytes      uint32
	attempts   uint16
	status     delivery.Status
	reason     delivery.Reason
	level      codec.AckLevel
	priority   codec.Priority
}

const (
	endedShift = 12
	endedChunk = 1 << endedShift
)

// endedRing remembers the last ones, oldest out first. Guarded by Local.mu. Its chunks come as they are needed, so a quiet server
// pays nothing for the limit.
type endedRing struct {
	max    uint32
	reg    *registry // whose names the entries use
	chunks []*[endedChunk]endedEntry
	head   uint64 // counts what came; its entries are [tail, head)
	tail   uint64
	index  table
}

func newEndedRing(most int, reg *registry) *endedRing {
	r := &endedRing{max: uint32(most), reg: reg}
	r.chunks = make([]*[endedChunk]endedEntry, (most+endedChunk-1)/endedChunk)
	r.index.home = func(slot uint32) uint64 {
		e := r.at(slot - 1)
		return home(e.mid, e.user)
	}
	return r
}

func (r *endedRing) at(i uint32) *endedEntry { return &r.chunks[i>>endedShift][i&(endedChunk-1)] }

func (r *endedRing) len() int { return int(r.head - r.tail) }

// push adds one and reports whether the oldest had to go for it.
func (r *endedRing) push(e endedEntry) (evicted bool) {
	r.reg.use(e.user, e.device) // before the oldest lets go of what may be the same names
	if evicted = r.len() == int(r.max); evicted {
		r.pop()
	}
	i := uint32(r.head % uint64(r.max))
	if c := i >> endedShift; r.chunks[c] == nil {
		r.chunks[c] = new([endedChunk]endedEntry)
	}
	*r.at(i) = e
	r.head++
	r.index.insert(i + 1)
	return evicted
}

func (r *endedRing) pop() {
	i := uint32(r.tail % uint64(r.max))
	r.index.remove(i + 1)
	r.reg.unuse(r.at(i).user, r.at(i).device)
	r.tail++
	if r.tail == r.head || i&(endedChunk-1) == endedChunk-1 {
		if c := i >> endedShift; r.len() == 0 || uint32(r.head%uint64(r.max))>>endedShift != c {
			r.chunks[c] = nil
		}
	}
}

// age drops up to most entries that ended before sinceMs.
func (r *endedRing) age(sinceMs int64, most int) {
	for ; most > 0 && r.len() > 0; most-- {
		if r.at(uint32(r.tail%uint64(r.max))).endedMs >= sinceMs {
			return
		}
		r.pop()
	}
}

const endedHeadBytes = frameHeadBytes + 4*8 + 4 + 2 + 6

func appendEnded(dst []byte, e *endedEntry, user, device string) []byte {
	start := len(dst)
	le := binary.LittleEndian
	dst = beginFrame(dst, frameEnded)
	dst = le.AppendUint64(dst, e.mid)
	dst = le.AppendUint64(dst, e.seq)
	dst = le.AppendUint64(dst, uint64(e.acceptedMs))
	dst = le.AppendUint64(dst, uint64(e.endedMs))
	dst = le.AppendUint32(dst, e.bytes)
	dst = le.AppendUint16(dst, e.attempts)
	dst = append(dst, byte(e.status), byte(e.reason), byte(e.level), byte(e.priority), byte(len(user)), byte(len(device)))
	dst = append(dst, user...)
	dst = append(dst, device...)
	return endFrame(dst, start)
}

func parseEnded(b []byte, e *endedEntry) (user, device []byte, ok bool) {
	if len(b) < endedHeadBytes || b[8] != frameEnded {
		return nil, nil, false
	}
	le := binary.LittleEndian
	e.mid, e.seq = le.Uint64(b[9:]), le.Uint64(b[17:])
	e.acceptedMs, e.endedMs = int64(le.Uint64(b[25:])), int64(le.Uint64(b[33:]))
	e.bytes, e.attempts = le.Uint32(b[41:]), le.Uint16(b[45:])
	e.status, e.reason = delivery.Status(b[47]), delivery.Reason(b[48])
	e.level, e.priority = codec.AckLevel(b[49]), codec.Priority(b[50])
	names := b[endedHeadBytes:]
	n, m := int(b[51]), int(b[52])
	if len(names) < n+m {
		return nil, nil, false
	}
	return names[:n], names[n : n+m], true
}

// A message id is looked for among one user's messages (is it a duplicate?) and among everybody's (where is it?). One hash serves
// both: the place depends on the id and on a few bits of the user, so a broadcast under one id spreads, and a look-up over all
// users tries each of the few.
const homeSpread = 256

func home(mid uint64, user uint32) uint64 { return mix(mid + uint64(user%homeSpread)) }

// known reports whether the message id was accepted for this user and lives, or ended inside the dedup window.
func (l *Local) known(user uint32, mid uint64, nowMs int64) (found bool) {
	h := home(mid, user)
	l.index.each(h, func(slot uint32) bool {
		e := l.slab.at(slot)
		found = e.mid == mid && l.reg.queues[e.queue].user == user
		return found
	})
	if found {
		return true
	}
	sinceMs := nowMs - l.cfg.DedupWindow.Milliseconds()
	l.ended.index.each(h, func(slot uint32) bool {
		e := l.ended.at(slot - 1)
		found = e.mid == mid && e.user == user && e.endedMs > sinceMs
		return found
	})
	return found
}

// remember puts an end into the ring and into what the next batch writes.
func (l *Local) remember(e endedEntry, nowMs int64) {
	if l.ended.push(e) {
		l.count.dedupShortened++
	}
	l.ended.age(nowMs-l.cfg.DedupWindow.Milliseconds(), 2)
	user, device := l.reg.names[e.user].text, l.reg.names[e.device].text
	l.open.ended = appendEnded(withRoom(l.open.ended, padded(endedHeadBytes+len(user)+len(device))), &e, user, device)
	l.open.endedCount++
	l.open.endedLastMs = max(l.open.endedLastMs, e.endedMs)
}
