package conn

import (
	"golang.org/x/sys/unix"

	"holdfast/codec"
)

// refuse closes s for what it sent: nothing behind that is handled. The pass under way (flush at its end) acts on it. Closes that are
// not the peer's fault go through Session.Close, which hears it out.
func (l *loop) refuse(s *Session, code codec.Code, reason string) {
	s.mu.Lock()
	s.closeLocked(code, reason, 0)
	s.mu.Unlock()
}

// linger ends the session for the Handler and starts waiting for the peer to close, so that the CLOSE frame is not destroyed by the
// RST that closing with unread bytes would send.
func (l *loop) linger(s *Session) {
	if s.hearOut {
		l.readLast(s)
	}
	s.mu.Lock()
	s.state.Store(stateLingering)
	s.mu.Unlock()
	l.tellClosed(s)
	s.aliveMs = l.server.nowMs()
	l.discard(s, -1)
	s.need = 0
	l.schedule(s)
}

// shutWhenFlushed sends our FIN behind the last byte.
func (l *loop) shutWhenFlushed(s *Session) {
	if s.shut || s.head != nil {
		return
	}
	s.shut = true
	if err := unix.Shutdown(int(s.fd), unix.SHUT_WR); err != nil {
		l.drop(s)
	}
}

func (l *loop) tellClosed(s *Session) {
	if s.seen && !s.told {
		s.told = true
		l.server.handler.Closed(s)
	}
}

// drop closes the socket now. gnet calls OnClose, and so finish, before it returns.
func (l *loop) drop(s *Session) {
	if s.state.Load() != stateGone {
		if err := l.gnet.Close(s.conn); err != nil {
			l.server.cfg.Log.Debug("closing a connection", "remote", s.RemoteAddr(), "error", err)
		}
	}
}

// lastBytesMax bounds what is read from a connection that is already broken.
const lastBytesMax = 1 << 20

// finish is the end of every session: called once, in OnClose, while the descriptor is still ours.
func (l *loop) finish(s *Session) {
	if !l.server.fenced.Load() {
		if state := s.state.Load(); state == stateOpen || state == stateClosing && s.hearOut {
			l.readLast(s)
		}
		if state := s.state.Load(); state == stateOpen || state == stateClosing {
			s.blocked = false
			l.write(s) // replies already due may still reach a peer that only shut its write side
		}
	}
	fd := s.fd
	s.mu.Lock()
	s.state.Store(stateGone)
	s.fd = -1
	if s.out != nil {
		s.dropOutLocked()
	}
	s.mu.Unlock()
	if s.head != nil {
		l.server.buffers.put(s.head)
		s.head = nil
	}
	l.unschedule(s)
	if s.watched {
		l.server.watch.forget(fd)
	}
	l.tellClosed(s)
	s.conn = nil
	l.server.conns.Add(-1)
	l.stats.closes.Add(1)
}

// readLast handles what the peer sent before the connection broke or was closed by us. A write error ends a connection before its last
// bytes were read, and a takeover may be faster than the old connection's loop; these bytes may be the ACKs of what it received.
func (l *loop) readLast(s *Session) {
	data := append([]byte(nil), l.peek(s)...)
	l.discard(s, -1)
	fresh := 0
	for len(data) < lastBytesMax {
		n, err := unix.Read(int(s.fd), l.scratch[:])
		if err == unix.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			break
		}
		data = append(data, l.scratch[:n]...)
		fresh += n
	}
	if fresh > 0 {
		l.stats.bytesIn.Add(uint64(fresh))
		l.frames(s, data)
	}
}
