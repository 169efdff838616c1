package bench

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/codec"
)

// leanGateway is a server that answers the n-th connection as answer says, and returns its address.
func leanGateway(t *testing.T, answer func(n int64, c net.Conn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var busy sync.WaitGroup
	t.Cleanup(func() {
		ln.Close()
		busy.Wait()
	})
	busy.Go(func() {
		for n := int64(0); ; n++ {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			busy.Go(func() {
				defer c.Close()
				answer(n, c)
				_, _ = io.Copy(io.Discard, c) // until the client leaves
			})
		}
	})
	return ln.Addr().String()
}

// readConnect waits for a login.
func readConnect(c net.Conn) (x codec.Connect) {
	var buf []byte
	b := make([]byte, 4096)
	for {
		n, err := c.Read(b)
		if err != nil {
			return x
		}
		buf = append(buf, b[:n]...)
		if f, n, err := codec.Parse(buf, codec.FrameBytesMax); err == nil && n > 0 && codec.DecodeConnect(f, &x) == nil {
			return x
		}
	}
}

func leanCrowdTo(t *testing.T, addr string, change func(o *leanOptions)) *leanCrowd {
	t.Helper()
	began := time.Now()
	o := leanOptions{
		addr: addr, name: userName, now: func() int64 { return int64(time.Since(began)) },
		speech: leanTo(nil, userName, leanHoldfast{}),
	}
	change(&o)
	c, err := newLeanCrowd(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c
}

func leanLogins(t *testing.T, c *leanCrowd, n int) []leanLogin {
	t.Helper()
	logins, err := c.hellos(0, n)
	if err != nil {
		t.Fatal(err)
	}
	return logins
}

func TestLeanLoginsAreLetInHoweverTheWelcomeArrives(t *testing.T) {
	var users sync.Map
	addr := leanGateway(t, func(n int64, c net.Conn) {
		x := readConnect(c)
		users.Store(string(x.User)+" "+string(x.Token), true)
		b := codec.AppendWelcome(nil, &codec.Welcome{SessionID: 1, User: x.User, Device: x.Device})
		b = codec.AppendPong(b, nil)
		if n%2 == 0 {
			_, _ = c.Write(b)
			return
		}
		for i := range b { // byte by byte, or as few as the kernel makes of it
			_, _ = c.Write(b[i : i+1])
		}
	})
	var in atomic.Int64
	c := leanCrowdTo(t, addr, func(o *leanOptions) {
		o.speech = leanTo(nil, userName, leanHoldfast{token: func(user string, _ bool) (string, error) { return "of " + user, nil }})
		o.source = func(user int) net.IP { return source(order{Addr: addr, PerSource: 10}, user) }
		o.in = func(int, int64) { in.Add(1) }
	})
	if err := c.login(t.Context(), leanLogins(t, c, 40), 7); err != nil {
		t.Fatal(err)
	}
	if in.Load() != 40 || c.held.Load() != 40 || c.lost.Load() != 0 {
		t.Errorf("%d in, %d held, %d lost", in.Load(), c.held.Load(), c.lost.Load())
	}
	if _, ok := users.Load(userName(39) + " of " + userName(39)); !ok {
		t.Error("the last user did not bring his token")
	}
}

func TestLeanLoginsThatAreRefusedAreTriedAgain(t *testing.T) {
	addr := leanGateway(t, func(n int64, c net.Conn) {
		x := readConnect(c)
		switch {
		case n < 5:
			_, _ = c.Write(codec.AppendClose(nil, &codec.Close{Code: codec.CodeOverloaded, RetryAfterMs: 20}))
		case n < 10:
			c.Close()
		default:
			_, _ = c.Write(codec.AppendWelcome(nil, &codec.Welcome{SessionID: 1, User: x.User, Device: x.Device}))
		}
	})
	var refused atomic.Int64
	c := leanCrowdTo(t, addr, func(o *leanOptions) {
		o.retry = true
		o.refused = func(int, error) { refused.Add(1) }
	})
	if err := c.login(ctxFor(t, 20*time.Second), leanLogins(t, c, 20), 20); err != nil {
		t.Fatal(err)
	}
	if refused.Load() != 10 || c.held.Load() != 20 {
		t.Errorf("%d refused, %d held", refused.Load(), c.held.Load())
	}
}

func TestLeanLoginsEndWithTheFirstErrorOrTheirTime(t *testing.T) {
	full := leanGateway(t, func(_ int64, c net.Conn) {
		readConnect(c)
		_, _ = c.Write(codec.AppendClose(nil, &codec.Close{Code: codec.CodeOverloaded}))
	})
	c := leanCrowdTo(t, full, func(*leanOptions) {})
	if err := c.login(t.Context(), leanLogins(t, c, 4), 2); err == nil || !strings.Contains(err.Error(), "login of bench-") || !strings.Contains(err.Error(), "overloaded") {
		t.Errorf("error %v", err)
	}
	mute := leanGateway(t, func(int64, net.Conn) {})
	c = leanCrowdTo(t, mute, func(o *leanOptions) { o.retry = true })
	if err := c.login(ctxFor(t, 50*time.Millisecond), leanLogins(t, c, 4), 4); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if err := c.login(ctxFor(t, 50*time.Millisecond), nil, 4); err != nil {
		t.Errorf("nobody to log in: %v", err)
	}
}

func TestLeanAddressWithoutAHostIsThisMachine(t *testing.T) {
	addr := leanGateway(t, func(_ int64, c net.Conn) {
		x := readConnect(c)
		_, _ = c.Write(codec.AppendWelcome(nil, &codec.Welcome{SessionID: 1, User: x.User, Device: x.Device}))
	})
	c := leanCrowdTo(t, addr[strings.LastIndex(addr, ":"):], func(*leanOptions) {})
	if err := c.login(ctxFor(t, 10*time.Second), leanLogins(t, c, 1), 1); err != nil {
		t.Error(err)
	}
}

func TestLeanConnectionsThatEndOrFallSilentAreLost(t *testing.T) {
	for _, test := range []struct {
		name      string
		keepalive time.Duration
		after     func(c net.Conn) // the welcome
	}{
		{"closed", 0, func(c net.Conn) { c.Close() }},
		{"told to go", 0, func(c net.Conn) { _, _ = c.Write(codec.AppendClose(nil, &codec.Close{Code: codec.CodeGoingAway})) }},
		{"foreign bytes", 0, func(c net.Conn) { _, _ = c.Write([]byte{0xff, 0xff, 0xff, 0xff, 0xff}) }},
		{"silent", 50 * time.Millisecond, func(net.Conn) {}},
	} {
		t.Run(test.name, func(t *testing.T) {
			addr := leanGateway(t, func(_ int64, c net.Conn) {
				x := readConnect(c)
				_, _ = c.Write(codec.AppendWelcome(nil, &codec.Welcome{SessionID: 1, User: x.User, Device: x.Device}))
				test.after(c)
			})
			c := leanCrowdTo(t, addr, func(o *leanOptions) { o.keepalive = test.keepalive })
			if err := c.login(t.Context(), leanLogins(t, c, 3), 3); err != nil {
				t.Fatal(err)
			}
			until(ctxFor(t, 10*time.Second), func() bool { return c.lost.Load() == 3 })
			if c.lost.Load() != 3 || c.held.Load() != 0 {
				t.Errorf("%d lost, %d held", c.lost.Load(), c.held.Load())
			}
		})
	}
}

func TestLeanConnectionsPing(t *testing.T) {
	var pings atomic.Int64
	addr := leanGateway(t, func(_ int64, c net.Conn) {
		x := readConnect(c)
		_, _ = c.Write(codec.AppendWelcome(nil, &codec.Welcome{SessionID: 1, User: x.User, Device: x.Device}))
		b := make([]byte, 64)
		for {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			for at := 0; at < n; {
				f, k, err := codec.Parse(b[at:n], codec.FrameBytesMax)
				if err != nil || k == 0 || f.Type != codec.TypePing {
					return
				}
				at += k
				pings.Add(1)
			}
			_, _ = c.Write(codec.AppendPong(nil, nil))
		}
	})
	c := leanCrowdTo(t, addr, func(o *leanOptions) { o.keepalive = 40 * time.Millisecond })
	if err := c.login(t.Context(), leanLogins(t, c, 2), 2); err != nil {
		t.Fatal(err)
	}
	until(ctxFor(t, 10*time.Second), func() bool { return pings.Load() >= 10 })
	if pings.Load() < 10 {
		t.Errorf("%d pings, %d lost", pings.Load(), c.lost.Load())
	}
}
