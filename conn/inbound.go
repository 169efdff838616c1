package conn

import (
	"encoding/binary"
	"errors"

	"holdfast/codec"
)

// traffic handles what is buffered for s: as many complete frames as there are. It runs on the loop, once per readable event and once
// when a login was accepted. It is the one place where bytes come in: a transform of the incoming stream (TLS) belongs between Peek and
// frames.
func (l *loop) traffic(s *Session) {
	buffered := s.conn.InboundBuffered()
	switch state := s.state.Load(); {
	case state > stateClosing || state == stateClosing && !s.hearOut:
		l.discard(s, -1)
		return
	case state == stateLogin:
		l.boundLogin(s, buffered)
		return
	}
	if buffered < int(s.need) || buffered == 0 {
		return // no complete frame yet: do not copy the part that is there once more for every byte that trickles in
	}
	used := l.frames(s, l.peek(s))
	if used > 0 {
		l.discard(s, used)
	}
	if s.state.Load() == stateLogin {
		l.boundLogin(s, buffered-used)
	}
}

// boundLogin limits what waits behind a login.
func (l *loop) boundLogin(s *Session, buffered int) {
	if buffered > l.server.cfg.LoginBytesMax {
		l.refuse(s, codec.CodeOverloaded, "too many bytes before the login was answered")
	}
}

// frames handles the complete frames at the start of buf and returns their length. It stops behind a CONNECT whose decision is open, and
// at the first error.
func (l *loop) frames(s *Session, buf []byte) (used int) {
	count := uint64(0)
	nowMs := l.server.nowMs()
	for used < len(buf) {
		state := s.state.Load()
		if state != stateFresh && state != stateOpen && (state != stateClosing || !s.hearOut) {
			break
		}
		f, n, err := codec.Parse(buf[used:], l.server.cfg.FrameBytesMax)
		if err != nil {
			l.refuseError(s, err)
			break
		}
		if n == 0 {
			break
		}
		used += n
		count++
		if state == stateFresh {
			l.login(s, f)
		} else {
			s.aliveMs = nowMs
			l.frame(s, f)
		}
	}
	s.need = needBytes(buf[used:])
	if count > 0 {
		l.stats.framesIn.Add(count)
	}
	return used
}

// needBytes is the length of the frame that rest begins with, header included, or one more byte than is there while that is unknown.
func needBytes(rest []byte) int32 {
	if len(rest) == 0 {
		return 0
	}
	length, n := binary.Uvarint(rest[:min(len(rest), 4)])
	if n <= 0 || length > codec.FrameBytesMax {
		return int32(len(rest)) + 1
	}
	return int32(n) + int32(length)
}

func (l *loop) refuseError(s *Session, err error) {
	if e, ok := errors.AsType[*codec.Error](err); ok {
		l.refuse(s, e.Code, e.Error())
		return
	}
	l.refuse(s, codec.CodeMalformed, err.Error())
}

// frame handles one frame of an open session.
func (l *loop) frame(s *Session, f codec.Frame) {
	switch f.Type {
	case codec.TypePing, codec.TypePong:
		data, err := codec.DecodePing(f)
		switch {
		case err != nil:
			l.refuseError(s, err)
		case f.Type == codec.TypePing:
			l.reply(s, codec.AppendPong, data)
		}
	case codec.TypeClose:
		l.peerClose(s)
	case codec.TypeConnect:
		l.refuse(s, codec.CodeUnexpectedFrame, "second login on one connection")
	default:
		s.progressMs = s.aliveMs // it answers, so it reads
		if code, text := l.server.handler.Frame(s, f); code != codec.CodeNone {
			l.refuse(s, code, text)
		}
	}
}

// peerClose ends a session whose client says it is done: replies that are queued still go; CLOSE is not answered with CLOSE.
func (l *loop) peerClose(s *Session) {
	s.mu.Lock()
	if s.state.Load() < stateClosing {
		s.state.Store(stateClosing)
		l.stats.peerCloses.Add(1)
	}
	s.mu.Unlock()
}

// login handles the first frame of a connection.
func (l *loop) login(s *Session, f codec.Frame) {
	if f.Type != codec.TypeConnect {
		l.refuse(s, codec.CodeUnexpectedFrame, "the first frame must be CONNECT")
		return
	}
	c := &l.connect
	if err := codec.DecodeConnect(f, c); err != nil {
		l.refuseError(s, err)
		return
	}
	id, code, text := l.server.cfg.Auth.Authenticate(c)
	if code != codec.CodeNone {
		l.refuse(s, code, text)
		return
	}
	c.KeepaliveS = l.server.cfg.keepaliveS(c.KeepaliveS)
	s.keepaliveS = uint32(c.KeepaliveS)
	s.expireAtMs = id.ExpireAtMs
	s.seen = true
	s.mu.Lock()
	if s.state.Load() == stateFresh {
		s.state.Store(stateLogin)
	}
	s.mu.Unlock()
	l.server.handler.Login(s, c, id)
	l.connect = codec.Connect{}
}

// opened continues a session whose login was accepted: its keepalive starts, and what was pipelined behind the login is handled.
// false: the socket is broken.
func (l *loop) opened(s *Session) bool {
	if s.state.Load() != stateOpen {
		return true
	}
	s.aliveMs = l.server.nowMs()
	l.schedule(s)
	l.traffic(s)
	s.leftover = int32(s.conn.InboundBuffered())
	return l.write(s)
}

// peek borrows all buffered bytes until the next discard. gnet answers Peek(-1) with an error never, and with a copy only when bytes
// of an earlier read are left.
func (l *loop) peek(s *Session) []byte {
	buf, err := s.conn.Peek(-1)
	if err != nil {
		panic("conn: peeking at all buffered bytes failed: " + err.Error())
	}
	return buf
}

// discard drops n buffered bytes, all with -1.
func (l *loop) discard(s *Session, n int) {
	if _, err := s.conn.Discard(n); err != nil {
		panic("conn: discarding buffered bytes failed: " + err.Error())
	}
}
