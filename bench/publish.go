package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/client"
)

// The ways to publish.
const (
	PublishHTTP      = "http"       // POST /v1/push, one message a request
	PublishHTTPBatch = "http-batch" // POST /v1/push, an array a request
	PublishFrames    = "frames"     // PUBLISH frames on the TCP port
)

// PublishOptions describe the scenario of publishers alone. The users are absent, so the answer to each message waits until it is
// on the server's disk.
type PublishOptions struct {
	// Mode is PublishHTTP, PublishHTTPBatch or PublishFrames.
	Mode string `json:"mode"`
	// Publishers is the number of connections.
	Publishers int `json:"publishers"`
	// Rate is messages a second, open loop. 0: as fast as they are answered.
	Rate float64 `json:"rate"`
	// Users is over how many queues the messages are spread.
	Users int `json:"users"`
	// PayloadBytes is the size of a payload, at least PayloadBytesMin.
	PayloadBytes int `json:"payload_bytes"`
	// Batch is how many messages a request or frame carries; PublishHTTP has always one.
	Batch int `json:"batch"`
	// TTL is how long the server keeps what nobody fetches.
	TTL time.Duration `json:"ttl_ns"`
}

func (o *PublishOptions) validate() error {
	switch {
	case o.Mode != PublishHTTP && o.Mode != PublishHTTPBatch && o.Mode != PublishFrames:
		return fmt.Errorf("mode %q is not %s, %s or %s", o.Mode, PublishHTTP, PublishHTTPBatch, PublishFrames)
	case o.Publishers < 1 || o.Publishers > o.Users:
		return errors.New("publishers must be at least 1 and at most the users: each user's messages come over one connection")
	case o.Users > usersMax:
		return errUsers
	case !rateFits(o.Rate):
		return errRate
	case o.PayloadBytes < PayloadBytesMin || o.PayloadBytes > 60<<10:
		return fmt.Errorf("the payload must be %d bytes to 60 KiB", PayloadBytesMin)
	case o.Batch < 1 || o.Batch > batchMax:
		return fmt.Errorf("the batch must be 1 to %d", batchMax)
	case o.TTL < time.Second:
		return errors.New("the time to live must be at least a second")
	}
	return nil
}

// sender publishes one batch of messages and says how many were accepted; an error means that nobody knows. It belongs to one
// publisher. done may be called later and from another goroutine; send returns when the next batch may come.
type sender interface {
	send(ctx context.Context, b *outgoing, done func(accepted int, refusedWhy error, err error)) error
	close()
}

// outgoing is one batch: whose messages, their numbers, and when they were meant to be sent.
type outgoing struct{ stamps []stamp }

// publishLoad is the running scenario.
type publishLoad struct {
	r       *Run
	o       PublishOptions
	answers *Latency
	answer  *Counter
	senders []sender
	f       *fleet // the absent users, who come for their messages at the end of verify; nil: they never come

	waiting, accepted atomic.Int64
	broken            atomic.Int64 // messages nobody knows the fate of
	refused           refusals
}

// Publish is the scenario of how fast publishers are answered when the answer means "on the disk".
func Publish(o PublishOptions) (Scenario, error) {
	if o.Mode == PublishHTTP {
		o.Batch = 1
	}
	if err := o.validate(); err != nil {
		return Scenario{}, err
	}
	p := &publishLoad{o: o}
	return Scenario{
		Name: "publish", Parameters: o,
		Connect: p.connect,
		Load:    p.load,
		Settle:  p.settle,
		Collect: func(_ *Run, res *Result) { p.collect(res) },
		Judge:   judgePublish,
		Close: func() {
			for _, s := range p.senders {
				s.close()
			}
			closeLoad(p.f, nil)
		},
		Split: p.o.split, Connections: o.Publishers,
	}, nil
}

func (p *publishLoad) connect(ctx context.Context, r *Run) error {
	p.r = r
	p.answer = r.counter("published")
	p.answers = r.latency("publish to answer")
	if r.faults != nil {
		p.f = newFleet(r, fleetOptions{users: p.o.Users, label: absentLabel, skip: func(int) bool { return true }})
	}
	for i := range p.o.Publishers {
		if p.o.Mode != PublishFrames {
			p.senders = append(p.senders, newHTTPSender(p))
			continue
		}
		s, err := p.dialFrames(ctx, i)
		if err != nil {
			return err
		}
		p.senders = append(p.senders, s)
	}
	return nil
}

func (p *publishLoad) load(ctx context.Context, _ *Run) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var busy sync.WaitGroup
	for i, s := range p.senders {
		busy.Go(func() {
			if err := p.publish(ctx, i, s); err != nil && ctx.Err() == nil {
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

// publish sends batches until ctx ends: those that are due, or the next one as soon as the sender takes it.
func (p *publishLoad) publish(ctx context.Context, publisher int, s sender) error {
	pace := newPacer(p.r, max(p.o.Rate, 1)/float64(len(p.senders)))
	pick := &picker{first: publisher, step: len(p.senders), users: p.o.Users}
	numbers := make([]uint32, p.o.Users)
	for ctx.Err() == nil {
		first, n := int64(0), int64(p.o.Batch)
		if p.o.Rate > 0 {
			var ok bool
			if first, n, ok = pace.due(ctx, n); !ok {
				return nil
			}
		}
		b, now := &outgoing{stamps: make([]stamp, n)}, p.r.now()
		for i := range b.stamps {
			intended := now
			if p.o.Rate > 0 {
				intended = pace.intended(first + int64(i))
			}
			b.stamps[i] = p.stamp(pick.next(), numbers, intended)
		}
		p.waiting.Add(n)
		if err := s.send(ctx, b, func(accepted int, why, err error) { p.answered(b, accepted, why, err) }); err != nil {
			if p.f == nil || ctx.Err() != nil {
				return err
			}
			rest(ctx, retryPause) // the server is being killed: nobody knows about this batch, the next one has better luck
		}
	}
	return nil
}

// retryPause is how long a publisher waits after a request whose outcome nobody knows.
const retryPause = 50 * time.Millisecond

// stamp is the next message of a user; numbers are those of the publisher's own users.
func (p *publishLoad) stamp(user int, numbers []uint32, intended int64) stamp {
	s := stamp{run: p.r.id, user: uint32(p.r.first(absentLabel) + user), seq: numbers[user], intended: intended}
	numbers[user]++
	if p.f != nil {
		p.f.ledger.send(user)
	}
	return s
}

// answered takes the outcome of a batch.
func (p *publishLoad) answered(b *outgoing, accepted int, why, err error) {
	n := len(b.stamps)
	defer p.waiting.Add(-int64(n))
	if err != nil {
		p.broken.Add(int64(n))
		p.refused.add(err)
		return
	}
	now := p.r.now()
	for i := range accepted {
		p.answers.record(i, b.stamps[i].intended, now)
	}
	p.accepted.Add(int64(accepted))
	p.answer.add(accepted)
	if why != nil {
		for range n - accepted {
			p.refused.add(why)
		}
	}
	p.enter(b, accepted)
}

// enter puts an answer into the ledger of those who come for their messages. Of a batch that was taken in part nobody says here
// which messages it was: none of them is claimed to have been accepted.
func (p *publishLoad) enter(b *outgoing, accepted int) {
	if p.f == nil || (accepted > 0 && accepted < len(b.stamps)) {
		return
	}
	for i := range b.stamps {
		p.f.ledger.answer(int(b.stamps[i].user)-p.f.first, b.stamps[i].seq, accepted > 0)
	}
}

// settle waits for the answers; then, with faults, everybody comes for what was accepted.
func (p *publishLoad) settle(ctx context.Context, _ *Run) error {
	until(ctx, func() bool { return p.waiting.Load() == 0 })
	if p.f == nil {
		return nil
	}
	if err := p.f.connect(ctx); err != nil {
		return err
	}
	until(ctx, func() bool { return p.f.ledger.received.Load() >= p.f.ledger.accepted.Load() && p.f.unacked() == 0 })
	return p.f.ended()
}

func (p *publishLoad) collect(res *Result) {
	res.Sums["accepted"] += p.accepted.Load()
	res.Sums["unanswered"] += p.broken.Load() + p.waiting.Load()
	res.addRefused(&p.refused)
	if p.f == nil {
		return
	}
	t := p.f.ledger.tally()
	res.tally(strings.TrimSpace(absentLabel)).merge(&t)
}

func judgePublish(r *Run, report *Report) {
	res, n := r.result, r.counted("published").inSpan()
	report.figure("published_per_second", "published and answered", float64(n)/max(report.MeasuredSeconds, 1e-9), "/s")
	if cpu, ok := report.perMillion(n); ok {
		report.figure("server_cpu_seconds_per_million", "server CPU per million messages", cpu, "s")
	}
	report.figure("accepted", "accepted", float64(res.Sums["accepted"]), "")
	report.refusals(res)
	unanswered := res.Sums["unanswered"]
	if t, ok := res.Tallies[strings.TrimSpace(absentLabel)]; ok {
		report.Tally = t
		report.figure("received", "received at the end", float64(t.Received), "")
		report.figure("unanswered", "never answered: such may be there or not", float64(unanswered), "")
		report.Verdict.Failures = append(report.Verdict.Failures, t.failures(false)...)
	} else if unanswered > 0 {
		report.fail("%d messages were never answered", unanswered)
	}
	if n == 0 {
		report.fail("nothing was accepted in the measured span")
	}
}

// absentLabel tells the users of this scenario: nobody logs in under their names while it publishes.
const absentLabel = "absent "

func (p *publishLoad) absentUser(s *stamp) string { return userName(int(s.user)) + "-absent" }

// frameSender publishes over the TCP port. The client keeps the server's window of frames full.
type frameSender struct {
	p *publishLoad
	c *client.Client
}

func (p *publishLoad) dialFrames(ctx context.Context, i int) (*frameSender, error) {
	name := p.r.publisherName("", i)
	c, err := client.Dial(ctx, client.Options{
		Addrs: []string{p.r.o.Target.Addr}, User: name, Publisher: true, ClientName: "holdfast-bench", DialAttempts: -1,
		Token: p.r.token(name, true), PublishBatch: p.o.Batch, DialConn: dialTCP,
	})
	if err != nil {
		return nil, fmt.Errorf("login of publisher %d: %w", i, err)
	}
	return &frameSender{p, c}, nil
}

func (s *frameSender) send(ctx context.Context, b *outgoing, done func(int, error, error)) error {
	p := s.p
	msgs := make([]client.Outgoing, len(b.stamps))
	payloads := make([]byte, len(b.stamps)*p.o.PayloadBytes)
	for i := range msgs {
		s := &b.stamps[i]
		payload := payloads[i*p.o.PayloadBytes:][:p.o.PayloadBytes:p.o.PayloadBytes]
		s.put(payload)
		msgs[i] = client.Outgoing{ID: messageID(s.run, s.user, s.seq), User: p.absentUser(s), Payload: payload, TTL: p.o.TTL}
	}
	err := s.c.PublishAsync(ctx, msgs, func(results []client.Result, _ error) {
		accepted := 0
		var why error
		for i := range results {
			switch err := results[i].Err; {
			case err == nil:
				accepted++
			case errors.Is(err, client.ErrUnanswered):
				done(0, nil, err)
				return
			default:
				why = err
			}
		}
		done(accepted, why, nil)
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		done(0, errNotSent, nil) // the queue was full to the end
		return nil
	default:
		done(0, nil, err)
		return err
	}
}

func (s *frameSender) close() { _ = s.c.Close() } // always nil
