package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"holdfast/codec"
)

// device is a test client that controls every read, ACK and close. It is used from one goroutine.
type device struct {
	t       *testing.T
	conn    net.Conn
	buf     []byte // unparsed input
	used    int    // bytes of buf that the last frame took
	welcome codec.Welcome
}

// message is one received PUSH, with its bytes copied.
type message struct {
	Number, Attempt uint64
	ID, Text, Type  string
	Conversation    string
	Redelivered     bool
	FromBacklog     bool
	NoAck           bool
	Priority        codec.Priority
}

// closedError is a CLOSE frame from the server.
type closedError struct {
	Code         codec.Code
	RetryAfterMs uint64
	Reason       string
}

func (e closedError) Error() string {
	return fmt.Sprintf("closed by the server: %s (%s)", e.Code, e.Reason)
}

// errQuiet is returned when nothing came in time.
var errQuiet = errors.New("nothing came in time")

// dial connects without logging in.
func (s *server) dial() *device {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.tcp)
	if err != nil {
		s.t.Fatal(err)
	}
	d := &device{t: s.t, conn: conn}
	s.t.Cleanup(func() { _ = conn.Close() })
	return d
}

// login connects and logs in; change may alter the CONNECT.
func (s *server) login(user, dev string, change ...func(*codec.Connect)) *device {
	s.t.Helper()
	d := s.dial()
	if err := d.connect(user, dev, change...); err != nil {
		s.t.Fatalf("login of %s/%s: %v", user, dev, err)
	}
	return d
}

func (d *device) connect(user, dev string, change ...func(*codec.Connect)) error {
	c := codec.Connect{Version: codec.Version, KeepaliveS: 60, User: []byte(user), Device: []byte(dev), ClientName: []byte("e2e")}
	for _, f := range change {
		f(&c)
	}
	d.write(codec.AppendConnect(nil, &c))
	f, err := d.frame(10 * time.Second)
	if err != nil {
		return err
	}
	if f.Type != codec.TypeWelcome {
		return fmt.Errorf("frame type %#x instead of WELCOME", f.Type)
	}
	var w codec.Welcome
	if err := codec.DecodeWelcome(f, &w); err != nil {
		return err
	}
	w.Node, w.User, w.Device = append([]byte(nil), w.Node...), append([]byte(nil), w.User...), append([]byte(nil), w.Device...)
	d.welcome = w
	return nil
}

// write sends bytes; a broken connection is seen by the next read.
func (d *device) write(b []byte) {
	_, _ = d.conn.Write(b)
}

// frame returns the next frame; its body is valid until the next call. A CLOSE comes as closedError.
func (d *device) frame(limit time.Duration) (codec.Frame, error) {
	d.buf = append(d.buf[:0], d.buf[d.used:]...)
	d.used = 0
	end := time.Now().Add(limit)
	for {
		f, n, err := codec.Parse(d.buf, codec.FrameBytesMax)
		if err != nil {
			return f, err
		}
		if n > 0 {
			d.used = n
			if f.Type != codec.TypeClose {
				return f, nil
			}
			var c codec.Close
			if err := codec.DecodeClose(f, &c); err != nil {
				return f, err
			}
			return f, closedError{Code: c.Code, RetryAfterMs: c.RetryAfterMs, Reason: string(c.Reason)}
		}
		_ = d.conn.SetReadDeadline(end)
		var chunk [16 << 10]byte
		got, err := d.conn.Read(chunk[:])
		d.buf = append(d.buf, chunk[:got]...)
		if errors.Is(err, os.ErrDeadlineExceeded) && got == 0 {
			return codec.Frame{}, errQuiet
		}
		if err != nil && got == 0 {
			return codec.Frame{}, err
		}
	}
}

// push returns the next PUSH, passing over PONG and GOAWAY.
func (d *device) push(limit time.Duration) (message, error) {
	end := time.Now().Add(limit)
	for {
		f, err := d.frame(max(time.Until(end), time.Millisecond))
		if err != nil {
			return message{}, err
		}
		if f.Type != codec.TypePush {
			continue
		}
		var p codec.Push
		if err := codec.DecodePush(f, &p); err != nil {
			return message{}, err
		}
		return message{Number: p.Number, Attempt: p.Attempt, ID: string(p.MessageID), Text: string(p.Payload), Type: string(p.Type),
			Conversation: string(p.Conversation), Redelivered: p.Redelivered, FromBacklog: p.FromBacklog, NoAck: p.NoAck, Priority: p.Priority}, nil
	}
}

// want returns the next PUSH or fails the test.
func (d *device) want(limit time.Duration) message {
	d.t.Helper()
	m, err := d.push(limit)
	if err != nil {
		d.t.Fatalf("waiting for a message: %v", err)
	}
	return m
}

// wantTexts reads and ACKs messages until texts have come in this order.
func (d *device) wantTexts(limit time.Duration, texts ...string) {
	d.t.Helper()
	for _, text := range texts {
		m := d.want(limit)
		if m.Text != text {
			d.t.Fatalf("message %q came where %q was due", m.Text, text)
		}
		d.ack(m)
	}
}

// quiet fails the test if a PUSH comes within the span.
func (d *device) quiet(span time.Duration) {
	d.t.Helper()
	m, err := d.push(span)
	if err == nil {
		d.t.Fatalf("message %q (attempt %d) came though nothing was due", m.Text, m.Attempt)
	}
	if !errors.Is(err, errQuiet) {
		d.t.Fatalf("the connection ended: %v", err)
	}
}

// wantClose reads until the server's CLOSE and checks its code.
func (d *device) wantClose(limit time.Duration, code codec.Code) closedError {
	d.t.Helper()
	end := time.Now().Add(limit)
	for {
		_, err := d.push(max(time.Until(end), time.Millisecond))
		var c closedError
		switch {
		case err == nil:
			continue
		case errors.As(err, &c):
			if c.Code != code {
				d.t.Fatalf("closed with %s where %s was due", c.Code, code)
			}
			return c
		default:
			d.t.Fatalf("waiting for CLOSE %s: %v", code, err)
		}
	}
}

func (d *device) ack(m message)    { d.write(codec.AppendAckOne(nil, m.Number, codec.LevelProcessed)) }
func (d *device) ackUpTo(n uint64) { d.write(codec.AppendAckUpTo(nil, n, codec.LevelProcessed)) }
func (d *device) ackID(id string) {
	d.write(codec.AppendAckMessageID(nil, []byte(id), codec.LevelProcessed))
}
func (d *device) ping() { d.write(codec.AppendPing(nil, nil)) }
func (d *device) fin()  { _ = d.conn.Close() }
func (d *device) logout() {
	d.write(codec.AppendClose(nil, &codec.Close{Code: codec.CodeNormal}))
	_ = d.conn.Close()
}

// reset closes with RST instead of FIN.
func (d *device) reset() {
	if tcp, ok := d.conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = d.conn.Close()
}

func dialTimeout(addr string) (net.Conn, error) { return net.DialTimeout("tcp", addr, 2*time.Second) }
