package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
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
	// Collect puts what the scenario has counted itself into the result, after Settle.
	Collect func(r *Run, result *Result)
	// Beside runs together with Load and ends with it; over several generator processes in the first one only.
	Beside func(ctx context.Context, r *Run) error
	// Judge adds the scenario's figures and failures to the report, out of the run's result, counters, latencies and marks only:
	// those may be of several processes.
	Judge func(r *Run, report *Report)
	// Close releases what Connect opened. It is called also after a failed phase.
	Close func()
	// Split divides the scenario among generator processes; nil: it runs in one.
	Split func(processes int) ([]Part, error)
	// Connections is how many the scenario opens, which decides about the number of processes; 0: few.
	Connections int

	// span is called when the measured span is opened and when it is closed; nil: nobody cares.
	span func(open bool)
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
	// Processes is how many generator processes share the load; 0: as many as the scenario's connections need.
	Processes int
	// Worker is the command of a further generator process, which runs Work on its standard input and output.
	Worker []string
	// Command is the command line that repeats the run, for the report.
	Command string
}

// Target says which gateway is driven and how it is watched.
type Target struct {
	// Addr is the TCP port, host:port. Set by Execute when Start is given.
	Addr string `json:"addr"`
	// API is the base URL of the HTTP port; empty: none, for what needs none.
	API string `json:"api"`
	// APIToken is the bearer token of the HTTP port.
	APIToken string `json:"api_token"`
	// Token signs login tokens; nil: logins carry none. Called from many goroutines.
	Token func(user string, publisher bool) (string, error) `json:"-"`
	// MQTT: Addr is an MQTT 3.1.1 broker; nil: it is a holdfast gateway.
	MQTT *MQTTLogin
	// PID is the server's process; 0: found by its listening socket when it is on this machine.
	PID int `json:"pid"`
	// Start runs a gateway of our own on a temporary directory, which ends with the run. nil: the one at Addr is used.
	Start *StartOptions `json:"-"`
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
	own     bool     // the server is the run's own, though perhaps not this process's
	index   int      // of this generator process, from 0
	firsts  map[string]int
	// perSource is how many connections share a source address of a loopback target.
	perSource int
	faults    *faults           // what goes wrong with the fleets; nil: nothing
	ending    <-chan struct{}   // closed when the run is interrupted; nil: never
	tell      func(mark string) // in a further generator process: who watches the server; nil: this process does

	found    sync.Once
	foundPID int // guarded by found

	result  *Result // set before Judge
	span    span
	phase   atomic.Pointer[string]
	sampler sampler

	// Guarded by mu.
	mu        sync.Mutex
	latencies []*Latency
	counters  []*Counter
	rate      *Counter // the counter the plots and the progress line show
	marks     map[string]*marked
	// generators are the further processes, whose CPU counts as ours.
	generators []int
}

// marked is the server's usage at a moment that has a name. Over several generator processes it comes several times.
type marked struct{ first, last reading }

// mark notes the server's usage at this moment.
func (r *Run) mark(name string) {
	if r.tell != nil {
		r.tell(name)
		return
	}
	rd := r.sampler.read()
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.marks[name]; m != nil {
		m.last = rd
		return
	}
	if r.marks == nil {
		r.marks = map[string]*marked{}
	}
	r.marks[name] = &marked{rd, rd}
}

// marked is what was noted under a name; nothing when it was not.
func (r *Run) marked(name string) marked {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.marks[name]; m != nil {
		return *m
	}
	return marked{}
}

// first is the number of the first user of a fleet with this label: other generator processes have those before it.
func (r *Run) first(label string) int { return r.firsts[strings.TrimSpace(label)] }

// publishersApart is more than one process has publishers.
const publishersApart = 100_000

// publisherName is the name of publisher i of a fleet with this label.
func (r *Run) publisherName(label string, i int) string {
	return fmt.Sprintf("bench-publisher-%s%d", strings.TrimSpace(label), r.index*publishersApart+i)
}

// now is the run's clock: monotonic nanoseconds since its start.
func (r *Run) now() int64 { return int64(time.Since(r.started)) }

// latency makes a recorder that the report lists under name.
func (r *Run) latency(name string) *Latency {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.latencyLocked(name)
}

func (r *Run) latencyLocked(name string) *Latency {
	l := newLatency(name, &r.span)
	r.latencies = append(r.latencies, l)
	return l
}

// counter makes a counter; the first one is the throughput of the plots.
func (r *Run) counter(name string) *Counter {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counterLocked(name)
}

func (r *Run) counterLocked(name string) *Counter {
	c := &Counter{name: name}
	r.counters = append(r.counters, c)
	if r.rate == nil {
		r.rate = c
	}
	return c
}

// counterOf is the counter of a name, made when there is none.
func (r *Run) counterOf(name string) *Counter {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.counters {
		if c.name == name {
			return c
		}
	}
	return r.counterLocked(name)
}

// latencyOf is the latency of a name, made when there is none.
func (r *Run) latencyOf(name string) *Latency {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.latencies {
		if l.name == name {
			return l
		}
	}
	return r.latencyLocked(name)
}

// addGenerator notes a further process, whose CPU counts as ours.
func (r *Run) addGenerator(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.generators = append(r.generators, pid)
}

// counted is the counter of a name; one that has counted nothing when there is none.
func (r *Run) counted(name string) *Counter {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.counters {
		if c.name == name {
			return c
		}
	}
	return &Counter{name: name}
}

// latencyNamed is the latency of a name; an empty one when there is none.
func (r *Run) latencyNamed(name string) *Latency {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.latencies {
		if l.name == name {
			return l
		}
	}
	return newLatency(name, &r.span)
}

// Execute runs the scenario and returns its report. A report with failures is not an error; an error means that the run itself
// did not come to a verdict. When ctx ends it returns within a second or two, with what was measured until then if the load had
// begun: see Report.Interrupted.
func Execute(ctx context.Context, o Options, s Scenario) (*Report, error) {
	if o.Duration <= 0 {
		return nil, errors.New("the duration must be above zero")
	}
	s, processes, err := distribute(&o, s)
	if err != nil {
		return nil, err
	}
	r := newRun(o, runID())
	if o.Target.Start != nil {
		server, err := startServer(ctx, *o.Target.Start)
		if err != nil {
			return nil, err
		}
		defer func() { server.stop(patience(ctx, stopMax)) }()
		r.server, r.own = server, true
		r.o.Target.Addr, r.o.Target.API = server.addresses()
	}
	r.sampler.start(r)
	defer r.sampler.stop()
	if s.Close != nil {
		defer func() { atMost(patience(ctx, closeMax), s.Close) }()
	}
	report := newReport(r, s)
	report.Processes = processes
	if err := r.phases(ctx, &s, report); err != nil {
		return nil, err
	}
	r.verdict(&s, report)
	return report, nil
}

func newRun(o Options, id uint64) *Run {
	r := &Run{o: o, started: time.Now(), id: id, perSource: portsPerSource()}
	r.span.from.Store(endOfTime)
	r.span.to.Store(endOfTime)
	r.enter("start")
	return r
}

// Times for leaving: whoever interrupts a run does not want to wait.
const (
	closeMax       = time.Minute
	interruptedMax = time.Second
)

// patience is how long leaving may take.
func patience(ctx context.Context, usual time.Duration) time.Duration {
	if ctx.Err() != nil {
		return min(usual, interruptedMax)
	}
	return usual
}

// atMost runs f and returns when it has ended or after d.
func atMost(d time.Duration, f func()) (ended bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// phases walks the scenario through them. A server of our own that ends by itself ends the run, and is then the reason.
func (r *Run) phases(outer context.Context, s *Scenario, report *Report) error {
	ctx, cancel := context.WithCancelCause(outer)
	defer cancel(nil)
	r.ending = outer.Done()
	if r.server != nil {
		defer r.server.watch(cancel)()
	}
	for _, phase := range []struct {
		name string
		run  func(context.Context, *Run, *Scenario, *Report) error
	}{{"connect", connectPhase}, {"load", loadPhase}, {"settle", settlePhase}} {
		var err error
		if !atMostOnce(outer, func() { err = phase.run(ctx, r, s, report) }) {
			return errors.New("interrupted, and the load did not end")
		}
		if r.server != nil && (err != nil || ctx.Err() != nil) && outer.Err() == nil {
			if died := r.server.died(); died != nil {
				err = died // the errors of the clients come from it
			}
		}
		switch {
		case outer.Err() != nil && phase.name == "connect":
			return errors.New("interrupted before the load began")
		case outer.Err() != nil:
			report.Interrupted = phase.name
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", phase.name, err)
		}
	}
	return nil
}

// atMostOnce runs f to its end; after ctx has ended it waits for that only a moment longer.
func atMostOnce(ctx context.Context, f func()) (ended bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
	}
	return atMost(interruptedMax, func() { <-done })
}

// verdict collects what was measured and lets the scenario judge it.
func (r *Run) verdict(s *Scenario, report *Report) {
	r.enter("verdict")
	r.sampler.stop()
	r.result = newResult()
	if s.Collect != nil {
		s.Collect(r, r.result)
	}
	report.collect(r)
	report.Verdict.Failures = append(report.Verdict.Failures, r.result.Failures...)
	if s.Judge != nil {
		s.Judge(r, report)
	}
	if report.Interrupted != "" {
		// What was still under way looks like a failure, and is none.
		report.Tally, report.Verdict = nil, Verdict{Failures: []string{"interrupted in the phase " + report.Interrupted + ": there is no verdict"}}
		return
	}
	report.Verdict.Pass = len(report.Verdict.Failures) == 0
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
		r.openSpan(s)
	}
	go func() { done <- loadWith(ctx, r, s) }()
	if !s.ByWork {
		wait(ctx, done, r.o.WarmUp)
		r.openSpan(s)
		wait(ctx, done, r.o.Duration)
		r.closeSpan(s)
		cancel()
	}
	err := <-done
	if s.ByWork {
		r.closeSpan(s)
	}
	report.WarmUpSeconds = seconds(r.span.from.Load() - began)
	report.MeasuredSeconds = seconds(r.span.to.Load() - r.span.from.Load())
	return err
}

// loadWith runs Load and what goes on beside it; the end or failure of one ends the other.
func loadWith(ctx context.Context, r *Run, s *Scenario) error {
	if s.Beside == nil {
		return s.Load(ctx, r)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	beside := make(chan error, 1)
	go func() {
		err := s.Beside(ctx, r)
		if err != nil {
			cancel()
		}
		beside <- err
	}()
	err := s.Load(ctx, r)
	cancel()
	if failed := <-beside; failed != nil {
		return failed // the load's own error comes from it
	}
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
func (r *Run) openSpan(s *Scenario) {
	r.enter("measure")
	if r.tell == nil {
		r.sampler.mark(&r.sampler.opened)
	}
	r.mu.Lock()
	for _, c := range r.counters {
		c.opened.Store(c.total.Load())
	}
	r.mu.Unlock()
	r.span.from.Store(r.now())
	if s.span != nil {
		s.span(true)
	}
}

// closeSpan ends it. What is still under way is recorded when it arrives, if it was meant to be sent inside the span.
func (r *Run) closeSpan(s *Scenario) {
	if s.span != nil {
		s.span(false)
	}
	r.span.to.Store(r.now())
	r.mu.Lock()
	for _, c := range r.counters {
		c.closed.Store(c.total.Load())
	}
	r.mu.Unlock()
	if r.tell == nil {
		r.sampler.mark(&r.sampler.closed)
	}
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
