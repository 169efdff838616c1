package delivery

import (
	"sync"
	"sync/atomic"

	"holdfast/ack"
)

// lane is an engine and a goroutine for it: everything about a user happens in his lane, one thing after the other. A push that
// finds the lane at rest does not wait for the goroutine: its caller drives the engine meanwhile (see push). What may read the disk
// (Turn) is the goroutine's alone.
type lane struct {
	// Static after construction.
	dispatcher *Dispatcher
	signal     chan struct{} // one token: there is something in the inbox, or for Turn

	// Owned by whoever has set busy.
	engine *Engine

	// Owned by the goroutine.
	events []event // the other buffer of inbox.events
	fired  []ack.Expired

	ticking atomic.Bool // the engine has links that wait for time

	// Guarded by mu.
	mu    sync.Mutex
	inbox inbox
	busy  bool // somebody drives the engine
}

// inbox is what waits for a lane. Pushes are bounded by settings; all other events by what they are about: two for a connection
// (login, gone), one of each coalesced kind, one timer for an entry in the table, one question for an HTTP request.
type inbox struct {
	events []event
	fired  []ack.Expired
	items  int // pushes in events
	bytes  int
	tick   bool
	closed bool
}

// event is one thing that happened.
type event struct {
	kind  eventKind
	link  *Link
	batch *Batch
	first int32 // of batch: the lane's first item
	call  func(*Engine, Now)
}

type eventKind uint8

const (
	eventPush eventKind = iota
	eventLogin
	eventGone
	eventWake
	eventDrained
	eventCall
)

// driveItemsMax is the largest batch whose caller drives the lanes: the handing over of a large one costs little for each message, and
// lanes work side by side.
const driveItemsMax = 64

// inboxKept bounds the buffer an idle lane holds on to.
const inboxKept = 4096

func newLane(d *Dispatcher, e *Engine) *lane {
	return &lane{dispatcher: d, engine: e, signal: make(chan struct{}, 1)}
}

// run handles events until the lane is closed and its inbox empty.
func (l *lane) run() {
	more := false
	for {
		if !more {
			<-l.signal
		}
		closed, ok := l.take()
		if !ok {
			more = false // whoever drives it sends a signal when there is more to do
			continue
		}
		l.handle()
		more = l.engine.Turn(l.dispatcher.now())
		l.ticking.Store(l.engine.Ticking())
		l.mu.Lock()
		l.busy = false
		l.mu.Unlock()
		if closed && !more {
			return
		}
	}
}

// take takes the engine, and swaps the inbox for the empty buffers of last time. ok is false when somebody else drives the engine.
func (l *lane) take() (closed, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy {
		return false, false
	}
	l.busy = true
	in := &l.inbox
	l.events, in.events = in.events, l.events[:0]
	l.fired, in.fired = in.fired, l.fired[:0]
	in.items, in.bytes = 0, 0
	if in.tick {
		in.tick = false
		l.events = append(l.events, event{kind: eventCall, call: (*Engine).Tick})
	}
	return in.closed, true
}

// tryDrive takes the engine for a caller that is not the goroutine, if the lane is open and has nothing to do.
func (l *lane) tryDrive() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy || l.inbox.closed || len(l.inbox.events) > 0 || len(l.inbox.fired) > 0 {
		return false
	}
	l.busy = true
	return true
}

// endDrive gives it back, and has the goroutine do what has come meanwhile, and what the engine wants to read.
func (l *lane) endDrive() {
	turn := l.engine.Waiting()
	l.ticking.Store(l.engine.Ticking())
	l.mu.Lock()
	l.busy = false
	in := &l.inbox
	turn = turn || in.closed || in.tick || len(in.events) > 0 || len(in.fired) > 0
	l.mu.Unlock()
	if turn {
		l.wake()
	}
}

// handle works through what was taken.
func (l *lane) handle() {
	now := l.dispatcher.now()
	for i := range l.fired {
		l.engine.Fired(&l.fired[i], now)
	}
	for i := range l.events {
		l.one(&l.events[i])
	}
	clear(l.events) // links and batches are not kept
	if cap(l.events) > inboxKept {
		l.events = nil
	}
	if cap(l.fired) > inboxKept {
		l.fired = nil
	}
}

func (l *lane) one(x *event) {
	now := l.dispatcher.now()
	switch x.kind {
	case eventPush:
		l.engine.pushChain(x.batch, x.first, now)
	case eventLogin:
		l.engine.Login(x.link, now)
	case eventGone:
		l.engine.Gone(x.link, now)
	case eventWake:
		l.engine.Wake(x.link, now)
	case eventDrained:
		l.engine.Drained(x.link, now)
	case eventCall:
		x.call(l.engine, now)
	}
}

// post adds one event and reports false when the lane is closed. It never waits.
func (l *lane) post(x event) bool {
	l.mu.Lock()
	open := !l.inbox.closed
	if open {
		l.inbox.events = append(l.inbox.events, x)
	}
	l.mu.Unlock()
	l.wake()
	return open
}

// call has the lane call f, and reports false when it is closed.
func (l *lane) call(f func(*Engine, Now)) bool { return l.post(event{kind: eventCall, call: f}) }

// fire adds a timer that fired.
func (l *lane) fire(x ack.Expired) {
	l.mu.Lock()
	l.inbox.fired = append(l.inbox.fired, x)
	l.mu.Unlock()
	l.wake()
}

// wantTick has the engine look after its tended links, if it has any.
func (l *lane) wantTick() {
	if !l.ticking.Load() {
		return
	}
	l.mu.Lock()
	l.inbox.tick = true
	l.mu.Unlock()
	l.wake()
}

func (l *lane) wake() {
	select {
	case l.signal <- struct{}{}:
	default: // it is awake already
	}
}

func (l *lane) close() {
	l.mu.Lock()
	l.inbox.closed = true
	l.mu.Unlock()
	l.wake()
}

func (l *lane) depth() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.inbox.events) + len(l.inbox.fired) + l.inbox.items
}
