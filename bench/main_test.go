package bench

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// gatewayBinary is the gateway, and the generator's own workers; built once by TestMain.
var gatewayBinary string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	flag.Parse()
	dir, err := os.MkdirTemp("", "holdfast-bench-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "making a directory for the binary:", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	gatewayBinary = filepath.Join(dir, "holdfast")
	build := exec.Command("go", "build", "-o", gatewayBinary, "..")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "building the gateway:", err)
		return 1
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// quick are options of a short run against a gateway of its own.
func quick(t *testing.T, settings ...string) Options {
	t.Helper()
	start := &StartOptions{Binary: gatewayBinary, Dir: t.TempDir()}
	for _, s := range settings {
		start.Args = append(start.Args, "--set", s)
	}
	return Options{
		Version: "test", Target: Target{Start: start},
		ConnectMax: 20 * time.Second, WarmUp: 200 * time.Millisecond, Duration: 1200 * time.Millisecond, SettleMax: 20 * time.Second,
	}
}

// execute runs a scenario that must come to a verdict.
func execute(t *testing.T, o Options, s Scenario, err error) *Report {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	report, err := Execute(t.Context(), o, s)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// wantPass fails the test unless the run passed.
func wantPass(t *testing.T, report *Report) {
	t.Helper()
	if !report.Verdict.Pass || len(report.Verdict.Failures) > 0 {
		t.Errorf("verdict %+v, tally %+v", report.Verdict, report.Tally)
	}
}

// value is a figure of a report.
func value(t *testing.T, report *Report, key string) float64 {
	t.Helper()
	for _, f := range report.Figures {
		if f.Key == key {
			return f.Value
		}
	}
	t.Fatalf("no figure %s in %+v", key, report.Figures)
	return 0
}

// bareRun is a run without a server, for the parts that need one.
func bareRun() *Run {
	r := &Run{started: time.Now(), id: 7}
	r.span.to.Store(endOfTime)
	r.enter("measure")
	return r
}

// ctxFor ends after d.
func ctxFor(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
