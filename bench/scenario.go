package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Scenario is one kind of load as a struct of functions. Load and Connect are required. All of them run on one goroutine, one
// after the other, with a context that ends with their phase.
type Scenario struct {
	// Name is the name on the command line and in the results.
	Name string
	// Parameters are what the results repeat of the scenario's options; they must encode as JSON.
	Parameters any
	// ByWork: the measured span ends when Load returns; Options.Duration only bounds it. Otherwise the span ends with Options.Duration.
	ByWork bool
	// MQTT: the scenario can drive an MQTT broker too.
	MQTT bool
	// Connect opens what the load needs.
	Connect func(ctx context.Context, r *Run) error
	// Load runs through warm-up and measured span until ctx ends or its work is done.
	Load func(ctx context.Context, r *Run) error
	// Settle waits until what was sent has arrived, or ctx ends; it does not call that an error.
	Settle func(ctx context.Context, r *Run) error
	// Judge adds the scenario's figures and failures to the report.
	Judge func(r *Run, report *Report)
	// Close releases what Connect opened. It is called also after a failed phase.
	Close func()
}

// Options are what all scenarios have in common.
type Options struct {
	// Version of the generator, for the report.
	Version string
	// Target is where the load goes.
	Target Target
	// ConnectMax, WarmUp, Duration and SettleMax are the times of the phases. Duration must be above zero.
	ConnectMax, WarmUp, Duration, SettleMax time.Duration
	// Progress gets a line a second that overwrites itself; nil: none.
	Progress io.Writer
}

// Target says which gateway is driven and how it is watched.
type Target struct {
	// Addr is the TCP port, host:port. Set by Execute when Start is given.
	Addr string
	// API is the base URL of the HTTP port; empty: none, for what needs none.
	API string
	// APIToken is the bearer token of the HTTP port.
	APIToken string
	// Token signs login tokens; nil: logins carry none. Called from many goroutines.
	Token func(user string, publisher bool) (string, error)
	// MQTT: Addr is an MQTT 3.1.1 broker; nil: it is a holdfast gateway.
	MQTT *MQTTLogin
	// PID is the server's process; 0: found by its listening socket when it is on this machine.
	PID int
	// Start runs a gateway of our own on a temporary directory, which ends with the run. nil: the one at Addr is used.
	Start *StartOptions
}

// span is the measured part of a run, in nanoseconds of its clock. While it is open its end is the end of time.
type span struct{ from, to atomic.Int64 }

func (s *span) has(at int64) bool { return at >= s.from.Load() && at < s.to.Load() }

const endOfTime = 1<<63 - 1

// Run is one execution of a scenario. Its methods may be called from any goroutine.
type Run struct {
	// Static after Execute has begun.
	o       Options
	id      uint64 // marks our payloads, so that leftovers of other runs in the same queues are told apart
	started time.Time
	server  *process // of our own; nil otherwise

	found    sync.Once
	foundPID int // guarded by found

	span    span
	phase   atomic.Pointer[string]
	sampler sampler

	// Guarded by mu.
	mu        sync.Mutex
	latencies []*Latency
	counters  []*Counter
	rate      *Counter // the counter the plots and the progress line show
}

// now is the run's clock: monotonic nanoseconds since its start.
func (r *Run) now() int64 { return int64(time.Since(r.started)) }

// latency makes a recorder that the report lists under name.
func (r *Run) latency(name string) *Latency {
	l := newLatency(name, &r.span)
	r.mu.Lock()
	r.latencies = append(r.latencies, l)
	r.mu.Unlock()
	return l
}

// counter makes a counter; the first one is the throughput of the plots.
func (r *Run) counter(name string) *Counter {
	c := &Counter{name: name}
	r.mu.Lock()
	r.counters = append(r.counters, c)
	if r.rate == nil {
		r.rate = c
	}
	r.mu.Unlock()
	return c
}

// Execute runs the scenario and returns its report. A report with failures is not an error; an error means that the run itself
// did not come to a verdict. It returns soon after ctx has ended.
func Execute(ctx context.Context, o Options, s Scenario) (*Report, error) {
	if o.Duration <= 0 {
		return nil, errors.New("the duration must be above zero")
	}
	if err := o.Target.Suits(&s); err != nil {
		return nil, err
	}
	r := &Run{o: o, started: time.Now(), id: runID()}
	r.span.from.Store(endOfTime)
	r.span.to.Store(endOfTime)
	if o.Target.Start != nil {
		server, err := startServer(ctx, *o.Target.Start)
		if err != nil {
			return nil, err
		}
		defer server.stop()
		r.server = server
		r.o.Target.Addr, r.o.Target.API = server.addresses()
	}
	r.sampler.start(r)
	defer r.sampler.stop()
	if s.Close != nil {
		defer s.Close()
	}
	report := newReport(r, s)
	for _, phase := range []struct {
		name string
		run  func(context.Context, *Run, *Scenario, *Report) error
	}{{"connect", connectPhase}, {"load", loadPhase}, {"settle", settlePhase}} {
		if err := phase.run(ctx, r, &s, report); err != nil {
			return nil, fmt.Errorf("%s: %w", phase.name, err)
		}
		if ctx.Err() != nil {
			return nil, errors.New("interrupted")
		}
	}
	r.enter("verdict")
	r.sampler.stop()
	report.collect(r)
	if s.Judge != nil {
		s.Judge(r, report)
	}
	report.Verdict.Pass = len(report.Verdict.Failures) == 0
	return report, nil
}

func (r *Run) enter(phase string) { r.phase.Store(&phase) }

func connectPhase(ctx context.Context, r *Run, s *Scenario, report *Report) error {
	r.enter("connect")
	ctx, cancel := context.WithTimeout(ctx, r.o.ConnectMax)
	defer cancel()
	began := r.now()
	err := s.Connect(ctx, r)
	report.ConnectSeconds = seconds(r.now() - began)
	return err
}

// loadPhase runs Load and opens and closes the measured span around its middle.
func loadPhase(ctx context.Context, r *Run, s *Scenario, report *Report) error {
	ctx, cancel := context.WithTimeout(ctx, r.o.WarmUp+r.o.Duration)
	defer cancel()
	r.enter("warm-up")
	done := make(chan error, 1)
	began := r.now()
	if s.ByWork {
		r.openSpan()
	}
	go func() { done <- s.Load(ctx, r) }()
	if !s.ByWork {
		wait(ctx, done, r.o.WarmUp)
		r.openSpan()
		wait(ctx, done, r.o.Duration)
		r.closeSpan()
		cancel()
	}
	err := <-done
	if s.ByWork {
		r.closeSpan()
	}
	report.WarmUpSeconds = seconds(r.span.from.Load() - began)
	report.MeasuredSeconds = seconds(r.span.to.Load() - r.span.from.Load())
	return err
}

// wait waits for d, for the end of ctx, or until the work is done; the outcome stays in the channel.
func wait(ctx context.Context, done chan error, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case err := <-done:
		done <- err
	}
}

func settlePhase(ctx context.Context, r *Run, s *Scenario, report *Report) error {
	if s.Settle == nil {
		return nil
	}
	r.enter("settle")
	ctx, cancel := context.WithTimeout(ctx, r.o.SettleMax)
	defer cancel()
	began := r.now()
	err := s.Settle(ctx, r)
	report.SettleSeconds = seconds(r.now() - began)
	return err
}

// openSpan begins the measured span: counters and the server's CPU are noted.
func (r *Run) openSpan() {
	r.enter("measure")
	r.sampler.mark(&r.sampler.opened)
	r.mu.Lock()
	for _, c := range r.counters {
		c.opened.Store(c.total.Load())
	}
	r.mu.Unlock()
	r.span.from.Store(r.now())
}

// closeSpan ends it. What is still under way is recorded when it arrives, if it was meant to be sent inside the span.
func (r *Run) closeSpan() {
	r.span.to.Store(r.now())
	r.mu.Lock()
	for _, c := range r.counters {
		c.closed.Store(c.total.Load())
	}
	r.mu.Unlock()
	r.sampler.mark(&r.sampler.closed)
}

func seconds(ns int64) float64 { return float64(ns) / float64(time.Second) }

// until polls ok until it holds or ctx ends; for conditions that nothing announces.
func until(ctx context.Context, ok func() bool) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
