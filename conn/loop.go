package conn

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/panjf2000/gnet/v2"

	"holdfast/codec"
)

const (
	flushesPerRun   = 256    // sessions flushed in one round
	flushesPerYield = 512    // sessions flushed before readable sockets must have had a turn
	busyMessages    = 15_000 // messages a second that make a loop busy
	busyWindowMs    = 200    // over which they are counted: a burst makes no loop busy
	bundleFrames    = 16     // so many messages are bundle enough
)

// loop is the part of the server that belongs to one gnet event loop.
type loop struct {
	// Static.
	server *Server
	gnet   gnet.EventLoop

	stats loopStats // written by anybody, atomically

	// Any goroutine. dirty is a stack linked through Session.next; signal says that a round is on its way, which will see everything
	// pushed before; the others are work for it.
	dirty    atomic.Pointer[Session]
	signal   atomic.Bool
	tickDue  atomic.Bool
	endDue   atomic.Bool
	fenceMu  sync.Mutex // held while gnet is called from outside the loop
	isFenced bool       // guarded by fenceMu: the engine may be gone, its wake-up descriptor somebody else's

	// Owned by the loop.
	first, last *Session // dirty sessions taken over and not flushed yet, oldest first
	held        *Session // dirty sessions that were written to a moment ago, newest first; a busy loop bundles what comes for them
	heldMs      int64    // when the first of them was put there
	later       *time.Timer
	flushed     int  // sessions flushed since readable sockets had a turn
	yielding    bool // a round is put off until they have had one
	busy        bool
	rateMs      int64 // when busy was reckoned
	messages    int32 // taken out of outboxes since then; replies do not count
	wheel       wheel
	connect     codec.Connect // scratch for login
	scratch     [16 << 10]byte
}

// push puts s, which the caller has marked as queued, on the dirty stack.
func (l *loop) push(s *Session) {
	for {
		head := l.dirty.Load()
		s.next = head
		if l.dirty.CompareAndSwap(head, s) {
			break
		}
	}
	l.wake()
}

// wake makes sure that a Run follows.
func (l *loop) wake() {
	if !l.signal.Swap(true) {
		l.execute()
	}
}

// execute hands Run to gnet, unless the engine is being stopped: gnet would then write its wake-up into a descriptor number that may
// belong to somebody else.
func (l *loop) execute() {
	l.fenceMu.Lock()
	defer l.fenceMu.Unlock()
	if l.isFenced {
		return
	}
	if err := l.gnet.Execute(context.Background(), l); err != nil {
		l.signal.Store(false)
		l.server.cfg.Log.Error("waking an event loop", "error", err)
	}
}

// fence lets no more wake-ups through.
func (l *loop) fence() {
	l.fenceMu.Lock()
	l.isFenced = true
	l.fenceMu.Unlock()
}

// Run is the task gnet executes on the loop; nobody else calls it. It always returns nil.
//
// gnet runs tasks until none is left before it looks at sockets again, so a task that producers (or itself) renew all the time would
// starve reads. Therefore, after flushesPerYield sessions without a read, a round is put off: its signal stays up, which makes producers
// queue silently, and it comes again from another goroutine, as an event beside the readable sockets.
func (l *loop) Run(context.Context) error {
	if l.yielding {
		l.flushed = 0
	}
	l.round()
	return nil
}

// enter takes the signal for the time of a pass over a readable socket, so that what is sent meanwhile, by whomever, leaves with the
// round at its end, without a wake-up. It reports whether that round is the caller's to start, with leave; else a Run is on its way.
func (l *loop) enter() bool {
	l.flushed = 0
	return !l.signal.Swap(true) || l.yielding
}

// leave ends a pass. ours is what enter has said.
func (l *loop) leave(ours bool) {
	if ours {
		l.round()
	}
}

// round does what is due on the loop as a whole, and writes what dirty sessions have.
func (l *loop) round() {
	l.duties()
	if l.flushed >= flushesPerYield && (l.first != nil || l.dirty.Load() != nil) {
		if !l.yielding {
			l.yielding = true
			go l.execute()
		}
		return
	}
	l.yielding = false
	l.signal.Store(false) // before the dirty stack is taken, or a push in between would be lost
	l.adopt(l.dirty.Swap(nil))
	if l.first == nil && l.held == nil {
		return
	}
	nowMs := l.server.nowMs()
	l.reckon(nowMs)
	l.unhold(nowMs)
	for n := 0; n < flushesPerRun && l.first != nil; n++ {
		s := l.first
		l.first, s.next = s.next, nil
		if l.mayHold(s, nowMs) {
			l.hold(s, nowMs)
			continue
		}
		l.flushed++
		l.flush(s, true)
	}
	if l.first != nil {
		l.wake()
	}
}

// reckon says whether the loop is busy.
func (l *loop) reckon(nowMs int64) {
	past := nowMs - l.rateMs
	if past < busyWindowMs {
		return
	}
	l.busy = int64(l.messages)*1000 >= busyMessages*past
	l.rateMs, l.messages = nowMs, 0
}

// mayHold reports whether what s has may wait a moment for more: a write is the dearest thing a loop does, and costs the same for one
// message and for ten. That pays only when the loop is busy and s gets so much that more will come; all others are written to at once.
func (l *loop) mayHold(s *Session, nowMs int64) bool {
	if !l.busy || int32(uint16(nowMs)-s.wroteMs) >= l.server.bundleMs { // once in 65 s an old time looks like a new one: no harm
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queuedFrames < bundleFrames && !s.prompt && !s.writable && !s.resume && s.state.Load() == stateOpen
}

// hold keeps s, which is marked as queued and in no list, until unhold.
func (l *loop) hold(s *Session, nowMs int64) {
	if l.held == nil {
		l.heldMs = nowMs
		wait := time.Duration(l.server.bundleMs) * time.Millisecond
		if l.later == nil {
			l.later = time.AfterFunc(wait, l.wake)
		} else {
			l.later.Reset(wait)
		}
	}
	s.next, l.held = l.held, s
}

// unhold puts what was held long enough to the dirty sessions.
func (l *loop) unhold(nowMs int64) {
	if l.held != nil && nowMs-l.heldMs >= int64(l.server.bundleMs) {
		held := l.held
		l.held = nil
		l.adopt(held)
	}
}

// adopt appends a taken dirty stack, oldest first.
func (l *loop) adopt(stack *Session) {
	var oldest, newest *Session = nil, stack
	for s := stack; s != nil; {
		next := s.next
		s.next = oldest
		oldest, s = s, next
	}
	if oldest == nil {
		return
	}
	if l.first == nil {
		l.first = oldest
	} else {
		l.last.next = oldest
	}
	l.last = newest
}

// duties does what was asked of the loop as a whole.
func (l *loop) duties() {
	if l.tickDue.Load() && l.tickDue.Swap(false) {
		l.advance(l.server.nowMs())
	}
	if l.endDue.Load() && l.endDue.Swap(false) {
		l.each(func(s *Session) { s.Close(codec.CodeGoingAway, "server is stopping", 0) })
	}
}
