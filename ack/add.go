package ack

import "math"

// Add says what is about to be sent.
type Add struct {
	Ref        Ref
	Bytes      int   // held against the window
	Attempts   int   // the caller's count; clamped to 65535
	Live       uint8 // the caller's count in this session
	Status     uint8 // below StatusCount
	Flags      uint8
	DeadlineMs int64 // 0: no timer
	NowMs      int64
}

// AddResult says what became of an Add.
type AddResult uint8

// The results of Add.
const (
	AddOK        AddResult = iota
	AddFull                // no room in the window by count or bytes; a later removal reports wake
	AddTableFull           // the shard holds ShardEntriesMax entries; try again later
	AddClosed              // the session is not open, or has used up its request numbers
)

// Add registers a message as in flight, before its bytes may reach the client: an ACK that came before the entry would find
// nothing and the message would go out again. It gives the message the session's next request number; only AddOK uses one up.
func (t *Table) Add(s Session, a Add) (h Handle, number uint64, r AddResult) {
	sh, x := t.lock(s)
	defer sh.mu.Unlock()
	if x == nil || x.numberNext > numberLast {
		return Handle{}, 0, AddClosed
	}
	bytes := uint32(min(max(a.Bytes, 0), 1<<31-1))
	if !x.fits(bytes) {
		sh.counts.windowFull++
		return Handle{}, 0, AddFull
	}
	slot, ok := sh.records.take(sh.config.ShardEntriesMax)
	if !ok {
		sh.counts.tableFull++
		return Handle{}, 0, AddTableFull
	}
	e := sh.records.at(slot)
	if e.state != recordFree {
		panic("ack: the free list holds an entry in use")
	}
	*e = record{
		gen: e.gen, session: s.slot, number: x.numberNext, state: recordWindow,
		refSeq: a.Ref.Seq, refSlot: a.Ref.Slot, bytes: bytes, addedMs: a.NowMs, sentMs: a.NowMs,
		attempts: clampAttempts(a.Attempts), live: a.Live, status: a.Status, flags: a.Flags,
	}
	sh.byStatus[a.Status]++
	sh.numbers.push(x, e.number, slot)
	x.numberNext++
	x.inFlight++
	x.bytes += bytes
	sh.arm(slot, e, a.DeadlineMs)
	return Handle{session: s, slot: slot, gen: e.gen}, e.number, AddOK
}

// arm sets the timer of an entry; 0 takes it away.
func (sh *shard) arm(slot uint32, e *record, deadlineMs int64) {
	e.deadlineMs = deadlineMs
	if deadlineMs == 0 {
		sh.wheel.Disarm(slot)
		return
	}
	sh.wheel.Arm(slot, deadlineMs)
}

func clampAttempts(n int) uint16 { return uint16(min(max(n, 0), math.MaxUint16)) }

// release takes an entry out of everything but the session's number list: the one place where entries end.
func (sh *shard) release(x *session, slot uint32, e *record) {
	switch e.state {
	case recordWindow:
		sh.leaveWindow(x, e)
	case recordParked:
		sh.setParked(x, -1)
	default:
		panic("ack: a number list leads to a free entry")
	}
	sh.wheel.Disarm(slot)
	sh.byStatus[e.status]--
	if sh.records.give(slot, e) {
		sh.wheel.Trim(chunksKept * recordsPerChunk)
	}
}

// leaveWindow gives the room of an entry back, and its place in the resend path.
func (sh *shard) leaveWindow(x *session, e *record) {
	if x.inFlight == 0 || x.bytes < e.bytes {
		panic("ack: a window gives back more than it holds")
	}
	x.inFlight--
	x.bytes -= e.bytes
	sh.setResend(x, e, false)
}

// setResend moves an entry into or out of the resend path.
func (sh *shard) setResend(x *session, e *record, resend bool) {
	if e.resend == resend {
		return
	}
	e.resend = resend
	by := -1
	if resend {
		by = 1
	}
	x.resend = uint16(int(x.resend) + by)
	sh.resend += by
	sh.load(x.userHash, int32(by), 0)
}

func (sh *shard) setParked(x *session, by int) {
	x.parked = uint16(int(x.parked) + by)
	sh.parked += by
	sh.load(x.userHash, 0, int32(by))
}

// load changes what a user has in the resend path and parked. Users with nothing there, nearly all, are not in the map.
func (sh *shard) load(userHash uint64, resend, parked int32) {
	u := sh.users[userHash]
	u.resend += resend
	u.parked += parked
	switch {
	case u.resend < 0 || u.parked < 0:
		panic("ack: a user has fewer than no entries")
	case u == userLoad{}:
		delete(sh.users, userHash)
	default:
		sh.users[userHash] = u
	}
}
