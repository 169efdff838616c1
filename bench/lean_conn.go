package bench

import (
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// begin opens a connection; what fails already counts as a refused login.
func (w *leanWorker) begin(login leanLogin) {
	i := len(w.conns)
	if n := len(w.free); n > 0 {
		i, w.free = w.free[n-1], w.free[:n-1]
	} else {
		w.conns = append(w.conns, leanConn{})
	}
	c := &w.conns[i]
	*c = leanConn{login: login, job: w.job, fd: -1, began: w.crowd.o.now()}
	if err := w.dial(i, c); err != nil {
		w.fail(i, c, err)
	}
}

// dial connects without waiting. On the same machine that is often done at once, and then so is the login.
func (w *leanWorker) dial(i int, c *leanConn) error {
	fd, err := unix.Socket(w.family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("making a socket: %w", err)
	}
	c.fd = fd
	var from net.IP
	if w.crowd.o.source != nil {
		from = w.crowd.o.source(c.login.user)
	}
	if from != nil {
		// The port is chosen when the connection is made, so that one port can serve one connection to each target.
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
			return fmt.Errorf("choosing a source address: %w", err)
		}
		local, _ := sockaddr(from, 0)
		if err := unix.Bind(fd, local); err != nil {
			return fmt.Errorf("choosing a source address: %w", err)
		}
	}
	switch err := unix.Connect(fd, w.target); err {
	case nil:
		if err := w.ask(c); err != nil {
			return err
		}
		return w.watch(unix.EPOLL_CTL_ADD, fd, i, unix.EPOLLIN)
	case unix.EINPROGRESS, unix.EINTR: // interrupted, it goes on by itself as well
		return w.watch(unix.EPOLL_CTL_ADD, fd, i, unix.EPOLLOUT)
	default:
		return fmt.Errorf("connecting: %w", err)
	}
}

// ask sends the login.
func (w *leanWorker) ask(c *leanConn) error {
	c.state = leanAsking
	return c.write(c.login.hello)
}

// write sends bytes that a socket nobody has written to for a while has room for.
func (c *leanConn) write(b []byte) error {
	n, err := unix.Write(c.fd, b)
	if err != nil {
		return fmt.Errorf("writing: %w", err)
	}
	if n < len(b) {
		return fmt.Errorf("writing: the socket took %d of %d bytes", n, len(b))
	}
	return nil
}

// ready handles one event of a connection.
func (w *leanWorker) ready(i int, events uint32) {
	if i == wakeConn {
		var count [8]byte
		_, _ = unix.Read(w.event, count[:]) // nothing there: just as well
		return
	}
	c := &w.conns[i]
	var err error
	switch c.state {
	case leanConnecting:
		err = w.connected(i, c)
	case leanAsking, leanIn:
		err = w.read(i, c)
	case leanOver: // of an earlier connection in this place
	}
	if err == nil && events&unix.EPOLLERR != 0 {
		err = errLeanEOF
	}
	if err != nil {
		w.fail(i, c, err)
	}
}

// connected follows the end of TCP's handshake.
func (w *leanWorker) connected(i int, c *leanConn) error {
	code, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	if err := w.ask(c); err != nil {
		return err
	}
	return w.watch(unix.EPOLL_CTL_MOD, c.fd, i, unix.EPOLLIN)
}

// read takes what has arrived.
func (w *leanWorker) read(i int, c *leanConn) error {
	at := copy(w.buf[:], c.rest)
	n, err := unix.Read(c.fd, w.buf[at:])
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return nil
	case err != nil:
		return fmt.Errorf("reading: %w", err)
	case n == 0:
		return errLeanEOF
	}
	c.heardAt = w.crowd.o.now()
	b, out := w.buf[:at+n], w.out[:0]
	for len(b) > 0 {
		n, in, err := w.crowd.o.speech.heard(b)
		if err == nil && n > 0 && w.listener != nil {
			out, err = w.listener.take(c.login.user, b[:n], out)
		}
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		b = b[n:]
		if in && c.state == leanAsking {
			w.enter(i, c)
		}
	}
	if len(b) == len(w.buf) {
		return fmt.Errorf("a frame of more than %d bytes arrived", len(w.buf))
	}
	c.rest = append(c.rest[:0], b...)
	if w.listener == nil {
		return nil
	}
	return w.answer(c, w.listener.answer(c.login.user, out))
}

// answer sends what a read has led to.
func (w *leanWorker) answer(c *leanConn, out []byte) error {
	w.out = out
	if len(out) == 0 {
		return nil
	}
	if err := c.write(out); err != nil {
		return err
	}
	w.listener.answered(c.login.user)
	return nil
}

// enter follows an accepted login.
func (w *leanWorker) enter(i int, c *leanConn) {
	o := &w.crowd.o
	c.state = leanIn
	c.job.underWay--
	c.job = nil
	c.login.hello = nil
	w.crowd.held.Add(1)
	if o.keepalive > 0 {
		w.pings.push(leanDue{i, c.heardAt + int64(o.keepalive)})
	}
	if o.in != nil {
		o.in(c.login.user, c.began)
	}
}

// keepAlive pings those whose time it is, and gives up those of whom nothing was heard for half a keepalive longer.
func (w *leanWorker) keepAlive() {
	for {
		d, ok := w.pings.first()
		if !ok {
			return
		}
		now := w.crowd.o.now()
		if d.at > now {
			return
		}
		w.pings.head++
		c := &w.conns[d.conn]
		if c.state != leanIn {
			continue // places of those that were in are not used again
		}
		every := int64(w.crowd.o.keepalive)
		err := c.write(w.crowd.o.speech.ping())
		if now-c.heardAt > every+every/2 {
			err = fmt.Errorf("nothing was heard for %v", time.Duration(now-c.heardAt))
		}
		if err != nil {
			w.fail(d.conn, c, err)
			continue
		}
		w.pings.push(leanDue{d.conn, now + every})
	}
}

// drop closes a connection.
func (w *leanWorker) drop(c *leanConn) {
	if c.fd >= 0 {
		_ = unix.Close(c.fd) // whatever it says, the descriptor is gone
		c.fd = -1
	}
	c.state, c.rest = leanOver, nil
}

// fail ends a connection: as lost when it was in, else as a refused login, which is tried again where the crowd wants that.
func (w *leanWorker) fail(i int, c *leanConn, err error) {
	o := &w.crowd.o
	wasIn := c.state == leanIn
	w.drop(c)
	if wasIn {
		w.crowd.held.Add(-1)
		w.crowd.lost.Add(1)
		if o.lost != nil {
			o.lost(c.login.user, err)
		}
		return
	}
	j := c.job
	w.free = append(w.free, i)
	if o.refused != nil {
		o.refused(c.login.user, err)
	}
	if o.retry {
		w.retry = append(w.retry, leanRetry{c.login, o.now() + int64(retryDelay(err))})
		return
	}
	j.underWay--
	if j.err == nil {
		j.err = fmt.Errorf("login of %s: %w", w.crowd.o.name(c.login.user), err)
	}
}
