package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/codec"
)

// liar is a small server that accepts everything at once, keeps nothing, and spoils each tenth message in its own way.
type liar struct {
	t    *testing.T
	ln   net.Listener
	lie  string
	work sync.WaitGroup

	// Guarded by mu.
	mu    sync.Mutex
	all   []net.Conn
	users map[string]*liarConn
	held  map[string][]byte // a payload that the user's next message overtakes
	count int
}

// liarConn is a receiver. Guarded by the liar's mu.
type liarConn struct {
	nc     net.Conn
	number uint64
}

func startLiar(t *testing.T, lie string) *liar {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &liar{t: t, ln: ln, lie: lie, users: map[string]*liarConn{}, held: map[string][]byte{}}
	l.work.Go(l.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		l.mu.Lock()
		for _, nc := range l.all {
			_ = nc.Close()
		}
		l.mu.Unlock()
		l.work.Wait()
	})
	return l
}

func (l *liar) accept() {
	for {
		nc, err := l.ln.Accept()
		if err != nil {
			return
		}
		l.mu.Lock()
		l.all = append(l.all, nc)
		l.mu.Unlock()
		l.work.Go(func() { l.serve(nc) })
	}
}

func (l *liar) serve(nc net.Conn) {
	defer nc.Close()
	in := bufio.NewReaderSize(nc, 1<<20)
	for {
		f, n, err := peekFrame(in)
		if err != nil {
			return
		}
		switch f.Type {
		case codec.TypeConnect:
			l.welcome(nc, f)
		case codec.TypePublish:
			l.published(nc, f)
		case codec.TypePing:
			_, _ = nc.Write(codec.AppendPong(nil, nil))
		}
		if _, err := in.Discard(n); err != nil {
			return
		}
	}
}

// peekFrame waits for a whole frame.
func peekFrame(in *bufio.Reader) (codec.Frame, int, error) {
	for want := 1; ; want = in.Buffered() + 1 {
		if _, err := in.Peek(want); err != nil {
			return codec.Frame{}, 0, err
		}
		b, _ := in.Peek(in.Buffered()) // all of them are there
		if f, n, err := codec.Parse(b, codec.FrameBytesMax); n > 0 || err != nil {
			return f, n, err
		}
	}
}

func (l *liar) welcome(nc net.Conn, f codec.Frame) {
	var x codec.Connect
	if err := codec.DecodeConnect(f, &x); err != nil {
		l.t.Error(err)
	}
	if x.Capabilities&codec.CapPublisher == 0 {
		l.mu.Lock()
		l.users[string(x.User)] = &liarConn{nc: nc}
		l.mu.Unlock()
	}
	_, _ = nc.Write(codec.AppendWelcome(nil, &codec.Welcome{
		SessionID: 1, RequestIDBase: 1, KeepaliveS: 60, AckTimeoutMs: 10_000, WindowMsgs: 1000, WindowBytes: 1 << 20, PublishWindow: 100,
		FrameBytesMax: codec.FrameBytesMax, Node: []byte("liar"), User: x.User, Device: x.Device,
	}))
}

func (l *liar) published(nc net.Conn, f codec.Frame) {
	var x codec.Publish
	if err := codec.DecodePublish(f, &x); err != nil {
		l.t.Error(err)
	}
	count := x.Count
	l.mu.Lock()
	var it codec.PublishItem
	for {
		ok, err := x.Next(&it)
		if err != nil || !ok {
			break
		}
		l.deliverLocked(&it)
	}
	l.mu.Unlock()
	_, _ = nc.Write(codec.AppendPublished(nil, &codec.Published{Number: x.Number, Count: count, AllAccepted: true}))
}

// deliverLocked sends a message on, or does what this server is for.
func (l *liar) deliverLocked(it *codec.PublishItem) {
	user := string(it.User)
	l.count++
	spoil := l.count%10 == 0
	if held := l.held[user]; held != nil {
		l.pushLocked(user, it.MessageID, it.Payload)
		l.pushLocked(user, append([]byte("held-"), it.MessageID...), held)
		delete(l.held, user)
		return
	}
	switch {
	case spoil && l.lie == "lost":
	case spoil && l.lie == "duplicated": // under another id: the client cannot recognise it
		l.pushLocked(user, it.MessageID, it.Payload)
		l.pushLocked(user, append([]byte("again-"), it.MessageID...), it.Payload)
	case spoil && l.lie == "out of order" && l.count < 200: // later there may be no message to overtake it
		l.held[user] = append([]byte(nil), it.Payload...)
	case spoil && l.lie == "at the wrong user":
		for other := range l.users {
			if other != user {
				l.pushLocked(other, it.MessageID, it.Payload)
				break
			}
		}
		l.pushLocked(user, it.MessageID, it.Payload)
	default:
		l.pushLocked(user, it.MessageID, it.Payload)
	}
}

func (l *liar) pushLocked(user string, id, payload []byte) {
	c := l.users[user]
	if c == nil {
		return
	}
	c.number++
	_, _ = c.nc.Write(codec.AppendPush(nil, &codec.Push{Number: c.number, Attempt: 1, MessageID: id, Payload: payload}))
}

// TestTheBinaryFindsEachLie runs "holdfast bench verify" against a server that lies: the verdict must name the lie, and the exit
// status must be 3; and 0 for one that does not.
func TestTheBinaryFindsEachLie(t *testing.T) {
	for _, processes := range []string{"1", "2"} {
		for _, lie := range []string{"", "lost", "duplicated", "out of order", "at the wrong user"} {
			t.Run(processes+" "+lie, func(t *testing.T) {
				t.Parallel()
				l := startLiar(t, lie)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, gatewayBinary, "bench", "verify", "--server", l.ln.Addr().String(), "--api", "127.0.0.1:1", "--json",
					"--users", "10", "--rate", "500", "--warm-up", "100ms", "--duration", "600ms", "--settle-max", "2s",
					"--kill-every", "0", "--lost-acks", "0", "--doubled-acks", "0", "--processes", processes)
				var errors strings.Builder
				cmd.Stderr = &errors
				line, err := cmd.Output()
				if want := map[bool]int{true: 0, false: 3}[lie == ""]; exitOf(err) != want {
					t.Fatalf("exit status %d, want %d: %v\n%s%s", exitOf(err), want, err, line, errors.String())
				}
				var report struct {
					Tally   Tally
					Verdict Verdict
				}
				if err := json.Unmarshal(line, &report); err != nil {
					t.Fatal(err)
				}
				found := map[string]int64{
					"lost": report.Tally.Lost, "duplicated": report.Tally.Duplicated, "out of order": report.Tally.Disordered,
					"at the wrong user": report.Tally.WrongUser,
				}
				for what, n := range found {
					if (n > 0) != (what == lie) {
						t.Errorf("%d %s, verdict %+v", n, what, report.Verdict)
					}
				}
				if report.Verdict.Pass != (lie == "") || report.Tally.Received == 0 {
					t.Errorf("verdict %+v, tally %+v", report.Verdict, report.Tally)
				}
			})
		}
	}
}

// exitOf is the exit status behind an error of a command.
func exitOf(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	default:
		return -1
	}
}
