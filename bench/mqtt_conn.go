package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/client"
)

// mqttOptions describe one connection to a broker.
type mqttOptions struct {
	mqttLogin
	addr      string
	topic     string // to subscribe to at QoS 1; empty: none
	resume    bool   // the broker has a session, with the subscription
	keepalive time.Duration
	dial      func(ctx context.Context, addr string) (net.Conn, error) // nil: plain TCP

	// On the goroutine that reads. They must not block.
	message func(payload []byte, qos0 bool) // nil: a message is a surprise, and ends the connection
	acked   func()                          // the PUBACKs of what one read brought have gone to the socket
	puback  func(id uint16) error           // nil: the same
	read    func()                          // what one read brought was handled; nil: nobody cares
	ended   func(err error)                 // nil: nobody cares
}

// mqttConn is a connection to a broker. Close and Err may be called from any goroutine.
type mqttConn struct {
	// Static.
	o    mqttOptions
	nc   net.Conn
	done chan struct{} // closed when the reading goroutine has ended

	// Owned by the goroutine that reads: first the one that logs in.
	buf             []byte
	start, end      int
	filled          bool // the last read left no room
	out             []byte
	acks            int
	welcome, joined bool

	stats   [2]atomic.Uint64 // received, PUBACKs
	closing atomic.Bool
	over    sync.Once
	err     atomic.Pointer[error]
}

const (
	mqttReadMin   = 512
	mqttReadMax   = 32 << 10 // how far the buffer grows only to read more at once
	mqttLoginMax  = 30 * time.Second
	mqttKeepalive = time.Minute
	mqttFarewell  = 100 * time.Millisecond
)

// errMQTTEnded is why a connection has ended that we did not close.
var errMQTTEnded = errors.New("the broker has closed the connection")

// dialMQTT connects, logs in and subscribes, and goes on reading on a goroutine of its own. CONNECT and SUBSCRIBE leave in one
// write, which saves the broker a read. attempts below zero: until ctx ends.
func dialMQTT(ctx context.Context, o mqttOptions, attempts int) (*mqttConn, error) {
	if o.dial == nil {
		o.dial = dialTCP
	}
	if o.keepalive <= 0 {
		o.keepalive = mqttKeepalive
	}
	o.keepaliveS = uint16(min(o.keepalive/time.Second, 1<<16-1))
	pause := 50 * time.Millisecond
	for n := 1; ; n++ {
		c, err := tryMQTT(ctx, o)
		if err == nil {
			return c, nil
		}
		if n == attempts || !rest(ctx, pause) {
			return nil, err
		}
		pause = min(2*pause, 5*time.Second)
	}
}

func tryMQTT(ctx context.Context, o mqttOptions) (*mqttConn, error) {
	ctx, cancel := context.WithTimeout(ctx, mqttLoginMax)
	defer cancel()
	nc, err := o.dial(ctx, o.addr)
	if err != nil {
		return nil, err
	}
	c := &mqttConn{o: o, nc: nc, done: make(chan struct{})}
	if err := c.login(ctx); err != nil {
		_ = nc.Close() // the error at hand says more
		return nil, fmt.Errorf("mqtt login: %w", err)
	}
	go c.run()
	return c, nil
}

func (c *mqttConn) login(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = c.nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	b := encodeMQTTConnect(&c.o.mqttLogin)
	if c.o.topic != "" && !c.o.resume {
		b = appendMQTTSubscribe(b, 1, c.o.topic, 1)
	}
	if _, err := c.nc.Write(b); err != nil {
		return err
	}
	for !c.joined {
		if err := c.step(); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("no answer: %w", ctx.Err())
			}
			return err
		}
	}
	if !stop() {
		return fmt.Errorf("no answer: %w", ctx.Err())
	}
	return nil
}

// run reads until the connection ends. The read deadline is the keepalive: a ping leaves whatever else did, for setting the deadline
// anew with every write would cost more than the ping.
func (c *mqttConn) run() {
	defer close(c.done)
	_ = c.nc.SetReadDeadline(time.Now().Add(c.o.keepalive)) // a broken connection says so at the next read
	for {
		err := c.step()
		if errors.Is(err, os.ErrDeadlineExceeded) && !c.closing.Load() {
			_ = c.nc.SetReadDeadline(time.Now().Add(c.o.keepalive))
			_, err = c.nc.Write(appendMQTTHead(nil, mqttPingreq, 0, 0))
		}
		if err != nil {
			c.finish(err)
			return
		}
	}
}

// finish notes why the connection is over.
func (c *mqttConn) finish(err error) {
	if c.closing.Load() {
		err = client.ErrClosed
	}
	c.err.CompareAndSwap(nil, &err)
	_ = c.nc.Close()
	if c.o.ended != nil {
		c.o.ended(err)
	}
}

// step reads once and handles the packets that are complete. Their PUBACKs leave in one write.
func (c *mqttConn) step() error {
	if err := c.fill(); err != nil {
		return err
	}
	for {
		p, n, err := parseMQTT(c.buf[c.start:c.end])
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		c.start += n
		if err := c.handle(p); err != nil {
			return err
		}
	}
	if len(c.out) > 0 {
		if _, err := c.nc.Write(c.out); err != nil {
			return err
		}
		c.stats[1].Add(uint64(c.acks))
		c.out, c.acks = c.out[:0], 0
		c.o.acked()
	}
	if c.o.read != nil {
		c.o.read()
	}
	return nil
}

// fill waits for more bytes. The buffer grows when a packet needs it or reads fill it.
func (c *mqttConn) fill() error {
	rest, size := c.end-c.start, max(len(c.buf), mqttReadMin)
	if rest == size || (c.filled && size < mqttReadMax) {
		size *= 2 // a packet over the maximum is refused at its head, so this ends
	}
	if size != len(c.buf) {
		buf := make([]byte, size)
		copy(buf, c.buf[c.start:c.end])
		c.buf = buf
	} else if c.start > 0 {
		copy(c.buf, c.buf[c.start:c.end])
	}
	c.start, c.end = 0, rest
	n, err := c.nc.Read(c.buf[c.end:])
	c.end += n
	c.filled = c.end == len(c.buf)
	if n > 0 {
		return nil
	}
	if err == nil || errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w: %w", errMQTTEnded, err)
}

func (c *mqttConn) handle(p mqttPacket) error {
	switch {
	case p.kind == mqttConnack && !c.welcome:
		c.welcome, c.joined = true, c.o.topic == "" || c.o.resume
		return p.connected(c.o.resume)
	case p.kind == mqttPublish && c.welcome && c.o.message != nil:
		return c.take(p)
	case p.kind == mqttPuback && c.welcome && c.o.puback != nil:
		id, err := p.number()
		if err != nil {
			return err
		}
		return c.o.puback(id)
	case p.kind == mqttSuback && c.welcome && !c.joined:
		c.joined = true
		return p.subscribed()
	case p.kind == mqttPingresp && c.joined:
		return nil
	}
	return fmt.Errorf("an unexpected packet of kind %d", p.kind)
}

// take hands a message over and prepares its PUBACK.
func (c *mqttConn) take(p mqttPacket) error {
	id, _, payload, err := p.message()
	if err != nil {
		return err
	}
	c.stats[0].Add(1)
	c.o.message(payload, id == 0)
	if id != 0 {
		c.out = appendMQTTPuback(c.out, id)
		c.acks++
	}
	return nil
}

// Stats are the connection's counters, as the client library names them.
func (c *mqttConn) Stats() client.Stats {
	return client.Stats{Received: c.stats[0].Load(), AckFrames: c.stats[1].Load()}
}

// Err is why the connection has ended; nil while it lives, client.ErrClosed after Close.
func (c *mqttConn) Err() error {
	if err := c.err.Load(); err != nil {
		return *err
	}
	return nil
}

// Close takes leave and waits for the reading goroutine. The error is always nil.
func (c *mqttConn) Close() error {
	c.over.Do(func() {
		c.closing.Store(true)
		_ = c.nc.SetWriteDeadline(time.Now().Add(mqttFarewell))      // another write may be stuck
		_, _ = c.nc.Write(appendMQTTHead(nil, mqttDisconnect, 0, 0)) // gone already: just as well
		farewell := time.NewTimer(mqttFarewell)
		defer farewell.Stop()
		select {
		case <-c.done: // the broker has closed, so it knows
		case <-farewell.C:
		}
		_ = c.nc.Close()
		<-c.done
	})
	return nil
}
