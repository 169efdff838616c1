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

// faults spoil the lives of a run's fleets: their connections go through here.
type faults struct {
	// Static after the fleets were made.
	r      *Run
	o      FaultOptions
	fleets []*spoiled

	kills, cuts   atomic.Int64
	lost, doubled atomic.Int64 // ACK frames
	failed        atomic.Pointer[error]
	over          atomic.Bool // ACKs are neither lost nor doubled any more
}

// spoiled is a fleet with faults.
type spoiled struct {
	// Static after attach.
	x      *faults
	f      *fleet
	memory []idMemory // by user

	// Guarded by mu.
	mu    sync.Mutex
	conns []*faultConn // the present one of each user
	dead  []bool       // no connection until it is revived
	away  []bool       // killed and not logged in again: the next fault is for others
}

func newFaults(r *Run, o FaultOptions) *faults { return &faults{r: r, o: o} }

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

// attach makes a fleet's connections and memories go through the faults, and its clients impatient.
func (x *faults) attach(f *fleet) {
	n := f.o.users
	p := &spoiled{x: x, f: f, memory: make([]idMemory, n), conns: make([]*faultConn, n), dead: make([]bool, n), away: make([]bool, n)}
	for i := range p.memory {
		p.memory[i].ledger = f.ledger
	}
	f.o.dialConn = p.dialConn
	f.o.dedup = func(user int) client.DedupStore { return &p.memory[user] }
	f.o.patient = impatience
	x.fleets = append(x.fleets, p)
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

func (p *spoiled) dialConn(ctx context.Context, user int, addr string) (net.Conn, error) {
	p.mu.Lock()
	dead := p.dead[user]
	p.mu.Unlock()
	if dead {
		return nil, fmt.Errorf("%s is dead: %w", p.f.userName(user), net.ErrClosed)
	}
	nc, err := p.f.r.dialUser(ctx, addr, p.f.first+user)
	if err != nil {
		return nil, err
	}
	c := &faultConn{Conn: nc, x: p.x, rnd: rand.New(rand.NewPCG(rand.Uint64(), uint64(user)))}
	p.mu.Lock()
	p.conns[user] = c
	p.mu.Unlock()
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
		case luck < c.x.o.LostACKs:
			c.x.lost.Add(1)
			continue
		case luck < c.x.o.LostACKs+c.x.o.DoubledACKs:
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
func (p *spoiled) cut(user int) {
	if p.disconnect(user) {
		p.x.cuts.Add(1)
	}
}

// disconnect breaks a user's connection, if he has one; the client comes back by itself.
func (p *spoiled) disconnect(user int) bool {
	p.mu.Lock()
	c := p.conns[user]
	p.mu.Unlock()
	if c == nil {
		return false
	}
	_ = c.Conn.Close() // broken already: just as well
	return true
}

// kill ends a receiver as kill -9 ends a program: what it has not written down is forgotten and nothing more is said. One that
// is not logged in yet lives: nothing of its could be lost. It reports whether somebody died.
func (p *spoiled) kill(user int) bool {
	rc := &p.f.members[user]
	rc.mu.Lock()
	old := rc.c
	rc.c = nil
	rc.mu.Unlock()
	if old == nil {
		return false
	}
	p.mu.Lock()
	p.dead[user], p.away[user] = true, true
	c := p.conns[user]
	p.mu.Unlock()
	if c != nil {
		c.dead.Store(true)
		_ = c.Conn.Close() // broken already: just as well
	}
	_ = old.Close() // always nil; it has nobody to say goodbye to
	p.f.formerMu.Lock()
	addStats(&p.f.former, old.Stats())
	p.f.formerMu.Unlock()
	p.f.ledger.died(user)
	p.x.kills.Add(1)
	return true
}

// revive starts a killed receiver anew, with what it had written down.
func (p *spoiled) revive(ctx context.Context, user int) error {
	p.mu.Lock()
	p.dead[user] = false
	p.mu.Unlock()
	if err := p.f.members[user].dial(ctx); err != nil {
		return fmt.Errorf("%s does not come back: %w", p.f.userName(user), err)
	}
	p.mu.Lock()
	p.away[user] = false
	p.mu.Unlock()
	return nil
}

// reviveMax bounds a comeback, the server's own included.
const reviveMax = 30 * time.Second

// run makes faults until ctx ends, and returns when everybody it killed is back.
func (x *faults) run(ctx context.Context) error {
	if x.o.KillEvery <= 0 {
		return nil
	}
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviveMax+x.r.o.Duration+x.r.o.WarmUp)
	defer cancel()
	x.haunt(ctx, after)
	if err := x.failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (x *faults) fail(err error) { x.failed.CompareAndSwap(nil, &err) }

// haunt kills and cuts users in turn, at random.
func (x *faults) haunt(ctx, after context.Context) {
	rnd := rand.New(rand.NewPCG(x.r.id, uint64(x.r.index)+1))
	var away sync.WaitGroup
	defer away.Wait()
	for n := 0; rest(ctx, x.o.KillEvery); n++ {
		p, user := x.pick(rnd)
		if p == nil || p.isAway(user) {
			continue
		}
		if n%2 == 0 {
			p.cut(user)
			continue
		}
		if !p.kill(user) {
			continue
		}
		pause := time.Duration(rnd.Int64N(int64(x.o.AwayMax) + 1))
		away.Go(func() {
			rest(ctx, pause)
			if err := p.revive(after, user); err != nil {
				x.fail(err)
			}
		})
	}
}

// pick chooses a user among those of all fleets; nil: there is nobody.
func (x *faults) pick(rnd *rand.Rand) (*spoiled, int) {
	total := 0
	for _, p := range x.fleets {
		total += len(p.memory)
	}
	if total == 0 {
		return nil, 0
	}
	n := rnd.IntN(total)
	for _, p := range x.fleets {
		if n < len(p.memory) {
			return p, n
		}
		n -= len(p.memory)
	}
	return nil, 0
}

func (p *spoiled) isAway(user int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.away[user]
}

// calm ends the faults until done: ACKs are lost no longer, and receivers log in anew from time to time, for a message whose ACKs
// were lost on every live attempt waits for that.
func (x *faults) calm(ctx context.Context, done <-chan struct{}) {
	x.over.Store(true)
	again := time.NewTicker(loginsApart)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			for _, p := range x.fleets {
				for user := range p.memory {
					p.disconnect(user)
				}
			}
		case <-done:
			return
		case <-ctx.Done():
			return
		}
	}
}

// faultName is the name of a count in results and in the table.
type faultName struct{ key, label string }

func faultNames() []faultName {
	return []faultName{
		{"receiver_kills", "receivers killed"}, {"connections_cut", "connections cut"},
		{"acks_lost", "ACK frames lost"}, {"acks_doubled", "ACK frames doubled"},
	}
}

func (x *faults) collect(res *Result) {
	for i, n := range []int64{x.kills.Load(), x.cuts.Load(), x.lost.Load(), x.doubled.Load()} {
		res.Sums[faultNames()[i].key] += n
	}
}
