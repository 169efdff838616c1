package delivery

import (
	"sync"
	"sync/atomic"

	"holdfast/ack"
)

// lane is one goroutine and its engine: everything about a user happens in his lane, one thing after the other.
type lane struct {
	// Static after construction.
	dispatcher *Dispatcher
	signal     chan struct{} // one token: there is something in the inbox

	// Owned by the goroutine.
	engine *Engine
	events []event // the other buffer of inbox.events
	fired  []ack.Expired

	ticking atomic.Bool // the engine has links that wait for time

	mu    sync.Mutex
	inbox inbox // guarded by mu
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
		closed := l.take()
		l.handle()
		more = l.engine.Turn(l.dispatcher.now())
		l.ticking.Store(l.engine.Ticking())
		if closed && !more {
			return
		}
	}
}

// take swaps the inbox for the empty buffers of last time.
func (l *lane) take() (closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	in := &l.inbox
	l.events, in.events = in.events, l.events[:0]
	l.fired, in.fired = in.fired, l.fired[:0]
	in.items, in.bytes = 0, 0
	if in.tick {
		in.tick = false
		l.events = append(l.events, event{kind: eventCall, call: (*Engine).Tick})
	}
	return in.closed
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
		for i := x.first; i >= 0; {
			next := x.batch.items[i].next // read before: the batch may be gone after Push
			l.engine.Push(x.batch, int(i), now)
			i = next
		}
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
