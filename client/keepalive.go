package client

import (
	"context"
	"time"

	"holdfast/codec"
)

// The read goroutine has no timer: its read deadline is the clock of the session. It is set to the next moment at
// which something may be due and not moved when frames arrive (that would cost a call for every read); a deadline
// that finds nothing due sets the next one.

// tick does what is due and sets the next read deadline.
func (c *Client) tick(s *session, now time.Time) error {
	if c.isClosed() {
		return ErrClosed // the server did not close in time
	}
	keepalive := s.info.Keepalive
	if now.Sub(s.lastRead) >= keepalive+keepalive/2 {
		err := localClose(codec.CodeKeepaliveTimeout, "nothing from the server for 1.5 keepalive intervals")
		s.sayClose(err)
		return err
	}
	if !s.moveAt.IsZero() && !now.Before(s.moveAt) {
		if c.move(s) {
			return errMoved
		}
		now = time.Now()
	}
	quietSince := s.out.lastWrite()
	if (now.Sub(s.lastRead) >= keepalive && s.pingAt.Before(s.lastRead)) || now.Sub(quietSince) >= keepalive {
		// The server's silence asks whether it lives; our own silence tells it that we do.
		s.out.unlock(codec.AppendPing(s.out.lock(), nil))
		s.out.flush()
		s.pingAt, quietSince = now, now
		s.rd.shrink()
		s.out.shrink()
	}
	next := quietSince.Add(keepalive)
	alive := s.lastRead.Add(keepalive)
	if !s.pingAt.Before(s.lastRead) {
		alive = s.lastRead.Add(keepalive + keepalive/2)
	}
	next = earlier(next, alive)
	if !s.moveAt.IsZero() {
		next = earlier(next, s.moveAt)
	}
	// A write may be stuck for as long as it takes to see that the server is gone, and a bit: this deadline moves on
	// while the reader lives, so no write needs to set its own.
	s.nc.SetWriteDeadline(now.Add(3 * keepalive))
	c.wakeAt(s, next)
	return nil
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// wakeAt sets the read deadline, unless Close has set a last one.
func (c *Client) wakeAt(s *session, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		s.nc.SetReadDeadline(at)
	}
}

// readGoAway notes when to leave and where to. The server spreads its clients over time by giving each its own wait.
func (c *Client) readGoAway(s *session, f codec.Frame) error {
	var x codec.GoAway
	if err := codec.DecodeGoAway(f, &x); err != nil {
		return protocolError(err)
	}
	in := millis(x.ReconnectAfterMs)
	s.moveAt, s.moveTo = time.Now().Add(in), splitServers(x.Servers)
	if c.o.NoReconnect {
		s.moveAt = time.Time{} // there is nowhere to go; the server's deadline ends it
	}
	c.emit(func(e *Events) {
		if e.GoAway != nil {
			e.GoAway(in, s.moveTo)
		}
	})
	if !s.moveAt.IsZero() {
		c.wakeAt(s, s.moveAt)
	}
	return nil
}

// move opens the next connection while this one is still up and leaves this one only then; a server that is not there
// costs nothing. It reports whether s.moved is set; otherwise it has set the time of the next try.
func (c *Client) move(s *session) bool {
	if len(s.moveTo) > 0 {
		c.targets.hint(s.moveTo)
		s.moveTo = nil
	}
	addr := c.targets.next()
	ctx, cancel := context.WithTimeout(c.ctx, min(c.o.DialTimeout, s.info.Keepalive/2))
	defer cancel()
	nc, err := c.o.DialConn(ctx, addr)
	if err != nil {
		s.moveAt = time.Now().Add(fullJitter(c.o.BackoffBase, c.o.BackoffMax, 1))
		return false
	}
	s.moved = c.newSession(nc, addr)
	c.mu.Lock()
	c.leave(s)
	c.lingerUntilClosed(s)
	return true
}

// leave says what is pending and CLOSE normal, and ends the write side: what is confirmed later is for the next
// session. It is called with mu held and returns without it.
func (c *Client) leave(s *session) {
	c.flushAcks()
	c.mu.Lock()
	left := c.live != s
	if !left {
		c.live = nil
	}
	c.mu.Unlock()
	if left {
		return
	}
	s.out.unlock(codec.AppendClose(s.out.lock(), &codec.Close{Code: codec.CodeNormal}))
	s.out.finish()
}

// lingerUntilClosed reads and ignores until the server has closed: closing a socket with unread bytes in it resets the
// connection, and the reset would overtake the confirmations just sent.
func (c *Client) lingerUntilClosed(s *session) {
	c.wakeAt(s, time.Now().Add(lingerMax))
	for s.rd.fill() == nil {
		s.rd.start = s.rd.end
	}
}

func millis(ms uint64) time.Duration {
	return time.Duration(min(ms, uint64(24*time.Hour/time.Millisecond))) * time.Millisecond
}
