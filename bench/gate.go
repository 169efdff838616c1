package bench

import (
	"net"
	"slices"
	"sync"

	"holdfast/codec"
)

// gate holds back what some of a fleet's users do: they read nothing, or their ACKs do not leave.
type gate struct {
	// Static.
	closedFor func(user int) bool
	reads     bool // reads are held back; otherwise ACKs

	// Guarded by mu.
	mu    sync.Mutex
	shut  chan struct{} // closed when the gate opens; nil: open
	conns []*gatedConn
}

// gatedConn is the connection of a user the gate is for.
type gatedConn struct {
	net.Conn
	g       *gate
	left    chan struct{} // closed when the client leaves: then it waits for nothing
	leaving sync.Once

	// Guarded by mu, which is held over writes so that what was held back leaves before what came later.
	mu   sync.Mutex
	held []byte
}

// wrap puts the connections of users the gate is for behind it.
func (g *gate) wrap(user int, nc net.Conn) net.Conn {
	if !g.closedFor(user) {
		return nc
	}
	c := &gatedConn{Conn: nc, g: g, left: make(chan struct{})}
	g.mu.Lock()
	g.conns = append(g.conns, c)
	g.mu.Unlock()
	return c
}

// close shuts the gate.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut == nil {
		g.shut = make(chan struct{})
	}
}

// open lets everything through, what was held back first. It may be called when the gate is open.
func (g *gate) open() {
	g.mu.Lock()
	shut := g.shut
	g.shut = nil
	conns := slices.Clone(g.conns)
	g.mu.Unlock()
	if shut == nil {
		return
	}
	close(shut)
	var busy sync.WaitGroup
	for _, c := range conns {
		busy.Go(c.release)
	}
	busy.Wait()
}

// waiting is what one waits for while the gate is shut; nil: it is open.
func (g *gate) waiting() chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.shut
}

// Read waits while the gate is shut for reads. The kernel's buffer fills, then the server's.
func (c *gatedConn) Read(b []byte) (int, error) {
	if c.g.reads {
		if shut := c.g.waiting(); shut != nil {
			select {
			case <-shut:
			case <-c.left:
			}
		}
	}
	return c.Conn.Read(b)
}

// Write keeps ACK frames back while the gate is shut for them.
func (c *gatedConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.g.reads || c.g.waiting() == nil {
		c.releaseLocked()
		return c.Conn.Write(b)
	}
	pass := make([]byte, 0, len(b))
	for rest := b; len(rest) > 0; {
		f, n, err := codec.Parse(rest, codec.FrameBytesMax)
		if err != nil || n == 0 {
			pass = append(pass, rest...)
			break
		}
		if f.Type == codec.TypeAck {
			c.held = append(c.held, rest[:n]...)
		} else {
			pass = append(pass, rest[:n]...)
		}
		rest = rest[n:]
	}
	if len(pass) > 0 {
		if _, err := c.Conn.Write(pass); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// release sends what was held back.
func (c *gatedConn) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseLocked()
}

func (c *gatedConn) releaseLocked() {
	if len(c.held) > 0 {
		_, _ = c.Conn.Write(c.held) // a connection that has ended: the server sends again what it misses
		c.held = nil
	}
}

// Close ends the connection, and a read that waits at the gate.
func (c *gatedConn) Close() error {
	c.leaving.Do(func() { close(c.left) })
	return c.Conn.Close()
}

// CloseWrite ends the write side, as the library does when it leaves in order, and a read that waits at the gate.
func (c *gatedConn) CloseWrite() error {
	c.leaving.Do(func() { close(c.left) })
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// spread picks a share of the users, evenly among them.
func spread(users int, share float64) func(user int) bool {
	return func(user int) bool {
		return int(float64(user+1)*share) > int(float64(user)*share) && user < users
	}
}
