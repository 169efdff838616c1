package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// inProcesses are options of a short run by so many generator processes.
func inProcesses(t *testing.T, n int, settings ...string) Options {
	t.Helper()
	o := quick(t, settings...)
	o.Processes, o.Worker = n, []string{gatewayBinary, "bench", "worker", "--load"}
	return o
}

// everyLoad are small loads of the scenarios that can be shared and verified.
func everyLoad() map[string]func() (Scenario, error) {
	paced := smallFanout()
	paced.Rate = 600
	return map[string]func() (Scenario, error){
		"fanout":   func() (Scenario, error) { return Fanout(paced) },
		"slow":     func() (Scenario, error) { return Slow(smallMisbehave()) },
		"ackstorm": func() (Scenario, error) { return AckStorm(smallMisbehave()) },
		"publish":  func() (Scenario, error) { return Publish(smallPublish(PublishHTTPBatch)) },
		"storm": func() (Scenario, error) {
			return Storm(StormOptions{Users: 30, Backlog: 20, PayloadBytes: 64, LiveUsers: 10, LiveRate: 300, Calm: 300 * time.Millisecond})
		},
	}
}

func TestEveryLoadIsSharedByProcesses(t *testing.T) {
	for name, load := range everyLoad() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := load()
			o := inProcesses(t, 2)
			if s.ByWork {
				o.WarmUp, o.Duration = 0, 20*time.Second
			}
			report := execute(t, o, s, err)
			wantPass(t, report)
			if report.Processes != 2 || len(report.Figures) < 3 || len(report.Latencies) == 0 || report.Server == nil {
				t.Errorf("report %+v", report)
			}
			if report.Tally != nil && (report.Tally.Received == 0 || report.Tally.Received != report.Tally.Sent) {
				t.Errorf("tally %+v", report.Tally)
			}
			for i := range report.Latencies {
				if l := &report.Latencies[i]; l.Count == 0 || l.P50Ms <= 0 || l.MaxMs < l.P99Ms {
					t.Errorf("latency %+v", l)
				}
			}
			if report.Generator.CPUSeconds <= 0 {
				t.Errorf("generator %+v", report.Generator)
			}
		})
	}
}

func TestEveryLoadIsVerifiedAmongFaults(t *testing.T) {
	for name, load := range everyLoad() {
		for _, processes := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s in %d", name, processes), func(t *testing.T) {
				t.Parallel()
				s, err := load()
				if err != nil {
					t.Fatal(err)
				}
				faults := smallFaults()
				faults.CrashEvery = 700 * time.Millisecond
				if name == "storm" {
					faults.CrashEvery = 150 * time.Millisecond
				}
				s, err = Verify(s, faults)
				o := inProcesses(t, processes, "ack.timeout=1s")
				if s.ByWork {
					o.WarmUp, o.Duration = 0, 20*time.Second
				}
				report := execute(t, o, s, err)
				wantPass(t, report)
				if n := value(t, report, "server_kills"); n == 0 {
					t.Error("the server was never killed")
				}
				if report.Tally == nil || report.Tally.Received == 0 {
					t.Errorf("tally %+v", report.Tally)
				}
			})
		}
	}
}

func TestPartsAddUpToTheWhole(t *testing.T) {
	whole := FanoutOptions{Users: 10, Publishers: 2, Rate: 1000, Window: 5, PayloadBytes: 64, Batch: 1, Messages: 100}
	parts, err := whole.split(3)
	if err != nil {
		t.Fatal(err)
	}
	var sum FanoutOptions
	for i, p := range parts {
		x := p.Parameters.(FanoutOptions)
		if p.First[""] != sum.Users || x.Publishers < 1 || x.validate() != nil {
			t.Errorf("part %d begins at %d: %+v", i, p.First[""], x)
		}
		sum.Users, sum.Rate, sum.Messages = sum.Users+x.Users, sum.Rate+x.Rate, sum.Messages+x.Messages
	}
	if sum.Users != 10 || sum.Rate < 999 || sum.Rate > 1001 || sum.Messages != 100 {
		t.Errorf("the parts are %+v", sum)
	}
	storm := StormOptions{Users: 10, LiveUsers: 7, LiveRate: 70, AtOnce: 3, PayloadBytes: 64}
	parts, err = storm.split(3)
	if err != nil {
		t.Fatal(err)
	}
	users, live := 0, 0
	for i, p := range parts {
		x := p.Parameters.(StormOptions)
		if p.First["backlog"] != users || p.First["live"] != live || x.AtOnce != 1 || x.validate() != nil {
			t.Errorf("part %d: %+v, first %v", i, x, p.First)
		}
		users, live = users+x.Users, live+x.LiveUsers
	}
	if users != 10 || live != 7 {
		t.Errorf("%d users and %d live ones", users, live)
	}
}

func TestProcessesAreDecidedByConnections(t *testing.T) {
	whole := FanoutOptions{Users: 2*connectionsMax() - 2, Publishers: 2, Window: 5, PayloadBytes: 64, Batch: 1}
	s, err := Fanout(whole)
	if err != nil {
		t.Fatal(err)
	}
	worker := []string{"/bin/true"}
	if _, n, err := distribute(&Options{Worker: worker}, s); n != 2 || err != nil {
		t.Errorf("%d processes, error %v", n, err)
	}
	idle := Scenario{Name: "idle"}
	for _, test := range []struct {
		o    Options
		s    Scenario
		want string
	}{
		{Options{Processes: -1}, s, "negative"},
		{Options{Processes: 1}, s, "more processes are needed"},
		{Options{}, s, "ulimit"},
		{Options{Processes: 2, Worker: worker}, idle, "one generator process only"},
		{Options{Processes: processesMax + 1, Worker: worker}, s, "at most 64"},
		{Options{Processes: 3, Worker: worker}, Scenario{Split: (&FanoutOptions{Users: 2, Publishers: 2}).split}, "more than there are users"},
	} {
		if _, _, err := distribute(&test.o, test.s); !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v, want one about %s", err, test.want)
		}
	}
}

func TestAProcessThatDiesIsAClearError(t *testing.T) {
	s, err := Fanout(smallFanout())
	if err != nil {
		t.Fatal(err)
	}
	o := inProcesses(t, 2)
	o.WarmUp, o.Duration = 0, time.Minute
	load := make(chan int, 1)
	shared, _, err := distribute(&o, s)
	if err != nil {
		t.Fatal(err)
	}
	o.Processes = 1 // it is shared already
	inner := shared.Load
	shared.Load = func(ctx context.Context, r *Run) error {
		r.mu.Lock()
		load <- r.generators[1]
		r.mu.Unlock()
		return inner(ctx, r)
	}
	go func() { _ = syscall.Kill(<-load, syscall.SIGKILL) }()
	began := time.Now()
	_, err = Execute(t.Context(), o, shared)
	if err == nil || !strings.Contains(err.Error(), "generator process 2 of 2: signal: killed") {
		t.Errorf("error %v", err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestAProcessThatTalksNonsenseIsAnError(t *testing.T) {
	for _, command := range []string{"exit 7", "read x; echo nonsense; exec sleep 60"} {
		s, err := Fanout(smallFanout())
		if err != nil {
			t.Fatal(err)
		}
		o := Options{
			Target: Target{Addr: "127.0.0.1:1"}, Duration: time.Second, ConnectMax: 10 * time.Second, Processes: 2,
			Worker: []string{"/bin/sh", "-c", command},
		}
		if _, err := Execute(t.Context(), o, s); err == nil || !strings.Contains(err.Error(), "generator process") {
			t.Errorf("%s: error %v", command, err)
		}
	}
}

func TestWorkNeedsItsPartFirst(t *testing.T) {
	for _, in := range []string{"", "x", `{"do":"connect"}`, `{"do":"begin","part":{"scenario":"idle"}}`, `{"do":"begin","part":{"scenario":"fanout","parameters":{"users":0}}}`} {
		if err := Work(t.Context(), strings.NewReader(in), &bytes.Buffer{}, nil); err == nil {
			t.Errorf("%q was taken for a part", in)
		}
	}
}

// TestAServerThatEndsIsTheReason kills the gateway of the run in the middle: the error must say so and show its log.
func TestAServerThatEndsIsTheReason(t *testing.T) {
	for _, processes := range []int{1, 2} {
		t.Run(fmt.Sprint(processes), func(t *testing.T) {
			t.Parallel()
			s, err := Fanout(smallFanout())
			if err != nil {
				t.Fatal(err)
			}
			s.Beside = func(ctx context.Context, r *Run) error {
				rest(ctx, 500*time.Millisecond)
				return syscall.Kill(r.server.pid(), syscall.SIGKILL)
			}
			o := inProcesses(t, processes)
			o.Duration = time.Minute
			_, err = Execute(t.Context(), o, s)
			if err == nil || !strings.Contains(err.Error(), "load: the gateway ended by itself (signal: killed)") || !strings.Contains(err.Error(), `"msg":"ready"`) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestAServerOfOthersThatEndsIsNamed watches a process by its id that ends during the run.
func TestAServerOfOthersThatEndsIsNamed(t *testing.T) {
	server := exec.Command("/bin/sleep", "60")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	s := Scenario{
		Name: "x", Connect: func(context.Context, *Run) error { return nil },
		Load: func(ctx context.Context, _ *Run) error {
			rest(ctx, 200*time.Millisecond)
			_ = server.Process.Kill()
			_ = server.Wait()
			<-ctx.Done()
			return nil
		},
	}
	o := Options{Target: Target{Addr: "127.0.0.1:1", PID: server.Process.Pid}, ConnectMax: time.Second, Duration: 500 * time.Millisecond}
	report := execute(t, o, s, nil)
	var table strings.Builder
	if err := report.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("its process %d ended during the run", server.Process.Pid)
	if report.Verdict.Pass || report.Server != nil || !strings.Contains(table.String(), want) {
		t.Errorf("verdict %+v, table:\n%s", report.Verdict, table.String())
	}
}

// TestAServerElsewhereIsReadFromItsMetrics has no process to look at: CPU and memory come over the HTTP port.
func TestAServerElsewhereIsReadFromItsMetrics(t *testing.T) {
	scrapes := 0
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/metrics" || req.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		scrapes++
		fmt.Fprintf(w, "# HELP x\nprocess_cpu_seconds_total %d\nprocess_resident_memory_bytes %d\n", scrapes, 50<<20)
	}))
	defer api.Close()
	s := Scenario{
		Name: "x", Connect: func(context.Context, *Run) error { return nil },
		Load: func(ctx context.Context, _ *Run) error { <-ctx.Done(); return nil },
	}
	o := Options{Target: Target{Addr: "192.0.2.1:7700", API: api.URL, APIToken: "secret"}, ConnectMax: time.Second, Duration: 100 * time.Millisecond}
	report := execute(t, o, s, nil)
	if x := report.Server; x == nil || x.Source != "metrics" || x.CPUSeconds != 1 || x.RSSPeakBytes != 50<<20 {
		t.Errorf("server %+v", report.Server)
	}
	o.Target.APIToken = "wrong"
	report = execute(t, o, s, nil)
	if report.Server != nil || !strings.Contains(report.ServerUnread, "401") || !report.Verdict.Pass {
		t.Errorf("server %+v, unread because %q, verdict %+v", report.Server, report.ServerUnread, report.Verdict)
	}
}

// TestAnInterruptedBinaryEndsSoon sends the signal of Ctrl-C to a run of several processes.
func TestAnInterruptedBinaryEndsSoon(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(gatewayBinary, "bench", "fanout", "--start", "--start-dir", dir, "--users", "50", "--rate", "1000", "--processes", "2",
		"--warm-up", "0s", "--duration", "60s", "--json")
	var out, errors bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errors
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	until(ctxFor(t, 20*time.Second), func() bool { return len(childrenOf(cmd.Process.Pid)) == 3 }) // the gateway and two generators
	children := childrenOf(cmd.Process.Pid)
	rest(t.Context(), 1500*time.Millisecond)
	began := time.Now()
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	if took := time.Since(began); exitOf(err) != 1 || took > 4*time.Second {
		t.Errorf("exit status %d after %v\n%s", exitOf(err), took, errors.String())
	}
	var report struct {
		Interrupted string
		Figures     map[string]float64
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil || report.Interrupted != "load" || report.Figures["deliveries_per_second"] < 100 {
		t.Errorf("error %v, report %+v\n%s", err, report, errors.String())
	}
	for _, pid := range children {
		if u, err := processUsage(pid); err == nil && u.rssBytes > 0 {
			t.Errorf("process %d is still there", pid)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, error %v", left, err)
	}
}

// childrenOf are the processes that another one started, on any of its threads.
func childrenOf(pid int) []int {
	var children []int
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is a good one
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // the thread is gone
		}
		for f := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(f); err == nil {
				children = append(children, child)
			}
		}
	}
	return children
}
