package conn

import (
	"fmt"
	"log/slog"
	"math/rand/v2"

	"github.com/panjf2000/gnet/v2"
	"golang.org/x/sys/unix"

	"holdfast/codec"
)

// events is what gnet calls, each method but OnBoot and OnShutdown on the loop of its connection.
type events struct {
	gnet.BuiltinEventEngine
	server *Server
}

// OnBoot runs when the first listener is bound.
func (e *events) OnBoot(engine gnet.Engine) gnet.Action {
	e.server.engine = engine
	close(e.server.booted)
	return gnet.None
}

// OnShutdown runs before the loops end, also when nobody asked for it.
func (e *events) OnShutdown(gnet.Engine) { e.server.fence() }

// OnOpen takes a new connection or sends it away.
func (e *events) OnOpen(c gnet.Conn) ([]byte, gnet.Action) {
	srv := e.server
	l := srv.loopOf(c.EventLoop())
	fd := c.Fd()
	if code := srv.admit(fd); code != codec.CodeNone {
		l.stats.refusedConns.Add(1)
		l.stats.closed(code)
		srv.turnAway(fd, code)
		return nil, gnet.Close
	}
	if err := limitUnsent(fd, srv.cfg.KernelUnsentBytes); err != nil {
		srv.cfg.Log.Debug("limiting a send queue", "error", err) // the peer is gone already: reading will say so
	}
	s := &Session{id: srv.sessions.Add(1), loop: l, conn: c, fd: int32(fd), aliveMs: srv.nowMs()}
	c.SetContext(s)
	l.stats.accepts.Add(1)
	l.schedule(s)
	return nil, gnet.None
}

// admit counts a new connection in, or says why there is no room. Besides the count it looks at the descriptor number: the kernel gives
// the lowest free one, so a number near the limit means that nearly all are in use, by whomever. A connection that is turned away gives
// its descriptor back at once; so the reserve is never used up by accepting, and the accept after this one cannot fail.
func (s *Server) admit(fd int) codec.Code {
	if s.draining.Load() {
		return codec.CodeGoingAway
	}
	if n := s.conns.Add(1); n > int64(s.connsMax) || fd >= s.filesMax-s.cfg.FilesReserve/2-1 {
		s.conns.Add(-1)
		now := s.nowMs()
		if last := s.fullLog.Load(); (last == 0 || now-last >= 1000) && s.fullLog.CompareAndSwap(last, max(now, 1)) {
			s.cfg.Log.Warn("refusing connections: the limit is reached",
				"connections", n-1, "limit", s.connsMax, "descriptor", fd, "descriptors", s.filesMax)
		}
		return codec.CodeOverloaded
	}
	return codec.CodeNone
}

// turnAway says why and lets the caller close. What the client has sent already is read first: closing with unread bytes would send
// RST, and many stacks then drop the CLOSE frame.
func (s *Server) turnAway(fd int, code codec.Code) {
	if s.fenced.Load() {
		return
	}
	var in [4096]byte
	for range 4 {
		if n, err := unix.Read(fd, in[:]); n <= 0 || err != nil {
			break
		}
	}
	retryAfterMs := 1000 + rand.Uint64N(4000) // spread, or they all come back in the same instant
	out := codec.AppendClose(in[:0], &codec.Close{Code: code, RetryAfterMs: retryAfterMs, Reason: []byte(code.String())})
	if _, err := unix.Write(fd, out); err == nil {
		_ = unix.Shutdown(fd, unix.SHUT_WR) // if it fails, the close that follows does the same
	}
}

// OnTraffic reads. gnet.Close tells gnet that the connection is gone already.
func (e *events) OnTraffic(c gnet.Conn) gnet.Action {
	s, ok := c.Context().(*Session)
	if !ok {
		return gnet.Close
	}
	l := s.loop
	ours := l.enter()
	before := c.InboundBuffered()
	l.stats.bytesIn.Add(uint64(max(0, before-int(s.leftover))))
	dequeued := s.enterPass()
	l.traffic(s)
	l.flush(s, dequeued)
	l.leave(ours)
	if s.state.Load() == stateGone {
		return gnet.Close
	}
	s.leftover = int32(c.InboundBuffered())
	return gnet.None
}

// OnClose is the last call for a connection; its descriptor is closed right after.
func (e *events) OnClose(c gnet.Conn, _ error) gnet.Action {
	if s, ok := c.Context().(*Session); ok {
		s.loop.finish(s)
	}
	return gnet.None
}

// gnetLog passes gnet's log lines on. gnet's Info is start-up chatter: debug for us.
type gnetLog struct{ log *slog.Logger }

func (g gnetLog) Debugf(format string, a ...any) { g.log.Debug("gnet: " + fmt.Sprintf(format, a...)) }
func (g gnetLog) Infof(format string, a ...any)  { g.log.Debug("gnet: " + fmt.Sprintf(format, a...)) }
func (g gnetLog) Warnf(format string, a ...any)  { g.log.Warn("gnet: " + fmt.Sprintf(format, a...)) }
func (g gnetLog) Errorf(format string, a ...any) { g.log.Error("gnet: " + fmt.Sprintf(format, a...)) }

// Fatalf does not end the process: whoever waits on Server.Err decides that.
func (g gnetLog) Fatalf(format string, a ...any) { g.log.Error("gnet: " + fmt.Sprintf(format, a...)) }
