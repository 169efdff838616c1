package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

func TestPacerKeepsIntendedTimesThroughAStall(t *testing.T) {
	r := bareRun()
	p := newPacer(r, 1000)
	first, n, ok := p.due(t.Context(), 1)
	if !ok || first != 0 || n != 1 {
		t.Fatalf("the first message: %d %d %v", first, n, ok)
	}
	for r.now() < p.intended(51) { // the stall: nobody asks for 50 ms
		time.Sleep(time.Millisecond)
	}
	var got int64
	for got < 51 {
		first, n, ok := p.due(t.Context(), 20)
		if !ok || n > 20 || first != got+1 {
			t.Fatalf("after %d messages: %d %d %v", got, first, n, ok)
		}
		got += n
		if late := r.now() - p.intended(first); first == 1 && late < int64(45*time.Millisecond) {
			t.Errorf("the first message of the stall is %v late", time.Duration(late))
		}
	}
}

func TestPacerKeepsTheRateAndEndsWithItsContext(t *testing.T) {
	r := bareRun()
	p := newPacer(r, 5000)
	ctx := ctxFor(t, 200*time.Millisecond)
	var total int64
	for {
		_, n, ok := p.due(ctx, 100)
		if !ok {
			break
		}
		total += n
		if want := int64(seconds(r.now())*5000) + 2; total > want {
			t.Fatalf("%d messages are due, %d at most", total, want)
		}
	}
	if total < 500 {
		t.Errorf("%d messages in 200 ms at 5000/s", total)
	}
}

func TestLatencyCountsWhatWasMeantForTheSpan(t *testing.T) {
	r := bareRun()
	l := r.latency("x")
	r.span.from.Store(100)
	r.span.to.Store(200)
	ms := int64(time.Millisecond)
	l.record(0, 99, 99+ms)     // warm-up
	l.record(1, 100, 100+2*ms) // in the span, ends after it
	l.record(2, 150, 150+4*ms)
	l.record(3, 200, 200+ms) // after it
	h := l.merged()
	if h.TotalCount() != 2 || h.Max() < 3990 || h.Max() > 4010 || h.Min() < 1990 {
		t.Errorf("count %d, min %d, max %d", h.TotalCount(), h.Min(), h.Max())
	}
	if n := l.takeInterval().TotalCount(); n != 4 {
		t.Errorf("%d in the interval, want all 4", n)
	}
	if n := l.takeInterval().TotalCount(); n != 0 {
		t.Errorf("%d in the next interval", n)
	}
}

func TestPhasesRunInOrderAndCountersKeepToTheSpan(t *testing.T) {
	var order []string
	var c *Counter
	scenario := Scenario{
		Name: "x", Parameters: 1,
		Connect: func(_ context.Context, r *Run) error {
			order = append(order, "connect")
			c = r.counter("n")
			return nil
		},
		Load: func(ctx context.Context, r *Run) error {
			order = append(order, "load")
			for ctx.Err() == nil {
				c.add(1)
				time.Sleep(time.Millisecond)
			}
			return nil
		},
		Settle: func(context.Context, *Run) error { order = append(order, "settle"); c.add(1_000_000); return nil },
		Judge:  func(_ *Run, rp *Report) { order = append(order, "judge"); rp.fail("because") },
		Close:  func() { order = append(order, "close") },
	}
	o := Options{ConnectMax: time.Second, WarmUp: 50 * time.Millisecond, Duration: 100 * time.Millisecond, SettleMax: time.Second}
	report := execute(t, o, scenario, nil)
	if got := strings.Join(order, " "); got != "connect load settle judge close" {
		t.Errorf("phases: %s", got)
	}
	if n := c.inSpan(); n < 10 || n > 100 {
		t.Errorf("%d counted in the span", n)
	}
	if report.Verdict.Pass || report.MeasuredSeconds < 0.09 || report.WarmUpSeconds < 0.04 {
		t.Errorf("report %+v", report)
	}
}

func TestAScenarioByWorkIsMeasuredFromStartToEnd(t *testing.T) {
	scenario := Scenario{
		Name: "x", ByWork: true, Connect: func(context.Context, *Run) error { return nil },
		Load: func(context.Context, *Run) error { time.Sleep(50 * time.Millisecond); return nil },
	}
	report := execute(t, Options{ConnectMax: time.Second, Duration: time.Minute}, scenario, nil)
	if report.MeasuredSeconds < 0.05 || report.MeasuredSeconds > 10 || !report.Verdict.Pass {
		t.Errorf("measured %v s, verdict %+v", report.MeasuredSeconds, report.Verdict)
	}
}

func TestAFailedPhaseEndsTheRunAndClosesTheScenario(t *testing.T) {
	broken := errors.New("broken")
	for _, phase := range []string{"connect", "load", "settle"} {
		closed := false
		step := func(name string) func(context.Context, *Run) error {
			return func(context.Context, *Run) error {
				if name == phase {
					return broken
				}
				return nil
			}
		}
		scenario := Scenario{Connect: step("connect"), Load: step("load"), Settle: step("settle"), Close: func() { closed = true }}
		o := Options{ConnectMax: time.Second, Duration: 10 * time.Millisecond, SettleMax: time.Second}
		_, err := Execute(t.Context(), o, scenario)
		if !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), phase+": ") || !closed {
			t.Errorf("%s: error %v, closed %v", phase, err, closed)
		}
	}
}

func TestStatIsReadBehindAnyCommandName(t *testing.T) {
	u, err := parseStat([]byte("42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 50 13 14 15 16 17 18 19 20 1000 22\n"))
	if err != nil || u.cpu != 2*time.Second || u.rssBytes != 1000*int64(os.Getpagesize()) {
		t.Errorf("usage %+v, error %v", u, err)
	}
	for _, bad := range []string{"", "1 (x) S 1", "1 (x) S 1 2 3 4 5 6 7 8 9 10 a b 13 14 15 16 17 18 19 20 c 22"} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q was understood", bad)
		}
	}
	if u, err := processUsage(os.Getpid()); err != nil || u.rssBytes < 1<<20 {
		t.Errorf("this process: %+v, error %v", u, err)
	}
}

func TestListenerIsFoundByItsPort(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	if pid := listenerPID(addr); pid != os.Getpid() {
		t.Errorf("process %d listens, want %d", pid, os.Getpid())
	}
	ln.Close()
	if pid := listenerPID(addr); pid != 0 {
		t.Errorf("process %d listens on a closed port", pid)
	}
	if pid := listenerPID("192.0.2.1:80"); pid != 0 {
		t.Errorf("process %d listens on another machine", pid)
	}
}

func TestSockstatIsRead(t *testing.T) {
	mem, err := parseSockstat("sockets: used 290\nTCP: inuse 5 orphan 0 tw 1 alloc 8 mem 3\nUDP: inuse 2 mem 2\n")
	if err != nil || mem != 3*int64(os.Getpagesize()) {
		t.Errorf("memory %d, error %v", mem, err)
	}
	for _, bad := range []string{"UDP: inuse 2 mem 2\n", "TCP: inuse 5\n", "TCP: mem x\n"} {
		if _, err := parseSockstat(bad); err == nil {
			t.Errorf("%q was understood", bad)
		}
	}
	if _, err := socketMemory(); err != nil {
		t.Error(err)
	}
}

func TestMeminfoIsRead(t *testing.T) {
	if mem, err := parseMeminfo("MemTotal: 9 kB\nSlab:   3 kB\n"); err != nil || mem != 3<<10 {
		t.Errorf("memory %d, error %v", mem, err)
	}
	for _, bad := range []string{"", "Slab: x kB\n"} {
		if _, err := parseMeminfo(bad); err == nil {
			t.Errorf("%q was understood", bad)
		}
	}
	if mem, err := slabMemory(); err != nil || mem <= 0 {
		t.Errorf("memory %d, error %v", mem, err)
	}
}

func TestMetricValuesFindsWholeNames(t *testing.T) {
	text := "# HELP a\na_b 7\na 1.5\na{x=\"y\"} 3\n"
	got, err := metricValues(strings.NewReader(text), []string{"a", "a_b"})
	if err != nil || got[0] != 1.5 || got[1] != 7 {
		t.Errorf("values %v, error %v", got, err)
	}
	if _, err := metricValues(strings.NewReader(text), []string{"b"}); err == nil {
		t.Error("a missing metric has a value")
	}
}

// sampleReport has something in every part.
func sampleReport() *Report {
	rp := &Report{
		Scenario: "fanout", Version: "1", Target: "127.0.0.1:7700", Cores: 2, Parameters: map[string]int{"users": 5},
		MeasuredSeconds: 2, Server: &ServerReport{Source: "/proc", CPUSeconds: 1.5, CPUCores: 0.75, RSSPeakBytes: 3 << 20},
		Latencies: []LatencyReport{{Name: "publish to <b>receive</b>", Count: 9, P99Ms: 1.25, Curve: []CurveStep{{0, 0.1}, {50, 0.5}, {99.999, 9}}}},
		Samples:   []Sample{{Seconds: 1, Phase: "warm-up"}, {Seconds: 2, Phase: "measure", PerSecond: 1234567, P99Ms: 3}, {Seconds: 3, Phase: "measure"}},
	}
	rp.figure("deliveries_per_second", "acknowledged deliveries", 1234567, "/s")
	rp.figure("none", "nothing to divide by", 0.0/1, "s")
	return rp
}

func TestReportIsOneJSONLine(t *testing.T) {
	var out bytes.Buffer
	if err := sampleReport().WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	if strings.Count(out.String(), "\n") != 1 {
		t.Errorf("%q is not one line", out.String())
	}
	var back struct {
		Scenario string
		Figures  map[string]float64
		Verdict  Verdict
	}
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back.Figures["deliveries_per_second"] != 1234567 || back.Scenario != "fanout" || back.Verdict.Pass {
		t.Errorf("came back as %+v, error %v", back, err)
	}
}

func TestTableSaysFiguresAndVerdict(t *testing.T) {
	rp := sampleReport()
	rp.fail("3 lost")
	var out bytes.Buffer
	if err := rp.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1,234,567/s", "1.25", "0.75 cores", "3.00 MiB", "FAIL\n  3 lost"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table does not say %q:\n%s", want, out.String())
		}
	}
}

func TestPageIsSelfContained(t *testing.T) {
	var out bytes.Buffer
	if err := sampleReport().WriteHTML(&out); err != nil {
		t.Fatal(err)
	}
	page := out.String()
	for _, outside := range []string{"http://", "https://", "src=", "<script", "@import", "url("} {
		if strings.Contains(page, outside) {
			t.Errorf("the page loads something: %s", outside)
		}
	}
	if n := strings.Count(page, "<svg"); n != 5 {
		t.Errorf("%d plots, want throughput, latency, percentiles, CPU and memory", n)
	}
	for svg := range strings.SplitSeq(page, "<svg") {
		if picture, _, ok := strings.Cut("<svg"+svg, "</svg>"); ok {
			if err := xml.Unmarshal([]byte(picture+"</svg>"), &struct{}{}); err != nil {
				t.Errorf("a plot is no XML: %v", err)
			}
		}
	}
	if strings.Contains(page, "<b>receive") || strings.Contains(page, "NaN") {
		t.Error("a text came through unescaped, or a number is none")
	}
}

func TestProgressLineOverwritesItself(t *testing.T) {
	line := progressLine(&Sample{Seconds: 12, Phase: "measure", PerSecond: 98765, P50Ms: 0.4, P99Ms: 2, CPU: 1.5, RSSBytes: 1 << 20}, &Counter{name: "acked"}, true)
	for _, want := range []string{"98,765 acked/s", "p99 2.00 ms", "1.50 cores"} {
		if !strings.Contains(line, want) {
			t.Errorf("%q does not say %q", line, want)
		}
	}
	if !strings.HasPrefix(line, "\r") || strings.Contains(line, "\n") {
		t.Errorf("%q does not stay on its line", line)
	}
}

func TestNumbersAreReadable(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{count(0), "0"}, {count(999), "999"}, {count(1000), "1,000"}, {count(-1234567), "-1,234,567"}, {count(1.5), "1.50"},
		{short(0.1234), "0.123"}, {short(12.34), "12.3"}, {short(1234), "1234"},
		{bytesText(12), "12 B"}, {bytesText(1536), "1.50 KiB"}, {valueText(2, "ms"), "2.00 ms"}, {metricWord("Queue full!"), "queue_full_"},
	} {
		if test.got != test.want {
			t.Errorf("%q, want %q", test.got, test.want)
		}
	}
	for v, want := range map[float64]float64{0: 1, 1: 1, 1.1: 2, 23: 25, 30: 50, 51: 100} {
		if got := niceCeil(v); got != want {
			t.Errorf("niceCeil(%v) = %v, want %v", v, got, want)
		}
	}
}
