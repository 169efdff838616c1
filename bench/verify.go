package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// VerifyOptions describe the scenario of a load with faults: fanout, and what goes wrong meanwhile.
type VerifyOptions struct {
	FanoutOptions
	// KillEvery is the time between two faults of receivers: in turn one loses its connection, and one dies and comes back with
	// what it had written down. 0: none.
	KillEvery time.Duration `json:"kill_every_ns"`
	// AwayMax is how long a dead receiver stays away at most.
	AwayMax time.Duration `json:"away_max_ns"`
	// LostACKs and DoubledACKs are shares of the ACK frames, 0 to 1.
	LostACKs    float64 `json:"lost_acks"`
	DoubledACKs float64 `json:"doubled_acks"`
	// CrashEvery is the time between two kill -9 of the server, which the run must have started itself. 0: none.
	CrashEvery time.Duration `json:"crash_every_ns"`
}

func (o *VerifyOptions) validate() error {
	switch {
	case o.NoAck:
		return errors.New("fire and forget promises nothing that could be verified")
	case o.Rate <= 0:
		return errors.New("the rate must be above zero: with faults the windows do not tell when to send")
	case o.LostACKs < 0 || o.DoubledACKs < 0 || o.LostACKs+o.DoubledACKs > 0.9:
		return errors.New("lost and doubled ACKs must be shares from 0 to 0.9 together")
	case o.KillEvery < 0 || o.CrashEvery < 0 || o.AwayMax < 0:
		return errors.New("a time is negative")
	}
	return o.FanoutOptions.validate()
}

// impatience is the longest back-off of clients and publishers among faults.
const impatience = 500 * time.Millisecond

// Verify is the scenario whose result is a verdict: whether anything was lost, doubled, out of order or at the wrong user although
// clients died, ACKs were lost and the server was killed.
func Verify(o VerifyOptions) (Scenario, error) {
	if err := o.validate(); err != nil {
		return Scenario{}, err
	}
	var f *fleet
	var p *publishers
	var x *faults
	return Scenario{
		Name: "verify", Parameters: o,
		Connect: func(ctx context.Context, r *Run) error {
			if o.CrashEvery > 0 && r.server == nil {
				return errors.New("the server can only be killed if the run starts it")
			}
			f = newFleet(r, fleetOptions{users: o.Users, window: o.Window, ackEach: o.AckEach, patient: impatience})
			x = newFaults(r, o.Users, faultsOptions{
				killEvery: o.KillEvery, crashEvery: o.CrashEvery, awayMax: o.AwayMax, lostACKs: o.LostACKs, doubleACKs: o.DoubledACKs,
			})
			x.attach(f)
			options := o.publishers()
			options.retry = impatience
			p = newPublishers(r, f, options)
			if err := f.connect(ctx); err != nil {
				return err
			}
			return p.connect(ctx)
		},
		Load: func(ctx context.Context, _ *Run) error {
			var busy sync.WaitGroup
			var failed error
			busy.Go(func() { failed = x.run(ctx) })
			err := p.load(ctx)
			busy.Wait()
			return errors.Join(err, failed)
		},
		Settle: func(ctx context.Context, r *Run) error {
			var calming sync.WaitGroup
			done := make(chan struct{})
			calming.Go(func() { x.calm(ctx, done) })
			f.settle(ctx)
			x.waitEmpty(ctx, r)
			close(done)
			calming.Wait()
			return f.ended()
		},
		Judge: func(r *Run, report *Report) {
			judgeDeliveries(report, f, p, false)
			x.judge(r, report)
		},
		Close: func() { closeLoad(f, p) },
	}, nil
}

// liveMetric is how many deliveries the server still answers for.
const liveMetric = "holdfast_ledger_live"

// loginsApart is the time between two rounds of logins while something is still missing.
const loginsApart = 2 * time.Second

// calm ends the faults until done: ACKs are lost no longer, and receivers log in anew from time to time, for a message whose ACKs were
// lost on every live attempt waits for that.
func (x *faults) calm(ctx context.Context, done <-chan struct{}) {
	x.over.Store(true)
	again := time.NewTicker(loginsApart)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			for user := range x.memory {
				x.disconnect(user)
			}
		case <-done:
			return
		case <-ctx.Done():
			return
		}
	}
}

// waitEmpty waits until a server of our own holds nothing any more: then every lost ACK was made up for.
func (*faults) waitEmpty(ctx context.Context, r *Run) {
	if r.server == nil {
		return
	}
	for ctx.Err() == nil {
		if values, err := scrape(r.o.Target, liveMetric); err == nil && values[0] == 0 {
			return
		}
		rest(ctx, 100*time.Millisecond)
	}
}

func (x *faults) judge(r *Run, report *Report) {
	for _, n := range []struct {
		key, label string
		value      int64
	}{
		{"receiver_kills", "receivers killed", x.kills.Load()}, {"connections_cut", "connections cut", x.cuts.Load()},
		{"acks_lost", "ACK frames lost", x.lost.Load()}, {"acks_doubled", "ACK frames doubled", x.doubled.Load()},
		{"server_kills", "kill -9 of the server", x.crashes.Load()},
	} {
		report.figure(n.key, n.label, float64(n.value), "")
	}
	if r.server == nil {
		return
	}
	values, err := scrape(r.o.Target, liveMetric)
	switch {
	case err != nil:
		report.fail("the server's ledger: %v", err)
	case values[0] > 0:
		report.fail("%s", fmt.Sprintf("the server still holds %.0f deliveries", values[0]))
	}
}
