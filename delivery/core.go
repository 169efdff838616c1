// Package delivery decides what happens next to a message. Engine makes the decisions, one for each lane of users, without a
// goroutine, clock or randomness of its own; Dispatcher is the concurrent shell around the engines; what event loops do
// themselves (take an ACK) and what lanes do is in core, which both share. The package's needs are the ports in ports.go.
package delivery

import (
	"math"
	"sync"

	"github.com/VictoriaMetrics/metrics"

	"holdfast/ack"
	"holdfast/codec"
	"holdfast/scheduler"
)

// core is what event loops and lanes share. Everything in it is safe for concurrent use, and none of it waits for I/O.
type core struct {
	// Static after construction.
	config       Config
	store        Store
	table        *ack.Table
	budget       *scheduler.Budget
	count        *counters
	ackTimeoutMs int64
	retentionMs  int64

	watches watches
	pace    nodePace
	scratch sync.Pool // of *ackScratch
}

// ackScratch is what taking one ACK needs.
type ackScratch struct {
	entries []ack.Entry
	ends    []Ending
}

func newCore(c Config, s Store, set *metrics.Set, nowMs int64) *core {
	k := &core{
		config: c,
		store:  s,
		table:  ack.NewTable(ack.Config{UserResendMax: c.UserResendMax, UserParkedMax: c.UserParkedMax}, nowMs),
		budget: scheduler.NewBudget(scheduler.BudgetConfig{
			Share: c.RetryBudgetShare, FloorPerSecond: c.RetryBudgetFloor,
		}, nowMs),
		ackTimeoutMs: c.AckTimeout.Milliseconds(),
		retentionMs:  c.Retention.Milliseconds(),
	}
	k.pace.bucket = scheduler.NewBucket(c.PaceNodePerSecond, max(c.PaceNodePerSecond/10, 1), nowMs)
	k.scratch.New = func() any { return new(ackScratch) }
	k.watches.init()
	k.count = newCounters(set, k)
	return k
}

// end ends deliveries; nothing else in this package does. The store lets one caller win; the others change nothing. Who waits for
// the end is told, and each end is counted, here.
func (c *core) end(ends []Ending, now Now) int {
	if len(ends) == 0 {
		return 0
	}
	won := c.store.End(ends, now.WallMs)
	for i := range ends {
		if ends[i].Won {
			c.count.ended(ends[i].Status, ends[i].Reason)
		}
	}
	c.watches.ended(ends)
	return won
}

// endOne is end for a single delivery. It allocates; not for the hot path.
func (c *core) endOne(e Ending, now Now) bool {
	return c.end([]Ending{e}, now) == 1
}

// nodePace bounds what the whole node sends from the backlog. Its lock is a leaf.
type nodePace struct {
	mu     sync.Mutex
	bucket scheduler.Bucket // guarded by mu
}

func (p *nodePace) takeUpTo(nowMs int64, n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bucket.TakeUpTo(nowMs, n)
}

// toRef and fromRef convert between this package's Ref and ack's, which may not import it.
func toRef(r ack.Ref) Ref   { return Ref{Seq: r.Seq, Slot: r.Slot} }
func fromRef(r Ref) ack.Ref { return ack.Ref{Seq: r.Seq, Slot: r.Slot} }

// attemptsMade is how often the message was sent, the sending on its way included: Entry.Attempts counts only the decided ones.
func attemptsMade(e *ack.Entry) uint16 {
	if s := Status(e.Status); s == StatusSent || s == StatusTimeout {
		return plusOne(e.Attempts)
	}
	return e.Attempts
}

func plusOne(attempts uint16) uint16 {
	if attempts == math.MaxUint16 {
		return attempts
	}
	return attempts + 1
}

// move panics when a delivery would take a way its states do not have: a bug of ours, better found than spread.
func move(from uint8, to Status) uint8 {
	if Status(from) != to && !Status(from).Next(to) {
		panic("delivery moves from " + Status(from).String() + " to " + to.String())
	}
	return uint8(to)
}

// heard is what taking an ACK, NACK or EXTEND on the event loop leaves to do.
type heard struct {
	wake   bool       // tell the lane: Engine.Wake
	delay  bool       // tell the lane: Engine.Delay(ref, dueMs)
	ref    Ref        // with delay
	dueMs  int64      // with delay, monotonic
	code   codec.Code // not CodeNone: protocol fault, close with it
	reason string     // with code
}
