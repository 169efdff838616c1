package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/client"
	"holdfast/codec"
)

// faultsOptions say what goes wrong, and how often.
type faultsOptions struct {
	killEvery  time.Duration // a receiver dies or loses its connection; 0: never
	crashEvery time.Duration // kill -9 of the server; 0: never
	awayMax    time.Duration // how long a dead receiver stays away at most
	lostACKs   float64       // share of ACK frames that never leave
	doubleACKs float64       // share that leaves twice
}

// faults spoil a fleet's life: its connections go through here.
type faults struct {
	// Static after newFaults.
	r      *Run
	o      faultsOptions
	f      *fleet
	memory []idMemory // by user

	kills, cuts, crashes atomic.Int64
	lost, doubled        atomic.Int64 // ACK frames
	failed               atomic.Pointer[error]
	over                 atomic.Bool // ACKs are neither lost nor doubled any more

	// Guarded by mu.
	mu    sync.Mutex
	conns []*faultConn // the present one of each user
	dead  []bool       // no connection until it is revived
	away  []bool       // killed and not logged in again: the next fault is for others
}

func newFaults(r *Run, users int, o faultsOptions) *faults {
	return &faults{
		r: r, o: o, memory: make([]idMemory, users), conns: make([]*faultConn, users), dead: make([]bool, users), away: make([]bool, users),
	}
}

// idMemory is what a receiver has written down of the ids it has seen, and what outlives it.
type idMemory struct {
	ledger *ledger

	mu  sync.Mutex
	ids []string
}

// idsMax is what the protocol asks a client to remember.
const idsMax = 4096

// Load gives the ids back to a receiver that starts anew.
func (m *idMemory) Load(yield func(id string) bool) error {
	m.mu.Lock()
	ids := slices.Clone(m.ids)
	m.mu.Unlock()
	for _, id := range ids {
		if !yield(id) {
			break
		}
	}
	return nil
}

// Append writes ids down, before their ACKs leave.
func (m *idMemory) Append(ids []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		m.ledger.remember(id)
		m.ids = append(m.ids, id)
	}
	if len(m.ids) > 2*idsMax {
		m.ids = slices.Clone(m.ids[len(m.ids)-idsMax:])
	}
	return nil
}

// Close does nothing: the memory is the harness's.
func (*idMemory) Close() error { return nil }

// attach makes the fleet's connections and memories go through the faults.
func (x *faults) attach(f *fleet) {
	x.f = f
	for i := range x.memory {
		x.memory[i].ledger = f.ledger
	}
	f.o.dialConn = x.dialConn
	f.o.dedup = func(user int) client.DedupStore { return &x.memory[user] }
}

// faultConn is a receiver's connection that loses and doubles ACKs.
type faultConn struct {
	net.Conn
	x *faults

	// Owned by the one writer at a time that the client has.
	rnd  *rand.Rand
	held []byte

	dead atomic.Bool // nothing leaves any more
}

func (x *faults) dialConn(ctx context.Context, user int, addr string) (net.Conn, error) {
	x.mu.Lock()
	dead := x.dead[user]
	x.mu.Unlock()
	if dead {
		return nil, fmt.Errorf("%s is dead: %w", userName(user), net.ErrClosed)
	}
	nc, err := dialTCP(ctx, addr)
	if err != nil {
		return nil, err
	}
	c := &faultConn{Conn: nc, x: x, rnd: rand.New(rand.NewPCG(rand.Uint64(), uint64(user)))}
	x.mu.Lock()
	x.conns[user] = c
	x.mu.Unlock()
	return c, nil
}

// Write lets everything through but some ACK frames, which it swallows or repeats. The library hands over whole frames.
func (c *faultConn) Write(b []byte) (int, error) {
	if c.dead.Load() {
		return 0, net.ErrClosed
	}
	c.held = c.spoil(c.held[:0], b)
	if _, err := c.Conn.Write(c.held); err != nil {
		return 0, err
	}
	return len(b), nil
}

// spoil appends the frames of b to dst, with the faults.
func (c *faultConn) spoil(dst, b []byte) []byte {
	for len(b) > 0 {
		f, n, err := codec.Parse(b, codec.FrameBytesMax)
		if err != nil || n == 0 {
			return append(dst, b...) // not ours to judge
		}
		frame := b[:n]
		b = b[n:]
		if f.Type != codec.TypeAck || c.x.over.Load() {
			dst = append(dst, frame...)
			continue
		}
		switch luck := c.rnd.Float64(); {
		case luck < c.x.o.lostACKs:
			c.x.lost.Add(1)
			continue
		case luck < c.x.o.lostACKs+c.x.o.doubleACKs:
			c.x.doubled.Add(1)
			dst = append(dst, frame...)
		}
		dst = append(dst, frame...)
	}
	return dst
}

// CloseWrite ends the write side, as the library does when it leaves in order.
func (c *faultConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && !c.dead.Load() {
		return half.CloseWrite()
	}
	return nil
}

// cut breaks a user's connection, as a fault.
func (x *faults) cut(user int) {
	if x.disconnect(user) {
		x.cuts.Add(1)
	}
}

// disconnect breaks a user's connection, if he has one; the client comes back by itself.
func (x *faults) disconnect(user int) bool {
	x.mu.Lock()
	c := x.conns[user]
	x.mu.Unlock()
	if c == nil {
		return false
	}
	_ = c.Conn.Close() // broken already: just as well
	return true
}

// kill ends a receiver as kill -9 ends a program: what it has not written down is forgotten and nothing more is said.
func (x *faults) kill(user int) {
	x.mu.Lock()
	x.dead[user], x.away[user] = true, true
	c := x.conns[user]
	x.mu.Unlock()
	if c != nil {
		c.dead.Store(true)
		_ = c.Conn.Close() // broken already: just as well
	}
	rc := &x.f.members[user]
	rc.mu.Lock()
	old := rc.c
	rc.c = nil
	rc.mu.Unlock()
	if old != nil {
		_ = old.Close() // always nil; it has nobody to say goodbye to
	}
	x.f.ledger.died(user)
	x.kills.Add(1)
}

// revive starts a killed receiver anew, with what it had written down.
func (x *faults) revive(ctx context.Context, user int) error {
	x.mu.Lock()
	x.dead[user] = false
	x.mu.Unlock()
	if err := x.f.members[user].dial(ctx); err != nil {
		return fmt.Errorf("%s does not come back: %w", userName(user), err)
	}
	x.mu.Lock()
	x.away[user] = false
	x.mu.Unlock()
	return nil
}

// reviveMax bounds a comeback, the server's own included.
const reviveMax = 30 * time.Second

// run makes faults until ctx ends, and returns when everybody it killed is back.
func (x *faults) run(ctx context.Context) error {
	var busy sync.WaitGroup
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviveMax+x.r.o.Duration+x.r.o.WarmUp)
	defer cancel()
	if x.o.killEvery > 0 {
		busy.Go(func() { x.haunt(ctx, after) })
	}
	if x.o.crashEvery > 0 {
		busy.Go(func() {
			for rest(ctx, x.o.crashEvery) {
				x.crashes.Add(1)
				if err := x.r.server.crash(after); err != nil {
					x.fail(fmt.Errorf("the server does not come back: %w", err))
					return
				}
			}
		})
	}
	busy.Wait()
	if err := x.failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (x *faults) fail(err error) { x.failed.CompareAndSwap(nil, &err) }

// haunt kills and cuts users in turn, at random.
func (x *faults) haunt(ctx, after context.Context) {
	rnd := rand.New(rand.NewPCG(x.r.id, 1))
	var away sync.WaitGroup
	defer away.Wait()
	for n := 0; rest(ctx, x.o.killEvery); n++ {
		user := rnd.IntN(len(x.f.members))
		x.mu.Lock()
		gone := x.away[user]
		x.mu.Unlock()
		switch {
		case gone:
		case n%2 == 0:
			x.cut(user)
		default:
			x.kill(user)
			pause := time.Duration(rnd.Int64N(int64(x.o.awayMax) + 1))
			away.Go(func() {
				rest(ctx, pause)
				if err := x.revive(after, user); err != nil {
					x.fail(err)
				}
			})
		}
	}
}
