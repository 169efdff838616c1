package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"holdfast/codec"
)

const (
	lingerMax      = time.Second // how long a closing side waits for the other to have read everything
	queueMsgsExtra = 64          // room beyond twice the window, for fire and forget messages
)

// SessionInfo is what the server said at a login.
type SessionInfo struct {
	Addr          string // as dialled
	Node          string
	User, Device  string // as the server knows them
	SessionID     uint64
	Backlog       uint64        // messages stored for this device at the login
	Keepalive     time.Duration // as negotiated
	AckTimeout    time.Duration // without an ACK, the server sends a message again after this
	WindowMsgs    int           // what the server sends unconfirmed at most
	WindowBytes   int
	PublishWindow int // PUBLISH frames that may be unanswered
	FrameBytesMax int
	ServerTime    time.Time
}

// session is one logged-in connection.
type session struct {
	// Static after the login.
	nc            net.Conn
	epoch         uint64 // counts this client's sessions
	info          SessionInfo
	requestIDBase uint64
	queueMsgsMax  int
	queueBytesMax int
	startedAt     time.Time

	// Owned by the read goroutine.
	rd       frameReader
	push     codec.Push
	lastRead time.Time // of a complete frame
	pingAt   time.Time // the last PING
	moveAt   time.Time // GOAWAY: when to go; zero: stay
	moveTo   []string  // and where
	moved    *session  // GOAWAY: the connection to log in on, dialled while this one was up

	out outbox // has its own lock

	// Guarded by Client.mu.
	acks       ackState
	numberSeen uint64 // highest request number received
}

// errMoved ends serving a session that a GOAWAY asked to leave; session.moved is the connection to go on with.
var errMoved = errors.New("moved to another server")

// newSession wraps a fresh connection.
func (c *Client) newSession(nc net.Conn, addr string) *session {
	c.epoch++
	s := &session{nc: nc, epoch: c.epoch, info: SessionInfo{Addr: addr}}
	s.out.nc = nc
	s.rd = frameReader{nc: nc, frameBytesMax: codec.FrameBytesDefault, bytes: &c.bytesIn}
	return s
}

// connect dials addr and logs in. It gives up with ctx or after Options.DialTimeout.
func (c *Client) connect(ctx context.Context, addr string) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.DialTimeout)
	defer cancel()
	token, err := c.loginToken(ctx) // first: the server's login timeout runs from the TCP connection
	if err != nil {
		return nil, err
	}
	nc, err := c.o.DialConn(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	s := c.newSession(nc, addr)
	if err := c.login(ctx, s, token); err != nil {
		return nil, err
	}
	return s, nil
}

// login sends CONNECT, and behind it in the same write the confirmations that earlier sessions still owe, so that
// the server has them before it looks for what to send again. With an error the connection is closed.
func (c *Client) login(ctx context.Context, s *session, token string) (err error) {
	stop := context.AfterFunc(ctx, func() { s.nc.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		stop()
		if err == nil {
			return
		}
		s.nc.Close()
		c.mu.Lock()
		c.salvageLocked(s)
		c.mu.Unlock()
		if ctx.Err() != nil {
			err = fmt.Errorf("log in at %s: %w", s.info.Addr, ctx.Err())
		}
	}()
	c.sendConnect(s, token)
	s.out.flush()
	for {
		f, ok, err := s.rd.frame()
		if err != nil {
			s.sayClose(err)
			return err
		}
		if ok {
			return c.welcome(ctx, s, f)
		}
		if err := s.rd.fill(); err != nil {
			return fmt.Errorf("log in at %s: %w", s.info.Addr, err)
		}
	}
}

func (c *Client) sendConnect(s *session, token string) {
	x := codec.Connect{
		Version:     codec.Version,
		KeepaliveS:  uint64((c.o.Keepalive + time.Second - 1) / time.Second),
		WindowMsgs:  uint64(c.o.WindowMsgs),
		WindowBytes: uint64(c.o.WindowBytes),
		User:        borrow(c.o.User),
		Device:      borrow(c.o.Device),
		Token:       borrow(token),
		ClientName:  borrow(c.o.ClientName),
	}
	if c.o.Publisher {
		x.Capabilities |= codec.CapPublisher
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.resumeID != 0 {
		x.HasResume, x.ResumeSession, x.ResumeNumberSeen = true, c.resumeID, c.resumeNumber
	}
	s.out.unlock(codec.AppendConnect(s.out.lock(), &x))
	if len(c.carry) > 0 {
		c.sendBatch(s, &s.acks.pending)
	}
}

// welcome reads the server's answer and makes the session the client's live one.
func (c *Client) welcome(ctx context.Context, s *session, f codec.Frame) error {
	switch f.Type {
	case codec.TypeWelcome:
	case codec.TypeClose:
		return c.readClose(f)
	default:
		err := localClose(codec.CodeUnexpectedFrame, "a frame before WELCOME")
		s.sayClose(err)
		return err
	}
	var w codec.Welcome
	if err := codec.DecodeWelcome(f, &w); err != nil {
		err = protocolError(err)
		s.sayClose(err)
		return err
	}
	seconds := w.KeepaliveS
	if seconds == 0 || seconds > 24*3600 {
		seconds = uint64((c.o.Keepalive + time.Second - 1) / time.Second)
	}
	s.info = SessionInfo{
		Addr:          s.info.Addr,
		Node:          string(w.Node),
		User:          string(w.User),
		Device:        string(w.Device),
		SessionID:     w.SessionID,
		Backlog:       w.Backlog,
		Keepalive:     time.Duration(seconds) * time.Second,
		AckTimeout:    time.Duration(min(w.AckTimeoutMs, 1<<40)) * time.Millisecond,
		WindowMsgs:    int(min(w.WindowMsgs, 1<<20)),
		WindowBytes:   int(min(w.WindowBytes, 1<<30)),
		PublishWindow: int(min(w.PublishWindow, 1<<16)),
		FrameBytesMax: int(min(w.FrameBytesMax, codec.FrameBytesMax)),
		ServerTime:    time.UnixMilli(int64(w.ServerTimeMs)),
	}
	if s.info.FrameBytesMax == 0 {
		s.info.FrameBytesMax = codec.FrameBytesDefault
	}
	s.requestIDBase = w.RequestIDBase
	s.queueMsgsMax = 2*s.info.WindowMsgs + queueMsgsExtra
	s.queueBytesMax = 2*s.info.WindowBytes + s.info.FrameBytesMax
	s.rd.frameBytesMax = s.info.FrameBytesMax
	s.startedAt = time.Now()
	s.lastRead = s.startedAt
	return c.attach(ctx, s)
}

// attach makes s the live session. From here on messages and confirmations flow.
func (c *Client) attach(ctx context.Context, s *session) error {
	c.mu.Lock()
	if c.closed || ctx.Err() != nil {
		c.mu.Unlock()
		s.sayClose(localClose(codec.CodeNormal, ""))
		return ErrClosed
	}
	s.nc.SetReadDeadline(s.startedAt.Add(s.info.Keepalive))
	s.nc.SetWriteDeadline(s.startedAt.Add(3 * s.info.Keepalive))
	c.live, c.last = s, s.info
	c.resumeID, c.resumeNumber = s.info.SessionID, 0
	c.stats.Logins++
	if len(c.carry) > 0 {
		c.flushAcks() // what was confirmed while the login was under way
	} else {
		c.mu.Unlock()
	}
	c.pub.attach(s, s.info.PublishWindow)
	return nil
}

// detach is the end of a session: what it has not said goes to the next one.
func (c *Client) detach(s *session) {
	s.nc.Close()
	c.mu.Lock()
	if c.live == s {
		c.live = nil
	}
	c.resumeNumber = s.numberSeen
	c.salvageLocked(s)
	c.stats.Disconnects++
	c.storeMarks()
	c.bytesOut.Add(s.out.bytes())
	c.pub.detach()
}

// serve reads until the session ends and says why.
func (c *Client) serve(s *session) error {
	for {
		if err := c.readFrames(s); err != nil {
			s.sayClose(err)
			return err
		}
		err := s.rd.fill()
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			if err := c.tick(s, time.Now()); err != nil {
				return err
			}
		case c.isClosed():
			return ErrClosed
		default:
			return fmt.Errorf("connection to %s lost: %w", s.info.Addr, err)
		}
	}
}

// readFrames handles every complete frame in the buffer and then writes what that has led to, in one go.
func (c *Client) readFrames(s *session) error {
	f, ok, err := s.rd.frame()
	if !ok {
		return err
	}
	s.lastRead = time.Now()
	c.mu.Lock()
	c.reading = true
	closed := c.closed
	c.mu.Unlock()
	for ok && err == nil {
		if !closed {
			err = c.frame(s, f)
		}
		if err == nil {
			f, ok, err = s.rd.frame()
		}
	}
	c.mu.Lock()
	c.reading = false
	c.flushIfDue()
	s.out.flush()
	return err
}

// frame handles one frame of a logged-in session.
func (c *Client) frame(s *session, f codec.Frame) error {
	switch f.Type {
	case codec.TypePush:
		if c.o.Publisher {
			return localClose(codec.CodeUnexpectedFrame, "a message for a publisher")
		}
		if err := codec.DecodePush(f, &s.push); err != nil {
			return protocolError(err)
		}
		c.receive(s, &s.push)
		return nil
	case codec.TypePublished:
		var x codec.Published
		if err := codec.DecodePublished(f, &x); err != nil {
			return protocolError(err)
		}
		return c.pub.answer(&x)
	case codec.TypePing:
		data, err := codec.DecodePing(f)
		if err != nil {
			return protocolError(err)
		}
		s.out.unlock(codec.AppendPong(s.out.lock(), data))
		return nil
	case codec.TypeClose:
		return c.readClose(f)
	case codec.TypeGoAway:
		return c.readGoAway(s, f)
	default:
		return skip(f)
	}
}

// skip checks a frame that this version of the library does nothing with. A frame that no server sends ends the
// connection.
func skip(f codec.Frame) error {
	var err error
	switch f.Type {
	case codec.TypePong:
		_, err = codec.DecodePing(f)
	case codec.TypeSent:
		err = codec.DecodeSent(f, new(codec.Sent))
	case codec.TypeSynced:
		err = codec.DecodeSynced(f, new(codec.Synced))
	case codec.TypeHeads:
		err = codec.DecodeHeads(f, new(codec.Heads))
	case codec.TypeReceipt:
		err = codec.DecodeReceipt(f, new(codec.Receipt))
	default:
		return localClose(codec.CodeUnexpectedFrame, fmt.Sprintf("%s is no frame of a server", f.Type))
	}
	if err != nil {
		return protocolError(err)
	}
	return nil
}

// sendNack puts a NACK into the outbox; the caller flushes.
func (s *session) sendNack(x *codec.Nack) { s.out.unlock(codec.AppendNack(s.out.lock(), x)) }

// sayClose tells the server why this side closes, if it was this side's decision, without waiting long.
func (s *session) sayClose(err error) {
	var ce *CloseError
	if !errors.As(err, &ce) || !ce.Local {
		return
	}
	s.nc.SetWriteDeadline(time.Now().Add(lingerMax))
	s.out.unlock(codec.AppendClose(s.out.lock(), &codec.Close{Code: ce.Code, Reason: cleanReason(ce.Reason)}))
	s.out.flushAndWait()
	s.nc.Close()
}
