package bench

import (
	"context"
	"errors"
	"time"
)

// MisbehaveOptions describe a load in which a share of the users stops behaving for a time: the scenarios slow and ackstorm.
type MisbehaveOptions struct {
	FanoutOptions
	// Share is which part of the users misbehaves, above 0 and below 1.
	Share float64 `json:"share"`
	// Before, During and After are how long everybody behaves, how long those do not, and how long they do again.
	Before time.Duration `json:"before_ns"`
	During time.Duration `json:"during_ns"`
	After  time.Duration `json:"after_ns"`
}

func (o *MisbehaveOptions) validate() error {
	switch {
	case !(o.Rate > 0):
		return errors.New("the rate must be above zero: the others' latency is only told by an open loop")
	case o.NoAck:
		return errors.New("fire and forget has no ACKs to wait for")
	case o.Share <= 0 || o.Share >= 1 || int(o.Share*float64(o.Users)) < 1:
		return errors.New("the share must be above 0 and below 1, and at least one user")
	case o.Before <= 0 || o.During <= 0 || o.After < 0:
		return errors.New("before and during must be above zero")
	}
	return o.FanoutOptions.validate()
}

// total is how long the load lasts.
func (o *MisbehaveOptions) total() time.Duration { return o.Before + o.During + o.After }

// misbehaveLoad is the running scenario.
type misbehaveLoad struct {
	r *Run
	o MisbehaveOptions
	g *gate
	f *fleet
	p *publishers

	stages *stages
	opened int64 // when they behaved again
	normal int64 // ns from then until nobody who had misbehaved was behind any more; 0: not in time
}

// Slow is the scenario in which a share of the readers reads nothing for a time: the latency of the others before, meanwhile and after.
func Slow(o MisbehaveOptions) (Scenario, error) { return misbehave("slow", o, true) }

// AckStorm is the scenario in which a share of the clients acknowledges nothing for a time, then everything at once: the latency of
// the others, memory, copies, and the time until all is back to normal.
func AckStorm(o MisbehaveOptions) (Scenario, error) { return misbehave("ackstorm", o, false) }

func misbehave(name string, o MisbehaveOptions, reads bool) (Scenario, error) {
	if err := o.validate(); err != nil {
		return Scenario{}, err
	}
	l := &misbehaveLoad{o: o, g: &gate{closedFor: spread(o.Users, o.Share), reads: reads}}
	return Scenario{
		Name: name, Parameters: o, ByWork: true,
		Connect: l.connect,
		Load:    l.load,
		Settle: func(ctx context.Context, r *Run) error {
			l.f.settle(ctx)
			if ctx.Err() == nil && l.normal == 0 {
				l.normal = r.now() - l.opened
			}
			r.mark(markSettled)
			return l.f.ended()
		},
		Collect: func(_ *Run, res *Result) { l.collect(res) },
		Judge:   judgeMisbehaviour,
		Close: func() {
			l.g.open() // a reader that waits at the gate could not be closed
			closeLoad(l.f, l.p)
		},
		Split: o.split, Connections: o.Users + o.Publishers,
	}, nil
}

func (l *misbehaveLoad) connect(ctx context.Context, r *Run) error {
	l.r = r
	l.stages = r.stages("others before", "others during", "others after")
	l.f = newFleet(r, fleetOptions{
		users: l.o.Users, window: l.o.Window, ackEach: l.o.AckEach, wrap: l.g.wrap, skip: l.g.closedFor, stages: l.stages, patient: impatience,
	})
	l.p = newPublishers(r, l.f, l.o.publishers())
	if err := l.f.connect(ctx); err != nil {
		return err
	}
	return l.p.connect(ctx)
}

// load publishes all the time, and shuts and opens the gate meanwhile.
func (l *misbehaveLoad) load(ctx context.Context, r *Run) error {
	loadCtx, cancel := context.WithTimeout(ctx, l.o.total())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- l.p.load(loadCtx) }()
	rest(ctx, l.o.Before)
	r.mark(markBefore)
	usual, slack := l.behind(), int64(l.o.Rate/20) // 50 ms of traffic are always under way
	l.g.close()
	l.stages.begin(1, r.now())
	rest(ctx, l.o.During)
	r.mark(markDuring)
	l.opened = r.now()
	l.stages.begin(2, l.opened)
	l.g.open()
	until(loadCtx, func() bool { return l.behind() <= max(2*usual, slack) })
	if loadCtx.Err() == nil {
		l.normal = r.now() - l.opened
	}
	return <-done
}

// behind is how many accepted messages are not acknowledged yet.
func (l *misbehaveLoad) behind() int64 { return l.f.ledger.accepted.Load() - l.f.acked.total.Load() }

// The moments at which the server's memory is noted: before, at the end of the misbehaviour, after everything has settled.
const markBefore, markDuring, markSettled = "before", "during", "settled"

func (l *misbehaveLoad) collect(res *Result) {
	collectLoad(res, l.f, l.p)
	res.Longest["normal"] = l.normal
	if l.normal == 0 {
		res.Failures = append(res.Failures, "not everything was acknowledged in time after the misbehaviour")
	}
}

func judgeMisbehaviour(r *Run, report *Report) {
	judgeDeliveries(r, report, false)
	res := r.result
	before, during := r.latencyNamed("others before").merged(), r.latencyNamed("others during").merged()
	if before.TotalCount() > 0 && during.TotalCount() > 0 {
		report.figure("others_p99_ratio", "p99 of the others, during over before", float64(during.ValueAtQuantile(99))/float64(max(before.ValueAtQuantile(99), 1)), "")
	}
	if n := res.tally("").Received; n > 0 {
		report.figure("copies_per_message", "copies sent per message", float64(res.Sums["copies"])/float64(n), "")
	}
	if len(res.Failures) == 0 {
		report.figure("normal_after_seconds", "back to normal after", seconds(res.Longest["normal"]), "s")
	}
	start, end, settled := r.marked(markBefore).first, r.marked(markDuring).last, r.marked(markSettled).last
	if start.ok && end.ok && settled.ok {
		report.figure("rss_growth_bytes", "server memory, growth during", float64(end.server.rssBytes-start.server.rssBytes), "bytes")
		report.figure("rss_growth_after_bytes", "server memory, growth until all settled", float64(settled.server.rssBytes-start.server.rssBytes), "bytes")
	}
}
