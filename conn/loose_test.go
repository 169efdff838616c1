//go:build linux

package conn

import (
	"testing"

	"github.com/panjf2000/gnet/v2"
	"golang.org/x/sys/unix"

	"holdfast/codec"
)

// buffered is a gnet connection with bytes to read and nothing else.
type buffered struct {
	gnet.Conn
	in []byte
}

func (b *buffered) InboundBuffered() int       { return len(b.in) }
func (b *buffered) Peek(int) ([]byte, error)   { return b.in, nil }
func (b *buffered) Discard(n int) (int, error) { b.in = b.in[n:]; return n, nil }

// counting is a handler that does nothing at no cost.
type counting struct{ frames int }

func (*counting) Login(*Session, *codec.Connect, Identity) {}
func (c *counting) Frame(*Session, codec.Frame) (codec.Code, string) {
	c.frames++
	return codec.CodeNone, ""
}
func (*counting) Closed(*Session)  {}
func (*counting) Drained(*Session) {}

// bench is an open session on one end of a socket pair, without event loops.
func bench(t testing.TB) (l *loop, s *Session, other int, h *counting) {
	t.Helper()
	h = &counting{}
	server, err := New(Config{Auth: NoAuth{}, Log: quiet()}, h)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(pair[0]); unix.Close(pair[1]) })
	l = &loop{server: server}
	l.signal.Store(true) // as if a Run were on its way: the test runs it
	s = &Session{loop: l, conn: &buffered{}, fd: int32(pair[0]), keepaliveS: 60}
	s.state.Store(stateOpen)
	return l, s, pair[1], h
}
