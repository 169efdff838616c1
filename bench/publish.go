package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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
	case o.Publishers < 1 || o.Users < 1:
		return errors.New("publishers and users must be at least 1")
	case o.Rate < 0:
		return errors.New("the rate is negative")
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

// outgoing is one batch: numbers of messages and when they were meant to be sent.
type outgoing struct {
	first    int64
	intended []int64
}

// publishLoad is the running scenario.
type publishLoad struct {
	r       *Run
	o       PublishOptions
	answers *Latency
	answer  *Counter
	senders []sender

	next              atomic.Int64 // numbers of messages, over all publishers
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
		Settle: func(ctx context.Context, _ *Run) error {
			until(ctx, func() bool { return p.waiting.Load() == 0 })
			return nil
		},
		Judge: func(_ *Run, report *Report) { p.judge(report) },
		Close: func() {
			for _, s := range p.senders {
				s.close()
			}
		},
	}, nil
}

func (p *publishLoad) connect(ctx context.Context, r *Run) error {
	p.r = r
	p.answer = r.counter("published")
	p.answers = r.latency("publish to answer")
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
			if err := p.publish(ctx, s); err != nil && ctx.Err() == nil {
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
func (p *publishLoad) publish(ctx context.Context, s sender) error {
	pace := newPacer(p.r, max(p.o.Rate, 1)/float64(len(p.senders)))
	for ctx.Err() == nil {
		b := &outgoing{}
		if p.o.Rate > 0 {
			first, n, ok := pace.due(ctx, int64(p.o.Batch))
			if !ok {
				return nil
			}
			for i := range n {
				b.intended = append(b.intended, pace.intended(first+i))
			}
		} else {
			now := p.r.now()
			b.intended = make([]int64, p.o.Batch)
			for i := range b.intended {
				b.intended[i] = now
			}
		}
		n := int64(len(b.intended))
		b.first = p.next.Add(n) - n
		p.waiting.Add(n)
		if err := s.send(ctx, b, func(accepted int, why, err error) { p.answered(b, accepted, why, err) }); err != nil {
			return err
		}
	}
	return nil
}

// answered takes the outcome of a batch.
func (p *publishLoad) answered(b *outgoing, accepted int, why, err error) {
	n := len(b.intended)
	defer p.waiting.Add(-int64(n))
	if err != nil {
		p.broken.Add(int64(n))
		p.refused.add(err)
		return
	}
	now := p.r.now()
	for i := range accepted {
		p.answers.record(int(b.first), b.intended[i], now)
	}
	p.accepted.Add(int64(accepted))
	p.answer.add(accepted)
	if why != nil {
		for range n - accepted {
			p.refused.add(why)
		}
	}
}

func (p *publishLoad) judge(report *Report) {
	n := p.answer.inSpan()
	report.figure("published_per_second", "published and answered", float64(n)/max(report.MeasuredSeconds, 1e-9), "/s")
	if cpu, ok := report.perMillion(n); ok {
		report.figure("server_cpu_seconds_per_million", "server CPU per million messages", cpu, "s")
	}
	report.figure("accepted", "accepted", float64(p.accepted.Load()), "")
	p.refused.mu.Lock()
	for why, n := range p.refused.why {
		report.figure("refused_"+metricWord(why), "refused: "+why, float64(n), "")
	}
	p.refused.mu.Unlock()
	if broken := p.broken.Load() + p.waiting.Load(); broken > 0 {
		report.fail("%d messages were never answered", broken)
	}
	if n == 0 {
		report.fail("nothing was accepted in the measured span")
	}
}

// absentUser is who message n goes to: nobody logs in under that name.
func (p *publishLoad) absentUser(n int64) string {
	return "bench-absent-" + strconv.FormatInt(n%int64(p.o.Users), 10)
}

func (p *publishLoad) messageID(n int64) string {
	return messageID(p.r.id, uint32(n>>32), uint32(n))
}

// frameSender publishes over the TCP port. The client keeps the server's window of frames full.
type frameSender struct {
	p *publishLoad
	c *client.Client
}

func (p *publishLoad) dialFrames(ctx context.Context, i int) (*frameSender, error) {
	name := fmt.Sprintf("bench-publisher-%d", i)
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
	msgs := make([]client.Outgoing, len(b.intended))
	payloads := make([]byte, len(b.intended)*p.o.PayloadBytes)
	for i := range msgs {
		n := b.first + int64(i)
		payload := payloads[i*p.o.PayloadBytes:][:p.o.PayloadBytes:p.o.PayloadBytes]
		mark := stamp{run: p.r.id, seq: uint32(n), intended: b.intended[i]}
		mark.put(payload)
		msgs[i] = client.Outgoing{ID: p.messageID(n), User: p.absentUser(n), Payload: payload, TTL: p.o.TTL}
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
