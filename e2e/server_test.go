// Package e2e runs the built binary as its users do: over the TCP port and the HTTP API, with real kill -9. Tests that
// stand for a report of the case collection carry its number in their name (TestC2…).
package e2e

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// binary is the gateway under test, built once by TestMain.
var binary string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "holdfast-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "making a directory for the binary:", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "holdfast")
	build := exec.Command("go", "build", "-o", binary, "..")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "building the gateway:", err)
		return 1
	}
	flag.Parse()
	if own := flag.Lookup("test.parallel"); own.Value.String() == own.DefValue {
		// Each test has a gateway of its own and mostly waits for time to pass, so more of them than cores fit.
		_ = own.Value.Set("6")
	}
	return m.Run()
}

// server is one gateway process and what is needed to start it again on the same data.
type server struct {
	t    *testing.T
	dir  string
	args []string
	env  []string

	cmd  *exec.Cmd
	tcp  string // addresses of the running process
	http string
	done chan struct{} // closed when the process has ended

	mu   sync.Mutex
	logs []string
}

// start runs a gateway on an empty data directory and waits until it is ready. settings are section.key=value pairs.
func start(t *testing.T, settings ...string) *server {
	t.Helper()
	s := &server{t: t, dir: t.TempDir()}
	for _, kv := range settings {
		s.args = append(s.args, "--set", kv)
	}
	s.run()
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			s.mu.Lock()
			defer s.mu.Unlock()
			t.Logf("last log lines of the gateway:\n%s", strings.Join(tail(s.logs, 40), "\n"))
		}
	})
	return s
}

func tail(lines []string, n int) []string {
	if len(lines) > n {
		return lines[len(lines)-n:]
	}
	return lines
}

// run starts the process and waits until it is ready.
func (s *server) run() {
	s.t.Helper()
	if err := s.tryRun(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) tryRun() error {
	cmd := s.command()
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the gateway: %w", err)
	}
	s.cmd, s.done = cmd, make(chan struct{})
	ready := make(chan struct{})
	go s.follow(stderr, cmd, ready, s.done)
	select {
	case <-ready:
		return nil
	case <-s.done:
		s.mu.Lock()
		defer s.mu.Unlock()
		return fmt.Errorf("the gateway ended before it was ready:\n%s", strings.Join(tail(s.logs, 20), "\n"))
	case <-time.After(30 * time.Second):
		s.kill()
		return fmt.Errorf("the gateway was not ready within 30 s")
	}
}

// command is the process to start: free ports the first time, later the same again.
func (s *server) command() *exec.Cmd {
	tcp, http := "127.0.0.1:0", "127.0.0.1:0"
	if s.tcp != "" {
		tcp, http = s.tcp, s.http
	}
	args := append([]string{"serve", "--data", s.dir, "--listen", tcp, "--http", http, "--set", "log.format=json"}, s.args...)
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), s.env...)
	return cmd
}

// stillborn starts the process and kills it after so short a time that it may be anywhere in its recovery.
func (s *server) stillborn(after time.Duration) {
	s.t.Helper()
	cmd := s.command()
	if err := cmd.Start(); err != nil {
		s.t.Fatalf("starting the gateway: %v", err)
	}
	time.Sleep(after) // the random moment of the kill
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// follow reads the log until the process ends; the line with msg "ready" carries the addresses.
func (s *server) follow(stderr io.Reader, cmd *exec.Cmd, ready, done chan struct{}) {
	lines := bufio.NewScanner(stderr)
	lines.Buffer(make([]byte, 64<<10), 1<<20)
	for lines.Scan() {
		var line struct{ Msg, TCP, HTTP string }
		s.mu.Lock()
		s.logs = append(tail(s.logs, 2000), lines.Text())
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "ready" && ready != nil {
			if s.tcp == "" { // a restart keeps the ports, and by then others read them without the lock
				s.tcp, s.http = line.TCP, line.HTTP
			}
			close(ready)
			ready = nil
		}
		s.mu.Unlock()
	}
	_ = cmd.Wait()
	close(done)
}

// kill is kill -9; it returns when the process is gone.
func (s *server) kill() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	<-s.done
}

// terminate sends SIGTERM and waits for the exit code.
func (s *server) terminate(limit time.Duration) int {
	s.t.Helper()
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(limit):
		s.t.Fatalf("the gateway did not exit within %v of SIGTERM", limit)
	}
	return s.cmd.ProcessState.ExitCode()
}

// crash is kill -9 and a start on the same data and ports.
func (s *server) crash() {
	s.t.Helper()
	s.kill()
	s.run()
}

// logged reports whether a log line of the gateway contains text.
func (s *server) logged(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range s.logs {
		if strings.Contains(line, text) {
			return true
		}
	}
	return false
}

// eventually polls until ok or the limit; for conditions that no signal announces.
func eventually(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	if !ok() {
		t.Fatalf("not within %v: %s", limit, what)
	}
}
