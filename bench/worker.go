package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// work is a further generator process on its part of a load.
type work struct {
	r *Run
	s Scenario

	mu sync.Mutex // guards to
	to *json.Encoder

	end     context.CancelCauseFunc // of the phase at hand; nil: none
	through chan struct{}           // closed when it is through
}

// Work is a further process of the generator on its part of a load: it does what in says, tells out, and returns when in ends.
// token signs login tokens; nil: none.
func Work(ctx context.Context, in io.Reader, out io.Writer, token func(user string, publisher bool) (string, error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &work{to: json.NewEncoder(out)}
	from := json.NewDecoder(in)
	var x instruction
	if err := from.Decode(&x); err != nil || x.Do != doBegin || x.Part == nil {
		return fmt.Errorf("reading the part of this process: %w", errors.Join(err, errors.New("it is not "+doBegin)))
	}
	if err := w.begin(x.Part, token); err != nil {
		return err
	}
	var reporting sync.WaitGroup
	reporting.Go(func() { w.report(ctx) })
	defer reporting.Wait()
	defer func() {
		cancel(io.EOF)
		w.finish()
		if w.s.Close != nil {
			w.s.Close()
		}
	}()
	for {
		var x instruction
		if err := from.Decode(&x); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("reading what to do: %w", err)
		}
		if err := w.do(ctx, x.Do); err != nil {
			return err
		}
	}
}

// begin makes the run and the scenario.
func (w *work) begin(p *assignment, token func(user string, publisher bool) (string, error)) error {
	var err error
	if w.s, err = partOf(p.Scenario, p.Parameters); err != nil {
		return err
	}
	p.Target.Token = token
	w.r = newRun(Options{Target: p.Target, WarmUp: p.WarmUp, Duration: p.Duration}, p.RunID)
	w.r.index, w.r.firsts, w.r.own = p.Index, p.First, p.Own
	w.r.tell = func(mark string) { w.say(news{Mark: mark}) }
	return nil
}

func (w *work) say(x news) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.to.Encode(x) // the first process is gone: the input ends too
}

// do begins a phase, or does what is done at once.
func (w *work) do(ctx context.Context, what string) error {
	switch what {
	case doOpen:
		w.r.openSpan(&w.s)
	case doClose:
		w.r.closeSpan(&w.s)
	case doEnd:
		if w.end != nil {
			w.end(context.DeadlineExceeded) // phases take that for the end of their time
		}
	case doConnect:
		w.start(ctx, what, w.s.Connect)
	case doLoad:
		w.start(ctx, what, w.s.Load)
	case doSettle:
		w.start(ctx, what, w.s.Settle)
	case doCollect:
		w.finish()
		w.collect()
	default:
		return fmt.Errorf("told to %q, which is nothing", what)
	}
	return nil
}

// start runs a phase beside the talk.
func (w *work) start(ctx context.Context, what string, run func(context.Context, *Run) error) {
	w.finish()
	ctx, w.end = context.WithCancelCause(ctx)
	through := make(chan struct{})
	w.through = through
	go func() {
		defer close(through)
		x := news{Done: what}
		if run != nil {
			if err := run(ctx, w.r); err != nil {
				x.Error = err.Error()
			}
		}
		w.say(x)
	}()
}

// finish waits for the phase at hand.
func (w *work) finish() {
	if w.through != nil {
		<-w.through
		w.end(nil)
	}
}

// collect tells what was measured.
func (w *work) collect() {
	x := news{Done: doCollect, Outcome: &outcome{Result: newResult()}}
	if w.s.Collect != nil {
		w.s.Collect(w.r, x.Outcome.Result)
	}
	x.Outcome.Counters = w.counters()
	w.r.mu.Lock()
	latencies := w.r.latencies
	w.r.mu.Unlock()
	for _, l := range latencies {
		h, err := encodeHistogram(l.name, l.merged())
		if err != nil {
			x.Error = err.Error()
		}
		x.Outcome.Latencies = append(x.Outcome.Latencies, h)
	}
	w.say(x)
}

func (w *work) counters() []counted {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	all := make([]counted, 0, len(w.r.counters))
	for _, c := range w.r.counters {
		all = append(all, counted{c.name, c.total.Load(), c.inSpan()})
	}
	return all
}

// progressEvery is short against a sample, so that samples of the first process are even.
const progressEvery = 200 * time.Millisecond

// report tells how far this process is, until ctx ends.
func (w *work) report(ctx context.Context) {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p := &progress{Counters: w.counters()}
		if name, interval := w.r.shownInterval(); interval != nil {
			if h, err := encodeHistogram(name, interval); err == nil {
				p.Latency = &h
			}
		}
		w.say(news{Progress: p})
	}
}
