package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/client"
)

// publishersOptions describe the publishing side of a load on a fleet.
type publishersOptions struct {
	publishers int
	rate       float64 // messages a second over all publishers, open loop; 0: as fast as the windows allow
	window     int     // with rate 0: messages of one user that may be unacknowledged
	payload    int     // bytes
	random     bool    // users at random instead of in turn
	noAck      bool
	messages   int64 // end after this many; 0: none
	batch      int   // messages in one PUBLISH frame at most
}

// publishers drive a fleet over PUBLISH frames. Each has a connection and the users whose index fits its own, so that one user's
// messages come over one connection and have an order.
type publishers struct {
	// Static after connect.
	r       *Run
	o       publishersOptions
	f       *fleet
	answers *Latency // publish to answer
	answer  *Counter // answered and accepted
	clients []publishing

	given   atomic.Int64 // messages taken out of o.messages
	refused refusals
}

// refusals counts why publishes were refused.
type refusals struct {
	mu  sync.Mutex
	why map[string]int64
}

func (x *refusals) add(err error) {
	reason := err.Error()
	var refused *client.ResultError
	switch {
	case errors.As(err, &refused):
		reason = refused.Code.String()
	case errors.Is(err, client.ErrUnanswered):
		reason = "unanswered"
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.why == nil {
		x.why = map[string]int64{}
	}
	x.why[reason]++
}

// String is why, and how often: " (5 overloaded)"; empty when nothing was refused.
func (x *refusals) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(x.why)) {
		parts = append(parts, fmt.Sprintf("%d %s", x.why[reason], reason))
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// batch is one call of PublishAsync. It belongs to the publisher, then to the client until its answer, then to the free list.
type batch struct {
	p       *publishers
	msgs    []client.Outgoing
	stamps  []stamp
	payload []byte // of all messages
	free    chan *batch
}

// batchesMax bounds the memory of one publisher: batches on their way.
const batchesMax = 1024

func newPublishers(r *Run, f *fleet, o publishersOptions) *publishers {
	p := &publishers{r: r, o: o, f: f}
	p.answers = r.latency(f.o.label + "publish to answer")
	p.answer = r.counter(f.o.label + "published")
	return p
}

// connect logs the publishers in.
func (p *publishers) connect(ctx context.Context) error {
	for i := range p.o.publishers {
		name := p.r.publisherName(p.f.o.label, i)
		c, err := p.open(ctx, name)
		if err != nil {
			return fmt.Errorf("login of publisher %d: %w", i, err)
		}
		p.clients = append(p.clients, c)
	}
	return nil
}

// publishing is a publisher's connection: the client library's, or MQTT's.
type publishing interface {
	// PublishAsync blocks while there is no room; then done is called once, on another goroutine or on this one.
	PublishAsync(ctx context.Context, msgs []client.Outgoing, done func([]client.Result, error)) error
	Close() error
}

// open logs in to what the target is.
func (p *publishers) open(ctx context.Context, name string) (publishing, error) {
	if p.r.o.Target.MQTT != nil {
		return p.r.dialMQTTPublisher(ctx, name)
	}
	return client.Dial(ctx, client.Options{
		Addrs: []string{p.r.o.Target.Addr}, User: name, Publisher: true, ClientName: "holdfast-bench", DialAttempts: -1,
		Token: p.r.token(name, true), PublishBatch: p.o.batch, BackoffBase: 50 * time.Millisecond, BackoffMax: p.backoff(),
		DialConn: dialTCP,
	})
}

func (p *publishers) backoff() time.Duration {
	if p.r.faults != nil {
		return impatience
	}
	return 5 * time.Second
}

// load publishes until ctx ends or all messages are out.
func (p *publishers) load(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var busy sync.WaitGroup
	for i, c := range p.clients {
		busy.Go(func() {
			run := p.paced
			if p.o.rate <= 0 {
				run = p.greedy
			}
			if err := run(ctx, i, c); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("publisher %d: %w", i, err))
			}
		})
	}
	busy.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// picker chooses the next user among those of one publisher.
type picker struct {
	first, step, users int
	at                 int
	rnd                *rand.Rand // nil: in turn
}

func (p *publishers) picker(publisher int) *picker {
	x := &picker{first: publisher, step: len(p.clients), users: len(p.f.members)}
	if p.o.random {
		x.rnd = rand.New(rand.NewPCG(p.r.id, uint64(publisher)))
	}
	return x
}

// own is how many users there are to choose from.
func (x *picker) own() int { return (x.users - x.first + x.step - 1) / x.step }

func (x *picker) next() int {
	n := x.at
	if x.rnd != nil {
		n = x.rnd.IntN(x.own())
	} else if x.at++; x.at >= x.own() {
		x.at = 0
	}
	return x.first + n*x.step
}

// take takes one message out of the bound on their number.
func (p *publishers) take() bool { return p.o.messages <= 0 || p.given.Add(1) <= p.o.messages }

// paced is the open loop: messages are due at their times, whatever became of those before.
func (p *publishers) paced(ctx context.Context, publisher int, c publishing) error {
	pick := p.picker(publisher)
	pace := newPacer(p.r, p.o.rate/float64(len(p.clients)))
	free := make(chan *batch, batchesMax)
	for {
		first, n, ok := pace.due(ctx, int64(p.o.batch))
		if !ok {
			return nil
		}
		b := p.newBatch(free)
		for i := range n {
			if !p.take() {
				return b.publish(ctx, c)
			}
			b.add(pick.next(), pace.intended(first+i))
		}
		if err := b.publish(ctx, c); err != nil {
			return err
		}
	}
}

// linger is how long the greedy publisher collects before it sends a batch that is not full.
const linger = 200 * time.Microsecond

// greedy publishes whatever the users' windows have room for.
func (p *publishers) greedy(ctx context.Context, publisher int, c publishing) error {
	pick := p.picker(publisher)
	free := make(chan *batch, batchesMax)
	pace := &pacer{r: p.r}
	sent := make([]int64, len(p.f.members))
	b, waited := p.newBatch(free), false
	for ctx.Err() == nil {
		for range pick.own() {
			user := pick.next()
			if sent[user]-p.f.members[user].settled.Load() >= int64(p.o.window) {
				continue
			}
			if !p.take() {
				return b.publish(ctx, c)
			}
			sent[user]++
			b.add(user, p.r.now())
			if len(b.msgs) == p.o.batch {
				break
			}
		}
		if len(b.msgs) == p.o.batch || (len(b.msgs) > 0 && waited) {
			if err := b.publish(ctx, c); err != nil {
				return err
			}
			b, waited = p.newBatch(free), false
			continue
		}
		if p.o.messages > 0 && p.given.Load() >= p.o.messages {
			return b.publish(ctx, c) // all are taken, and no window has to open for that
		}
		pace.sleep(ctx, linger)
		waited = true
	}
	return b.publish(context.WithoutCancel(ctx), c) // they are in the ledger
}

// newBatch takes a batch from those that were answered, or makes one.
func (p *publishers) newBatch(free chan *batch) *batch {
	select {
	case b := <-free:
		b.msgs, b.stamps = b.msgs[:0], b.stamps[:0]
		return b
	default:
		return &batch{p: p, payload: make([]byte, p.o.batch*p.o.payload), free: free}
	}
}

// add puts the next message of a user into the batch.
func (b *batch) add(user int, intended int64) {
	p := b.p
	s := stamp{run: p.r.id, user: uint32(p.f.first + user), seq: p.f.ledger.send(user), intended: intended}
	from := len(b.msgs) * p.o.payload
	payload := b.payload[from : from+p.o.payload : from+p.o.payload]
	s.put(payload)
	b.stamps = append(b.stamps, s)
	b.msgs = append(b.msgs, client.Outgoing{
		ID: messageID(s.run, s.user, s.seq), User: p.f.userName(user), Payload: payload, NoAck: p.o.noAck,
	})
}

// publish hands the batch to the client. When ctx ends while the client's queue is full, the messages are answered for: nobody
// has seen them.
func (b *batch) publish(ctx context.Context, c publishing) error {
	if len(b.msgs) == 0 {
		return nil
	}
	err := c.PublishAsync(ctx, b.msgs, b.answered)
	if err == nil {
		return nil
	}
	for i := range b.stamps {
		b.p.f.ledger.answer(int(b.stamps[i].user)-b.p.f.first, b.stamps[i].seq, false)
		b.p.refused.add(errNotSent)
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

var errNotSent = errors.New("not sent before the end")

// answered takes the results, on a goroutine of the client.
func (b *batch) answered(results []client.Result, _ error) {
	p := b.p
	now := p.r.now()
	accepted := 0
	for i := range results {
		s := &b.stamps[i]
		user := int(s.user) - p.f.first
		switch err := results[i].Err; {
		case err == nil:
			p.f.ledger.answer(user, s.seq, true)
			p.answers.record(user, s.intended, now)
			accepted++
		case errors.Is(err, client.ErrUnanswered):
			p.f.ledger.noAnswer()
			p.refused.add(err)
		default:
			p.f.ledger.answer(user, s.seq, false)
			p.refused.add(err)
			p.f.members[user].settled.Add(1)
		}
	}
	p.answer.add(accepted)
	select {
	case b.free <- b:
	default:
	}
}

// close ends the publishers. What is not answered by then never will be.
func (p *publishers) close() {
	for _, c := range p.clients {
		_ = c.Close() // always nil
	}
	p.clients = nil
}
