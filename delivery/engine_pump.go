package delivery

import (
	"holdfast/codec"
	"holdfast/scheduler"
)

// pumpOrder is the order of the classes: within one connection urgent goes first and bulk last.
var pumpOrder = [...]codec.Priority{codec.PriorityUrgent, codec.PriorityNormal, codec.PriorityBulk}

// pump sends from the store what fits into the window, oldest first in each class, and reports whether l wants another turn. When
// the store has no more, l is live: from then on Push sends to it. A lane is serial for a user, so nothing is in between.
func (e *Engine) pump(l *Link, now Now) (more bool) {
	if l.state != linkOpen {
		return false
	}
	if l.resuming() && !e.resumeParked(l, now) {
		return false
	}
	if !l.backlog {
		return false
	}
	left := pumpMessages
	for _, class := range pumpOrder {
		for {
			if !e.maySend(l, now) {
				e.fallBehind(l, now)
				return false
			}
			if left <= 0 {
				return true
			}
			n, drained := e.pumpSome(l, class, left, now)
			if drained {
				break
			}
			if n == 0 {
				return false
			}
			left -= n
		}
	}
	l.backlog = false
	return false
}

// pumpSome sends up to most messages of one class. drained: there were none. n 0 otherwise: no room, no tokens or no store now,
// and something will wake l.
func (e *Engine) pumpSome(l *Link, class codec.Priority, most int, now Now) (n int, drained bool) {
	most, bytesMax := e.pumpRoom(l, most)
	items, err := e.core.store.Next(&e.buffer, l.queue, class, l.cursor[class], most, bytesMax)
	if err != nil {
		e.core.count.storeErrors.Inc()
		e.pauseUntil(l, now.MonoMs+storeRetryMs)
		return 0, false
	}
	if len(items) == 0 {
		return 0, true
	}
	paced := e.takePace(l, len(items), now)
	for i := range items[:paced] {
		if !e.maySend(l, now) {
			e.fallBehind(l, now)
			return 0, false
		}
		if e.sendStored(l, class, &items[i], now) == sendBlocked {
			e.fallBehind(l, now)
			return 0, false
		}
	}
	if paced < len(items) {
		e.pauseUntil(l, now.MonoMs+1)
		return 0, false
	}
	return paced, false
}

// maySend reports whether a new message may go out on l now. A careful link has one message in flight.
func (e *Engine) maySend(l *Link, now Now) bool {
	if !l.unheld(now.MonoMs) {
		return false
	}
	if !l.careful || l.hold&holdParked != 0 {
		return true
	}
	state, _ := e.core.table.State(l.session)
	return state.InFlight == 0
}

// freed gives l a turn after an entry of its has left the window other than by an ACK.
func (e *Engine) freed(l *Link, wake bool) {
	if wake || l.careful {
		e.enqueue(l)
	}
}

// pumpRoom bounds one read of the store by what may be sent. At least one message: the table says whether that fits, and notes
// that room is wanted when not.
func (e *Engine) pumpRoom(l *Link, most int) (msgs, bytes int) {
	if l.hold&(holdStalled|holdParked) != 0 || l.careful {
		return 1, 1
	}
	msgs, bytes = e.core.table.Room(l.session)
	return max(1, min(msgs, most)), max(1, bytes)
}

// takePace takes tokens for up to n messages, of the device and of the node.
func (e *Engine) takePace(l *Link, n int, now Now) int {
	if perSecond := e.core.config.PaceUserPerSecond; perSecond > 0 {
		pace := &l.rare().pace
		if *pace == (scheduler.Bucket{}) { // nothing was taken yet, so it is full
			*pace = scheduler.NewBucket(perSecond, max(perSecond/10, 1), now.MonoMs)
		}
		n = pace.TakeUpTo(now.MonoMs, n)
	}
	if e.core.config.PaceNodePerSecond > 0 && n > 0 {
		n = e.core.pace.takeUpTo(now.MonoMs, n)
	}
	return n
}

// pauseUntil leaves l alone until then.
func (e *Engine) pauseUntil(l *Link, untilMs int64) {
	l.retryMs = untilMs
	e.tend(l)
}

// sendStored sends one message read from the store. What cannot be this queue's is not sent to anybody: a damaged file must neither
// leak a message nor stop the node.
func (e *Engine) sendStored(l *Link, class codec.Priority, item *Item, now Now) sendResult {
	var cmd Command
	if err := DecodeCommand(item.Command, &cmd); err != nil || cmd.Priority != class || string(cmd.User) != l.user {
		e.core.endOne(Ending{Ref: item.Ref, Status: StatusDead, Attempts: item.Attempts, Reason: ReasonUndecodable}, now)
		l.cursor[class] = item.Ref.Seq
		return sendEnded
	}
	return e.send(l, &cmd, item, true, now)
}
