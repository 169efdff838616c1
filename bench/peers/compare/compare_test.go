package main

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheGeneratorDrivesEveryServer runs short work on all servers that are built here, with the built programs.
func TestTheGeneratorDrivesEveryServer(t *testing.T) {
	dir := t.TempDir()
	for _, build := range [][]string{{"-o", dir + "/", "../mochi", "../relay"}, {"-C", "../../..", "-o", filepath.Join(dir, "holdfast"), "."}} {
		args := append([]string{"build"}, build...)
		if text, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, text)
		}
	}
	o := &options{
		holdfast: filepath.Join(dir, "holdfast"), mochi: filepath.Join(dir, "mochi"), relay: filepath.Join(dir, "relay"), data: t.TempDir(),
	}
	fanout := []string{"fanout", "--users", "20", "--warm-up", "100ms", "--duration", "1s"}
	storm := []string{"storm", "--users", "50", "--live-users", "0", "--live-rate", "0"}
	small := []work{
		{name: "closed", args: fanout, figures: works()[0].figures}, {name: "open", args: with(fanout, "--rate", "500", "--batch", "1"), figures: works()[2].figures},
		{name: "fire and forget", args: with(fanout, "--rate", "500", "--no-ack"), figures: works()[0].figures},
		{name: "idle", args: []string{"idle", "--sizes", "10,20", "--hold", "1s"}, figures: works()[3].figures[:1]},
		{name: "logins", args: storm, figures: works()[4].figures},
		// One message each: mochi-mqtt hands a session's messages out in no order.
		{name: "backlog", args: with(storm, "--backlog", "1"), figures: works()[5].figures, never: []string{"relay"}},
	}
	for _, p := range peers(o)[:3] {
		for i := range small {
			if small[i].without(p.name) {
				continue
			}
			got, err := measure(t.Context(), o, &small[i], &p)
			if err != nil || len(got.Failures) > 0 || len(got.Figures) != len(small[i].figures) {
				t.Errorf("%s on %s: %+v, %v", small[i].name, p.name, got, err)
			}
		}
	}
	if left, err := os.ReadDir(o.data); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// twoRounds are results of two peers, of which the second one failed once.
func twoRounds() (*results, []work, []peer) {
	r := &results{Rounds: 2, Versions: map[string]string{"a": "1.0", "b": "2.0"}, Runs: []oneRun{
		{Work: "w", Peer: "a", Round: 1, Figures: map[string]float64{"k": 1000}}, {Work: "w", Peer: "a", Round: 2, Figures: map[string]float64{"k": 3000}},
		{Work: "w", Peer: "b", Round: 1, Figures: map[string]float64{"k": 1000}, Failures: []string{"5 lost"}},
		{Work: "w", Peer: "b", Round: 2, Figures: map[string]float64{"k": 1000}},
	}}
	works := []work{{name: "w", title: "the work", args: []string{"fanout"}, figures: []figure{{key: "k", label: "speed", unit: "/s"}, {key: "none", label: "nothing"}}}}
	return r, works, []peer{{name: "a"}, {name: "b"}}
}

func TestTheTableHasMedianSpreadRatioAndFailures(t *testing.T) {
	r, works, peers := twoRounds()
	r.tabulate(works, peers)
	text := r.markdown(works, peers)
	for _, want := range []string{
		"| speed, /s | 2,000 (1,000 to 3,000) | 1,000, 0.5× † |", "| nothing | – | – |", "**the work**", "- † b did not pass w: 5 lost.", "holdfast bench fanout",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestEverythingIsWrittenWhereItWasAskedTo(t *testing.T) {
	r, works, peers := twoRounds()
	dir := t.TempDir()
	o := &options{jsonFile: filepath.Join(dir, "x.json"), markdownFile: filepath.Join(dir, "x.md"), page: filepath.Join(dir, "page.md")}
	if err := os.WriteFile(o.page, []byte("before\n"+markerBegin+"\nstale\n"+markerEnd+"\nafter\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for range 2 { // the second time finds what the first one wrote
		if err := r.write(o, works, peers, &out); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{o.jsonFile: `"ratio": 0.5`, o.markdownFile: "| speed", o.page: "| speed"} {
		text, err := os.ReadFile(path)
		if err != nil || strings.Count(string(text), want) != 1 {
			t.Errorf("%s: %v\n%s", path, err, text)
		}
	}
	page, err := os.ReadFile(o.page)
	if err != nil || !strings.HasPrefix(string(page), "before\n") || !strings.HasSuffix(string(page), "\nafter\n") || strings.Contains(string(page), "stale") {
		t.Errorf("%v: %s", err, page)
	}
	if _, err := between("no markers", "text"); err == nil {
		t.Error("a page without markers was taken")
	}
}

func TestNumbersHaveThreeDigits(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.012345: "0.0123", 1.5: "1.5", 999.4: "999", 1234.5: "1,235", 1e6: "1,000,000", -2500: "-2,500"} {
		if got := number(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}

func TestFiguresAreTakenFromTheReport(t *testing.T) {
	report := &benchReport{Figures: map[string]float64{"deliveries_per_second": 5}}
	report.Latencies = append(report.Latencies, struct {
		Name   string  `json:"name"`
		P50Ms  float64 `json:"p50_ms"`
		P99Ms  float64 `json:"p99_ms"`
		P999Ms float64 `json:"p999_ms"`
	}{"publish to receive", 1, 2, 3})
	latency := works()[1]
	got := latency.take(report)
	if want := map[string]float64{"kept": 5, "p50": 1, "p99": 2, "p999": 3}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestOnlyWhatIsNamedIsRun(t *testing.T) {
	got, err := choose(works(), "logins,idle", func(w *work) string { return w.name })
	if err != nil || len(got) != 2 || got[0].name != "idle" {
		t.Errorf("%v %v", got, err)
	}
	if _, err := choose(works(), "idle,other", func(w *work) string { return w.name }); err == nil || !strings.Contains(err.Error(), "other") {
		t.Errorf("error %v", err)
	}
	if err := run(t.Context(), &options{rounds: 0}, os.Stdout, os.Stderr); err == nil {
		t.Error("no rounds were run")
	}
}

func TestAMachineHasANumberOfCores(t *testing.T) {
	if m := thisMachine(); m.Cores < 1 || m.MemoryGiB < 1 || m.Kernel == "?" {
		t.Errorf("%+v", m)
	}
	if err := onDisk(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a directory that is not there was taken")
	}
}
