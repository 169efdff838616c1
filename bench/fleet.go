package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/client"
	"holdfast/codec"
)

// dialsAtOnce is how many logins of a fleet are under way while it gathers; a storm uses more.
const dialsAtOnce = 64

// fleetOptions describe a population of receivers.
type fleetOptions struct {
	users   int
	window  int           // receive window asked for, messages; 0: the server's
	lean    bool          // receivers may do without the client library
	ackEach bool          // one ACK frame a message; otherwise as the client library bundles them
	patient time.Duration // longest back-off between reconnects; 0: the client's
	// dialConn opens the connection of a user; nil: plain TCP. ACKs count as sent when they are given to it.
	dialConn func(ctx context.Context, user int, addr string) (net.Conn, error)
	// wrap goes around a user's connection; nil: nothing. ACKs count as sent when they come out of it.
	wrap  func(user int, nc net.Conn) net.Conn
	dedup func(user int) client.DedupStore // nil: memory of the client only
	// skip takes a user out of the latencies, which then are those of the others.
	skip func(user int) bool
	// label tells this fleet's users and latencies from those of another one beside it; empty: the only one.
	label string
	// stages splits "publish to receive" by when messages were meant to be sent; nil: one latency.
	stages *stages
	// backlog is how many messages wait for each user; when that many are acknowledged, drained is told. 0: nobody cares.
	backlog int
	drained func(user int)
}

// fleet is the population: one client a user, all handing their messages to one ledger.
type fleet struct {
	// Static after newFleet.
	r         *Run
	o         fleetOptions
	first     int // number of the first user: other processes of the generator have those before and after
	ledger    *ledger
	acked     *Counter // ACKs given to the socket; with fire and forget, messages received
	toReceive *Latency
	toAck     *Latency
	members   []receiver
	leanly    *leanFleet // the connections when they do without the client library; nil: members have their own

	formerMu sync.Mutex
	former   client.Stats // of clients that were killed and replaced; guarded by formerMu
}

// receiver is one user.
type receiver struct {
	// Static.
	f     *fleet
	index int

	settled atomic.Int64 // messages that no longer count against the publishers' window

	// Guarded by mu.
	mu      sync.Mutex
	c       receiving
	handled []int64 // intended times of messages whose ACK is not at the socket yet
}

// receiving is a receiver's connection once it is logged in: the client library's, or MQTT's.
type receiving interface {
	Stats() client.Stats
	// Err is why it has ended for good; nil: it lives. client.ErrClosed: we ended it.
	Err() error
	Close() error
}

// newFleet makes the recorders; connect opens the connections.
func newFleet(r *Run, o fleetOptions) *fleet {
	f := &fleet{r: r, o: o, first: r.first(o.label), ledger: newLedger(r.id, o.users), members: make([]receiver, o.users)}
	f.ledger.first = f.first
	f.acked = r.counter(o.label + "acked")
	if o.stages == nil {
		f.toReceive = r.latency(o.label + "publish to receive")
	}
	f.toAck = r.latency(o.label + "publish to acked")
	for i := range f.members {
		f.members[i].f, f.members[i].index = f, i
	}
	if r.faults != nil {
		r.faults.attach(f)
	}
	return f
}

// userName is the name of a user of this fleet.
func (f *fleet) userName(user int) string {
	if f.o.label == "" {
		return userName(f.first + user)
	}
	return userName(f.first+user) + "-" + strings.TrimSpace(f.o.label)
}

// connect logs everybody in, some at a time, and returns the first error.
func (f *fleet) connect(ctx context.Context) error {
	if f.lean() {
		return f.connectLean(ctx)
	}
	return f.login(ctx, dialsAtOnce, func(ctx context.Context, user int) error { return f.members[user].dial(ctx) })
}

// login calls dial for every user, with atOnce calls under way, and returns the first error.
func (f *fleet) login(ctx context.Context, atOnce int, dial func(ctx context.Context, user int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan int)
	var busy sync.WaitGroup
	for range min(atOnce, len(f.members)) {
		busy.Go(func() {
			for user := range work {
				if err := dial(ctx, user); err != nil {
					cancel(fmt.Errorf("login of %s: %w", f.userName(user), err))
				}
			}
		})
	}
	for user := range f.members {
		select {
		case work <- user:
		case <-ctx.Done():
		}
	}
	close(work)
	busy.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return nil
}

// options are the client's options of a receiver.
func (rc *receiver) options() client.Options {
	f := rc.f
	o := client.Options{
		Addrs: []string{f.r.o.Target.Addr}, User: f.userName(rc.index), Device: "bench", ClientName: "holdfast-bench",
		Handler: rc.handle, Inline: true, WindowMsgs: f.o.window, DialConn: rc.dialConn,
	}
	if f.o.ackEach {
		o.AckBatch, o.AckDelay = 1, -1
	}
	if f.o.dedup != nil {
		o.DedupStore = f.o.dedup(rc.index)
	}
	if f.o.patient > 0 {
		o.BackoffBase, o.BackoffMax = min(f.o.patient, 50*time.Millisecond), f.o.patient
	}
	o.Token = f.r.token(o.User, false)
	return o
}

// token is a login's token function; nil when the run has none.
func (r *Run) token(user string, publisher bool) func(context.Context) (string, error) {
	if r.o.Target.Token == nil {
		return nil
	}
	return func(context.Context) (string, error) { return r.o.Target.Token(user, publisher) }
}

func (rc *receiver) dial(ctx context.Context) error { return rc.tryDial(ctx, -1) }

// tryDial logs in with at most so many attempts; below zero: until ctx ends.
func (rc *receiver) tryDial(ctx context.Context, attempts int) error {
	c, err := rc.open(ctx, attempts)
	if err != nil {
		return err
	}
	rc.mu.Lock()
	rc.c = c
	rc.mu.Unlock()
	return nil
}

// open logs in to what the target is.
func (rc *receiver) open(ctx context.Context, attempts int) (receiving, error) {
	if rc.f.r.o.Target.MQTT != nil {
		return rc.dialMQTT(ctx, attempts)
	}
	o := rc.options()
	o.DialAttempts = attempts
	return client.Dial(ctx, o)
}

// dialConn opens a connection whose writes are watched for ACKs.
func (rc *receiver) dialConn(ctx context.Context, addr string) (net.Conn, error) {
	var nc net.Conn
	var err error
	if rc.f.o.dialConn != nil {
		nc, err = rc.f.o.dialConn(ctx, rc.index, addr)
	} else {
		nc, err = rc.f.r.dialUser(ctx, addr, rc.f.first+rc.index)
	}
	if err != nil {
		return nil, err
	}
	nc = &ackWatch{Conn: nc, rc: rc}
	if rc.f.o.wrap != nil {
		nc = rc.f.o.wrap(rc.index, nc)
	}
	return nc, nil
}

// dialUser opens a user's connection, from one of several addresses of this machine when the ports of one would not do.
func (r *Run) dialUser(ctx context.Context, addr string, user int) (net.Conn, error) {
	return dialFrom(ctx, addr, source(order{Addr: addr, PerSource: r.perSource}, user))
}

// dialTCP opens a plain connection, without the kernel's keep-alive probes: the protocol has its own.
func dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{KeepAlive: -1}
	return d.DialContext(ctx, "tcp", addr)
}

// handle takes one message on the client's read goroutine; nil confirms it.
func (rc *receiver) handle(_ context.Context, m *client.Message) error {
	rc.take(m.Payload, m.NoAck)
	return nil
}

// take notes a message that has arrived.
func (rc *receiver) take(payload []byte, noAck bool) {
	now := rc.f.r.now()
	s, ok := readStamp(payload)
	if !ok {
		rc.f.ledger.foreign.Add(1)
		return
	}
	if !rc.f.ledger.receive(rc.index, &s) {
		return
	}
	if rc.f.o.skip == nil || !rc.f.o.skip(rc.index) {
		if rc.f.o.stages != nil {
			rc.f.o.stages.record(rc.index, s.intended, now)
		} else {
			rc.f.toReceive.record(rc.index, s.intended, now)
		}
	}
	if noAck {
		rc.settled.Add(1)
		rc.f.acked.add(1)
		return
	}
	rc.mu.Lock()
	rc.handled = append(rc.handled, s.intended)
	rc.mu.Unlock()
}

// ackWatch is a receiver's connection: the moment its ACKs have gone to the socket is the end of "publish to acked".
type ackWatch struct {
	net.Conn
	rc *receiver
}

// Write notes what was acknowledged by it. The library hands over whole frames, and puts what was handled before into them.
func (w *ackWatch) Write(b []byte) (int, error) {
	if !hasAck(b) {
		return w.Conn.Write(b)
	}
	rc := w.rc
	handled := rc.takeHandled()
	n, err := w.Conn.Write(b)
	if err != nil {
		rc.mu.Lock()
		rc.handled = append(handled, rc.handled...) // they are said again on the next connection
		rc.mu.Unlock()
		return n, err
	}
	rc.noteAcked(handled)
	return n, nil
}

// CloseWrite ends the write side, as the library does when it leaves in order.
func (w *ackWatch) CloseWrite() error {
	if half, ok := w.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// takeHandled takes what the ACKs that are about to leave are for.
func (rc *receiver) takeHandled() []int64 {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	handled := rc.handled
	rc.handled = nil
	return handled
}

func (rc *receiver) noteAcked(intended []int64) {
	if len(intended) == 0 {
		return
	}
	now := rc.f.r.now()
	if rc.f.o.skip == nil || !rc.f.o.skip(rc.index) {
		for _, at := range intended {
			rc.f.toAck.record(rc.index, at, now)
		}
	}
	total := int(rc.settled.Add(int64(len(intended))))
	if b := rc.f.o.backlog; b > 0 && total >= b && total-len(intended) < b {
		rc.f.o.drained(rc.index)
	}
	rc.f.acked.add(len(intended))
	if cap(intended) <= 256 {
		rc.mu.Lock()
		if rc.handled == nil {
			rc.handled = intended[:0]
		}
		rc.mu.Unlock()
	}
}

// hasAck reports whether a write carries an ACK.
func hasAck(b []byte) bool {
	for len(b) > 0 {
		f, n, err := codec.Parse(b, codec.FrameBytesMax)
		if err != nil || n == 0 {
			return false
		}
		if f.Type == codec.TypeAck {
			return true
		}
		b = b[n:]
	}
	return false
}

// settle waits until everything sent is answered, received and acknowledged.
func (f *fleet) settle(ctx context.Context) {
	until(ctx, func() bool { return f.ledger.settled() && f.unacked() == 0 })
}

// unacked is how many messages were handled and their ACK is not at the socket yet.
func (f *fleet) unacked() int {
	n := 0
	for i := range f.members {
		rc := &f.members[i]
		rc.mu.Lock()
		n += len(rc.handled)
		rc.mu.Unlock()
	}
	return n
}

// stats adds up the clients' counters.
func (f *fleet) stats() (sum client.Stats) {
	if f.leanly != nil {
		return f.leanly.stats()
	}
	f.formerMu.Lock()
	sum = f.former
	f.formerMu.Unlock()
	for i := range f.members {
		rc := &f.members[i]
		rc.mu.Lock()
		c := rc.c
		rc.mu.Unlock()
		if c == nil {
			continue
		}
		addStats(&sum, c.Stats())
	}
	return sum
}

func addStats(sum *client.Stats, s client.Stats) {
	sum.Received += s.Received
	sum.Duplicates += s.Duplicates
	sum.Dropped += s.Dropped
	sum.AckFrames += s.AckFrames
	sum.Logins += s.Logins
	sum.Disconnects += s.Disconnects
}

// ended is the first client that has ended for good, which none should.
func (f *fleet) ended() error {
	if f.leanly != nil {
		return f.leanly.ended()
	}
	for i := range f.members {
		rc := &f.members[i]
		rc.mu.Lock()
		c := rc.c
		rc.mu.Unlock()
		if c == nil {
			continue
		}
		if err := c.Err(); err != nil && !errors.Is(err, client.ErrClosed) {
			return fmt.Errorf("the session of %s ended: %w", f.userName(i), err)
		}
	}
	return nil
}

// close ends all clients, some at a time: each waits for its server side.
func (f *fleet) close() {
	if f.leanly != nil {
		f.leanly.crowd.close()
		return
	}
	var busy sync.WaitGroup
	for chunk := range slices.Chunk(f.members, max(1, len(f.members)/dialsAtOnce)) {
		busy.Go(func() {
			for i := range chunk {
				rc := &chunk[i]
				rc.mu.Lock()
				c := rc.c
				rc.c = nil
				rc.mu.Unlock()
				if c != nil {
					_ = c.Close() // always nil
				}
			}
		})
	}
	busy.Wait()
}
