package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// The talk between the first generator process and a further one is JSON values over the latter's standard input and output.
// The first one says when a phase begins and when it must end; the other does its part and says when it is through, and
// meanwhile how far it is, for plots and the progress line. Only the first one looks at the server.

// instruction is what the first process says.
type instruction struct {
	Do   string      `json:"do"`             // a phase, or one of the words below
	Part *assignment `json:"part,omitempty"` // with doBegin
}

const (
	doBegin   = "begin"
	doConnect = "connect"
	doLoad    = "load"
	doSettle  = "settle"
	doCollect = "collect"
	doEnd     = "end"   // the phase at hand must come to its end
	doOpen    = "open"  // the measured span is open
	doClose   = "close" // it is closed
)

// assignment is the part of a process.
type assignment struct {
	Scenario   string          `json:"scenario"`
	Parameters json.RawMessage `json:"parameters"`
	First      map[string]int  `json:"first"`
	Index      int             `json:"index"`
	Target     Target          `json:"target"`
	RunID      uint64          `json:"run_id"`
	Own        bool            `json:"own"` // the server is the run's own
	WarmUp     time.Duration   `json:"warm_up_ns"`
	Duration   time.Duration   `json:"duration_ns"`
}

// news is what a further process says; one of its fields at a time.
type news struct {
	Done     string    `json:"done,omitempty"`  // a phase is through,
	Error    string    `json:"error,omitempty"` // and failed
	Mark     string    `json:"mark,omitempty"`  // the server's usage is to be noted
	Progress *progress `json:"progress,omitempty"`
	Outcome  *outcome  `json:"outcome,omitempty"` // with the end of doCollect
}

// progress is how far a process is.
type progress struct {
	Counters []counted `json:"counters"`
	// Latency is the first latency of the scenario since the last progress.
	Latency *histogram `json:"latency,omitempty"`
}

// outcome is what a process measured.
type outcome struct {
	Counters  []counted   `json:"counters"`
	Latencies []histogram `json:"latencies"`
	Result    *Result     `json:"result"`
}

type counted struct {
	Name   string `json:"name"`
	Total  int64  `json:"total"`
	InSpan int64  `json:"in_span"`
}

// histogram is an HdrHistogram in its own exchange format.
type histogram struct {
	Name string `json:"name"`
	Data []byte `json:"data"`
}

func encodeHistogram(name string, h *hdrhistogram.Histogram) (histogram, error) {
	data, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return histogram{}, fmt.Errorf("encoding the latency %s: %w", name, err)
	}
	return histogram{name, data}, nil
}

// crew is a scenario shared by generator processes; it is a scenario itself.
type crew struct {
	// Static after connect.
	base    Scenario
	parts   []Part
	command []string
	r       *Run
	members []*member
}

// member is one further process.
type member struct {
	// Static.
	number int // from 1
	of     int
	cmd    *exec.Cmd
	in     io.WriteCloser
	done   chan news // ends of phases; closed when the process has ended
	ended  error     // how; readable when done is closed

	mu sync.Mutex // guards to
	to *json.Encoder

	totals map[string]int64 // by counter, of its last progress; belongs to listen
}

// distribute decides how many processes there are, and shares the scenario among them if there is more than one.
func distribute(o *Options, s Scenario) (Scenario, int, error) {
	n := o.Processes
	if n == 0 {
		n = max(1, (s.Connections+connectionsMax()-1)/connectionsMax())
	}
	switch {
	case n < 1:
		return s, 0, fmt.Errorf("%w: the number of processes is negative", ErrUsage)
	case o.Processes > processesMax:
		return s, 0, fmt.Errorf("%w: at most %d processes work together", ErrUsage, processesMax)
	case n > processesMax:
		return s, 0, fmt.Errorf("%w: %d connections would take %d processes, for one may open %d (ulimit -n); at most %d work together",
			ErrUsage, s.Connections, n, connectionsMax(), processesMax)
	case n == 1 && s.Connections > connectionsMax():
		return s, 0, fmt.Errorf("%w: %d connections, and one process may open %d (ulimit -n): more processes are needed", ErrUsage, s.Connections, connectionsMax())
	case n == 1:
		return s, 1, nil
	case s.Split == nil:
		return s, 0, fmt.Errorf("%w: %s runs in one generator process only", ErrUsage, s.Name)
	case len(o.Worker) == 0:
		return s, 0, fmt.Errorf("%w: %d connections, and one process may open %d (ulimit -n)", ErrUsage, s.Connections, connectionsMax())
	}
	parts, err := s.Split(n)
	if err != nil {
		return s, 0, err
	}
	c := &crew{base: s, parts: parts, command: o.Worker}
	shared := s
	shared.Connect, shared.Load, shared.Settle, shared.Collect, shared.Close = c.connect, c.load, c.settle, c.collect, c.close
	shared.span = c.span
	return shared, n, nil
}

// connect starts the processes and has everybody log in.
func (c *crew) connect(ctx context.Context, r *Run) error {
	c.r = r
	for i := range c.parts {
		m, err := startMember(c, i)
		if err != nil {
			return err
		}
		c.members = append(c.members, m)
		r.addGenerator(m.cmd.Process.Pid)
		parameters, err := json.Marshal(c.parts[i].Parameters)
		if err != nil {
			return fmt.Errorf("encoding the part of generator process %d: %w", i+1, err)
		}
		if err := m.say(instruction{Do: doBegin, Part: &assignment{
			Scenario: c.base.Name, Parameters: parameters, First: c.parts[i].First, Index: i, Target: r.o.Target, RunID: r.id, Own: r.own,
			WarmUp: r.o.WarmUp, Duration: r.o.Duration,
		}}); err != nil {
			return err
		}
	}
	return c.phase(ctx, doConnect, nil)
}

func (c *crew) load(ctx context.Context, _ *Run) error { return c.phase(ctx, doLoad, nil) }

func (c *crew) settle(ctx context.Context, _ *Run) error { return c.phase(ctx, doSettle, nil) }

// span tells everybody that the measured span is open, or closed.
func (c *crew) span(open bool) {
	do := doClose
	if open {
		do = doOpen
	}
	for _, m := range c.members {
		_ = m.say(instruction{Do: do}) // a process that is gone is found by its phase
	}
}

// collect puts together what all have measured.
func (c *crew) collect(r *Run, result *Result) {
	ctx, cancel := context.WithTimeout(context.Background(), collectMax)
	defer cancel()
	var outcomes []*outcome
	if err := c.phase(ctx, doCollect, func(o *outcome) { outcomes = append(outcomes, o) }); err != nil {
		result.Failures = append(result.Failures, err.Error())
		return
	}
	for _, x := range r.counters { // what was known by progress is part of the outcomes
		x.total.Store(0)
		x.opened.Store(0)
		x.closed.Store(0)
	}
	for _, o := range outcomes {
		for _, x := range o.Counters {
			sum := r.counterOf(x.Name)
			sum.total.Add(x.Total)
			sum.closed.Add(x.InSpan)
		}
		for _, x := range o.Latencies {
			if err := r.latencyOf(x.Name).add(x.Data); err != nil {
				result.Failures = append(result.Failures, err.Error())
			}
		}
		result.merge(o.Result)
	}
}

// Times the first process is patient with the others.
const (
	collectMax = 30 * time.Second
	endMax     = time.Minute // from the end of a phase to the last process that is through with it; a comeback among faults takes its time
)

// phase has all processes do one and waits for them; take gets what they measured in the order of their numbers. When ctx ends they are told to come to the
// end; when one fails too, and its error is returned.
func (c *crew) phase(ctx context.Context, do string, take func(*outcome)) error {
	for _, m := range c.members {
		if err := m.say(instruction{Do: do}); err != nil {
			return err
		}
	}
	end := sync.OnceFunc(func() {
		for _, m := range c.members {
			_ = m.say(instruction{Do: doEnd}) // a process that is gone is found below
		}
	})
	defer context.AfterFunc(ctx, end)()
	answers := make([]news, len(c.members))
	var failed error
	var once sync.Once
	var waiting sync.WaitGroup
	for i, m := range c.members {
		waiting.Go(func() {
			var err error
			if answers[i], err = m.wait(ctx, do, c.r.ending); err != nil {
				once.Do(func() { failed = err })
				end()
			}
		})
	}
	waiting.Wait()
	for _, x := range answers {
		if take != nil && x.Outcome != nil {
			take(x.Outcome)
		}
	}
	return failed
}

// startMember starts process i.
func startMember(c *crew, i int) (*member, error) {
	cmd := exec.Command(c.command[0], c.command[1:]...) // it ends when its input does
	cmd.Stderr = os.Stderr
	// Its own group, so that an interrupt from the keyboard reaches the first process only, which then ends it in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	m := &member{number: i + 1, of: len(c.parts), cmd: cmd, done: make(chan news, 1), totals: map[string]int64{}}
	var err error
	if m.in, err = cmd.StdinPipe(); err != nil {
		return nil, m.wrap("starting", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, m.wrap("starting", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, m.wrap("starting", err)
	}
	m.to = json.NewEncoder(m.in)
	go m.listen(c.r, out)
	return m, nil
}

func (m *member) wrap(doing string, err error) error {
	return fmt.Errorf("%s generator process %d of %d: %w", doing, m.number, m.of, err)
}

func (m *member) say(x instruction) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.to.Encode(x); err != nil {
		if errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.EPIPE) {
			<-m.done // closed soon: a broken pipe is how its end shows first
			if m.ended != nil {
				err = m.ended
			}
		}
		return m.wrap("telling", err)
	}
	return nil
}

// listen takes in what the process says, until it ends.
func (m *member) listen(r *Run, out io.Reader) {
	from := json.NewDecoder(out)
	var err error
	for {
		var x news
		if err = from.Decode(&x); err != nil {
			break
		}
		switch {
		case x.Mark != "":
			r.mark(x.Mark)
		case x.Progress != nil:
			m.follow(r, x.Progress)
		default:
			m.done <- x
		}
	}
	if !errors.Is(err, io.EOF) {
		_ = m.cmd.Process.Kill() // it talks nonsense
	}
	if ended := m.cmd.Wait(); ended != nil {
		err = ended
	}
	m.ended = err
	close(m.done)
}

// follow adds what is new since the last progress.
func (m *member) follow(r *Run, p *progress) {
	for _, x := range p.Counters {
		r.counterOf(x.Name).add(int(x.Total - m.totals[x.Name]))
		m.totals[x.Name] = x.Total
	}
	if p.Latency != nil {
		_ = r.latencyOf(p.Latency.Name).addInterval(m.number, p.Latency.Data) // a gap in a plot
	}
}

// wait waits until the process is through with a phase. After the end of ctx it does so for endMax, after an interrupt for a moment.
func (m *member) wait(ctx context.Context, do string, interrupted <-chan struct{}) (news, error) {
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	over := ctx.Done()
	for {
		select {
		case x, ok := <-m.done:
			switch {
			case !ok:
				return x, m.wrap("in the phase "+do+" ended", m.ended)
			case x.Error != "":
				return x, m.wrap("in", errors.New(x.Error))
			}
			return x, nil
		case <-over:
			over = nil
			timer.Reset(endMax)
		case <-interrupted:
			interrupted = nil
			timer.Reset(interruptedMax)
		case <-timer.C:
			return news{}, m.wrap("waiting for", errors.New("it does not end its phase "+do))
		}
	}
}

// close ends the processes by ending their input.
func (c *crew) close() {
	if c.r == nil {
		return
	}
	limit := stopMax
	select {
	case <-c.r.ending:
		limit = interruptedMax / 2
	default:
	}
	for _, m := range c.members {
		_ = m.in.Close() // it may be gone already
	}
	timer := time.AfterFunc(limit, func() {
		for _, m := range c.members {
			_ = m.cmd.Process.Kill() // gone already: just as well
		}
	})
	defer timer.Stop()
	for _, m := range c.members {
		for range m.done { // what it says last does not matter any more
		}
	}
}
