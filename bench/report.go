package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Report is the outcome of a run.
type Report struct {
	Scenario   string    `json:"scenario"`
	Version    string    `json:"version"`
	Started    time.Time `json:"started"`
	Target     string    `json:"target"`
	Cores      int       `json:"cores"` // of the generator's machine
	Processes  int       `json:"processes"`
	Command    string    `json:"command,omitempty"` // repeats the run
	Parameters any       `json:"parameters"`

	ConnectSeconds  float64 `json:"connect_seconds"`
	WarmUpSeconds   float64 `json:"warm_up_seconds"`
	MeasuredSeconds float64 `json:"measured_seconds"`
	SettleSeconds   float64 `json:"settle_seconds"`

	Figures   Figures         `json:"figures"`
	Latencies []LatencyReport `json:"latencies,omitempty"`
	Server    *ServerReport   `json:"server,omitempty"`
	// ServerUnread says why there is no Server.
	ServerUnread string          `json:"server_unread,omitempty"`
	Generator    GeneratorReport `json:"generator"`
	Tally        *Tally          `json:"tally,omitempty"`
	Verdict      Verdict         `json:"verdict"`
	// Interrupted is the phase in which the run was interrupted; then there is no verdict.
	Interrupted string   `json:"interrupted,omitempty"`
	Samples     []Sample `json:"-"` // for plots
	// RateName and LatencyName are what the samples show over time.
	RateName    string `json:"-"`
	LatencyName string `json:"-"`
}

// Verdict says whether the run passed and, if not, why.
type Verdict struct {
	Pass     bool     `json:"pass"`
	Failures []string `json:"failures,omitempty"`
}

// Figure is one result.
type Figure struct {
	Key   string // in the JSON
	Label string // in the table
	Value float64
	Unit  string // "", "s", "ms", "us", "bytes", "/s"
}

// Figures are results in the order of the table. In JSON they are an object, key to number.
type Figures []Figure

// MarshalJSON writes the object in order, with at most six digits behind the point.
func (f Figures) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, x := range f {
		if i > 0 {
			b = append(b, ',')
		}
		value := x.Value
		if math.IsNaN(value) || math.IsInf(value, 0) {
			value = 0
		}
		key, err := json.Marshal(x.Key)
		if err != nil {
			return nil, err
		}
		b = append(append(b, key...), ':')
		number, err := json.Marshal(math.Round(value*1e6) / 1e6)
		if err != nil {
			return nil, err
		}
		b = append(b, number...)
	}
	return append(b, '}'), nil
}

// LatencyReport is the distribution of one latency inside the measured span, in milliseconds.
type LatencyReport struct {
	Name   string      `json:"name"`
	Count  int64       `json:"count"`
	P50Ms  float64     `json:"p50_ms"`
	P90Ms  float64     `json:"p90_ms"`
	P99Ms  float64     `json:"p99_ms"`
	P999Ms float64     `json:"p999_ms"`
	MaxMs  float64     `json:"max_ms"`
	Curve  []CurveStep `json:"-"` // for the plot
}

// CurveStep is one point of a percentile curve.
type CurveStep struct {
	Percentile float64
	Ms         float64
}

// ServerReport is what the server used in the measured span.
type ServerReport struct {
	Source       string  `json:"source"` // /proc or metrics
	PID          int     `json:"pid,omitempty"`
	CPUSeconds   float64 `json:"cpu_seconds"`
	CPUCores     float64 `json:"cpu_cores"`
	RSSOpenBytes int64   `json:"rss_open_bytes"` // at the start of the span
	RSSPeakBytes int64   `json:"rss_peak_bytes"`
	RSSEndBytes  int64   `json:"rss_end_bytes"`
}

// GeneratorReport is what the generator used in the measured span: near all cores, the figures are its own limit.
type GeneratorReport struct {
	CPUSeconds float64 `json:"cpu_seconds"`
	CPUCores   float64 `json:"cpu_cores"`
}

func newReport(r *Run, s Scenario) *Report {
	return &Report{
		Scenario: s.Name, Version: r.o.Version, Started: time.Now().UTC().Truncate(time.Second), Target: r.o.Target.String(),
		Cores: runtime.NumCPU(), Processes: 1, Command: r.o.Command, Parameters: s.Parameters,
	}
}

// figure adds a result.
func (rp *Report) figure(key, label string, value float64, unit string) {
	rp.Figures = append(rp.Figures, Figure{key, label, value, unit})
}

// fail adds a reason not to pass.
func (rp *Report) fail(format string, args ...any) {
	rp.Verdict.Failures = append(rp.Verdict.Failures, fmt.Sprintf(format, args...))
}

// curveAt are the percentiles of the curve; the plot spaces them by their nines.
func curveAt() []float64 {
	return []float64{0, 10, 20, 30, 40, 50, 60, 70, 75, 80, 85, 90, 92.5, 95, 97, 98, 99, 99.5, 99.7, 99.9, 99.95, 99.97, 99.99, 99.999}
}

// collect takes latencies, usage and samples from the run after its end.
func (rp *Report) collect(r *Run) {
	for _, l := range r.latencies {
		h := l.merged()
		if h.TotalCount() == 0 {
			continue
		}
		at := func(q float64) float64 { return float64(h.ValueAtQuantile(q)) / 1e3 }
		x := LatencyReport{Name: l.name, Count: h.TotalCount(), P50Ms: at(50), P90Ms: at(90), P99Ms: at(99), P999Ms: at(99.9), MaxMs: float64(h.Max()) / 1e3}
		for _, q := range curveAt() {
			x.Curve = append(x.Curve, CurveStep{q, at(q)})
		}
		rp.Latencies = append(rp.Latencies, x)
	}
	if len(r.latencies) > 0 {
		rp.LatencyName = r.latencies[0].name
		if whose, ok := strings.CutSuffix(rp.LatencyName, " before"); ok {
			rp.LatencyName = whose + ": publish to receive" // all stages are shown together
		}
	}
	if r.rate != nil {
		rp.RateName = r.rate.name
	}
	s := &r.sampler
	s.mu.Lock()
	defer s.mu.Unlock()
	rp.Samples = slices.Clone(s.samples)
	span := max(rp.MeasuredSeconds, 1e-9)
	own := (s.closed.generator - s.opened.generator).Seconds()
	rp.Generator = GeneratorReport{CPUSeconds: own, CPUCores: own / span}
	if s.opened.ok && s.closed.ok {
		cpu := (s.closed.server.cpu - s.opened.server.cpu).Seconds()
		rp.Server = &ServerReport{
			Source: s.source, PID: s.pid, CPUSeconds: cpu, CPUCores: cpu / span,
			RSSOpenBytes: s.opened.server.rssBytes, RSSPeakBytes: s.rssPeak, RSSEndBytes: s.closed.server.rssBytes,
		}
	} else {
		rp.ServerUnread = s.unreadLocked()
	}
	if s.ended {
		rp.fail("the server's process ended during the run")
	}
}

// unread says why the server's usage is not known.
func (s *sampler) unreadLocked() string {
	switch {
	case s.ended:
		return fmt.Sprintf("its process %d ended during the run", s.pid)
	case s.why != nil:
		return s.why.Error()
	default:
		return "it could not be read at the start of the span"
	}
}

// refusals adds why publishes were refused.
func (rp *Report) refusals(res *Result) {
	for _, why := range res.sortedReasons() {
		rp.figure("refused_"+metricWord(why), "refused: "+why, float64(res.Refused[why]), "")
	}
}

// perMillion is server CPU seconds per million of a count; ok is false when the server could not be read or nothing was counted.
func (rp *Report) perMillion(n int64) (cpu float64, ok bool) {
	if rp.Server == nil || n == 0 {
		return 0, false
	}
	return rp.Server.CPUSeconds / float64(n) * 1e6, true
}

// WriteJSON writes the report as one line.
func (rp *Report) WriteJSON(w io.Writer) error {
	line, err := json.Marshal(rp)
	if err != nil {
		return fmt.Errorf("encoding the report: %w", err)
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// WriteTable writes the report for people.
func (rp *Report) WriteTable(w io.Writer) error {
	b := &strings.Builder{}
	fmt.Fprintf(b, "%s against %s: connect %.1f s, warm-up %.1f s, measured %.1f s, settle %.1f s\n\n",
		rp.Scenario, rp.Target, rp.ConnectSeconds, rp.WarmUpSeconds, rp.MeasuredSeconds, rp.SettleSeconds)
	for _, f := range rp.Figures {
		fmt.Fprintf(b, "  %-44s %14s\n", f.Label, valueText(f.Value, f.Unit))
	}
	if len(rp.Latencies) > 0 {
		fmt.Fprintf(b, "\n  %-24s %10s %9s %9s %9s %9s %9s\n", "latency, ms", "count", "p50", "p90", "p99", "p99.9", "max")
		for i := range rp.Latencies {
			l := &rp.Latencies[i]
			fmt.Fprintf(b, "  %-24s %10d %9s %9s %9s %9s %9s\n", l.Name, l.Count, short(l.P50Ms), short(l.P90Ms), short(l.P99Ms), short(l.P999Ms), short(l.MaxMs))
		}
	}
	if s := rp.Server; s != nil {
		fmt.Fprintf(b, "\n  server (%s): %.2f s of CPU = %.2f cores, memory %s at the start, %s at most, %s at the end\n",
			s.Source, s.CPUSeconds, s.CPUCores, bytesText(float64(s.RSSOpenBytes)), bytesText(float64(s.RSSPeakBytes)), bytesText(float64(s.RSSEndBytes)))
	} else {
		fmt.Fprintf(b, "\n  server: no CPU and memory: %s\n", rp.ServerUnread)
	}
	b.WriteString("  generator: " + rp.generatorText() + "\n")
	switch {
	case rp.Verdict.Pass:
		b.WriteString("\npass\n")
	case rp.Interrupted != "":
		fmt.Fprintf(b, "\n%s\n", strings.Join(rp.Verdict.Failures, "\n"))
	default:
		fmt.Fprintf(b, "\nFAIL\n  %s\n", strings.Join(rp.Verdict.Failures, "\n  "))
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// generatorText says what the generator used.
func (rp *Report) generatorText() string {
	text := fmt.Sprintf("%.2f cores of %d", rp.Generator.CPUCores, rp.Cores)
	if rp.Processes > 1 {
		text += fmt.Sprintf(", in %d processes", rp.Processes)
	}
	return text
}

// valueText writes a value with its unit.
func valueText(v float64, unit string) string {
	switch unit {
	case "bytes":
		return bytesText(v)
	case "":
		return count(v)
	case "/s":
		return count(v) + "/s"
	default:
		return short(v) + " " + unit
	}
}

// count writes a number with thousands apart.
func count(v float64) string {
	if v != math.Trunc(v) && math.Abs(v) < 100 {
		return short(v)
	}
	digits := fmt.Sprintf("%.0f", math.Abs(v))
	b := &strings.Builder{}
	if v < 0 {
		b.WriteByte('-')
	}
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// short writes a number with about three digits.
func short(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 1:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.3f", v)
	}
}

// bytesText writes a size.
func bytesText(v float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if math.Abs(v) >= u.size {
			return short(v/u.size) + " " + u.name
		}
	}
	return fmt.Sprintf("%.0f B", v)
}

// metricWord makes a key out of a text.
func metricWord(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		default:
			return '_'
		}
	}, text)
}
