package delivery

import (
	"fmt"
	"math"
	"math/rand/v2"

	"holdfast/ack"
	"holdfast/codec"
)

// Engine decides for the users of one lane: who gets a message now, later or never. It belongs to one goroutine at a time, takes the time
// as an argument and its randomness from outside, and starts nothing: whoever drives it tells it events and calls Turn.
type Engine struct {
	// Static after construction.
	core *core
	rand *rand.Rand

	users   map[string]*Link  // the first link of each connected user
	links   map[uint64]*Link  // by session id
	streaks map[QueueID]uint8 // sessions in a row that ended without an ACK although something was in flight
	ready   []*Link           // waiting for their turn to be pumped, in order
	spare   []*Link           // the other buffer of ready
	tended  []*Link           // links that Tick looks after
	leaving bool              // GoAway was called: nobody is let in any more

	// Scratch of one call.
	targets []QueueID
	command []byte
	frame   []byte
	buffer  Buffer
	entries []ack.Entry
	fired   []ack.Expired
}

// Limits of one lane's work that are no settings.
const (
	pumpMessages    = 128     // backlog messages a link sends before the next link's turn
	turnLinks       = 64      // links pumped in one Turn
	streaksMax      = 1 << 16 // queues remembered for the careful mode
	streakCareful   = 2       // sessions without an ACK before a login is careful
	storeRetryMs    = 1000    // after a store error
	budgetRetryMs   = 1000    // after the retry budget was empty
	blockedRetryMs  = 1000    // a due retry that found the outbox full
	stuckCheckMs    = 1000    // between two looks at a stuck link
	loginUnavailMs  = 1000    // retry-after when the store cannot take a login
	loginFullMs     = 60_000  // retry-after when it has no room for another device
	trialShiftMax   = 6       // a link that acknowledges nothing is tried after 1, 2, 4 ... 64 ACK timeouts
	firstRetryShare = 0.4     // of the ACK timeout: the longest first back-off
)

// newEngine is an engine without users.
func newEngine(c *core, r *rand.Rand) *Engine {
	return &Engine{
		core: c, rand: r,
		users: make(map[string]*Link), links: make(map[uint64]*Link), streaks: make(map[QueueID]uint8),
	}
}

// enqueue gives l a turn to be pumped.
func (e *Engine) enqueue(l *Link) {
	if !l.queued && l.state == linkOpen {
		l.queued = true
		e.ready = append(e.ready, l)
	}
}

// tend makes Tick look after l until nothing about it waits for time any more.
func (e *Engine) tend(l *Link) {
	if !l.tended {
		l.tended = true
		e.tended = append(e.tended, l)
	}
}

// Turn pumps a bounded number of links and reports whether more are waiting. Call it after every event until it reports false;
// events may be put between two turns.
func (e *Engine) Turn(now Now) bool {
	n := min(len(e.ready), turnLinks)
	e.spare = append(e.spare[:0], e.ready[:n]...)
	left := copy(e.ready, e.ready[n:])
	clear(e.ready[left:])
	e.ready = e.ready[:left]
	for _, l := range e.spare {
		l.queued = false
		if e.pump(l, now) {
			e.enqueue(l)
		}
	}
	clear(e.spare)
	return len(e.ready) > 0
}

// Waiting reports whether Turn has anything to do.
func (e *Engine) Waiting() bool { return len(e.ready) > 0 }

// Ticking reports whether Tick has anything to do.
func (e *Engine) Ticking() bool { return len(e.tended) > 0 }

// Tick looks after links that wait for time: paced, stuck, stalled, with delayed messages, draining. Every 100 ms or so.
func (e *Engine) Tick(now Now) {
	kept := e.tended[:0]
	for _, l := range e.tended {
		if l.state != linkOpen || !e.look(l, now) {
			l.tended = false
			continue
		}
		kept = append(kept, l)
	}
	clear(e.tended[len(kept):])
	e.tended = kept
}

// look does for one link what its time has come for, and reports whether it has to be looked at again.
func (e *Engine) look(l *Link, now Now) bool {
	again := false
	if l.hold&holdStuck != 0 {
		e.lookStuck(l, now)
		again = true
	}
	if more := l.rare(); len(more.delayed) > 0 {
		e.lookDelayed(l, now)
		again = again || len(more.delayed) > 0
	}
	if l.hold&holdDrain != 0 {
		e.lookDrain(l, now)
		again = true
	}
	if l.backlog || l.resume {
		if l.resume || e.maySend(l, now) {
			e.enqueue(l)
		}
		again = again || l.retryMs > now.MonoMs || l.hold&(holdStalled|holdParked) != 0
	}
	return again
}

// lookStuck ends the stuck state when bytes move again or an ACK came in, and closes the connection when that takes too long.
func (e *Engine) lookStuck(l *Link, now Now) {
	if now.MonoMs < l.rare().checkMs {
		return
	}
	l.rare().checkMs = now.MonoMs + stuckCheckMs
	state, _ := e.core.table.State(l.session)
	switch {
	case l.peer.Unsent() == 0 || state.LastAckMs >= l.rare().stuckMs:
		l.clearHold(holdStuck)
		e.enqueue(l)
	case now.MonoMs-l.rare().stuckMs >= e.core.config.StuckClose.Milliseconds():
		e.core.count.slowClosed.Inc()
		l.rare().checkMs = math.MaxInt64 // once
		l.peer.Close(codec.CodeSlowConsumer, "neither bytes taken nor messages acknowledged", 0)
	}
}

// Check panics when what must always hold of a lane does not. Costly: for tests and the simulation.
func (e *Engine) Check() {
	total := 0
	for name, l := range e.users {
		assert(l != nil, "user %q is kept without a link", name)
		for ; l != nil; l = l.next {
			total++
			assert(l.user == name, "link of %q is filed under %q", l.user, name)
			assert(e.links[l.sessionID] == l, "link of %q is not found by its session", name)
			e.checkLink(l)
		}
	}
	assert(total == len(e.links), "%d links by user, %d by session", total, len(e.links))
}

func (e *Engine) checkLink(l *Link) {
	assert(l.state == linkOpen, "a link that is over is still filed")
	state, open := e.core.table.State(l.session)
	assert(open, "an open link has no session in the table")
	assert(state.InFlight <= int(l.windowMsgs), "%d in flight in a window of %d", state.InFlight, l.windowMsgs)
	assert(l.troubled.Load() == l.wantsAcks(), "the event loop does not know what the lane waits for")
	waits := l.hold != 0 || l.queued || l.wakeQueued.Load() || l.careful || l.tended || state.InFlight > 0
	assert(!l.backlog || waits, "link of %q has a backlog and nothing that would send it", l.user)
	assert(l.hold&(holdStuck|holdDrain) == 0 || l.tended, "link of %q waits for time and nobody looks", l.user)
}

func assert(holds bool, format string, args ...any) {
	if !holds {
		panic("delivery: " + fmt.Sprintf(format, args...))
	}
}
