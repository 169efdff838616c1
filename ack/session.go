package ack

// session is the state of one open session: 64 bytes, no pointers, and no number list before the first Add.
type session struct {
	userHash   uint64
	owner      uint64
	lastAckMs  int64  // 0: no ACK yet
	numberNext uint64 // the next Add gets it

	gen      uint32
	block    uint32 // of the number list in the arena; blockNone when it is empty
	bytes    uint32 // in the window
	bytesMax uint32

	head, length uint16 // the list lies in a ring: first place, places used (holes too)
	inFlight     uint16 // entries in the window
	parked       uint16
	resend       uint16
	msgsMax      uint16

	class     uint8 // of the block
	open      bool
	wantsRoom bool // an Add or Unpark was refused for want of room since the last wake
}

func (x *session) setWindow(w Window) {
	x.msgsMax = uint16(min(max(w.MsgsMax, 1), WindowMsgsLimit))
	x.bytesMax = uint32(min(max(w.BytesMax, 1), 1<<31-1))
}

// live is the number of entries in the list.
func (x *session) live() int { return int(x.inFlight) + int(x.parked) }

// fits reports whether a message of n bytes may join the window, and remembers a refusal. One message always fits into an empty
// window: a message above the byte limit must not wait for ever.
func (x *session) fits(n uint32) bool {
	if x.inFlight == 0 || x.inFlight < x.msgsMax && uint64(x.bytes)+uint64(n) <= uint64(x.bytesMax) {
		return true
	}
	x.wantsRoom = true
	return false
}

// wake reports, once per refusal, that at least half the window is free again. Half and not one place: a pump that is woken for
// each single place would read the store once for each message.
func (x *session) wake() bool {
	if !x.wantsRoom {
		return false
	}
	if x.inFlight > 0 && (x.inFlight > x.msgsMax/2 || x.bytes > x.bytesMax/2) {
		return false
	}
	x.wantsRoom = false
	return true
}

const sessionsPerChunk = 32 // 2 KiB: a node has many shards, and few of them full

// sessions is the slab of a shard's sessions.
type sessions struct {
	chunks []*[sessionsPerChunk]session
	free   []uint32
	high   int // slots ever used
}

func (s *sessions) at(slot uint32) *session {
	return &s.chunks[slot/sessionsPerChunk][slot%sessionsPerChunk]
}

// take returns a slot that nobody uses. Generations start at 1, so that the zero Session names none.
func (s *sessions) take() uint32 {
	if n := len(s.free); n > 0 {
		slot := s.free[n-1]
		s.free = s.free[:n-1]
		return slot
	}
	slot := uint32(s.high)
	if s.high == len(s.chunks)*sessionsPerChunk {
		s.chunks = append(s.chunks, new([sessionsPerChunk]session))
	}
	s.high++
	s.at(slot).gen = 1
	return slot
}

func (s *sessions) give(slot uint32) { s.free = append(s.free, slot) }

func (s *sessions) count() int { return s.high - len(s.free) }
