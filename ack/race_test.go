package ack

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// ledger counts how often each message was handed out for good.
type ledger struct {
	won   []atomic.Int32
	total atomic.Int64
}

func (l *ledger) win(t *testing.T, e Entry) {
	if n := l.won[e.Ref.Seq].Add(1); n != 1 {
		t.Errorf("message %d was won %d times", e.Ref.Seq, n)
	}
	l.total.Add(1)
}

// contest is one table, a few sessions that come and go, and everybody who may end an entry.
type contest struct {
	t     *testing.T
	table *Table
	l     *ledger
	nowMs atomic.Int64

	sessions [8]atomic.Pointer[Session]
	added    atomic.Int64 // messages that were registered
	expired  chan Expired
}

func (c *contest) session(r *rand.Rand) Session { return *c.sessions[r.IntN(len(c.sessions))].Load() }

// publisher registers messages until there are enough.
func (c *contest) publisher(r *rand.Rand, next *atomic.Int64) {
	for {
		seq := next.Add(1) - 1
		if seq >= int64(len(c.l.won)) {
			return
		}
		for {
			nowMs := c.nowMs.Load()
			_, _, res := c.table.Add(c.session(r), Add{Ref: Ref{Seq: uint64(seq)}, Bytes: 10, DeadlineMs: nowMs + r.Int64N(40), NowMs: nowMs})
			if res == AddOK {
				c.added.Add(1)
				break
			}
		}
	}
}

// client acknowledges at random: one, a range, up to; late, doubled and foreign numbers too.
func (c *contest) client(r *rand.Rand) {
	s := c.session(r)
	st, ok := c.table.State(s)
	if !ok || st.NumberLast == 0 {
		return
	}
	number := max(int64(st.NumberLast)-r.Int64N(24), 1)
	var got []Entry
	if r.IntN(8) == 0 {
		got, _ = c.table.AckUpTo(s, uint64(number), c.nowMs.Load(), nil)
	} else {
		got, _ = c.table.Ack(s, uint64(number), uint64(1+r.IntN(3)), c.nowMs.Load(), nil)
	}
	for i, e := range got {
		c.l.win(c.t, e)
		if i > 0 && got[i-1].Number >= e.Number {
			c.t.Errorf("an ACK gave number %d behind %d", e.Number, got[i-1].Number)
		}
	}
}

// lane decides about expired entries.
func (c *contest) lane(r *rand.Rand, x Expired) {
	switch r.IntN(4) {
	case 0:
		if e, _, ok := c.table.Take(x.Handle); ok {
			c.l.win(c.t, e)
		}
	case 1:
		if res, _ := c.table.Park(x.Handle, 3); res == ParkRemoved {
			c.l.win(c.t, x.Entry)
		}
	case 2:
		h, res := c.table.Rearm(x.Handle, Update{DeadlineMs: c.nowMs.Load() + 20, Live: 1, Resend: true})
		if res == RearmUserLimit {
			if res, _ := c.table.Park(h, 3); res == ParkRemoved {
				c.l.win(c.t, x.Entry)
			}
		}
	case 3:
		if _, res := c.table.Rearm(x.Handle, Update{DeadlineMs: c.nowMs.Load() + 20}); res == RearmOK {
			if _, _, ok := c.table.Take(x.Handle); ok {
				c.t.Error("a handle was good for two decisions")
			}
		}
	}
}

// operator looks entries up and cancels or unparks them.
func (c *contest) operator(r *rand.Rand) {
	s := c.session(r)
	if r.IntN(2) == 0 {
		for _, x := range c.table.Parked(s, nil, 8) {
			c.table.Unpark(x.Handle, Update{DeadlineMs: c.nowMs.Load() + 20, Resend: true})
		}
		return
	}
	all := c.table.Entries(s, nil)
	if len(all) == 0 {
		return
	}
	ref := all[r.IntN(len(all))].Entry.Ref
	if h, _, ok := c.table.Find(s, ref); ok {
		if e, _, ok := c.table.Take(h); ok {
			c.l.win(c.t, e)
		}
	}
}

// login replaces a session: two may try to evict the same one.
func (c *contest) login(r *rand.Rand) {
	k := r.IntN(len(c.sessions))
	old := c.sessions[k].Load()
	s := c.table.Open(Open{UserHash: uint64(k % 3), Window: Window{MsgsMax: 32, BytesMax: 1 << 20}, Owner: uint64(k)})
	mine := c.sessions[k].CompareAndSwap(old, &s)
	for _, e := range c.table.Evict(*old, nil) {
		c.l.win(c.t, e)
	}
	if !mine {
		for _, e := range c.table.Evict(s, nil) {
			c.l.win(c.t, e)
		}
	}
}

// run lets everybody at the table until all messages are registered.
func (c *contest) run() {
	var next atomic.Int64
	var publishers, others sync.WaitGroup
	stop := make(chan struct{})
	for n := range 3 {
		publishers.Go(func() { c.publisher(rand.New(rand.NewPCG(uint64(n), 1)), &next) })
	}
	run := func(seed uint64, f func(r *rand.Rand)) {
		others.Go(func() {
			for r := rand.New(rand.NewPCG(seed, 2)); ; f(r) {
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	run(1, c.client)
	run(2, c.client)
	run(3, c.operator)
	for n := range uint64(2) {
		run(4+n, func(r *rand.Rand) {
			select {
			case x := <-c.expired:
				c.lane(r, x)
			case <-stop:
			}
		})
	}
	logins := 0
	run(6, func(r *rand.Rand) {
		if logins++; logins%64 == 0 { // not so often that nothing else gets its turn
			c.login(r)
		} else {
			c.client(r)
		}
	})
	run(7, func(*rand.Rand) {
		for _, x := range c.table.Expire(c.nowMs.Add(1), nil, 200) {
			select {
			case c.expired <- x:
			case <-stop:
			}
		}
	})
	run(8, func(*rand.Rand) { c.table.Stats() })
	publishers.Wait()
	close(stop)
	others.Wait()
}

func TestEveryEntryIsWonExactlyOnceHoweverManyRaceForIt(t *testing.T) {
	const messages = 15_000
	c := &contest{
		t: t, table: NewTable(Config{UserResendMax: 40, UserParkedMax: 10}, 1),
		l: &ledger{won: make([]atomic.Int32, messages)}, expired: make(chan Expired, 1024),
	}
	c.nowMs.Store(1)
	for k := range c.sessions {
		s := c.table.Open(Open{UserHash: uint64(k % 3), Window: Window{MsgsMax: 32, BytesMax: 1 << 20}})
		c.sessions[k].Store(&s)
	}
	c.run()
	c.table.Check()
	for k := range c.sessions {
		for _, e := range c.table.Evict(*c.sessions[k].Load(), nil) {
			c.l.win(t, e)
		}
	}
	c.table.Check()
	if c.added.Load() != messages || c.l.total.Load() != messages {
		t.Fatalf("%d messages were registered and %d won, want %d", c.added.Load(), c.l.total.Load(), messages)
	}
	if st := c.table.Stats(); st.Entries != 0 || st.Sessions != 0 || st.Resend != 0 || st.Parked != 0 {
		t.Fatalf("an empty table counts %+v", st)
	}
}

// Each round a crowd starts at the same instant for one single entry.
func TestOneEntryManyHands(t *testing.T) {
	table := NewTable(Config{}, 1)
	for round := range 400 {
		s := table.Open(Open{UserHash: 7, Window: Window{MsgsMax: 4, BytesMax: 1000}})
		h, number, _ := table.Add(s, Add{Ref: Ref{Seq: uint64(round)}, Bytes: 1, DeadlineMs: 5, NowMs: 1})
		var wins atomic.Int32
		start := make(chan struct{})
		var wg sync.WaitGroup
		for _, f := range []func() int{
			func() int { got, _ := table.Ack(s, number, 1, 2, nil); return len(got) },
			func() int { got, _ := table.AckUpTo(s, number, 2, nil); return len(got) },
			func() int { return len(table.Evict(s, nil)) },
			func() int { return len(table.Evict(s, nil)) },
			func() int {
				if _, _, ok := table.Take(h); ok {
					return 1
				}
				return 0
			},
			func() int {
				for _, x := range table.Expire(100, nil, 10) {
					if _, _, ok := table.Take(x.Handle); ok {
						return 1
					}
				}
				return 0
			},
		} {
			wg.Go(func() {
				<-start
				wins.Add(int32(f()))
			})
		}
		close(start)
		wg.Wait()
		if wins.Load() != 1 {
			t.Fatalf("round %d: won %d times", round, wins.Load())
		}
	}
	table.Check()
}
