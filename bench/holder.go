package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// order tells a holder to hold more connections: those of users from to from+count-1.
type order struct {
	Addr      string        `json:"addr"`
	From      int           `json:"from"`
	Count     int           `json:"count"`
	Keepalive time.Duration `json:"keepalive_ns"`
	// MQTT: Addr is a broker; nil: it is a gateway.
	MQTT *MQTTLogin `json:"mqtt,omitempty"`
	// PerSource is how many connections share a source address; beyond it the next address of 127.0.0.0/8 is used. 0: no limit.
	PerSource int `json:"per_source,omitempty"`
}

// holding is a holder's answer: what it holds, and how many connections were lost since they were made.
type holding struct {
	Held  int    `json:"held"`
	Lost  int    `json:"lost"`
	Error string `json:"error,omitempty"` // the first login that failed
}

// holder holds idle connections, in this process or in another.
type holder interface {
	grow(ctx context.Context, o order) (holding, error) // an order of count 0 only asks
	close()
}

// localHolder holds them in this process.
type localHolder struct {
	token func(user string, publisher bool) (string, error)
	crowd *leanCrowd // nil before the first order that names a user
}

// grow logs in, dialsAtOnce at a time.
func (h *localHolder) grow(ctx context.Context, o order) (holding, error) {
	if o.Count == 0 {
		return h.holding(nil), nil
	}
	if h.crowd == nil {
		began := time.Now()
		crowd, err := newLeanCrowd(leanOptions{
			addr: o.Addr, name: userName, keepalive: o.Keepalive,
			speech: leanTo(o.MQTT, userName, leanHoldfast{keepalive: o.Keepalive, token: h.token}),
			source: func(user int) net.IP { return source(o, user) },
			now:    func() int64 { return int64(time.Since(began)) },
		})
		if err != nil {
			return holding{}, err
		}
		h.crowd = crowd
	}
	logins, err := h.crowd.hellos(o.From, o.Count)
	if err != nil {
		return holding{}, err
	}
	return h.holding(h.crowd.login(ctx, logins, dialsAtOnce)), nil
}

// holding counts who is still there.
func (h *localHolder) holding(err error) holding {
	var x holding
	if h.crowd != nil {
		x.Held, x.Lost = int(h.crowd.held.Load()), int(h.crowd.lost.Load())
	}
	if err != nil {
		x.Error = err.Error()
	}
	return x
}

func (h *localHolder) close() {
	if h.crowd != nil {
		h.crowd.close()
	}
}

// source is the address a user's connection comes from; nil: the system's choice.
func source(o order, user int) net.IP {
	host, _, err := net.SplitHostPort(o.Addr)
	if err != nil || o.PerSource <= 0 || user < o.PerSource {
		return nil
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() || ip.To4() == nil {
		return nil
	}
	n := user/o.PerSource + 1
	return net.IPv4(127, 0, byte(n>>8), byte(n)) // the whole of 127.0.0.0/8 is this machine
}

// dialFrom is dialTCP from a source address. The port is chosen when the connection is made, so that one port can serve one
// connection to each target.
func dialFrom(ctx context.Context, addr string, from net.IP) (net.Conn, error) {
	if from == nil {
		return dialTCP(ctx, addr)
	}
	d := net.Dialer{KeepAlive: -1, LocalAddr: &net.TCPAddr{IP: from}, Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		if err := raw.Control(func(fd uintptr) {
			failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
		}); err != nil {
			return err
		}
		return failed
	}}
	return d.DialContext(ctx, "tcp", addr)
}

// portsPerSource is how many connections one source address gets: a fifth of the system's ports. Others use them too, and the kernel
// takes those of one parity first: beyond half of all it looks for a free one by trying, which costs more than a login.
func portsPerSource() int {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0
	}
	var from, to int
	if _, err := fmt.Sscan(string(text), &from, &to); err != nil || to <= from {
		return 0
	}
	return (to - from) / 5
}

// descriptorsReserve are the files a generator needs beside its connections.
const descriptorsReserve = 256

// connectionsMax is how many connections this process may hold.
func connectionsMax() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return max(1, int(min(limit.Cur, 1<<30))-descriptorsReserve)
}

// remoteHolder is a holder in a process of its own, which runs Worker.
type remoteHolder struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// workerBytesMax bounds one line of the talk between generator and worker.
const workerBytesMax = 64 << 10

// startHolder starts a worker process.
func startHolder(command []string) (*remoteHolder, error) {
	if len(command) == 0 {
		return nil, errors.New("more connections than this process may have, and no command for further processes")
	}
	cmd := exec.Command(command[0], command[1:]...) // it ends when its input does
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("starting a further process: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting a further process: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting a further process: %w", err)
	}
	return &remoteHolder{cmd: cmd, in: in, out: bufio.NewReaderSize(out, workerBytesMax)}, nil
}

// grow hands the order over and waits for the answer; when ctx ends before it, the process is killed.
func (h *remoteHolder) grow(ctx context.Context, o order) (holding, error) {
	stop := context.AfterFunc(ctx, func() { _ = h.cmd.Process.Kill() })
	defer stop()
	line, err := json.Marshal(o)
	if err != nil {
		return holding{}, fmt.Errorf("telling a further process: %w", err)
	}
	if _, err := h.in.Write(append(line, '\n')); err != nil {
		return holding{}, fmt.Errorf("telling a further process: %w", err)
	}
	answer, err := h.out.ReadSlice('\n')
	if err != nil {
		return holding{}, fmt.Errorf("hearing from a further process: %w", err)
	}
	var x holding
	if err := json.Unmarshal(answer, &x); err != nil {
		return holding{}, fmt.Errorf("hearing from a further process: %w", err)
	}
	return x, nil
}

// close ends the process by ending its input.
func (h *remoteHolder) close() {
	_ = h.in.Close() // it may be gone already
	timer := time.AfterFunc(stopMax, func() { _ = h.cmd.Process.Kill() })
	_ = h.cmd.Wait() // how it ended does not matter any more
	timer.Stop()
}

// Worker is a further process of the generator: it reads orders from in, one JSON line each, answers each on out, and returns when
// in ends. token signs login tokens; nil: none.
func Worker(ctx context.Context, in io.Reader, out io.Writer, token func(user string, publisher bool) (string, error)) error {
	h := &localHolder{token: token}
	defer h.close()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, workerBytesMax)
	for lines.Scan() {
		if strings.TrimSpace(lines.Text()) == "" {
			continue
		}
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return fmt.Errorf("reading an order: %w", err)
		}
		x, err := h.grow(ctx, o)
		if err != nil {
			return err
		}
		answer, err := json.Marshal(x)
		if err != nil {
			return fmt.Errorf("answering an order: %w", err)
		}
		if _, err := out.Write(append(answer, '\n')); err != nil {
			return fmt.Errorf("answering an order: %w", err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading an order: %w", err)
	}
	return nil
}
