package conn

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/codec"
)

// patience is how long a test waits for what must happen.
const patience = 10 * time.Second

func TestMain(m *testing.M) {
	if limited := os.Getenv("HOLDFAST_TEST_LIMITED"); limited != "" {
		runLimited(limited) // a child of TestJ5
		return
	}
	goleak.VerifyTestMain(m,
		// gnet's worker pool is a package variable that lives as long as the process.
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"),
	)
}

// recorder is a Handler that notes what it is told. The functions, when set, decide.
type recorder struct {
	login   func(s *Session, c *codec.Connect, id Identity)
	frame   func(s *Session, f codec.Frame) (codec.Code, string)
	drained func(s *Session)
	closed  func(s *Session)

	mu       sync.Mutex
	frames   []string
	logins   int
	closings map[*Session]int
	users    map[*Session]string
	changed  *sync.Cond
}

func newRecorder() *recorder {
	r := &recorder{closings: make(map[*Session]int), users: make(map[*Session]string)}
	r.changed = sync.NewCond(&r.mu)
	return r
}

func welcome(s *Session) []byte {
	return codec.AppendWelcome(nil, &codec.Welcome{SessionID: s.ID(), KeepaliveS: s.KeepaliveS()})
}

func (r *recorder) Login(s *Session, c *codec.Connect, id Identity) {
	r.mu.Lock()
	r.logins++
	r.users[s] = id.User
	r.changed.Broadcast()
	r.mu.Unlock()
	if r.login != nil {
		r.login(s, c, id)
		return
	}
	s.Open(r, welcome(s))
}

// user is who logged in.
func (r *recorder) user(s *Session) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.users[s]
}

func (r *recorder) Frame(s *Session, f codec.Frame) (codec.Code, string) {
	r.mu.Lock()
	r.frames = append(r.frames, frameText(f))
	r.changed.Broadcast()
	r.mu.Unlock()
	if r.frame != nil {
		return r.frame(s, f)
	}
	return codec.CodeNone, ""
}

func frameText(f codec.Frame) string { return fmt.Sprintf("%d/%d %x", f.Type, f.Flags, f.Body) }

func (r *recorder) Closed(s *Session) {
	r.mu.Lock()
	r.closings[s]++
	r.changed.Broadcast()
	r.mu.Unlock()
	if r.closed != nil {
		r.closed(s)
	}
}

func (r *recorder) Drained(s *Session) {
	if r.drained != nil {
		r.drained(s)
	}
}

// wait blocks until ok, called under the lock, holds.
func (r *recorder) wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	timer := time.AfterFunc(patience, func() { r.changed.Broadcast() })
	defer timer.Stop()
	deadline := time.Now().Add(patience)
	r.mu.Lock()
	defer r.mu.Unlock()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s: %d logins, %d frames, %d closed", what, r.logins, len(r.frames), len(r.closings))
		}
		r.changed.Wait()
	}
}

func (r *recorder) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.frames...)
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// start runs a server for the test.
func start(t testing.TB, cfg Config, h Handler) *Server {
	t.Helper()
	cfg.Addr = "127.0.0.1:0"
	if cfg.Auth == nil {
		cfg.Auth = NoAuth{}
	}
	if cfg.Log == nil {
		cfg.Log = quiet()
	}
	s, err := New(cfg, h)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	return s
}

func stop(t testing.TB, s *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		t.Errorf("stopping: %v", err)
	}
	select {
	case err := <-s.Err():
		t.Errorf("the event loops ended by themselves: %v", err)
	default:
	}
}

// peer is a client made of a plain socket.
type peer struct {
	t testing.TB
	*net.TCPConn
	r   *bufio.Reader
	buf []byte
}

func dial(t testing.TB, s *Server) *peer {
	t.Helper()
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &peer{t: t, TCPConn: c.(*net.TCPConn), r: bufio.NewReader(c)}
}

func (p *peer) send(data []byte) {
	p.t.Helper()
	if _, err := p.Write(data); err != nil {
		p.t.Fatalf("sending: %v", err)
	}
}

// next reads one frame; its body is valid until the following call.
func (p *peer) next() (codec.Frame, error) {
	if err := p.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return codec.Frame{}, err
	}
	for {
		f, n, err := codec.Parse(p.buf, codec.FrameBytesMax)
		if err != nil {
			return f, err
		}
		if n > 0 {
			f.Body = append([]byte(nil), f.Body...)
			p.buf = p.buf[n:]
			return f, nil
		}
		b, err := p.r.ReadByte()
		if err != nil {
			return f, err
		}
		more, _ := p.r.Peek(p.r.Buffered())
		p.buf = append(append(p.buf, b), more...)
		if _, err := p.r.Discard(len(more)); err != nil {
			return f, err
		}
	}
}

func (p *peer) expect(want codec.Type) codec.Frame {
	p.t.Helper()
	f, err := p.next()
	if err != nil {
		p.t.Fatalf("waiting for %v: %v", want, err)
	}
	if f.Type != want {
		p.t.Fatalf("got %v %x, want %v", f.Type, f.Body, want)
	}
	return f
}

// expectClose reads up to the CLOSE frame, checks its code and that nothing but the end of the stream follows.
func (p *peer) expectClose(want codec.Code) codec.Close {
	p.t.Helper()
	for {
		f, err := p.next()
		if err != nil {
			p.t.Fatalf("waiting for CLOSE %v: %v", want, err)
		}
		if f.Type != codec.TypeClose {
			continue
		}
		var c codec.Close
		if err := codec.DecodeClose(f, &c); err != nil {
			p.t.Fatal(err)
		}
		if c.Code != want {
			p.t.Fatalf("closed with %v %q, want %v", c.Code, c.Reason, want)
		}
		if f, err := p.next(); !errors.Is(err, io.EOF) {
			p.t.Fatalf("behind CLOSE: %v, %v", f.Type, err)
		}
		return c
	}
}

func connect(user, device string) []byte {
	return codec.AppendConnect(nil, &codec.Connect{Version: codec.Version, User: []byte(user), Device: []byte(device)})
}

// login logs in and reads the WELCOME.
func (p *peer) login(user string) *peer {
	p.t.Helper()
	p.send(connect(user, "phone"))
	p.expect(codec.TypeWelcome)
	return p
}

// eventually polls for what has no signal.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
