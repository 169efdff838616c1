package conn

import (
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/panjf2000/gnet/v2"
	"golang.org/x/sys/unix"

	"holdfast/codec"
)

// The states of a session, in the order they are gone through. They only rise.
const (
	stateFresh     uint32 = iota // no CONNECT yet
	stateLogin                   // CONNECT authenticated, the Handler decides
	stateOpen                    // WELCOME queued
	stateClosing                 // CLOSE queued; the loop has not acted on it yet
	stateLingering               // nothing more is handled or queued; waiting for the peer to close
	stateGone                    // the descriptor is no longer ours
)

// Session is one connection. Its exported methods may be called from any goroutine and never block, unless they say otherwise.
type Session struct {
	// There is one for every idle connection, so its size counts: see TestAnIdleSessionIsSmall.

	// Static after accept.
	id   uint64
	loop *loop

	// Written on the loop before Handler.Login sees the session; static afterwards.
	expireAtMs int64 // of the token, Unix; 0: never
	keepaliveS uint32

	// Written once by Open before the state becomes open; read by anybody who has seen that state.
	attachment any

	state atomic.Uint32 // rises under mu; read anywhere

	// Written once by Close before the state becomes closing; read by the loop when it has seen that state.
	hearOut bool // closed while open: what has arrived is handled before Handler.Closed

	// Guarded by mu.
	writable     bool // the watcher saw room in the full socket
	resume       bool // Open was called: parse what waits in the inbound buffer
	queued       bool // on the loop's dirty queue, or held
	mu           sync.Mutex
	out          *outBuffer // frames not yet taken by the loop
	fd           int32      // -1 once gone
	queuedBytes  int32      // given to the outbox, not yet taken by the kernel
	queuedFrames int32
	closeCode    codec.Code
	wantsDrained bool // a Send was refused: Handler.Drained is due
	prompt       bool // out has a frame that is not to be held up

	// Owned by the loop.
	next       *Session // dirty queue link: owned by whoever set queued, then by the loop
	conn       gnet.Conn
	head       *outBuffer // partly written: goes out before out
	timerPrev  *Session
	timerNext  *Session
	aliveMs    int64  // last complete frame; until Open: the time of accept. Since lingering: its start
	progressMs int64  // when a byte of a blocked outbox was last seen to get on
	timerTick  int32  // of the wheel; enough for 17 years
	unsent     int32  // kernel send queue at progressMs
	leftover   int32  // bytes left in the inbound buffer by the last read, for counting
	need       int32  // buffered bytes below which there is no complete frame
	wroteMs    uint16 // when the kernel last took something; the low bits of the server's clock
	timerArmed bool
	blocked    bool // the socket was full: the watcher will put us on the dirty queue
	seen       bool // the Handler knows this session
	told       bool // Handler.Closed was called
	shut       bool // our write side is shut down
	watched    bool // known to the watcher
}

// ID is the session id: unique among all sessions of this process, and with overwhelming probability over restarts.
func (s *Session) ID() uint64 { return s.id }

// KeepaliveS is the negotiated keepalive in seconds; valid from Handler.Login on.
func (s *Session) KeepaliveS() uint64 { return uint64(s.keepaliveS) }

// RemoteAddr is the peer's address and port, empty when the connection is over. It costs one system call.
func (s *Session) RemoteAddr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return ""
	}
	return peerAddr(int(s.fd))
}

// PeerShut reports whether the peer has closed its side, or reset the connection, although what it sent before may still be
// unread. It costs one system call.
func (s *Session) PeerShut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fd < 0 || peerShut(int(s.fd))
}

// Attachment is what Open was given, nil before that.
func (s *Session) Attachment() any {
	if s.state.Load() < stateOpen {
		return nil
	}
	return s.attachment
}

// CloseCode is the code this side ended the connection with; CodeNone while it lives or when the peer ended it.
func (s *Session) CloseCode() codec.Code {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closeCode
}

// Open ends a login that is under way: welcome (an encoded WELCOME frame, copied) goes out first, then frames that were pipelined
// behind the login are handled. It reports false when there is no login to end: the connection is gone, closing, or was opened before.
func (s *Session) Open(attachment any, welcome []byte) bool {
	s.mu.Lock()
	if s.state.Load() != stateLogin {
		s.mu.Unlock()
		return false
	}
	s.attachment = attachment
	s.appendLocked(welcome)
	s.resume = true
	s.state.Store(stateOpen)
	s.loop.stats.logins.Add(1)
	push := s.markLocked()
	s.mu.Unlock()
	s.wake(push)
	return true
}

// Send queues one encoded frame (copied) behind the ones before it. It reports false when the session is not open, or when the outbox
// is at its high watermark; in that case Handler.Drained follows.
func (s *Session) Send(frame []byte) bool {
	cfg := &s.loop.server.cfg
	s.mu.Lock()
	if s.state.Load() != stateOpen {
		s.mu.Unlock()
		return false
	}
	if int(s.queuedBytes) >= cfg.OutboxHighBytes || int(s.queuedFrames) >= cfg.OutboxHighFrames {
		s.wantsDrained = true
		s.mu.Unlock()
		s.loop.stats.outboxFull.Add(1)
		return false
	}
	s.appendLocked(frame)
	push := s.markLocked()
	s.mu.Unlock()
	s.wake(push)
	return true
}

// SendControl queues one encoded frame (copied) that must not be held up by the watermark: replies to what the client asked. Beyond
// the hard limit of the outbox the connection is closed with CodeSlowConsumer. It reports false when the session is not open.
func (s *Session) SendControl(frame []byte) bool {
	s.mu.Lock()
	if s.state.Load() != stateOpen {
		s.mu.Unlock()
		return false
	}
	if int(s.queuedBytes)+len(frame) > s.loop.server.cfg.OutboxHardBytes {
		s.mu.Unlock()
		s.Close(codec.CodeSlowConsumer, "too many unread replies", 0)
		return false
	}
	s.prompt = true
	s.appendLocked(frame)
	push := s.markLocked()
	s.mu.Unlock()
	s.wake(push)
	return true
}

// Unsent is the number of bytes given to Send that the peer's TCP has not taken: outbox and kernel send queue. 0 once closed. It costs
// one ioctl. The mutex keeps the descriptor ours during the call: OnClose takes it before gnet closes the descriptor.
func (s *Session) Unsent() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 || s.state.Load() >= stateLingering {
		return 0
	}
	return int(s.queuedBytes) + kernelUnsent(int(s.fd))
}

// Close sends a CLOSE frame behind what is queued (for a slow consumer: instead of it) and ends the connection. What an open session's
// peer has sent by then is still handled: an ACK that arrived counts. A login under way is refused. Repeats do nothing.
func (s *Session) Close(code codec.Code, reason string, retryAfterMs int64) {
	s.mu.Lock()
	if s.state.Load() == stateOpen {
		s.hearOut = true // before the state is closing: the loop reads it only after that
	}
	push := s.closeLocked(code, reason, retryAfterMs) && s.markLocked()
	s.mu.Unlock()
	s.wake(push)
}

// closeLocked moves to closing and queues the CLOSE frame; false: it was closing before.
func (s *Session) closeLocked(code codec.Code, reason string, retryAfterMs int64) bool {
	before := s.state.Load()
	if before >= stateClosing {
		return false
	}
	s.state.Store(stateClosing)
	s.closeCode = code
	s.loop.stats.closed(code)
	if before < stateOpen {
		s.loop.stats.refused(code)
	}
	if code == codec.CodeSlowConsumer && s.out != nil {
		// The client does not read: what is not yet begun would only delay the reason. It stays un-ACKed and comes again.
		s.dropOutLocked()
	}
	if len(reason) > codec.ReasonBytesMax {
		reason = strings.ToValidUTF8(reason[:codec.ReasonBytesMax], "")
	}
	b := s.outLocked()
	n := len(b.bytes)
	b.bytes = codec.AppendClose(b.bytes, &codec.Close{Code: code, RetryAfterMs: uint64(max(0, retryAfterMs)), Reason: []byte(reason)})
	b.frames++
	s.queuedFrames++
	s.queuedBytes += int32(len(b.bytes) - n)
	return true
}

// markLocked notes that the session needs its loop; true: the caller has to put it on the dirty queue with wake.
func (s *Session) markLocked() bool {
	if s.queued || s.fd < 0 {
		return false
	}
	s.queued = true
	return true
}

// nowWritable is the watcher's word that the full socket has room again.
func (s *Session) nowWritable() {
	s.mu.Lock()
	s.writable = true
	push := s.markLocked()
	s.mu.Unlock()
	s.wake(push)
}

// enterPass marks the session as queued for the time its loop reads it, so that what is sent meanwhile leaves with the flush at the end
// of the pass, without a wake-up. It reports whether that flush has to take the mark off; otherwise the session is on the dirty queue.
func (s *Session) enterPass() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ours := !s.queued
	s.queued = true
	return ours
}

func (s *Session) wake(push bool) {
	if push {
		s.loop.push(s)
	}
}

// peerAddr is the address of a socket's peer, empty when there is none any more.
func peerAddr(fd int) string {
	sa, err := unix.Getpeername(fd)
	if err != nil {
		return ""
	}
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)).String()
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port)).String()
	default:
		return ""
	}
}
