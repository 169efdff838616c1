package delivery

import (
	"maps"
	"slices"

	"holdfast/codec"
)

// GoAway asks every client of the lane to come back later, spread evenly over windowMs, and sends nothing new from then on. Who
// does not go by himself is closed at his time, once what he has in flight is confirmed, and at deadlineMs (from now) in any case.
func (e *Engine) GoAway(windowMs, deadlineMs int64, servers string, now Now) {
	e.leaving = true
	for _, id := range slices.Sorted(maps.Keys(e.links)) { // in a fixed order: the same seed gives the same run
		l := e.links[id]
		if l.hold&holdDrain != 0 {
			continue
		}
		afterMs := e.rand.Int64N(max(1, windowMs))
		e.frame = codec.AppendGoAway(e.frame[:0], &codec.GoAway{
			ReconnectAfterMs: uint64(afterMs), DeadlineMs: uint64(deadlineMs), Servers: []byte(servers),
		})
		l.peer.Send(e.frame)
		l.rare().goneMs = now.MonoMs + afterMs
		l.setHold(holdDrain)
		e.tend(l)
	}
}

// lookDrain closes a link whose time has come and that has nothing in flight.
func (e *Engine) lookDrain(l *Link, now Now) {
	if now.MonoMs < l.rare().goneMs {
		return
	}
	if state, _ := e.core.table.State(l.session); state.InFlight > 0 {
		return
	}
	l.peer.Close(codec.CodeGoingAway, stoppingReason, 0)
}

// CloseAll closes every link of the lane.
func (e *Engine) CloseAll(code codec.Code, reason string) {
	for _, id := range slices.Sorted(maps.Keys(e.links)) {
		e.links[id].peer.Close(code, reason, 0)
	}
}
