package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// FaultOptions say what goes wrong while a load runs.
type FaultOptions struct {
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

func (o *FaultOptions) validate() error {
	switch {
	case o.LostACKs < 0 || o.DoubledACKs < 0 || o.LostACKs+o.DoubledACKs > 0.9:
		return errors.New("lost and doubled ACKs must be shares from 0 to 0.9 together")
	case o.KillEvery < 0 || o.CrashEvery < 0 || o.AwayMax < 0:
		return errors.New("a time is negative")
	}
	return nil
}

// impatience is the longest back-off of clients and publishers among faults.
const impatience = 500 * time.Millisecond

// verifyParameters are what the results repeat, and what a further generator process is told.
type verifyParameters struct {
	FaultOptions
	Load    string `json:"load"`
	Options any    `json:"load_parameters"`
}

// Verify is a load with faults, whose result is a verdict: whether anything was lost, doubled, out of order or at the wrong user
// although clients died, ACKs were lost and the server was killed. The load is one of the other scenarios with something to deliver.
func Verify(load Scenario, o FaultOptions) (Scenario, error) {
	if err := o.validate(); err != nil {
		return Scenario{}, err
	}
	if err := verifiable(load); err != nil {
		return Scenario{}, err
	}
	v := &verification{load: load, o: o}
	s := load
	s.Name, s.Parameters = "verify", verifyParameters{FaultOptions: o, Load: load.Name, Options: load.Parameters}
	s.Connect, s.Load, s.Settle, s.Collect, s.Beside, s.Judge = v.connect, v.run, v.settle, v.collect, v.crash, v.judge
	s.Split = v.split
	s.MQTT = false // faults are made with what the client library and the gateway have
	return s, nil
}

// verifiable says whether a verdict on a load among faults would mean anything.
func verifiable(load Scenario) error {
	switch p := load.Parameters.(type) {
	case FanoutOptions:
		if p.NoAck {
			return errors.New("fire and forget promises nothing that could be verified")
		}
		if p.Rate <= 0 {
			return errors.New("the rate must be above zero: with faults the windows do not tell when to send")
		}
	case StormOptions:
		if p.Backlog < 1 {
			return errors.New("a storm without a backlog delivers nothing that could be verified")
		}
	case PublishOptions:
		if p.TTL < verifyTTLMin {
			return fmt.Errorf("the time to live must be at least %v: what expires cannot be told from what is lost", verifyTTLMin)
		}
	case MisbehaveOptions:
	default:
		return fmt.Errorf("%s delivers nothing that could be verified", load.Name)
	}
	return nil
}

// verifyTTLMin outlives a run and the fetching after it.
const verifyTTLMin = time.Hour

// verification is a load among faults.
type verification struct {
	load    Scenario
	o       FaultOptions
	x       *faults
	crashes atomic.Int64
}

func (v *verification) connect(ctx context.Context, r *Run) error {
	if err := v.canCrash(r); err != nil {
		return err
	}
	v.x = newFaults(r, v.o)
	r.faults = v.x
	return v.load.Connect(ctx, r)
}

// run makes faults of receivers until the load has ended.
func (v *verification) run(ctx context.Context, r *Run) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var busy sync.WaitGroup
	var failed error
	busy.Go(func() { failed = v.x.run(ctx) })
	err := v.load.Load(ctx, r)
	cancel()
	busy.Wait()
	return errors.Join(err, failed)
}

func (v *verification) canCrash(r *Run) error {
	if v.o.CrashEvery > 0 && r.server == nil {
		return errors.New("the server can only be killed if the run starts it")
	}
	return nil
}

// crash kills the server again and again, and starts it on the same data.
func (v *verification) crash(ctx context.Context, r *Run) error {
	if err := v.canCrash(r); err != nil || v.o.CrashEvery <= 0 {
		return err
	}
	for rest(ctx, v.o.CrashEvery) {
		v.crashes.Add(1)
		// A comeback is not broken off by the end of the load: the server must be there to settle.
		if err := r.server.crash(context.WithoutCancel(ctx)); err != nil {
			return fmt.Errorf("the server does not come back: %w", err)
		}
	}
	return nil
}

// settle ends the faults and waits until everything accepted has arrived; a server of our own must hold nothing then.
func (v *verification) settle(ctx context.Context, r *Run) error {
	var calming sync.WaitGroup
	done := make(chan struct{})
	calming.Go(func() { v.x.calm(ctx, done) })
	var err error
	if v.load.Settle != nil {
		err = v.load.Settle(ctx, r)
	}
	if err == nil {
		waitEmpty(ctx, r)
	}
	close(done)
	calming.Wait()
	return err
}

func (v *verification) collect(r *Run, res *Result) {
	v.load.Collect(r, res)
	v.x.collect(res)
}

func (v *verification) judge(r *Run, report *Report) {
	v.load.Judge(r, report)
	for _, n := range faultNames() {
		report.figure(n.key, n.label, float64(r.result.Sums[n.key]), "")
	}
	report.figure("server_kills", "kill -9 of the server", float64(v.crashes.Load()), "")
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

// split gives every process its part of the load and of the faults of receivers; the first one alone kills the server.
func (v *verification) split(processes int) ([]Part, error) {
	parts, err := v.load.Split(processes)
	if err != nil {
		return nil, err
	}
	for i := range parts {
		o := v.o
		o.CrashEvery = 0
		o.KillEvery *= time.Duration(processes)
		parts[i].Parameters = verifyParameters{FaultOptions: o, Load: v.load.Name, Options: parts[i].Parameters}
	}
	return parts, nil
}

// partOfVerify makes the scenario of a part again.
func partOfVerify(parameters json.RawMessage) (Scenario, error) {
	var options json.RawMessage
	p := verifyParameters{Options: &options}
	if err := json.Unmarshal(parameters, &p); err != nil {
		return Scenario{}, fmt.Errorf("reading the parameters of verify: %w", err)
	}
	load, err := partOf(p.Load, options)
	if err != nil {
		return Scenario{}, err
	}
	return Verify(load, p.FaultOptions)
}

// liveMetric is how many deliveries the server still answers for.
const liveMetric = "holdfast_ledger_live"

// loginsApart is the time between two rounds of logins while something is still missing.
const loginsApart = 2 * time.Second

// waitEmpty waits until a server of our own holds nothing any more: then every lost ACK was made up for.
func waitEmpty(ctx context.Context, r *Run) {
	if !r.own {
		return
	}
	for ctx.Err() == nil {
		if values, err := scrape(r.o.Target, liveMetric); err == nil && values[0] == 0 {
			return
		}
		rest(ctx, 100*time.Millisecond)
	}
}
