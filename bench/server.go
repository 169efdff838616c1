package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// StartOptions describe a gateway that the run starts, and may kill, itself.
type StartOptions struct {
	// Binary is the program whose "serve" command is the gateway.
	Binary string
	// Dir is where its data directory is made; empty: the system's place for temporary files, which may be memory.
	Dir string
	// Args are further arguments of "serve".
	Args []string
}

const (
	startMax    = 30 * time.Second
	stopMax     = 10 * time.Second
	logLinesMax = 40
)

// process is a gateway of our own.
type process struct {
	// Static after start.
	o    StartOptions
	data string

	// Guarded by mu.
	mu        sync.Mutex
	cmd       *exec.Cmd
	done      chan struct{} // closed when cmd has ended
	tcp, http string        // addresses; a restart keeps them
	log       []string      // the last lines
	expected  bool          // it ends because we want it to
	failed    error         // how it ended although nobody wanted it to
	watching  context.CancelCauseFunc
}

// startServer starts the gateway on an empty data directory and returns when it is ready.
func startServer(ctx context.Context, o StartOptions) (*process, error) {
	data, err := os.MkdirTemp(o.Dir, "holdfast-bench-")
	if err != nil {
		return nil, fmt.Errorf("making the data directory: %w", err)
	}
	p := &process{o: o, data: data, tcp: "127.0.0.1:0", http: "127.0.0.1:0"}
	if err := p.run(ctx); err != nil {
		_ = os.RemoveAll(data) // the error at hand says more
		return nil, err
	}
	return p, nil
}

// run starts the process on its data and waits until it is ready.
func (p *process) run(ctx context.Context) error { return p.runWithin(ctx, startMax) }

// runWithin is run with another limit for the time until it is ready.
func (p *process) runWithin(ctx context.Context, limit time.Duration) error {
	p.mu.Lock()
	args := append([]string{"serve", "--data", p.data, "--listen", p.tcp, "--http", p.http, "--set", "log.format=json"}, p.o.Args...)
	p.mu.Unlock()
	// Not CommandContext: the server outlives the phase that starts it.
	cmd := exec.Command(p.o.Binary, args...)
	// Its own group, so that an interrupt from the keyboard reaches the generator only, which then ends it in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("starting the gateway: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the gateway: %w", err)
	}
	done, ready := make(chan struct{}), make(chan struct{})
	p.mu.Lock()
	p.cmd, p.done, p.expected = cmd, done, false
	p.mu.Unlock()
	go p.follow(stderr, cmd, ready, done)
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ready:
		return nil
	case <-done:
		return fmt.Errorf("the gateway ended before it was ready:\n%s", p.lastLog())
	case <-timer.C:
		err = fmt.Errorf("the gateway was not ready within %v:\n%s", limit, p.lastLog())
	case <-ctx.Done():
		err = ctx.Err()
	}
	p.kill()
	return err
}

// follow reads the log until the process ends; the line with msg "ready" names the addresses.
func (p *process) follow(stderr io.Reader, cmd *exec.Cmd, ready, done chan struct{}) {
	lines := bufio.NewScanner(stderr)
	lines.Buffer(make([]byte, 64<<10), 1<<20)
	for lines.Scan() {
		var line struct{ Msg, TCP, HTTP string }
		p.mu.Lock()
		if len(p.log) == logLinesMax {
			p.log = slices.Delete(p.log, 0, 1)
		}
		p.log = append(p.log, lines.Text())
		if ready != nil && json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "ready" {
			p.tcp, p.http = line.TCP, line.HTTP
			close(ready)
			ready = nil
		}
		p.mu.Unlock()
	}
	_ = cmd.Wait() // how it ended is in its state
	p.mu.Lock()
	if !p.expected && p.failed == nil {
		p.failed = fmt.Errorf("the gateway ended by itself (%s); the end of its log:\n%s", cmd.ProcessState, strings.Join(p.log, "\n"))
		if p.watching != nil {
			p.watching(p.failed)
		}
	}
	p.mu.Unlock()
	close(done)
}

// watch has cancel called when the process ends by itself, until it is told to stop.
func (p *process) watch(cancel context.CancelCauseFunc) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watching = cancel
	if p.failed != nil {
		cancel(p.failed)
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.watching = nil
	}
}

// diedMax is how much later than at its clients the end of a process shows here.
const diedMax = 500 * time.Millisecond

// died is how the process ended by itself; nil: it did not.
func (p *process) died() error {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	timer := time.NewTimer(diedMax)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

func (p *process) lastLog() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.log, "\n")
}

// addresses returns the TCP address and the base URL of the HTTP port.
func (p *process) addresses() (tcp, api string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tcp, "http://" + p.http
}

func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

// kill is kill -9; it returns when the process is gone.
func (p *process) kill() {
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.expected = true
	p.mu.Unlock()
	_ = cmd.Process.Kill() // gone already: just as well
	<-done
}

// crash is kill -9 and a new start on the same data and ports.
func (p *process) crash(ctx context.Context) error {
	p.kill()
	return p.run(ctx)
}

// stop ends the process, in order if it can do so in time, and removes its data.
func (p *process) stop(limit time.Duration) {
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.expected = true
	p.mu.Unlock()
	_ = cmd.Process.Signal(syscall.SIGTERM) // gone already: just as well
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		p.kill()
	}
	_ = os.RemoveAll(p.data) // nothing of value; the system cleans its temporary files
}
