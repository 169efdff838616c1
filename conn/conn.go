// Package conn owns the TCP connections of clients and publishers: gnet event loops, login, frame cutting, keepalive, write
// coalescing and outbox limits. It has never heard of messages, retries or stores: frames go to a Handler, and the Handler's side
// writes back through a Session.
//
// # Who runs what
//
// One event loop per core reads sockets, cuts frames and calls the Handler. Only the loop of a session touches its gnet.Conn and
// writes to its socket. Everybody else appends encoded frames to the session's outbox and puts the session on the loop's dirty queue;
// at most one wake-up is outstanding per loop. One further goroutine (the watcher) ticks all loops and tells them which full sockets
// can be written again.
//
// # Life of a session
//
//	fresh --CONNECT accepted--> login --Open--> open --Close, error, silence--> closing --flushed--> lingering --> gone
//
// A refused login goes from fresh or login straight to closing. Bytes behind the CONNECT stay unparsed until Open, and are dropped
// when the login is refused. A connection that ends while its login is under way is a login that never happened: nothing pipelined
// behind it has an effect.
//
// # Not obvious
//
//   - gnet's own outbound buffer is never used: it has no limit and says nothing when it drains. The loop writes to the socket itself
//     and keeps what the kernel did not take in the session's outbox, so that limits and Unsent are exact.
//   - A close is lingering: CLOSE frame, shutdown of the write side, then reading (and dropping) until the peer closes or a short limit
//     is over. A plain close(2) with unread bytes sends RST, which makes many stacks throw the CLOSE frame away.
//   - Before a connection that broke is given up, what the peer sent before it broke is read and handled: an ACK that arrived counts.
//
// Locks are leaves: a session's mutex is held for a few instructions or one ioctl, never across a call to the Handler.
package conn

import "holdfast/codec"

// Handler gets what happens on connections. All methods run on the session's event loop and must not block; a session's calls are
// serial. Login comes first and once, Closed last and once, and only for sessions that Login saw.
type Handler interface {
	// Login asks for a decision about an authenticated CONNECT: answer with Session.Open or Session.Close, now or later, from any
	// goroutine; the login limit goes on running until then. c is borrowed for the call; c.KeepaliveS already is the negotiated
	// value, to be put into WELCOME.
	Login(s *Session, c *codec.Connect, id Identity)
	// Frame handles one frame of an open session (all but CONNECT, PING, PONG and CLOSE). f is borrowed for the call.
	// A code other than CodeNone closes the connection with it; text is the reason shown to the client.
	Frame(s *Session, f codec.Frame) (code codec.Code, text string)
	// Closed says that no frame of s will be handled any more and nothing will be sent.
	Closed(s *Session)
	// Drained follows a Send that returned false for a full outbox, once the outbox is below its low watermark.
	Drained(s *Session)
}

// Identity is who a login turned out to be.
type Identity struct {
	User       string
	Device     string // may be empty for a publisher
	ExpireAtMs int64  // Unix; the connection is closed then with CodeTokenExpired. 0: never
	Publisher  bool
}

// Authenticator decides who a CONNECT is. Authenticate runs on an event loop and must neither block nor keep c; a code other than
// CodeNone refuses the login with text as the reason.
type Authenticator interface {
	Authenticate(c *codec.Connect) (id Identity, code codec.Code, text string)
}
