package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/codec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of a test; nothing waits that long when all is well.
const patience = 10 * time.Second

// fakeServer accepts connections that a test then plays by hand.
type fakeServer struct {
	t     testing.TB
	ln    net.Listener
	conns chan net.Conn
	peers []net.Conn // accepted by the test
}

func newServer(t testing.TB) *fakeServer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &fakeServer{t: t, ln: ln, conns: make(chan net.Conn, 4096)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			nc, err := ln.Accept()
			if err != nil {
				close(s.conns)
				return
			}
			s.conns <- nc
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		<-done
		for nc := range s.conns {
			nc.Close()
		}
	})
	return s
}

func (s *fakeServer) addr() string { return s.ln.Addr().String() }

// accept takes the next connection.
func (s *fakeServer) accept() *peer {
	s.t.Helper()
	select {
	case nc := <-s.conns:
		p := &peer{t: s.t, nc: nc, max: codec.FrameBytesDefault}
		s.peers = append(s.peers, nc)
		s.t.Cleanup(func() { nc.Close() })
		return p
	case <-time.After(patience):
		s.t.Fatal("no connection came")
		return nil
	}
}

// hangUp closes each connection when its client has ended its side, as a server does after CLOSE.
func (s *fakeServer) hangUp() {
	for _, nc := range s.peers {
		go func() {
			nc.SetReadDeadline(time.Now().Add(patience))
			io.Copy(io.Discard, nc)
			nc.Close()
		}()
	}
}

// quiet fails the test when a connection comes within d.
func (s *fakeServer) quiet(d time.Duration) {
	s.t.Helper()
	select {
	case <-s.conns:
		s.t.Fatal("the client came back")
	case <-time.After(d):
	}
}

// login accepts a connection and answers its CONNECT.
func (s *fakeServer) login(change ...func(*codec.Welcome)) (*peer, codec.Connect) {
	s.t.Helper()
	p := s.accept()
	x := p.connect()
	p.welcome(change...)
	return p, x
}

// peer is the server's end of one connection.
type peer struct {
	t   testing.TB
	nc  net.Conn
	buf []byte
	max int
}

func (p *peer) write(frames ...[]byte) {
	p.t.Helper()
	var all []byte
	for _, f := range frames {
		all = append(all, f...)
	}
	if _, err := p.nc.Write(all); err != nil {
		p.t.Fatal("server write:", err)
	}
}

// next reads one frame; its body stays valid. ok is false at the end of the connection.
func (p *peer) next(wait time.Duration) (f codec.Frame, ok bool, err error) {
	deadline := time.Now().Add(wait)
	for {
		f, n, err := codec.Parse(p.buf, p.max)
		if err != nil {
			return f, false, err
		}
		if n > 0 {
			p.buf = p.buf[n:]
			return f, true, nil
		}
		p.nc.SetReadDeadline(deadline)
		chunk := make([]byte, 64<<10)
		n, err = p.nc.Read(chunk)
		p.buf = append(append([]byte(nil), p.buf...), chunk[:n]...)
		if n == 0 {
			return f, false, err
		}
	}
}

// expect reads the next frame, which must be of this type.
func (p *peer) expect(typ codec.Type) codec.Frame {
	p.t.Helper()
	f, ok, err := p.next(patience)
	if !ok || f.Type != typ {
		p.t.Fatalf("want a %s frame, got %s %x (err %v)", typ, f.Type, f.Body, err)
	}
	return f
}

// silent fails when a frame comes within d.
func (p *peer) silent(d time.Duration) {
	p.t.Helper()
	if f, ok, err := p.next(d); ok || !errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Fatalf("want silence, got %s %x (err %v)", f.Type, f.Body, err)
	}
}

// ended fails unless the connection ends.
func (p *peer) ended() {
	p.t.Helper()
	if f, ok, err := p.next(patience); ok || errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Fatalf("want the end of the connection, got %s (err %v)", f.Type, err)
	}
}

func (p *peer) connect() codec.Connect {
	p.t.Helper()
	var x codec.Connect
	if err := codec.DecodeConnect(p.expect(codec.TypeConnect), &x); err != nil {
		p.t.Fatal(err)
	}
	return x
}

const fakeBase = 1000 // the request id base of fake sessions

func (p *peer) welcome(change ...func(*codec.Welcome)) {
	p.t.Helper()
	p.write(codec.AppendWelcome(nil, fakeWelcome(change...)))
}

func fakeWelcome(change ...func(*codec.Welcome)) *codec.Welcome {
	w := &codec.Welcome{SessionID: 7, RequestIDBase: fakeBase, KeepaliveS: 30, AckTimeoutMs: 10000, WindowMsgs: 64,
		WindowBytes: 256 << 10, PublishWindow: 4, FrameBytesMax: codec.FrameBytesDefault, ServerTimeMs: 1700000000000,
		Node: []byte("n1"), User: []byte("alice"), Device: []byte("default")}
	for _, f := range change {
		f(w)
	}
	return w
}

func (p *peer) close(x codec.Close) {
	p.t.Helper()
	p.write(codec.AppendClose(nil, &x))
	p.nc.Close()
}

// push encodes a message whose payload is its id.
func push(number uint64, id string) []byte {
	return codec.AppendPush(nil, &codec.Push{Number: number, Attempt: 1, ServerTimeMs: 1700000000000,
		MessageID: []byte(id), Type: []byte("t"), Payload: []byte(id)})
}

// acks reads ACK frames until they cover n confirmations, and returns them in words.
func (p *peer) acks(n int) []string {
	p.t.Helper()
	var words []string
	upTo := uint64(0)
	for n > 0 {
		x := p.ack()
		words = append(words, ackWords(x))
		switch x.Kind {
		case codec.AckUpTo:
			n -= int(x.From - upTo) // tests that use it confirm from 1 on
			upTo = x.From
		case codec.AckMessageID:
			n--
		default:
			for r := range x.Ranges {
				n -= int(r.Count)
				upTo = max(upTo, r.From+r.Count-1)
			}
		}
	}
	return words
}

func (p *peer) ack() *codec.Ack {
	p.t.Helper()
	x := new(codec.Ack)
	if err := codec.DecodeAck(p.expect(codec.TypeAck), x); err != nil {
		p.t.Fatal(err)
	}
	return x
}

// ackWords shows an ACK as "processed 3", "processed 1-3,5", "processed <=9" or "processed id m1".
func ackWords(x *codec.Ack) string {
	switch x.Kind {
	case codec.AckUpTo:
		return fmt.Sprintf("%s <=%d", x.Level, x.From)
	case codec.AckMessageID:
		return fmt.Sprintf("%s id %s", x.Level, x.MessageID)
	}
	var parts []string
	for r := range x.Ranges {
		if r.Count == 1 {
			parts = append(parts, fmt.Sprint(r.From))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", r.From, r.From+r.Count-1))
		}
	}
	return fmt.Sprintf("%s %s", x.Level, strings.Join(parts, ","))
}

func (p *peer) nack() codec.Nack {
	p.t.Helper()
	var x codec.Nack
	if err := codec.DecodeNack(p.expect(codec.TypeNack), &x); err != nil {
		p.t.Fatal(err)
	}
	return x
}

// publish reads a PUBLISH frame and its items' ids.
func (p *peer) publish() (number uint64, ids []string) {
	p.t.Helper()
	var x codec.Publish
	if err := codec.DecodePublish(p.expect(codec.TypePublish), &x); err != nil {
		p.t.Fatal(err)
	}
	var it codec.PublishItem
	for {
		ok, err := x.Next(&it)
		if err != nil {
			p.t.Fatal(err)
		}
		if !ok {
			return x.Number, ids
		}
		ids = append(ids, string(it.MessageID))
	}
}

func (p *peer) published(number uint64, results ...codec.ItemResult) {
	p.t.Helper()
	var w codec.PublishedWriter
	w.Reset(number)
	for i := range results {
		w.Add(&results[i])
	}
	p.write(w.AppendTo(nil))
}

func (p *peer) allAccepted(number uint64, n int) {
	p.t.Helper()
	p.write(codec.AppendPublished(nil, &codec.Published{Number: number, Count: uint64(n), AllAccepted: true}))
}

// recorder is a handler that keeps what it got.
type recorder struct {
	mu  sync.Mutex
	got []*Message
	ch  chan *Message
}

func newRecorder() *recorder { return &recorder{ch: make(chan *Message, 10000)} }

func (r *recorder) handle(_ context.Context, m *Message) error {
	r.mu.Lock()
	r.got = append(r.got, m)
	r.mu.Unlock()
	r.ch <- m
	return nil
}

func (r *recorder) next(t testing.TB) *Message {
	t.Helper()
	return receive(t, r.ch)
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.got)
}

// receive takes the next value of a channel, within patience.
func receive[T any](t testing.TB, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

// start dials in the background, since the test plays the server, and gives the client when it is in.
func start(t testing.TB, s *fakeServer, o Options) func() *Client {
	t.Helper()
	if o.Addrs == nil {
		o.Addrs = []string{s.addr()}
	}
	if o.User == "" {
		o.User = "alice"
	}
	if o.BackoffBase == 0 {
		o.BackoffBase, o.BackoffMax = time.Millisecond, 5*time.Millisecond
	}
	type outcome struct {
		c   *Client
		err error
	}
	ch := make(chan outcome, 1)
	go func() {
		c, err := Dial(context.Background(), o)
		ch <- outcome{c, err}
	}()
	return func() *Client {
		t.Helper()
		out := receive(t, ch)
		if out.err != nil {
			t.Fatal("dial:", out.err)
		}
		t.Cleanup(func() {
			s.hangUp()
			out.c.Close()
		})
		return out.c
	}
}

// pair is a logged-in client with its server's end.
func pair(t testing.TB, o Options, change ...func(*codec.Welcome)) (*fakeServer, *peer, *Client) {
	t.Helper()
	s := newServer(t)
	client := start(t, s, o)
	p, _ := s.login(change...)
	return s, p, client()
}

// eventually polls a condition that no signal tells.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
	}
}
