package conn

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"holdfast/codec"
)

// Two servers never share a port silently.
func TestAddressInUseIsAnError(t *testing.T) {
	s := start(t, Config{}, newRecorder())
	other, err := New(Config{Addr: s.Addr().String(), Auth: NoAuth{}, Log: quiet()}, newRecorder())
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Fatalf("got %v", err)
	}
	if err := other.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// Stop says goodbye to everybody, ends every session once, and nothing works on a session afterwards.
func TestStopSaysGoodbye(t *testing.T) {
	r := newRecorder()
	sessions := make(chan *Session, 50)
	r.login = func(s *Session, _ *codec.Connect, _ Identity) { s.Open(nil, welcome(s)); sessions <- s }
	s := start(t, Config{Loops: 2}, r)
	var peers []*peer
	for range 50 {
		peers = append(peers, dial(t, s).login("alice"))
	}
	silent := dial(t, s)
	eventually(t, "the silent one", func() bool { return s.Stats().Conns == 51 })
	done := make(chan struct{})
	go func() { defer close(done); stop(t, s) }()
	for _, p := range append(peers, silent) {
		p.expectClose(codec.CodeGoingAway)
		p.Close()
	}
	<-done
	r.wait(t, "every end", func() bool { return len(r.closings) == 50 })
	for range 50 {
		session := <-sessions
		if session.Send([]byte("x")) || session.SendControl([]byte("x")) || session.Open(nil, nil) || session.Unsent() != 0 {
			t.Fatal("a stopped session takes frames")
		}
		session.Close(codec.CodeInternal, "late", 0)
	}
	if _, err := net.Dial("tcp", s.Addr().String()); err == nil {
		t.Fatal("a stopped server takes connections")
	}
}

// Draining: new connections are sent away, those that are there go on.
func TestDrainSendsOnlyNewConnectionsAway(t *testing.T) {
	s := start(t, Config{}, newRecorder())
	var peers []*peer
	for range 30 {
		peers = append(peers, dial(t, s).login("alice"))
	}
	s.Drain()
	for _, p := range peers {
		p.send(codec.AppendPing(nil, nil))
		p.expect(codec.TypePong)
	}
	dial(t, s).expectClose(codec.CodeGoingAway)
}

// Over the limit a connection learns why and when to come back; when one leaves, another gets in.
func TestConnectionLimit(t *testing.T) {
	s := start(t, Config{ConnsMax: 3}, newRecorder())
	first := dial(t, s).login("a")
	dial(t, s).login("b")
	dial(t, s).login("c")
	for range 20 {
		if c := dial(t, s).expectClose(codec.CodeOverloaded); c.RetryAfterMs < 1000 {
			t.Fatalf("come back after %d ms", c.RetryAfterMs)
		}
	}
	first.Close()
	eventually(t, "a free place", func() bool { return s.Stats().Conns == 2 })
	dial(t, s).login("d")
	if st := s.Stats(); st.RefusedConns != 20 || st.Accepts != 4 {
		t.Fatalf("%+v", st)
	}
}

func TestConfigNamesTheBrokenRelation(t *testing.T) {
	for text, cfg := range map[string]Config{
		"no authenticator":             {},
		"login timeout must be":        {Auth: NoAuth{}, LoginTimeout: -1},
		"keepalive min":                {Auth: NoAuth{}, KeepaliveMin: 2 * time.Minute},
		"over the protocol's":          {Auth: NoAuth{}, FrameBytesMax: 2 << 20},
		"outbox high bytes 10 must be": {Auth: NoAuth{}, OutboxHighBytes: 10, OutboxLowBytes: 20},
		"room for two frames":          {Auth: NoAuth{}, OutboxHardBytes: 1},
		"over 1 GiB":                   {Auth: NoAuth{}, OutboxHardBytes: 1 << 31},
		"files reserve":                {Auth: NoAuth{}, FilesReserve: 1 << 40},
	} {
		if _, err := New(cfg, newRecorder()); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("want %q, got %v", text, err)
		}
	}
}

func TestMetricsAreWritten(t *testing.T) {
	set := metrics.NewSet()
	s := start(t, Config{Metrics: set}, newRecorder())
	p := dial(t, s).login("alice")
	p.send(connect("again", "phone"))
	p.expectClose(codec.CodeUnexpectedFrame)
	dial(t, s).login("bob")
	var b bytes.Buffer
	set.WritePrometheus(&b)
	for _, line := range []string{
		"holdfast_conn_logins_total 2", "holdfast_conn_frames_in_total 3",
		`holdfast_conn_closes_total{code="unexpected_frame"} 1`,
	} {
		if !strings.Contains(b.String(), line+"\n") {
			t.Errorf("%q is not in\n%s", line, b.String())
		}
	}
}

// limited is a server in a process of its own whose descriptor limit is small.
type limited struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
	addr  string
}

func startLimited(t *testing.T, files int, mode string) *limited {
	t.Helper()
	cmd := exec.Command("sh", "-c", fmt.Sprintf("ulimit -n %d; exec %q", files, os.Args[0]))
	cmd.Env = append(os.Environ(), "HOLDFAST_TEST_LIMITED="+mode)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l := &limited{t: t, cmd: cmd, in: in, lines: bufio.NewScanner(out)}
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	l.addr = l.line()
	return l
}

func (l *limited) line() string {
	l.t.Helper()
	if !l.lines.Scan() {
		l.t.Fatal("the limited server ended")
	}
	return l.lines.Text()
}

func (l *limited) files() int {
	l.t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", l.cmd.Process.Pid))
	if err != nil {
		l.t.Fatal(err)
	}
	return len(list)
}

func (l *limited) dial() *peer {
	l.t.Helper()
	c, err := net.Dial("tcp", l.addr)
	if err != nil {
		l.t.Fatal(err)
	}
	return &peer{t: l.t, TCPConn: c.(*net.TCPConn), r: bufio.NewReader(c)}
}

// tryLogin reports whether the server took p in; otherwise p is closed.
func (p *peer) tryLogin() bool {
	_, _ = p.Write(connect("alice", "phone"))
	f, err := p.next()
	if err == nil && f.Type == codec.TypeWelcome {
		return true
	}
	p.Close()
	return false
}

// runLimited is what the child process does: serve until standard input ends. Mode "hog" has it use up descriptors of its own.
func runLimited(mode string) {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s, err := New(Config{Addr: "127.0.0.1:0", Auth: NoAuth{}, FilesReserve: 40, Log: quiet(), Loops: 2}, newRecorder())
	if err != nil {
		fail(err)
	}
	if err := s.Start(); err != nil {
		fail(err)
	}
	var hogged []*os.File
	for hog := map[string]int{"hog": 60, "hog all": 10_000}[mode]; hog > 0; hog-- {
		f, err := os.Open("/dev/null")
		if err != nil {
			break
		}
		hogged = append(hogged, f)
	}
	fmt.Println(s.Addr())
	if mode == "hog all" {
		fmt.Println("ended:", errors.Is(<-s.Err(), ErrEnded))
	} else if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		fail(err)
	}
	if err := s.Stop(context.Background()); err != nil {
		fail(err)
	}
	for _, f := range hogged {
		f.Close()
	}
	fmt.Println("stopped")
}

// J5: at the descriptor limit those who are in stay in, the others are refused, the engine lives, no descriptor is lost, and who
// comes after others have left gets in; also when the process uses more descriptors than the reserve expects.
func TestJ5DescriptorLimit(t *testing.T) {
	for _, mode := range []string{"plain", "hog"} {
		t.Run(mode, func(t *testing.T) {
			l := startLimited(t, 160, mode)
			first := l.dial()
			if !first.tryLogin() {
				t.Fatal("the first connection was refused")
			}
			in := []*peer{first}
			idle := l.files() - 1 // counted only now, since the loops open theirs behind the first line of output
			defer func() {
				for _, p := range in {
					p.Close()
				}
			}()
			for range 250 {
				if p := l.dial(); p.tryLogin() {
					in = append(in, p)
				}
			}
			if len(in) < 40 || len(in) > 120 {
				t.Fatalf("%d connections taken with 160 descriptors", len(in))
			}
			for range 3000 {
				c, err := net.Dial("tcp", l.addr)
				if err != nil {
					t.Fatal(err)
				}
				c.Close()
			}
			for _, p := range in {
				p.send(codec.AppendPing(nil, nil))
				p.expect(codec.TypePong)
			}
			for _, p := range in[30:] {
				p.Close()
			}
			in = in[:30]
			eventually(t, "a place for a newcomer", func() bool {
				p := l.dial()
				if p.tryLogin() {
					in = append(in, p)
					return true
				}
				return false
			})
			for _, p := range in {
				p.Close()
			}
			eventually(t, fmt.Sprintf("%d descriptors, now %d", idle, l.files()), func() bool { return l.files() <= idle })
			l.in.Close()
			if got := l.line(); got != "stopped" {
				t.Fatalf("the server said %q", got)
			}
		})
	}
}

// When the process leaves the server no descriptor at all, the end of the event loops is told, not hidden.
func TestUnexpectedEndIsTold(t *testing.T) {
	l := startLimited(t, 100, "hog all")
	p := l.dial()
	defer p.Close()
	if got := l.line(); got != "ended: true" {
		t.Fatalf("the server said %q", got)
	}
	if got := l.line(); got != "stopped" {
		t.Fatalf("the server said %q", got)
	}
}

// An address without a host takes IPv4, and IPv6 where the machine has it.
func TestWildcardAddress(t *testing.T) {
	s, err := New(Config{Addr: ":0", Auth: NoAuth{}, Log: quiet()}, newRecorder())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	defer stop(t, s)
	hosts := []string{"127.0.0.1"}
	if ln, err := net.Listen("tcp", "[::1]:0"); err == nil {
		ln.Close()
		hosts = append(hosts, "::1")
	}
	for _, host := range hosts {
		c, err := net.Dial("tcp", net.JoinHostPort(host, fmt.Sprint(s.addr.Port)))
		if err != nil {
			t.Fatal(err)
		}
		p := &peer{t: t, TCPConn: c.(*net.TCPConn), r: bufio.NewReader(c)}
		p.login("alice")
		p.Close()
	}
}

// The end sees the peer's address as it dialled.
func TestRemoteAddr(t *testing.T) {
	r := newRecorder()
	_, session, p := opened(t, Config{}, r)
	if got, want := session.RemoteAddr(), p.LocalAddr().String(); got != want {
		t.Fatalf("%s, want %s", got, want)
	}
}
