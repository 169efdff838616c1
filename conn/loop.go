package conn

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/panjf2000/gnet/v2"

	"holdfast/codec"
)

const (
	flushesPerRun   = 256 // sessions flushed in one task
	flushesPerYield = 512 // sessions flushed before reads must have had a turn
)

// loop is the part of the server that belongs to one gnet event loop.
type loop struct {
	// Static.
	server *Server
	gnet   gnet.EventLoop

	stats loopStats // written by anybody, atomically

	// Any goroutine. dirty is a stack linked through Session.next; signal says that a Run is on its way, which will see everything
	// pushed before; kicked asks the watcher for that Run; the others are work for it.
	dirty    atomic.Pointer[Session]
	signal   atomic.Bool
	kicked   atomic.Bool
	tickDue  atomic.Bool
	endDue   atomic.Bool
	fenceMu  sync.Mutex // held while gnet is called from outside the loop
	isFenced bool       // guarded by fenceMu: the engine may be gone, its wake-up descriptor somebody else's

	// Owned by the loop.
	first, last *Session // dirty sessions taken over and not flushed yet, oldest first
	flushed     int      // sessions flushed since the last read or yield
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
// starve reads. Therefore, after flushesPerYield sessions without a read, a Run keeps its signal up, which makes producers queue
// silently, and asks the watcher to start the next one: that arrives as an event beside the readable sockets.
func (l *loop) Run(context.Context) error {
	yield := l.flushed >= flushesPerYield
	if !yield {
		l.signal.Store(false) // before the dirty stack is taken, or a push in between would be lost
	}
	l.duties()
	l.adopt(l.dirty.Swap(nil))
	for n := 0; n < flushesPerRun && l.first != nil; n++ {
		s := l.first
		l.first, s.next = s.next, nil
		l.flushed++
		l.flush(s, true)
	}
	switch {
	case yield:
		l.flushed = 0
		l.kicked.Store(true)
		l.server.watch.kick()
	case l.first != nil:
		l.wake()
	}
	return nil
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
	if l.tickDue.Swap(false) {
		l.advance(l.server.nowMs())
	}
	if l.endDue.Swap(false) {
		l.each(func(s *Session) { s.Close(codec.CodeGoingAway, "server is stopping", 0) })
	}
}
