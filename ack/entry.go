package ack

// Ref names the message of an entry in the caller's store; opaque here.
type Ref struct {
	Seq  uint64
	Slot uint32
}

// Entry is a copy of what the table knows of one message that was sent and not confirmed.
type Entry struct {
	Ref      Ref
	Number   uint64 // the request number: the same for every sending in this session
	Bytes    uint32
	Attempts uint16 // the caller's count over the message's life
	Live     uint8  // the caller's count in this session
	Status   uint8
	Flags    uint8 // the caller's own
	Parked   bool  // outside the window, waits for a late ACK or Unpark
	Resend   bool  // counts as sent again, for the limit by user
	Armed    bool  // its timer runs

	AddedMs    int64 // first sending in this session
	SentMs     int64 // latest sending
	DeadlineMs int64 // of the timer that runs or ran last; 0: none since it was parked
}

// Handle names one entry in the state in which the caller saw it. It is a value to copy and compare. It is good for one
// decision: any change of the entry (Rearm, Park, Unpark, removal) makes the handles given out before it stale, so that of two
// decisions that rest on the same sight only the first takes effect. A stale handle is harmless.
type Handle struct {
	session Session
	slot    uint32
	gen     uint32
}

// Session is the session the entry belongs to.
func (h Handle) Session() Session { return h.session }

// The states of a record.
const (
	recordFree uint8 = iota
	recordWindow
	recordParked
)

// record is an entry as it lies in the slab: 64 bytes, a cache line, no pointers.
type record struct {
	number     uint64
	refSeq     uint64
	addedMs    int64
	sentMs     int64
	deadlineMs int64

	gen     uint32 // rises with every change
	session uint32 // slot of its session; of a free record the next free slot
	refSlot uint32
	bytes   uint32

	attempts uint16
	live     uint8
	status   uint8
	flags    uint8
	state    uint8
	resend   bool
}

func (r *record) entry(armed bool) Entry {
	return Entry{
		Ref: Ref{Seq: r.refSeq, Slot: r.refSlot}, Number: r.number, Bytes: r.bytes,
		Attempts: r.attempts, Live: r.live, Status: r.status, Flags: r.flags,
		Parked: r.state == recordParked, Resend: r.resend, Armed: armed,
		AddedMs: r.addedMs, SentMs: r.sentMs, DeadlineMs: r.deadlineMs,
	}
}

const (
	recordsPerChunk = 1024 // 64 KiB
	chunksKept      = 16   // of an empty shard: 1 MiB
)

// records is the slab of a shard's entries. Chunks never move, and free slots are used again last in first out, which keeps
// the ones in use warm in the cache.
type records struct {
	chunks []*[recordsPerChunk]record
	free   uint32 // first free slot, plus 1; 0: none
	high   int    // slots ever used
	used   int
	genMax uint32 // highest generation seen: records of a chunk that comes back go on from it
}

func (s *records) at(slot uint32) *record {
	return &s.chunks[slot/recordsPerChunk][slot%recordsPerChunk]
}

// take returns a slot that nobody uses, or false when limit slots are in use.
func (s *records) take(limit int) (uint32, bool) {
	if s.used >= limit {
		return 0, false
	}
	s.used++
	if s.free != 0 {
		slot := s.free - 1
		s.free = s.at(slot).session
		return slot, true
	}
	slot := uint32(s.high)
	if s.high == len(s.chunks)*recordsPerChunk {
		s.chunks = append(s.chunks, new([recordsPerChunk]record))
	}
	s.high++
	s.at(slot).gen = s.genMax
	return slot, true
}

// give takes a slot back. It reports true when the slab is empty and has let go of the memory of a past peak.
func (s *records) give(slot uint32, r *record) (trimmed bool) {
	if r.state == recordFree {
		panic("ack: an entry is freed twice")
	}
	r.state = recordFree
	s.changed(r)
	r.session = s.free
	s.free = slot + 1
	if s.used--; s.used > 0 || len(s.chunks) <= chunksKept {
		return false
	}
	clear(s.chunks[chunksKept:])
	s.chunks = s.chunks[:chunksKept]
	// The free list runs through what has gone: start over, and above every generation a handle may still carry.
	s.free, s.high = 0, 0
	return true
}

// changed makes the handles of r stale.
func (s *records) changed(r *record) {
	r.gen++
	s.genMax = max(s.genMax, r.gen)
}
