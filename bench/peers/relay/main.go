// Command relay is the floor holdfast is measured against: a bare gnet server that speaks just enough of its protocol to pass messages on,
// and keeps no books. What is published to somebody who is not there, or not acknowledged, is forgotten. What one read brings for a
// client leaves in one write. It prints its address when it is ready, and ends with its standard input.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"

	"github.com/panjf2000/gnet/v2"

	"holdfast/codec"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address of the TCP port")
	each := flag.Bool("each", false, "one write a message, instead of one for all that a read brought a client")
	flag.Parse()
	if err := run(*listen, *each, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "relay:", err)
		os.Exit(1)
	}
}

// relay is the server. There is one event loop, so nothing needs a lock.
type relay struct {
	gnet.BuiltinEventEngine
	each  bool
	ready chan gnet.Engine

	users    map[string]*member
	pending  []*member // with something in out
	sessions uint64
	publish  codec.Publish // kept, so that decoding makes no garbage
	item     codec.PublishItem
}

// member is a logged-in connection.
type member struct {
	conn   gnet.Conn
	user   string // empty: a publisher
	number uint64 // of its last message
	out    []byte
}

// run serves until in ends.
func run(listen string, each bool, in io.Reader, out io.Writer) error {
	// gnet takes no port 0 here, so one is chosen before.
	probe, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	address := probe.Addr().String()
	if err := probe.Close(); err != nil {
		return err
	}
	r := &relay{each: each, ready: make(chan gnet.Engine, 1), users: map[string]*member{}}
	ended := make(chan error, 1)
	go func() {
		ended <- gnet.Run(r, "tcp://"+address, gnet.WithNumEventLoop(1), gnet.WithTCPNoDelay(gnet.TCPNoDelay), gnet.WithReusePort(true),
			gnet.WithLogger(quiet{}))
	}()
	select {
	case engine := <-r.ready:
		if _, err := fmt.Fprintln(out, address); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, in); err != nil {
			return err
		}
		if err := engine.Stop(context.Background()); err != nil {
			return err
		}
		return <-ended
	case err := <-ended:
		return err
	}
}

// quiet is a logger for a program that says nothing unless it ends.
type quiet struct{}

// Debugf drops it.
func (quiet) Debugf(string, ...any) {}

// Infof drops it.
func (quiet) Infof(string, ...any) {}

// Warnf drops it.
func (quiet) Warnf(string, ...any) {}

// Errorf says it.
func (quiet) Errorf(format string, args ...any) { slog.Error(fmt.Sprintf(format, args...)) }

// Fatalf says it; gnet ends by itself then.
func (quiet) Fatalf(format string, args ...any) { slog.Error(fmt.Sprintf(format, args...)) }

// OnBoot tells that the port is open.
func (r *relay) OnBoot(engine gnet.Engine) gnet.Action {
	r.ready <- engine
	return gnet.None
}

// OnClose forgets a connection.
func (r *relay) OnClose(c gnet.Conn, _ error) gnet.Action {
	if m, ok := c.Context().(*member); ok && r.users[m.user] == m {
		delete(r.users, m.user)
	}
	return gnet.None
}

// OnTraffic handles every complete frame of a read, then writes what came of them.
func (r *relay) OnTraffic(c gnet.Conn) gnet.Action {
	buf, err := c.Peek(-1)
	if err != nil {
		return gnet.Close
	}
	action, used := gnet.None, 0
	for action == gnet.None {
		f, n, err := codec.Parse(buf[used:], codec.FrameBytesMax)
		if err != nil {
			action = gnet.Close
			break
		}
		if n == 0 {
			break
		}
		action = r.handle(c, f)
		used += n
	}
	// After the frames were handled: they borrow the bytes. To discard nothing means everything to gnet.
	if used > 0 {
		if _, err := c.Discard(used); err != nil {
			return gnet.Close
		}
	}
	for _, m := range r.pending {
		r.flush(m)
	}
	r.pending = r.pending[:0]
	return action
}

// flush writes what a member has waiting. A member that has left is not in the table any more and must not be written to.
func (r *relay) flush(m *member) {
	if len(m.out) > 0 && (m.user == "" || r.users[m.user] == m) {
		_, _ = m.conn.Write(m.out) // gnet closes a connection that cannot be written to
	}
	m.out = m.out[:0]
}

// queue adds bytes for a member, by way of add.
func (r *relay) queue(m *member, add func(dst []byte) []byte) {
	if len(m.out) == 0 {
		r.pending = append(r.pending, m)
	}
	m.out = add(m.out)
}

func (r *relay) handle(c gnet.Conn, f codec.Frame) gnet.Action {
	m, ok := c.Context().(*member)
	switch {
	case f.Type == codec.TypeConnect && !ok:
		return r.login(c, f)
	case !ok:
		return gnet.Close
	}
	switch f.Type {
	case codec.TypePublish:
		return r.pass(m, f)
	case codec.TypeAck, codec.TypeNack, codec.TypeExtend, codec.TypePong:
		return gnet.None // read, and that is all
	case codec.TypePing:
		data, err := codec.DecodePing(f)
		if err != nil {
			return gnet.Close
		}
		r.queue(m, func(dst []byte) []byte { return codec.AppendPong(dst, data) })
		return gnet.None
	default: // CLOSE, or nothing a client of this load says
		return gnet.Close
	}
}

// login welcomes whoever comes.
func (r *relay) login(c gnet.Conn, f codec.Frame) gnet.Action {
	var x codec.Connect
	if err := codec.DecodeConnect(f, &x); err != nil {
		return gnet.Close
	}
	m := &member{conn: c}
	if x.Capabilities&codec.CapPublisher == 0 {
		m.user = string(x.User)
		r.users[m.user] = m
	}
	c.SetContext(m)
	r.sessions++
	welcome := codec.Welcome{
		SessionID: r.sessions, RequestIDBase: 1 << 32, KeepaliveS: max(x.KeepaliveS, 1), AckTimeoutMs: 10_000, WindowMsgs: 4096,
		WindowBytes: 16 << 20, PublishWindow: 64, FrameBytesMax: codec.FrameBytesMax, Node: []byte("relay"), User: x.User, Device: x.Device,
	}
	r.queue(m, func(dst []byte) []byte { return codec.AppendWelcome(dst, &welcome) })
	return gnet.None
}

// pass hands the messages of a PUBLISH frame on, and answers it.
func (r *relay) pass(publisher *member, f codec.Frame) gnet.Action {
	if err := codec.DecodePublish(f, &r.publish); err != nil {
		return gnet.Close
	}
	answer := codec.Published{Number: r.publish.Number, Count: r.publish.Count, AllAccepted: true}
	for {
		ok, err := r.publish.Next(&r.item)
		if err != nil {
			return gnet.Close
		}
		if !ok {
			break
		}
		m := r.users[string(r.item.User)]
		if m == nil {
			continue // nobody keeps it
		}
		if len(m.out) == 0 {
			r.pending = append(r.pending, m)
		}
		push := codec.Push{Attempt: 1, MessageID: r.item.MessageID, Type: r.item.Type, Payload: r.item.Payload, NoAck: r.item.NoAck}
		if !r.item.NoAck {
			m.number++
			push.Number = m.number
		}
		if m.out = codec.AppendPush(m.out, &push); r.each {
			r.flush(m)
		}
	}
	r.queue(publisher, func(dst []byte) []byte { return codec.AppendPublished(dst, &answer) })
	return gnet.None
}
