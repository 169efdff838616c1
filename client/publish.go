package client

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"time"

	"holdfast/codec"
)

// errNotPublisher saves the connection: a server ends one that publishes without having logged in as a publisher.
var errNotPublisher = errors.New("publish: Options.Publisher is not set")

// Outgoing is one message to publish.
type Outgoing struct {
	ID           string        // empty: the client makes a random one
	User         string        // whose
	Device       string        // empty: every device of the user
	Type         string        // for the receiving program, may be empty
	Conversation string        // may be empty
	Payload      []byte        // only read
	TTL          time.Duration // 0: as long as the server keeps messages. Rounded up to milliseconds
	Priority     codec.Priority
	NoAck        bool // fire and forget: delivered to who is online, or not at all
}

// Result answers one published message.
type Result struct {
	MessageID string       // the id given or made
	Code      codec.Result // without meaning when Err is ErrUnanswered
	// Err is nil when the server has taken responsibility, now or for an earlier copy; a *ResultError when it refused;
	// ErrUnanswered when nobody knows.
	Err error
}

// publishCall is one Publish or PublishAsync. Guarded by publisher.mu; with dead set the program's messages are not
// touched any more.
type publishCall struct {
	msgs     []Outgoing
	results  []Result // Err is ErrUnanswered until the item has its result
	left     int
	dead     bool // its program has gone
	done     chan struct{}
	callback func([]Result, error)
	err      error
}

// span is part of a call: the items from..to-1 that have no result yet.
type span struct {
	call     *publishCall
	from, to int
}

// sentFrame is a PUBLISH frame without an answer yet.
type sentFrame struct {
	spans        []span
	items, bytes int
}

// What a publisher leaves unanswered at most, beside the server's window of frames: more than a disk takes between two syncs, and less
// than a server has room for.
const (
	unansweredItemsMax = 4096
	unansweredBytesMax = 1 << 20
)

// publisher batches messages into PUBLISH frames, keeps at most the server's window of frames unanswered, and puts the
// frames of a lost connection back to the front of the queue, under the same message ids.
type publisher struct {
	itemsMax int // static: Options.PublishBatch
	queueMax int // static: Options.PublishQueue

	// Guarded by mu.
	mu       sync.Mutex
	live     *session // nil: not logged in
	window   int
	number   uint64 // of the last frame in this session
	queue    []span
	queued   int // items in queue
	inflight map[uint64]sentFrame
	items    int      // in inflight
	bytes    int      // likewise
	spare    [][]span // for reuse
	writer   codec.PublishWriter
	item     codec.PublishItem
	finished []*publishCall // their callbacks are still to be called
	room     chan struct{}  // closed when queued has fallen; nil: nobody waits
	idle     chan struct{}  // closed when nothing is queued or in flight; nil: nobody waits
	err      error          // the client has ended
	answered uint64
	frames   uint64
}

// Publish sends messages and waits until each has its result, whatever happens to the connection in between: what was
// not answered is sent again after a reconnect under the same id, and the server recognises it. results has one entry
// a message, in order. err is nil when every message was answered (a refusal is an answer), the context's error, or
// why the client ended; results tells then which ones are not answered.
//
// The client must have been made with Options.Publisher. Any number of goroutines may publish at once; their messages
// share frames. It blocks while Options.PublishQueue messages are waiting. The messages are not touched after it has
// returned.
func (c *Client) Publish(ctx context.Context, msgs ...Outgoing) (results []Result, err error) {
	if !c.o.Publisher {
		return nil, errNotPublisher
	}
	if len(msgs) == 0 {
		return nil, nil
	}
	call := newCall(msgs)
	call.done = make(chan struct{})
	p := &c.pub
	if err := p.submit(ctx, call); err != nil {
		return call.results, err
	}
	select {
	case <-call.done:
		return call.results, call.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if call.left == 0 {
		return call.results, call.err
	}
	call.dead = true
	return call.results, ctx.Err()
}

// PublishAsync is Publish without the wait for the results: done is called once with them, on a goroutine of the
// client (or, when the client has ended or all messages are refused at once, on this one). done must not block; it may
// call Close, but not Shutdown. ctx bounds only the wait for room in the queue; with an error done is not called. msgs and their payloads belong to the
// client until done is called.
func (c *Client) PublishAsync(ctx context.Context, msgs []Outgoing, done func([]Result, error)) error {
	if !c.o.Publisher {
		return errNotPublisher
	}
	if len(msgs) == 0 {
		return errors.New("publish: no messages")
	}
	call := newCall(msgs)
	call.callback = func(results []Result, err error) {
		c.callbacks.Add(1)
		done(results, err)
		c.callbacks.Add(-1)
	}
	return c.pub.submit(ctx, call)
}

func newCall(msgs []Outgoing) *publishCall {
	call := &publishCall{msgs: msgs, results: make([]Result, len(msgs)), left: len(msgs)}
	for i := range msgs {
		r := &call.results[i]
		r.MessageID, r.Err = msgs[i].ID, ErrUnanswered
		if r.MessageID == "" {
			r.MessageID = rand.Text() // 130 random bits; no clock, so a clock step cannot repeat one
		}
	}
	return call
}

// submit queues a call when there is room and sends what the window allows.
func (p *publisher) submit(ctx context.Context, call *publishCall) error {
	p.mu.Lock()
	for p.err == nil && p.queued > 0 && p.queued+len(call.msgs) > p.queueMax {
		if p.room == nil {
			p.room = make(chan struct{})
		}
		room := p.room
		p.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
		p.mu.Lock()
	}
	if err := p.err; err != nil {
		p.mu.Unlock()
		return err
	}
	p.queue = append(p.queue, span{call, 0, len(call.msgs)})
	p.queued += len(call.msgs)
	p.pumpAndUnlock()
	return nil
}

// pumpAndUnlock sends what the window allows, releases mu, writes, and calls the callbacks that are due.
func (p *publisher) pumpAndUnlock() {
	s := p.live
	for s != nil && len(p.queue) > 0 && p.mayAsk() {
		spans := p.fillFrame(s.info.FrameBytesMax)
		if len(spans) == 0 {
			p.recycle(spans)
			continue // all that was queued is gone or could not be sent
		}
		p.number++
		p.frames++
		// Under mu, so that the numbers rise in the stream; the write itself comes after.
		before := s.out.lock()
		after := p.writer.AppendTo(before)
		f := sentFrame{spans: spans, items: p.writer.Count(), bytes: len(after) - len(before)}
		s.out.unlock(after)
		p.inflight[p.number] = f
		p.items += f.items
		p.bytes += f.bytes
	}
	if p.room != nil && p.queued < p.queueMax {
		close(p.room)
		p.room = nil
	}
	if p.idle != nil && p.queued == 0 && len(p.inflight) == 0 {
		close(p.idle)
		p.idle = nil
	}
	finished := p.finished
	p.finished = nil
	p.mu.Unlock()
	if s != nil {
		s.out.flush()
	}
	for _, call := range finished {
		call.callback(call.results, call.err)
	}
}

// mayAsk reports whether there is room for one more frame.
func (p *publisher) mayAsk() bool {
	return len(p.inflight) < p.window && p.items < unansweredItemsMax && p.bytes < unansweredBytesMax
}

// fillFrame moves items from the queue into the writer until the frame or the queue ends, and returns what it took.
func (p *publisher) fillFrame(frameBytesMax int) []span {
	p.writer.Reset(p.number + 1)
	var spans []span
	if n := len(p.spare); n > 0 {
		spans, p.spare = p.spare[n-1], p.spare[:n-1]
	}
	for len(p.queue) > 0 && p.writer.Count() < p.itemsMax {
		front := &p.queue[0]
		call, i := front.call, front.from
		if call.dead || i == front.to {
			p.queued -= front.to - i
			p.popFront()
			continue
		}
		bad := p.encode(call, i)
		if bad.OK() && !p.writer.Fits(&p.item, frameBytesMax) {
			if p.writer.Count() > 0 {
				break
			}
			bad = codec.ResultTooLarge
		}
		front.from++
		p.queued--
		if front.from == front.to {
			p.popFront()
		}
		if !bad.OK() {
			p.finish(call, i, bad)
			continue
		}
		p.writer.Add(&p.item)
		if n := len(spans); n > 0 && spans[n-1].call == call && spans[n-1].to == i {
			spans[n-1].to++
		} else {
			spans = append(spans, span{call, i, i + 1})
		}
	}
	p.item = codec.PublishItem{} // lets go of the program's memory
	return spans
}

func (p *publisher) popFront() {
	p.queue[0] = span{}
	if p.queue = p.queue[1:]; len(p.queue) == 0 {
		p.queue = nil
	}
}

// encode makes the item of a message; it borrows the message's memory until Add has copied it.
func (p *publisher) encode(call *publishCall, i int) codec.Result {
	m := &call.msgs[i]
	if m.TTL < 0 {
		return codec.ResultBadTTL
	}
	if m.Priority > codec.PriorityBulk {
		return codec.ResultBadField
	}
	p.item = codec.PublishItem{
		NoAck:        m.NoAck,
		Priority:     m.Priority,
		User:         borrow(m.User),
		Device:       borrow(m.Device),
		MessageID:    borrow(call.results[i].MessageID),
		TTLMs:        uint64(m.TTL / time.Millisecond),
		Type:         borrow(m.Type),
		Conversation: borrow(m.Conversation),
		Payload:      m.Payload,
	}
	if m.TTL%time.Millisecond != 0 {
		p.item.TTLMs++ // rounded down, a short ttl would become none
	}
	return codec.ResultAccepted
}

// finish gives an item its result.
func (p *publisher) finish(call *publishCall, i int, code codec.Result) {
	r := &call.results[i]
	r.Code, r.Err = code, nil
	if !code.OK() {
		r.Err = &ResultError{code}
	}
	if call.left--; call.left == 0 {
		p.complete(call, nil)
	}
}

func (p *publisher) complete(call *publishCall, err error) {
	call.err = err
	if call.callback != nil {
		p.finished = append(p.finished, call)
	} else {
		close(call.done)
	}
}

// answer takes one PUBLISHED frame on the read goroutine.
func (p *publisher) answer(x *codec.Published) error {
	p.mu.Lock()
	f, ok := p.inflight[x.Number]
	if !ok {
		p.mu.Unlock()
		return localClose(codec.CodeUnexpectedFrame, "an answer to a publish number that is not open")
	}
	if x.Count != uint64(f.items) {
		p.mu.Unlock()
		return localClose(codec.CodeUnexpectedFrame, "results for another number of messages than were published")
	}
	for _, s := range f.spans {
		for i := s.from; i < s.to; i++ {
			code, err := p.nextResult(x, s.call, i)
			if err != nil {
				p.mu.Unlock()
				return err
			}
			p.answered++
			if !s.call.dead { // else its results belong to the program already
				p.finish(s.call, i, code)
			}
		}
	}
	delete(p.inflight, x.Number)
	p.items -= f.items
	p.bytes -= f.bytes
	p.recycle(f.spans)
	p.pumpAndUnlock()
	return nil
}

// nextResult reads the result of one item.
func (p *publisher) nextResult(x *codec.Published, call *publishCall, i int) (codec.Result, error) {
	if x.AllAccepted {
		return codec.ResultAccepted, nil
	}
	var it codec.ItemResult
	ok, err := x.Next(&it)
	if err != nil {
		return 0, protocolError(err)
	}
	if !ok {
		return 0, localClose(codec.CodeUnexpectedFrame, "fewer results than messages published")
	}
	if r := &call.results[i]; !call.dead && len(it.MessageID) > 0 && string(it.MessageID) != r.MessageID {
		r.MessageID = string(it.MessageID)
	}
	return it.Result, nil
}

func (p *publisher) recycle(spans []span) {
	if cap(spans) > 0 && len(p.spare) < 64 {
		clear(spans)
		p.spare = append(p.spare, spans[:0])
	}
}

// attach starts sending on a new session.
func (p *publisher) attach(s *session, window int) {
	p.mu.Lock()
	if p.inflight == nil {
		p.inflight = make(map[uint64]sentFrame)
	}
	p.live, p.number, p.window = s, 0, max(window, 1)
	p.pumpAndUnlock()
}

// detach puts what was not answered back to the front of the queue, in the order it was sent.
func (p *publisher) detach() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live = nil
	if len(p.inflight) == 0 {
		return
	}
	numbers := make([]uint64, 0, len(p.inflight))
	for n := range p.inflight {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	var again []span
	for _, n := range numbers {
		for _, s := range p.inflight[n].spans {
			p.queued += s.to - s.from
			again = append(again, s)
		}
	}
	clear(p.inflight)
	p.items, p.bytes = 0, 0
	p.queue = append(again, p.queue...)
}

// fail ends every call: the client is not coming back.
func (p *publisher) fail(err error) {
	p.detach()
	p.mu.Lock()
	p.err = err
	for _, s := range p.queue {
		if !s.call.dead {
			s.call.dead = true // several spans may be of one call
			p.complete(s.call, err)
		}
	}
	p.queue, p.queued = nil, 0
	p.pumpAndUnlock()
}

// waitIdle waits until everything is answered.
func (p *publisher) waitIdle(ctx context.Context) error {
	p.mu.Lock()
	if p.queued == 0 && len(p.inflight) == 0 {
		p.mu.Unlock()
		return nil
	}
	if p.idle == nil {
		p.idle = make(chan struct{})
	}
	idle := p.idle
	p.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
