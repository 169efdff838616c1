package ack

import (
	"slices"
	"testing"
)

// model is a table as simple as it can be: slices that are searched whole. It runs beside the real one, and every answer is
// compared.
type model struct {
	t        testing.TB
	table    *Table
	config   Config
	nowMs    int64
	sessions []*modelSession
	handles  []Handle // every handle ever seen, stale ones too
	taken    map[uint64]int
}

type modelSession struct {
	s         Session
	open      bool
	user      uint64
	owner     uint64
	window    Window
	next      uint64
	lastAckMs int64
	wants     bool
	entries   []*modelEntry // by number
}

type modelEntry struct {
	Entry
	handle Handle
	armed  bool
}

func newModel(t testing.TB, c Config) *model {
	const startMs = 1000
	return &model{t: t, table: NewTable(c, startMs), config: c.withDefaults(), nowMs: startMs, taken: make(map[uint64]int)}
}

func (m *model) check(ok bool, format string, args ...any) {
	m.t.Helper()
	if !ok {
		m.t.Fatalf(format, args...)
	}
}

func (x *modelSession) inFlight() (msgs, bytes int) {
	for _, e := range x.entries {
		if !e.Parked {
			msgs++
			bytes += int(e.Bytes)
		}
	}
	return msgs, bytes
}

func (m *model) load(user uint64) (resend, parked int) {
	for _, x := range m.sessions {
		for _, e := range x.entries {
			if x.user == user && e.Resend {
				resend++
			}
			if x.user == user && e.Parked {
				parked++
			}
		}
	}
	return resend, parked
}

func (x *modelSession) fits(bytes int) bool {
	msgs, used := x.inFlight()
	if msgs == 0 || msgs < x.window.MsgsMax && used+bytes <= x.window.BytesMax {
		return true
	}
	x.wants = true
	return false
}

func (x *modelSession) wake() bool {
	msgs, bytes := x.inFlight()
	if !x.wants || msgs > 0 && (msgs > x.window.MsgsMax/2 || bytes > x.window.BytesMax/2) {
		return false
	}
	x.wants = false
	return true
}

// won notes that a message was handed out for good; twice is the one thing that must never be.
func (m *model) won(e Entry) {
	m.taken[e.Ref.Seq]++
	m.check(m.taken[e.Ref.Seq] == 1, "message %d was won %d times", e.Ref.Seq, m.taken[e.Ref.Seq])
}

func (m *model) open(user uint64, w Window) *modelSession {
	owner := uint64(len(m.sessions)) + 100
	s := m.table.Open(Open{UserHash: user, Window: w, Owner: owner})
	x := &modelSession{s: s, open: true, user: user, owner: owner, window: w, next: 1}
	m.sessions = append(m.sessions, x)
	return x
}

func (m *model) add(x *modelSession, a Add) {
	h, number, r := m.table.Add(x.s, a)
	switch {
	case !x.open:
		m.check(r == AddClosed, "Add to a closed session: %v", r)
		return
	case !x.fits(a.Bytes):
		m.check(r == AddFull, "Add to a full window: %v", r)
		return
	}
	m.check(r == AddOK && number == x.next, "Add: %v, number %d, want %d", r, number, x.next)
	x.next++
	e := &modelEntry{handle: h, armed: a.DeadlineMs != 0, Entry: Entry{
		Ref: a.Ref, Number: number, Bytes: uint32(a.Bytes), Attempts: uint16(a.Attempts), Live: a.Live, Status: a.Status,
		Flags: a.Flags, Armed: a.DeadlineMs != 0, AddedMs: a.NowMs, SentMs: a.NowMs, DeadlineMs: a.DeadlineMs,
	}}
	x.entries = append(x.entries, e)
	m.handles = append(m.handles, h)
}

func (m *model) ack(x *modelSession, from, count uint64, upTo bool) {
	var got []Entry
	var r AckResult
	last := from + count - 1
	if upTo {
		from = 1
		got, r = m.table.AckUpTo(x.s, last, m.nowMs, nil)
	} else {
		got, r = m.table.Ack(x.s, from, count, m.nowMs, nil)
	}
	if !x.open || count == 0 || last == 0 && upTo {
		m.check(len(got) == 0 && r == AckResult{}, "ACK without an effect gave %v, %+v", got, r)
		return
	}
	want := AckResult{}
	if from == 0 || last < from || last >= x.next {
		want = AckResult{Never: true, Parked: len(x.parked())}
		m.check(len(got) == 0 && r == want, "ACK of a number never given out: %v, %+v", got, r)
		return
	}
	want.FirstAck = x.lastAckMs == 0
	x.lastAckMs = m.nowMs
	var removed []Entry
	x.entries = slices.DeleteFunc(x.entries, func(e *modelEntry) bool {
		hit := e.Number >= from && e.Number <= last
		if hit {
			removed = append(removed, e.Entry)
			m.won(e.Entry)
		}
		return hit
	})
	want.Hits = len(removed)
	if !upTo {
		want.Late = int(last-from+1) - want.Hits
	}
	want.Parked = len(x.parked())
	want.Wake = x.wake()
	m.check(slices.Equal(got, removed), "ACK of %d to %d removed %+v, want %+v", from, last, got, removed)
	m.check(r == want, "ACK of %d to %d: %+v, want %+v", from, last, r, want)
}

func (x *modelSession) parked() (out []*modelEntry) {
	for _, e := range x.entries {
		if e.Parked {
			out = append(out, e)
		}
	}
	return out
}

func (m *model) expire(limit int) {
	due := make(map[Handle]*modelEntry)
	owner := make(map[Handle]*modelSession)
	for _, x := range m.sessions {
		for _, e := range x.entries {
			if e.armed && (e.DeadlineMs+9)/10 <= m.nowMs/10 {
				due[e.handle], owner[e.handle] = e, x
			}
		}
	}
	var got []Expired
	for {
		n := len(got)
		got = m.table.Expire(m.nowMs, got, limit)
		m.check(len(got)-n <= limit, "Expire gave %d, the limit was %d", len(got)-n, limit)
		if len(got)-n < limit {
			break
		}
	}
	for _, g := range got {
		e := due[g.Handle]
		m.check(e != nil, "Expire gave an entry that is not due: %+v", g)
		e.armed, e.Armed = false, false
		m.check(g.Entry == e.Entry, "Expire gave %+v, want %+v", g.Entry, e.Entry)
		x := owner[g.Handle]
		m.check(g.Owner == x.owner && g.LastAckMs == x.lastAckMs && g.Handle.Session() == x.s, "Expire gave %+v", g)
		delete(due, g.Handle)
	}
	m.check(len(due) == 0, "%d entries did not expire", len(due))
}

// holder finds the entry for which h is good now.
func (m *model) holder(h Handle) (*modelSession, *modelEntry) {
	for _, x := range m.sessions {
		for _, e := range x.entries {
			if e.handle == h {
				return x, e
			}
		}
	}
	return nil, nil
}

func (m *model) apply(x *modelSession, e *modelEntry, h Handle, u Update) {
	m.check(h != e.handle, "a decision left the old handle good")
	e.handle = h
	m.handles = append(m.handles, h)
	e.Status, e.DeadlineMs, e.Attempts, e.Live, e.Flags = u.Status, u.DeadlineMs, uint16(u.Attempts), u.Live, u.Flags
	e.armed, e.Armed = u.DeadlineMs != 0, u.DeadlineMs != 0
	if u.SentMs != 0 {
		e.SentMs = u.SentMs
	}
	e.Resend = e.Resend || u.Resend
}

func (m *model) rearm(h Handle, u Update) {
	x, e := m.holder(h)
	got, r := m.table.Rearm(h, u)
	if e == nil || e.Parked {
		m.check(r == RearmLost, "Rearm with a stale handle: %v", r)
		return
	}
	if resend, _ := m.load(x.user); u.Resend && !e.Resend && resend >= m.config.UserResendMax {
		m.check(r == RearmUserLimit && got == h, "Rearm over the user's limit: %v", r)
		return
	}
	m.check(r == RearmOK, "Rearm: %v", r)
	m.apply(x, e, got, u)
}

func (m *model) park(h Handle, status uint8) {
	x, e := m.holder(h)
	r, wake := m.table.Park(h, status)
	if e == nil {
		m.check(r == ParkLost && !wake, "Park with a stale handle: %v", r)
		return
	}
	if _, parked := m.load(x.user); !e.Parked && parked >= m.config.UserParkedMax {
		m.remove(x, e)
		m.check(r == ParkRemoved && wake == x.wake(), "Park over the user's limit: %v, wake %t", r, wake)
		return
	}
	woken := e.Parked
	e.Status = status
	if !e.Parked {
		e.Parked, e.Resend, e.armed, e.Armed, e.DeadlineMs = true, false, false, false, 0
	}
	m.check(r == ParkKept && (woken && !wake || !woken && wake == x.wake()), "Park: %v, wake %t", r, wake)
	m.refresh(x, e)
}

// refresh learns the handle that is good after a change that does not return one, as a caller would.
func (m *model) refresh(x *modelSession, e *modelEntry) {
	h, got, ok := m.table.Lookup(x.s, e.Number)
	m.check(ok && got == e.Entry, "Lookup(%d) = %+v, %t, want %+v", e.Number, got, ok, e.Entry)
	m.check(h != e.handle, "a decision left the old handle good")
	e.handle = h
	m.handles = append(m.handles, h)
}

func (m *model) remove(x *modelSession, e *modelEntry) {
	x.entries = slices.DeleteFunc(x.entries, func(o *modelEntry) bool { return o == e })
	m.won(e.Entry)
}

func (m *model) unpark(h Handle, u Update) {
	x, e := m.holder(h)
	got, r := m.table.Unpark(h, u)
	if e == nil || !e.Parked {
		m.check(r == UnparkLost, "Unpark with a stale handle: %v", r)
		return
	}
	if resend, _ := m.load(x.user); u.Resend && resend >= m.config.UserResendMax {
		m.check(r == UnparkUserLimit && got == h, "Unpark over the user's limit: %v", r)
		return
	}
	if !x.fits(int(e.Bytes)) {
		m.check(r == UnparkFull && got == h, "Unpark into a full window: %v", r)
		return
	}
	m.check(r == UnparkOK, "Unpark: %v", r)
	e.Parked = false
	m.apply(x, e, got, u)
}

func (m *model) take(h Handle) {
	x, e := m.holder(h)
	got, wake, ok := m.table.Take(h)
	if e == nil {
		m.check(!ok && !wake && got == Entry{}, "Take with a stale handle gave %+v", got)
		return
	}
	m.remove(x, e)
	m.check(ok && got == e.Entry && wake == x.wake(), "Take gave %+v, %t, %t, want %+v", got, wake, ok, e.Entry)
}

// retract takes the latest Add back: its number is given out again, and the message is as if it had never been added.
func (m *model) retract(h Handle) {
	x, e := m.holder(h)
	got := m.table.Retract(h)
	if e == nil || e.Number != x.next-1 {
		m.check(!got, "Retract of an entry that is not the latest")
		return
	}
	m.check(got, "Retract of the latest entry")
	m.remove(x, e)
	x.next--
}

func (m *model) evict(x *modelSession) {
	got := m.table.Evict(x.s, nil)
	m.check(len(got) == len(x.entries), "Evict gave %d entries, want %d", len(got), len(x.entries))
	for i, e := range x.entries {
		m.check(got[i] == e.Entry, "Evict gave %+v at place %d, want %+v", got[i], i, e.Entry)
		m.won(e.Entry)
	}
	x.open, x.entries = false, nil
}

func (m *model) setWindow(x *modelSession, w Window) {
	wake := m.table.SetWindow(x.s, w)
	if !x.open {
		m.check(!wake, "SetWindow of a closed session reports wake")
		return
	}
	x.window = w
	m.check(wake == x.wake(), "SetWindow: wake %t", wake)
}

// look compares everything that can be looked at.
func (m *model) look(x *modelSession) {
	st, ok := m.table.State(x.s)
	msgs, bytes := x.inFlight()
	freeMsgs, freeBytes := m.table.Room(x.s)
	all := m.table.Entries(x.s, nil)
	parked := m.table.Parked(x.s, nil, 2)
	m.check(ok == x.open, "State: open %t", ok)
	m.check(len(all) == len(x.entries), "Entries gave %d, want %d", len(all), len(x.entries))
	if !x.open {
		m.check(freeMsgs == 0 && freeBytes == 0 && len(parked) == 0, "a closed session has room or entries")
		return
	}
	want := State{
		InFlight: msgs, Parked: len(x.parked()), BytesInFlight: bytes, LastAckMs: x.lastAckMs, NumberLast: x.next - 1, Window: x.window,
	}
	m.check(st == want, "State = %+v, want %+v", st, want)
	m.check(freeMsgs == max(x.window.MsgsMax-msgs, 0) && freeBytes == max(x.window.BytesMax-bytes, 0), "Room = %d, %d", freeMsgs, freeBytes)
	m.check(len(parked) == min(2, len(x.parked())), "Parked gave %d", len(parked))
	for i, g := range parked {
		m.check(g.Handle == x.parked()[i].handle, "Parked gave %+v at place %d", g, i)
	}
	for i, e := range x.entries {
		m.check(all[i].Handle == e.handle && all[i].Entry == e.Entry, "Entries gave %+v at place %d, want %+v", all[i], i, e.Entry)
		h, got, ok := m.table.Find(x.s, e.Ref)
		m.check(ok && h == e.handle && got == e.Entry, "Find(%v) = %+v, %t", e.Ref, got, ok)
		h, got, ok = m.table.Lookup(x.s, e.Number)
		m.check(ok && h == e.handle && got == e.Entry, "Lookup(%d) = %+v, %t", e.Number, got, ok)
	}
	_, _, ok = m.table.Lookup(x.s, x.next)
	m.check(!ok, "Lookup found a number never given out")
	_, _, ok = m.table.Find(x.s, Ref{Seq: 1 << 60})
	m.check(!ok, "Find found a message that was never added")
}
