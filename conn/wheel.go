package conn

import (
	"time"

	"holdfast/codec"
)

// wheelSlots times tickInterval is the horizon: 1024 s, above 1.5 times the largest default keepalive. Later deadlines are looked at
// once per horizon.
const wheelSlots = 4096

// wheel holds every session of a loop in the slot of the tick at which one of its deadlines may be over. Life signs do not move a
// session: it is moved when it is visited and found alive, so a frame costs one store and a session one visit per keepalive.
type wheel struct {
	slots [wheelSlots]*Session
	tick  int64 // the last one visited
}

// tickAfter is the first tick at which atMs is over.
func tickAfter(atMs int64) int64 {
	const ms = int64(tickInterval / time.Millisecond)
	return (atMs + ms - 1) / ms
}

// schedule puts s where its next deadline says.
func (l *loop) schedule(s *Session) {
	l.scheduleAt(s, l.deadlineMs(s))
}

func (l *loop) scheduleAt(s *Session, atMs int64) {
	w := &l.wheel
	tick := min(max(tickAfter(atMs), w.tick+1), w.tick+wheelSlots-1)
	if s.timerArmed {
		if s.timerTick == int32(tick) {
			return
		}
		l.unschedule(s)
	}
	slot := &w.slots[tick%wheelSlots]
	s.timerArmed, s.timerTick, s.timerPrev, s.timerNext = true, int32(tick), nil, *slot
	if *slot != nil {
		(*slot).timerPrev = s
	}
	*slot = s
}

func (l *loop) unschedule(s *Session) {
	if !s.timerArmed {
		return
	}
	if s.timerPrev != nil {
		s.timerPrev.timerNext = s.timerNext
	} else {
		l.wheel.slots[s.timerTick%wheelSlots] = s.timerNext
	}
	if s.timerNext != nil {
		s.timerNext.timerPrev = s.timerPrev
	}
	s.timerArmed, s.timerPrev, s.timerNext = false, nil, nil
}

// advance visits the sessions whose slots have come. It visits the first of a slot until there is none, since a visit may remove any
// session; those that live on are always moved to a later slot.
func (l *loop) advance(nowMs int64) {
	w := &l.wheel
	target := nowMs / int64(tickInterval/time.Millisecond)
	w.tick = max(w.tick, target-wheelSlots+1)
	for w.tick < target {
		w.tick++
		for s := w.slots[w.tick%wheelSlots]; s != nil; s = w.slots[w.tick%wheelSlots] {
			l.visit(s, nowMs)
		}
	}
}

// each calls f for every session of the loop; f may remove the one it is given.
func (l *loop) each(f func(*Session)) {
	var all []*Session
	for _, s := range l.wheel.slots {
		for ; s != nil; s = s.timerNext {
			all = append(all, s)
		}
	}
	for _, s := range all {
		f(s)
	}
}

// silenceMs is how long an open session may be without a complete frame: 1.5 keepalives.
func (s *Session) silenceMs() int64 { return int64(s.keepaliveS) * 1500 }

// deadlineMs is the earliest time at which something about s may be due.
func (l *loop) deadlineMs(s *Session) int64 {
	cfg := &l.server.cfg
	switch s.state.Load() {
	case stateFresh, stateLogin:
		return s.aliveMs + cfg.LoginTimeout.Milliseconds()
	case stateOpen:
		at := s.aliveMs + s.silenceMs()
		if s.blocked {
			at = min(at, s.progressMs+cfg.StallTimeout.Milliseconds())
		}
		if s.expireAtMs != 0 {
			at = min(at, l.server.nowMs()+s.expireAtMs-time.Now().UnixMilli())
		}
		return at
	case stateLingering:
		return l.lingerEndMs(s)
	}
	return 0 // closing: the dirty queue has it; look again soon
}

// lingerEndMs is when a lingering session is dropped. A slow reader that still takes bytes gets more time, since the reason of the close
// is behind them.
func (l *loop) lingerEndMs(s *Session) int64 {
	lingerMs := l.server.cfg.LingerTimeout.Milliseconds()
	if s.blocked {
		return min(max(s.aliveMs, s.progressMs)+lingerMs, s.aliveMs+10*lingerMs)
	}
	return s.aliveMs + lingerMs
}

// progressed reports whether the peer of a blocked session has taken bytes since the last look. The kernel asks for more only once half
// of what it holds is gone, so not being asked does not mean that nobody reads.
func (l *loop) progressed(s *Session, nowMs int64) bool {
	unsent := int32(kernelUnsent(int(s.fd)))
	if unsent >= s.unsent {
		return false
	}
	s.unsent, s.progressMs = unsent, nowMs
	return true
}

// unreadGraceMs is how long bytes that wait in the kernel keep a silent session alive: when the loop (or the whole process) stood
// still, the life sign may be among them.
const unreadGraceMs = 2000

// visit acts on the deadlines of s that are over and schedules the next one.
func (l *loop) visit(s *Session, nowMs int64) {
	cfg := &l.server.cfg
	code, reason := codec.CodeNone, ""
	switch s.state.Load() {
	case stateFresh, stateLogin:
		if nowMs >= s.aliveMs+cfg.LoginTimeout.Milliseconds() {
			code, reason = codec.CodeLoginTimeout, "no complete login in time"
		}
	case stateOpen:
		code, reason = l.overdue(s, nowMs)
	case stateLingering:
		if nowMs >= l.lingerEndMs(s) && s.blocked {
			l.progressed(s, nowMs)
		}
		if nowMs >= l.lingerEndMs(s) {
			l.drop(s)
			return
		}
	}
	l.schedule(s)
	if code != codec.CodeNone {
		s.Close(code, reason, 0) // not refuse: what has arrived in time counts
	}
}

// overdue says which limit of an open session is over, if any.
func (l *loop) overdue(s *Session, nowMs int64) (codec.Code, string) {
	silent := nowMs - s.aliveMs - s.silenceMs()
	switch {
	case silent >= unreadGraceMs || silent >= 0 && kernelUnread(int(s.fd)) == 0:
		return codec.CodeKeepaliveTimeout, "no complete frame for 1.5 keepalives"
	case s.blocked && nowMs >= s.progressMs+l.server.cfg.StallTimeout.Milliseconds() && !l.progressed(s, nowMs):
		return codec.CodeSlowConsumer, "no byte read for too long"
	case s.expireAtMs != 0 && time.Now().UnixMilli() >= s.expireAtMs:
		return codec.CodeTokenExpired, "token expired"
	}
	return codec.CodeNone, ""
}
