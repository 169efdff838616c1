package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// RecoveryOptions describe the scenario of a server that is killed over a full store.
type RecoveryOptions struct {
	// Messages are stored for users who are not there.
	Messages int `json:"messages"`
	// Users is over how many queues they are spread, evenly.
	Users int `json:"users"`
	// PayloadBytes is the size of a payload, at least PayloadBytesMin.
	PayloadBytes int `json:"payload_bytes"`
	// Batch is how many messages a PUBLISH frame carries at most.
	Batch int `json:"batch"`
	// ReadyMax is how long a start may take, and the limit that the verdict holds it against.
	ReadyMax time.Duration `json:"ready_max_ns"`
	// Hold is how long the server is left alone before its memory is read.
	Hold time.Duration `json:"hold_ns"`
	// Drain: afterwards every user comes for its messages, which are held against what was accepted. Otherwise they stay unread, and
	// the verdict rests on their number.
	Drain bool `json:"drain"`
	// AtOnce is how many users are there at a time while they come for their messages.
	AtOnce int `json:"at_once"`
}

func (o *RecoveryOptions) validate() error {
	switch {
	case o.Users < stormPublishers || o.Messages < o.Users || o.Messages%o.Users != 0:
		return fmt.Errorf("users must be at least %d, and messages a multiple of them", stormPublishers)
	case o.Users > usersMax:
		return errUsers
	case o.PayloadBytes < PayloadBytesMin || o.PayloadBytes > 60<<10:
		return fmt.Errorf("the payload must be %d bytes to 60 KiB", PayloadBytesMin)
	case o.Batch < 1 || o.Batch > batchMax:
		return fmt.Errorf("the batch must be 1 to %d", batchMax)
	case o.ReadyMax <= 0 || o.Hold < 0:
		return errors.New("the time to be ready must be above zero, and the hold not below")
	case o.AtOnce < 1:
		return errors.New("users at once must be at least 1")
	}
	return nil
}

// recoveryLoad is the running scenario.
type recoveryLoad struct {
	r *Run
	o RecoveryOptions
	f *fleet
	p *publishers

	drained []chan struct{} // by user: closed when the last of its messages is acknowledged
}

// Recovery is the scenario of a kill -9 over a full store: how long the server takes until it is ready again, what memory the stored
// messages take before and after, and whether all of them are there.
func Recovery(o RecoveryOptions) (Scenario, error) {
	if err := o.validate(); err != nil {
		return Scenario{}, err
	}
	l := &recoveryLoad{o: o}
	return Scenario{
		Name: "recovery", Parameters: o, ByWork: true,
		Connect: l.connect,
		Load:    l.load,
		Collect: func(_ *Run, res *Result) {
			if t := l.f.ledger.tally(); o.Drain {
				res.tally("stored").merge(&t)
			}
		},
		Judge: l.judge,
		Close: func() { closeLoad(l.f, l.p) },
	}, nil
}

func (l *recoveryLoad) connect(ctx context.Context, r *Run) error {
	if r.server == nil {
		return errors.New("the server can only be killed if the run starts it")
	}
	l.r = r
	l.drained = make([]chan struct{}, l.o.Users)
	for i := range l.drained {
		l.drained[i] = make(chan struct{})
	}
	each := l.o.Messages / l.o.Users
	l.f = newFleet(r, fleetOptions{
		users: l.o.Users, backlog: each, drained: func(user int) { close(l.drained[user]) },
		skip: func(int) bool { return true }, // how long a message lay there is no latency
	})
	l.p = newPublishers(r, l.f, publishersOptions{
		publishers: stormPublishers, window: each, payload: l.o.PayloadBytes, batch: l.o.Batch, messages: int64(l.o.Messages),
	})
	return l.p.connect(ctx)
}

// The moments of the scenario at which the server's usage is noted.
const (
	markEmpty   = "empty"
	markStored  = "stored"
	markKilled  = "killed"
	markReady   = "ready"
	markHeld    = "held"
	markDrained = "drained"
)

// load fills the store, kills the server, and has everything fetched.
func (l *recoveryLoad) load(ctx context.Context, r *Run) error {
	r.mark(markEmpty)
	r.enter("publish")
	if err := l.p.load(ctx); err != nil {
		return err
	}
	until(ctx, func() bool { return l.f.ledger.answered() >= l.f.ledger.sent.Load() })
	if n := l.f.ledger.accepted.Load(); n < int64(l.o.Messages) {
		return fmt.Errorf("only %d of %d messages were accepted%s", n, l.o.Messages, &l.p.refused)
	}
	r.enter("hold")
	rest(ctx, l.o.Hold)
	r.mark(markStored)
	l.p.close()
	r.enter("restart")
	r.server.kill()
	r.mark(markKilled)
	if err := r.server.runWithin(ctx, l.o.ReadyMax); err != nil {
		return fmt.Errorf("after kill -9: %w", err)
	}
	r.mark(markReady)
	r.enter("hold")
	rest(ctx, l.o.Hold)
	r.mark(markHeld)
	if !l.o.Drain {
		return nil
	}
	r.enter("drain")
	err := l.f.login(ctx, l.o.AtOnce, l.fetch)
	r.mark(markDrained)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil // the verdict says what is missing
	}
	return err
}

// fetch is one user's coming and going.
func (l *recoveryLoad) fetch(ctx context.Context, user int) error {
	rc := &l.f.members[user]
	if err := rc.dial(ctx); err != nil {
		return err
	}
	select {
	case <-l.drained[user]:
	case <-ctx.Done():
	}
	rc.mu.Lock()
	c := rc.c
	rc.c = nil
	rc.mu.Unlock()
	return c.Close()
}

func (l *recoveryLoad) judge(r *Run, report *Report) {
	at := func(name string) reading { return r.marked(name).first }
	between := func(from, to string) float64 { return seconds(at(to).at - at(from).at) }
	n := float64(l.o.Messages)
	report.figure("published_per_second", "published and answered", n/max(between(markEmpty, markStored)-seconds(int64(l.o.Hold)), 1e-9), "/s")
	report.figure("ready_seconds", "ready after kill -9", between(markKilled, markReady), "s")
	for _, m := range []struct{ mark, key, label string }{
		{markEmpty, "rss_bytes_empty", "server memory, empty"}, {markStored, "rss_bytes_stored", "server memory, all stored"},
		{markReady, "rss_bytes_ready", "server memory, just ready"}, {markHeld, "rss_bytes_idle", "server memory, idle after the restart"},
	} {
		if rd := at(m.mark); rd.ok {
			report.figure(m.key, m.label, float64(rd.server.rssBytes), "bytes")
		}
	}
	if rd := at(markHeld); rd.ok {
		report.figure("rss_bytes_per_message", "  of that per message", float64(rd.server.rssBytes-at(markEmpty).server.rssBytes)/n, "bytes")
	}
	if took := between(markKilled, markReady); took > l.o.ReadyMax.Seconds() {
		report.fail("it took %.1f s to be ready, the limit is %v", took, l.o.ReadyMax)
	}
	if !l.o.Drain {
		l.judgeLive(r, report)
		return
	}
	report.Tally = r.result.tally("stored")
	report.figure("fetched_per_second", "fetched and acknowledged", float64(report.Tally.Received)/max(between(markHeld, markDrained), 1e-9), "/s")
	report.Verdict.Failures = append(report.Verdict.Failures, report.Tally.failures(false)...)
}

// judgeLive holds the number of messages the server answers for against what it accepted.
func (l *recoveryLoad) judgeLive(r *Run, report *Report) {
	values, err := scrape(r.o.Target, liveMetric)
	switch {
	case err != nil:
		report.fail("the server's ledger: %v", err)
	case int64(values[0]) != int64(l.o.Messages):
		report.fail("the server holds %.0f deliveries of %d", values[0], l.o.Messages)
	}
}
