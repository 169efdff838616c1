package bench

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	latencyShards = 8 // so that receivers on different cores rarely meet at a lock
	latencyMax    = int64(10 * time.Minute)
	// Three digits for the result, two for the short life of an interval: the series is a plot.
	latencyDigits  = 3
	intervalDigits = 2
)

// Latency records times from an intended moment to what became of it. Its methods may be called from any goroutine.
type Latency struct {
	name   string
	span   *span
	staged bool // one of several stages of the same thing; set before the first record
	shards [latencyShards]latencyShard
}

// latencyShard is padded by the size of its own fields; locks are held for a record only.
type latencyShard struct {
	mu       sync.Mutex
	total    *hdrhistogram.Histogram // of the measured span
	interval *hdrhistogram.Histogram // since the last sample, whatever the phase
}

func newLatency(name string, s *span) *Latency {
	l := &Latency{name: name, span: s}
	for i := range l.shards {
		l.shards[i].total = hdrhistogram.New(1, latencyMax/int64(time.Microsecond), latencyDigits)
		l.shards[i].interval = hdrhistogram.New(1, latencyMax/int64(time.Microsecond), intervalDigits)
	}
	return l
}

// record notes that what was intended at one time happened at another, in nanoseconds of the run's clock. hint spreads callers.
func (l *Latency) record(hint int, intended, happened int64) {
	us := max(min((happened-intended)/int64(time.Microsecond), latencyMax/int64(time.Microsecond)), 1)
	s := &l.shards[hint%latencyShards]
	s.mu.Lock()
	if l.span.has(intended) {
		_ = s.total.RecordValue(us) // us was brought into the range
	}
	_ = s.interval.RecordValue(us)
	s.mu.Unlock()
}

// merged is the histogram of the measured span, in microseconds.
func (l *Latency) merged() *hdrhistogram.Histogram {
	all := hdrhistogram.New(1, latencyMax/int64(time.Microsecond), latencyDigits)
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		all.Merge(s.total)
		s.mu.Unlock()
	}
	return all
}

// add adds what another process recorded in its span, an encoded histogram.
func (l *Latency) add(encoded []byte) error {
	h, err := hdrhistogram.Decode(encoded)
	if err != nil {
		return fmt.Errorf("reading the latency %s: %w", l.name, err)
	}
	s := &l.shards[0]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total.Merge(h)
	return nil
}

// addInterval adds what another process recorded since it last told.
func (l *Latency) addInterval(hint int, encoded []byte) error {
	h, err := hdrhistogram.Decode(encoded)
	if err != nil {
		return fmt.Errorf("reading the latency %s: %w", l.name, err)
	}
	s := &l.shards[hint%latencyShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interval.Merge(h)
	return nil
}

// takeInterval returns what was recorded since the last call, and begins anew.
func (l *Latency) takeInterval() *hdrhistogram.Histogram {
	all := hdrhistogram.New(1, latencyMax/int64(time.Microsecond), intervalDigits)
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		all.Merge(s.interval)
		s.interval.Reset()
		s.mu.Unlock()
	}
	return all
}

// shown are the latencies that samples show over time: the first one, with all stages of it.
func (r *Run) shown() []*Latency {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.latencies) == 0 {
		return nil
	}
	n := 1
	for r.latencies[0].staged && n < len(r.latencies) && r.latencies[n].staged {
		n++
	}
	return slices.Clone(r.latencies[:n])
}

// shownInterval is what was recorded since the last call by those that are shown, and the name for it.
func (r *Run) shownInterval() (name string, h *hdrhistogram.Histogram) {
	shown := r.shown()
	if len(shown) == 0 {
		return "", nil
	}
	h = shown[0].takeInterval()
	for _, l := range shown[1:] {
		h.Merge(l.takeInterval())
	}
	return shown[0].name, h
}

// Counter counts events. add may be called from any goroutine.
type Counter struct {
	name                  string
	total, opened, closed atomic.Int64
}

func (c *Counter) add(n int) { c.total.Add(int64(n)) }

// inSpan is how many fell into the measured span; call it after its end.
func (c *Counter) inSpan() int64 { return c.closed.Load() - c.opened.Load() }

// stages are latencies of which one is in force at a time: before, during and after something. What belongs to which is decided by
// when it was meant to be. record and begin may be called from any goroutine.
type stages struct {
	from      []atomic.Int64
	latencies []*Latency
}

// stages makes a latency for each name. The first one is in force from the start.
func (r *Run) stages(names ...string) *stages {
	s := &stages{from: make([]atomic.Int64, len(names))}
	for i, name := range names {
		l := r.latency(name)
		l.staged = true
		s.latencies = append(s.latencies, l)
		if i > 0 {
			s.from[i].Store(endOfTime)
		}
	}
	return s
}

// begin puts stage i in force from now on.
func (s *stages) begin(i int, now int64) { s.from[i].Store(now) }

func (s *stages) record(hint int, intended, happened int64) {
	for i := len(s.from) - 1; i >= 0; i-- {
		if intended >= s.from[i].Load() {
			s.latencies[i].record(hint, intended, happened)
			return
		}
	}
}
