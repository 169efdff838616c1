package ack

// The decisions that follow a look at an entry: after Expire, Lookup, Find, Parked or Entries. Each looks again under the lock.

// Update is the new state of an entry that stays.
type Update struct {
	Status     uint8 // below StatusCount
	DeadlineMs int64 // 0: no timer
	Attempts   int   // clamped to 65535
	Live       uint8
	Flags      uint8
	SentMs     int64 // 0: as it was
	Resend     bool  // it is, or is about to be, sent again: held against UserResendMax until it leaves the window
}

// RearmResult says what became of a Rearm.
type RearmResult uint8

// The results of Rearm.
const (
	RearmOK        RearmResult = iota
	RearmLost                  // somebody else won
	RearmUserLimit             // Update.Resend, and the user has UserResendMax such entries: nothing changed, Park it
)

// Rearm gives an entry in the window its next state and timer. The handle that comes back is the one that is good now.
func (t *Table) Rearm(h Handle, u Update) (Handle, RearmResult) {
	sh, x, e := t.locate(h)
	defer sh.mu.Unlock()
	if e == nil || e.state != recordWindow {
		return Handle{}, RearmLost
	}
	if u.Resend && !e.resend && !sh.mayResend(x) {
		return h, RearmUserLimit
	}
	return sh.update(h, x, e, u), RearmOK
}

// ParkResult says what became of a Park.
type ParkResult uint8

// The results of Park.
const (
	ParkKept    ParkResult = iota
	ParkRemoved            // the user has UserParkedMax parked entries: this one is gone from the table, and the caller's
	ParkLost               // somebody else won
)

// Park takes an entry out of the window and its timer away: the client does not answer, and what follows must not wait for it. The
// entry can still be found by a late ACK. wake is as in AckResult. Parking a parked entry changes its status.
func (t *Table) Park(h Handle, status uint8) (r ParkResult, wake bool) {
	sh, x, e := t.locate(h)
	defer sh.mu.Unlock()
	switch {
	case e == nil:
		return ParkLost, false
	case e.state == recordParked:
		sh.setStatus(e, status)
		sh.records.changed(e)
		return ParkKept, false
	case int(sh.users[x.userHash].parked) >= sh.config.UserParkedMax:
		sh.counts.parkRemoved++
		sh.removeFound(x, h.slot, e)
		return ParkRemoved, x.wake()
	}
	sh.leaveWindow(x, e)
	e.state = recordParked
	sh.setParked(x, 1)
	sh.arm(h.slot, e, 0)
	sh.setStatus(e, status)
	sh.records.changed(e)
	return ParkKept, x.wake()
}

// UnparkResult says what became of an Unpark.
type UnparkResult uint8

// The results of Unpark.
const (
	UnparkOK        UnparkResult = iota
	UnparkLost                   // somebody else won, or it is not parked
	UnparkFull                   // no room in the window; a later removal reports wake
	UnparkUserLimit              // Update.Resend, and the user has UserResendMax such entries
)

// Unpark brings a parked entry back into the window, under the request number it always had. The handle that comes back is the one
// that is good now; after UnparkFull and UnparkUserLimit the old one still is.
func (t *Table) Unpark(h Handle, u Update) (Handle, UnparkResult) {
	sh, x, e := t.locate(h)
	defer sh.mu.Unlock()
	switch {
	case e == nil || e.state != recordParked:
		return Handle{}, UnparkLost
	case u.Resend && !sh.mayResend(x):
		return h, UnparkUserLimit
	case !x.fits(e.bytes):
		sh.counts.windowFull++
		return h, UnparkFull
	}
	sh.setParked(x, -1)
	e.state = recordWindow
	x.inFlight++
	x.bytes += e.bytes
	return sh.update(h, x, e, u), UnparkOK
}

// Take removes the entry: it is the caller's. wake is as in AckResult; ok is false when somebody else won.
func (t *Table) Take(h Handle) (e Entry, wake, ok bool) {
	sh, x, r := t.locate(h)
	defer sh.mu.Unlock()
	if r == nil {
		return Entry{}, false, false
	}
	e = r.entry(sh.wheel.Armed(h.slot))
	sh.removeFound(x, h.slot, r)
	return e, x.wake(), true
}

// locate locks the shard of h and returns the entry, or nil when the handle is stale. The caller unlocks in any case.
func (t *Table) locate(h Handle) (*shard, *session, *record) {
	sh, x := t.lock(h.session)
	if x == nil || int(h.slot) >= sh.records.high {
		return sh, nil, nil
	}
	e := sh.records.at(h.slot)
	if e.gen != h.gen || e.state == recordFree {
		return sh, nil, nil
	}
	if e.session != h.session.slot {
		panic("ack: an entry has moved to another session under its handle")
	}
	return sh, x, e
}

func (sh *shard) mayResend(x *session) bool {
	if int(sh.users[x.userHash].resend) < sh.config.UserResendMax {
		return true
	}
	sh.counts.resendRefused++
	return false
}

// update writes u into an entry in the window.
func (sh *shard) update(h Handle, x *session, e *record, u Update) Handle {
	sh.setStatus(e, u.Status)
	e.attempts, e.live, e.flags = clampAttempts(u.Attempts), u.Live, u.Flags
	if u.SentMs != 0 {
		e.sentMs = u.SentMs
	}
	if u.Resend {
		sh.setResend(x, e, true)
	}
	sh.arm(h.slot, e, u.DeadlineMs)
	sh.records.changed(e)
	h.gen = e.gen
	return h
}

func (sh *shard) setStatus(e *record, status uint8) {
	sh.byStatus[e.status]--
	sh.byStatus[status]++
	e.status = status
}

// removeFound removes an entry that was reached by its slot.
func (sh *shard) removeFound(x *session, slot uint32, e *record) {
	k, found, ok := sh.numbers.find(x, e.number)
	if !ok || found != slot {
		panic("ack: an entry is not in its session's number list")
	}
	sh.numbers.cut(x, k, k+1)
	sh.release(x, slot, e)
}
