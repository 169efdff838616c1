package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Sample is one second of the run, for plots.
type Sample struct {
	Seconds   float64 `json:"t"`     // since the start of the run
	Phase     string  `json:"phase"` // connect, warm-up, measure, settle
	PerSecond float64 `json:"per_second"`
	P50Ms     float64 `json:"p50_ms"` // of the first latency of the scenario, by when it ended
	P99Ms     float64 `json:"p99_ms"`
	CPU       float64 `json:"server_cpu"` // cores
	RSSBytes  int64   `json:"server_rss_bytes"`
}

// reading is the usage of server and generator at a moment.
type reading struct {
	ok        bool // the server could be read
	at        int64
	server    usage
	generator time.Duration
}

// sampler reads the server's usage once a second and at the borders of the span.
type sampler struct {
	quit, done chan struct{}
	stopping   sync.Once

	// Guarded by mu.
	mu             sync.Mutex
	r              *Run
	pid            int
	source         string        // "/proc", "metrics", or "" when the server cannot be read
	why            error         // the server cannot be read; nil: it can
	ended          bool          // a process that is not of our own was there and is no more
	before         time.Duration // CPU of earlier processes of a server that was restarted
	last           usage
	samples        []Sample
	opened, closed reading
	rssPeak        int64 // inside the span
	now            reading
	count          int64
}

const sampleEvery = time.Second

// start begins sampling; stop ends it.
func (s *sampler) start(r *Run) {
	s.r, s.quit, s.done = r, make(chan struct{}), make(chan struct{})
	s.now = s.read()
	go func() {
		defer close(s.done)
		tick := time.NewTicker(sampleEvery)
		defer tick.Stop()
		for {
			select {
			case <-s.quit:
				return
			case <-tick.C:
				s.sample()
			}
		}
	}()
}

// stop may be called more than once.
func (s *sampler) stop() {
	s.stopping.Do(func() {
		close(s.quit)
		<-s.done
		if s.r.o.Progress != nil {
			fmt.Fprint(s.r.o.Progress, "\r\x1b[K")
		}
	})
}

// mark notes the usage of this moment at one border of the span.
func (s *sampler) mark(at *reading) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*at = s.readLocked()
	s.rssPeak = max(s.rssPeak, at.server.rssBytes)
	if at == &s.opened {
		s.rssPeak = at.server.rssBytes
	}
}

// readLocked reads the server, wherever that is possible, and this process.
func (s *sampler) readLocked() reading {
	rd := reading{at: s.r.now(), generator: s.r.generatorCPU()}
	pid := s.r.serverPID()
	if pid != s.pid {
		s.before += s.last.cpu
		s.last, s.pid = usage{}, pid
	}
	var u usage
	var err error
	switch {
	case pid != 0:
		s.source = "/proc"
		u, err = processUsage(pid)
	case s.r.o.Target.API != "":
		s.source = "metrics"
		u, err = metricsUsage(s.r.o.Target)
	default:
		err = errors.New("it is not on this machine and its HTTP port is not named")
	}
	s.why = err
	if err != nil {
		s.ended = s.ended || (pid != 0 && s.last.rssBytes > 0 && errors.Is(err, fs.ErrNotExist) && s.r.server == nil)
		s.source = ""
		rd.server = usage{cpu: s.before + s.last.cpu, rssBytes: s.last.rssBytes}
		rd.ok = s.r.server != nil // it is being killed and started: what it had used is known from before
		return rd
	}
	s.last = u
	u.cpu += s.before
	rd.ok, rd.server = true, u
	return rd
}

// sample appends one sample and writes the progress line.
func (s *sampler) sample() {
	r := s.r
	r.mu.Lock()
	rate := r.rate
	r.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	previous := s.now
	s.now = s.readLocked()
	x := Sample{Seconds: seconds(s.now.at), Phase: *r.phase.Load(), RSSBytes: s.now.server.rssBytes}
	span := seconds(s.now.at - previous.at)
	if rate != nil {
		total := rate.total.Load()
		x.PerSecond = float64(total-s.count) / span
		s.count = total
	}
	if s.now.ok && previous.ok {
		x.CPU = max(0, (s.now.server.cpu-previous.server.cpu).Seconds()/span)
	}
	if _, h := r.shownInterval(); h != nil {
		x.P50Ms, x.P99Ms = float64(h.ValueAtQuantile(50))/1e3, float64(h.ValueAtQuantile(99))/1e3
	}
	s.samples = append(s.samples, x)
	if x.Phase == "measure" {
		s.rssPeak = max(s.rssPeak, x.RSSBytes)
	}
	if w := r.o.Progress; w != nil {
		fmt.Fprint(w, progressLine(&x, rate, s.source != ""))
	}
}

// progressLine overwrites itself: back to the start of the line, the text, and clear what is left of the line before.
func progressLine(x *Sample, rate *Counter, server bool) string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "\r%4.0f s  %-8s", x.Seconds, x.Phase)
	if rate != nil {
		fmt.Fprintf(b, "  %s %s/s", count(x.PerSecond), rate.name)
	}
	if x.P99Ms > 0 {
		fmt.Fprintf(b, "  p50 %s ms  p99 %s ms", short(x.P50Ms), short(x.P99Ms))
	}
	if server {
		fmt.Fprintf(b, "  server %.2f cores, %s", x.CPU, bytesText(float64(x.RSSBytes)))
	}
	b.WriteString("\x1b[K")
	return b.String()
}

// serverPID is the process that is watched; 0: none of this machine.
func (r *Run) serverPID() int {
	switch {
	case r.server != nil:
		return r.server.pid()
	case r.o.Target.PID != 0:
		return r.o.Target.PID
	}
	r.found.Do(func() { r.foundPID = listenerPID(r.o.Target.Addr) })
	return r.foundPID
}

// generatorCPU is what this process and the further ones have used.
func (r *Run) generatorCPU() time.Duration {
	sum := ownCPU()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, pid := range r.generators {
		if u, err := processUsage(pid); err == nil {
			sum += u.cpu
		}
	}
	return sum
}

// ownCPU is what this process has used.
func ownCPU() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// metricsMax bounds a scrape, in time and size.
const (
	metricsMax      = 2 * time.Second
	metricsBytesMax = 16 << 20
)

// metricsUsage takes the usage from the metrics of a server on another machine.
func metricsUsage(t Target) (usage, error) {
	values, err := scrape(t, "process_cpu_seconds_total", "process_resident_memory_bytes")
	if err != nil {
		return usage{}, err
	}
	return usage{cpu: time.Duration(values[0] * float64(time.Second)), rssBytes: int64(values[1])}, nil
}

// scrape returns the values of unlabelled metrics of the target.
func scrape(t Target, names ...string) ([]float64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), metricsMax)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(t.API, "/")+"/metrics", http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("reading the metrics: %w", err)
	}
	req.Close = true // one a second: no connection is kept for the next
	if t.APIToken != "" {
		req.Header.Set("Authorization", "Bearer "+t.APIToken)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("reading the metrics: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("reading the metrics: %s", resp.Status)
	}
	return metricValues(io.LimitReader(resp.Body, metricsBytesMax), names)
}

// metricValues finds names in Prometheus text.
func metricValues(text io.Reader, names []string) ([]float64, error) {
	found := map[string]float64{}
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil {
			found[name] = v
		}
	}
	values := make([]float64, len(names))
	for i, name := range names {
		v, ok := found[name]
		if !ok {
			return nil, fmt.Errorf("reading the metrics: no %s", name)
		}
		values[i] = v
	}
	return values, nil
}
