package store

import (
	"encoding/binary"
	"hash/crc32"

	"holdfast/codec"
	"holdfast/delivery"
)

// Every file is a row of frames; doc.go draws them.
const (
	frameHeadBytes = 9
	frameBytesMax  = 2 << 20
	frameAlign     = 8

	framePut    = 1 // a message: head, names, command
	frameMove   = 2 // the same, copied forward
	frameEnds   = 3 // list of ends
	frameNotes  = 4 // list of attempt counts
	frameEnded  = 5 // ended journal
	frameDevice = 6 // device registry
	framePad    = 7 // nothing: tries whether there is room
	frameHeader = 8 // nothing: first of a new file, so that an empty one stands out
)

func padded(n int) int { return (n + frameAlign - 1) &^ (frameAlign - 1) }

// beginFrame appends the head of a frame; endFrame completes it.
func beginFrame(dst []byte, kind byte) []byte {
	return append(dst, 0, 0, 0, 0, 0, 0, 0, 0, kind)
}

// endFrame sets the length of the frame that starts at start and pads it.
func endFrame(dst []byte, start int) []byte {
	binary.LittleEndian.PutUint32(dst[start+4:], uint32(len(dst)-start))
	for len(dst)%frameAlign != start%frameAlign {
		dst = append(dst, 0)
	}
	return dst
}

// checksums knows how frames are sealed in one directory.
type checksums struct {
	table *crc32.Table
	seed  uint64
}

func newChecksums(seed uint64) checksums {
	return checksums{table: crc32.MakeTable(crc32.Castagnoli), seed: seed}
}

func (c checksums) sum(file uint64, off int64, frame []byte) uint32 {
	start := uint32(mix(c.seed ^ mix(file+1) ^ uint64(off)))
	return crc32.Update(start, c.table, frame[4:])
}

// seal sets the checksums of a row of frames that will be written at off.
func (c checksums) seal(file uint64, off int64, frames []byte) {
	for at := 0; at < len(frames); {
		n := int(binary.LittleEndian.Uint32(frames[at+4:]))
		binary.LittleEndian.PutUint32(frames[at:], c.sum(file, off+int64(at), frames[at:at+n]))
		at += padded(n)
	}
}

// valid reports whether frame, cut to its length, is whole and was written here.
func (c checksums) valid(file uint64, off int64, frame []byte) bool {
	return binary.LittleEndian.Uint32(frame) == c.sum(file, off, frame)
}

// mix spreads the bits of x (a bijection).
func mix(x uint64) uint64 {
	x ^= x >> 32
	x *= 0x9e3779b97f4a7c15
	x ^= x >> 29
	x *= 0xd6e8feb86659fd93
	x ^= x >> 32
	return x
}

const (
	putHeadBytes = frameHeadBytes + 6 + 2 + 3*8

	putSent = 1 << 0
	putDead = 1 << 1
)

// put is one stored message, decoded. Its slices borrow from the frame.
type put struct {
	kind                           byte
	class, flags                   byte
	reason                         delivery.Reason
	attempts                       uint16
	seq                            uint64
	acceptedMs, expireMs           int64 // expireMs of a dead one is when it ended
	user, device, message, command []byte
}

// patchMove turns a put frame into the move of an entry as it stands now.
func patchMove(frame []byte, e *entry) {
	frame[8] = frameMove
	flags := byte(0)
	if e.is(flagSent) {
		flags |= putSent
	}
	if e.is(flagDead) {
		flags |= putDead
		binary.LittleEndian.PutUint64(frame[33:], uint64(e.expireS)*1000)
	}
	frame[10], frame[11] = flags, byte(e.reason())
	binary.LittleEndian.PutUint16(frame[15:], e.attempts)
}

// appendPut appends the frame of p, under these names instead of its own.
func appendPut(dst []byte, p *put, user, device string) []byte {
	start := len(dst)
	dst = beginFrame(dst, p.kind)
	dst = append(dst, p.class, p.flags, byte(p.reason), byte(len(user)), byte(len(device)), byte(len(p.message)))
	le := binary.LittleEndian
	dst = le.AppendUint16(dst, p.attempts)
	dst = le.AppendUint64(dst, p.seq)
	dst = le.AppendUint64(dst, uint64(p.acceptedMs))
	dst = le.AppendUint64(dst, uint64(p.expireMs))
	dst = append(dst, user...)
	dst = append(dst, device...)
	dst = append(dst, p.message...)
	dst = append(dst, p.command...)
	return endFrame(dst, start)
}

// parsePut reads a put or move frame, which may be longer than its length says; ok is false when its lengths do not fit.
func parsePut(b []byte, p *put) (ok bool) {
	if len(b) < putHeadBytes {
		return false
	}
	n := int(binary.LittleEndian.Uint32(b[4:]))
	user, device, message := int(b[12]), int(b[13]), int(b[14])
	if n > len(b) || n < putHeadBytes+user+device+message {
		return false
	}
	p.kind, p.class, p.flags, p.reason = b[8], b[9], b[10], delivery.Reason(b[11])
	p.attempts = binary.LittleEndian.Uint16(b[15:])
	p.seq = binary.LittleEndian.Uint64(b[17:])
	p.acceptedMs = int64(binary.LittleEndian.Uint64(b[25:]))
	p.expireMs = int64(binary.LittleEndian.Uint64(b[33:]))
	rest := b[putHeadBytes:n]
	p.user, rest = rest[:user], rest[user:]
	p.device, rest = rest[:device], rest[device:]
	p.message, p.command = rest[:message], rest[message:]
	return p.class <= byte(codec.PriorityBulk) && (p.kind == framePut || p.kind == frameMove)
}

// end is one item of an ends frame. statusDropped takes a dead letter away.
type end struct {
	seq      uint64
	endedMs  int64
	attempts uint16
	status   delivery.Status
	reason   delivery.Reason
}

const (
	endBytes      = 24
	noteBytes     = 16
	listBytesMax  = 48 << 10 // of one frame
	statusDropped = delivery.Status(0xff)
)

func appendEnd(dst []byte, e end) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint64(dst, e.seq)
	dst = le.AppendUint64(dst, uint64(e.endedMs))
	dst = le.AppendUint16(dst, e.attempts)
	return append(dst, byte(e.status), byte(e.reason), 0, 0, 0, 0)
}

func parseEnd(b []byte) end {
	le := binary.LittleEndian
	return end{seq: le.Uint64(b), endedMs: int64(le.Uint64(b[8:])), attempts: le.Uint16(b[16:]),
		status: delivery.Status(b[18]), reason: delivery.Reason(b[19])}
}

func appendNote(dst []byte, seq uint64, attempts uint16, sent bool) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, seq)
	dst = binary.LittleEndian.AppendUint16(dst, attempts)
	flag := byte(0)
	if sent {
		flag = 1
	}
	return append(dst, flag, 0, 0, 0, 0, 0)
}

func parseNote(b []byte) (seq uint64, attempts uint16, sent bool) {
	return noteSeq(b), binary.LittleEndian.Uint16(b[8:]), b[10] != 0
}

func noteSeq(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

// appendList appends items, all of the same size, as frames of a bounded length.
func appendList(dst []byte, kind byte, items []byte, itemBytes int) []byte {
	most := listBytesMax / itemBytes * itemBytes
	for len(items) > 0 {
		n := min(len(items), most)
		start := len(dst)
		// The items start at an aligned place: seven bytes follow the type.
		dst = append(beginFrame(dst, kind), 0, 0, 0, 0, 0, 0, 0)
		dst = append(dst, items[:n]...)
		dst = endFrame(dst, start)
		items = items[n:]
	}
	return dst
}

// eachItem calls f for each whole item of a list frame.
func eachItem(frame []byte, itemBytes int, f func(item []byte)) {
	for b := frame[min(len(frame), frameHeadBytes+7):]; len(b) >= itemBytes; b = b[itemBytes:] {
		f(b[:itemBytes])
	}
}
