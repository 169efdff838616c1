package main

import (
	"bufio"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// peer is one of the servers that are compared.
type peer struct {
	name, note, scheme string
	start              func(ctx context.Context) (*server, error) // nil: the generator starts it
	version            func(ctx context.Context) (string, error)  // nil: the report tells it
}

// reported is the version a report tells, where it is the peer's own.
func (p *peer) reported(report *benchReport) string {
	if p.start == nil {
		return report.Version
	}
	return ""
}

// peers are in the order of the table: the first one is what the others are compared to.
func peers(o *options) []peer {
	return []peer{
		{name: "holdfast", note: "solo, fsync before the publisher's reply"},
		{
			name: "relay", note: "the floor: bare gnet, keeps no books, speaks holdfast's protocol", scheme: "holdfast",
			start:   func(ctx context.Context) (*server, error) { return startChild(ctx, o.relay) },
			version: func(context.Context) (string, error) { return library(o.relay, "github.com/panjf2000/gnet/v2", "gnet") },
		},
		{
			name: "mochi", note: "mochi-mqtt, in memory, MQTT 3.1.1 at QoS 1", scheme: "mqtt",
			start: func(ctx context.Context) (*server, error) { return startChild(ctx, o.mochi) },
			version: func(context.Context) (string, error) {
				return library(o.mochi, "github.com/mochi-mqtt/server/v2", "mochi-mqtt")
			},
		},
		{
			name: "mosquitto", note: "in memory, MQTT 3.1.1 at QoS 1", scheme: "mqtt",
			start:   func(ctx context.Context) (*server, error) { return startMosquitto(ctx, o.mosquitto) },
			version: func(ctx context.Context) (string, error) { return mosquittoVersion(ctx, o.mosquitto) },
		},
	}
}

func peerNames() []string {
	var names []string
	for _, p := range peers(&options{}) {
		names = append(names, p.name)
	}
	return names
}

// server is a running peer, a child of ours.
type server struct {
	cmd  *exec.Cmd
	addr string
	in   io.Closer // ends it when closed; nil: a signal does
	dir  string    // removed afterwards; empty: none
	done chan struct{}
}

const (
	readyMax = 10 * time.Second
	stopMax  = 10 * time.Second
)

// startChild runs one of our own programs, which prints its address and ends with its input.
func startChild(ctx context.Context, program string) (*server, error) {
	cmd := exec.Command(program, "--listen", "127.0.0.1:0") // it outlives ctx: stop ends it
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s := &server{cmd: cmd, in: in}
	if err := s.run(); err != nil {
		return nil, err
	}
	line := make(chan string, 1)
	go func() {
		text, _ := bufio.NewReader(out).ReadString('\n') // what is missing shows
		line <- strings.TrimSpace(text)
	}()
	timer := time.NewTimer(readyMax)
	defer timer.Stop()
	select {
	case s.addr = <-line:
	case <-timer.C:
	case <-ctx.Done():
	}
	if s.addr == "" {
		s.stop()
		return nil, fmt.Errorf("%s was not ready in time", filepath.Base(program))
	}
	return s, nil
}

// run starts the process, in a group of its own so that an interrupt from the keyboard does not reach it.
func (s *server) run() error {
	s.cmd.Stderr = os.Stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.done = make(chan struct{})
	go func() {
		_ = s.cmd.Wait() // how it ended does not matter: a run that went wrong says so itself
		close(s.done)
	}()
	return nil
}

// stop ends the process and returns when it is gone.
func (s *server) stop() {
	if s.in != nil {
		_ = s.in.Close() // gone already: just as well
	} else {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
	}
	timer := time.AfterFunc(stopMax, func() { _ = s.cmd.Process.Kill() })
	<-s.done
	timer.Stop()
	if s.dir != "" {
		_ = os.RemoveAll(s.dir) // nothing of value
	}
}

// mosquittoConfig opens it to everybody on one port, keeps everything in memory and lifts the limits on queues.
const mosquittoConfig = `listener %s 127.0.0.1
allow_anonymous true
persistence false
max_queued_messages 0
max_queued_bytes 0
max_inflight_messages 0
max_inflight_bytes 0
set_tcp_nodelay true
log_dest none
`

// findMosquitto is the installed program; Debian puts it where only root's path leads.
func findMosquitto(program string) (string, error) {
	if program != "" {
		return program, nil
	}
	if path, err := exec.LookPath("mosquitto"); err == nil {
		return path, nil
	}
	const sbin = "/usr/sbin/mosquitto"
	if _, err := os.Stat(sbin); err != nil {
		return "", errors.New("mosquitto is not installed (Debian: apt-get install mosquitto)")
	}
	return sbin, nil
}

func startMosquitto(ctx context.Context, program string) (*server, error) {
	path, err := findMosquitto(program)
	if err != nil {
		return nil, err
	}
	probe, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := probe.Addr().String()
	if err := probe.Close(); err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "compare-mosquitto-")
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "mosquitto.conf")
	// It gives up root's rights when it starts, and reads the file before.
	if err := os.WriteFile(config, fmt.Appendf(nil, mosquittoConfig, port), 0o644); err != nil {
		return nil, err
	}
	s := &server{cmd: exec.Command(path, "-c", config), addr: addr, dir: dir}
	if err := s.run(); err != nil {
		return nil, err
	}
	for until := time.Now().Add(readyMax); time.Now().Before(until) && ctx.Err() == nil; {
		if nc, err := net.Dial("tcp", addr); err == nil {
			_ = nc.Close()
			return s, nil
		}
		select {
		case <-s.done:
			s.stop()
			return nil, errors.New("mosquitto ended before it was ready")
		case <-time.After(20 * time.Millisecond):
		}
	}
	s.stop()
	return nil, errors.New("mosquitto was not ready in time")
}

// mosquittoVersion reads the first line of its help, which is all it says.
func mosquittoVersion(ctx context.Context, program string) (string, error) {
	path, err := findMosquitto(program)
	if err != nil {
		return "", err
	}
	text, _ := exec.CommandContext(ctx, path, "-h").Output() // the status of the help is not zero
	first, _, _ := strings.Cut(string(text), "\n")
	return strings.Replace(strings.TrimSpace(first), " version", "", 1), nil
}

// library is the version of a library a program was built with.
func library(program, path, name string) (string, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return "", err
	}
	for _, m := range info.Deps {
		if m.Path == path {
			return name + " " + m.Version, nil
		}
	}
	return "", fmt.Errorf("%s was built without %s", filepath.Base(program), path)
}
