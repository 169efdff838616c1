package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

// StormOptions describe the scenario in which everybody logs in at once.
type StormOptions struct {
	// Users log in, each from a connection of its own.
	Users int `json:"users"`
	// Backlog is how many messages wait for each of them.
	Backlog int `json:"backlog"`
	// AtOnce is how many logins are under way at a time; 0: all.
	AtOnce int `json:"at_once,omitempty"`
	// Window is the receive window the users ask for; 0: the server's.
	Window int `json:"window,omitempty"`
	// PayloadBytes is the size of a payload, at least PayloadBytesMin.
	PayloadBytes int `json:"payload_bytes"`
	// LiveUsers are online before and get LiveRate messages a second, open loop; 0: no live traffic beside the storm.
	LiveUsers int     `json:"live_users,omitempty"`
	LiveRate  float64 `json:"live_rate,omitempty"`
	// Calm is how long the live traffic is measured before the storm.
	Calm time.Duration `json:"calm_ns,omitempty"`
}

// stormPublishers is the number of publishing connections, for the backlog and for the live traffic.
const stormPublishers = 2

func (o *StormOptions) validate() error {
	switch {
	case o.Users < stormPublishers:
		return fmt.Errorf("users must be at least %d", stormPublishers)
	case o.Users > usersMax || o.LiveUsers > usersMax:
		return errUsers
	case o.Backlog < 0 || o.AtOnce < 0 || o.Window < 0 || o.Calm < 0:
		return errors.New("a number is negative")
	case o.PayloadBytes < PayloadBytesMin || o.PayloadBytes > 60<<10:
		return fmt.Errorf("the payload must be %d bytes to 60 KiB", PayloadBytesMin)
	case !rateFits(o.LiveRate):
		return errRate
	case (o.LiveUsers > 0) != (o.LiveRate > 0):
		return errors.New("live traffic needs both users and a rate")
	case o.LiveUsers > 0 && o.LiveUsers < stormPublishers:
		return fmt.Errorf("live users must be at least %d", stormPublishers)
	}
	return nil
}

// stormLoad is the running scenario.
type stormLoad struct {
	r *Run
	o StormOptions

	in         *Counter // logged in
	toLogin    *Latency // from the start of the storm
	ownLogin   *Latency // from the start of the own login
	toDrained  *Latency // from the start of the storm to the last ACK of the backlog
	f, live    *fleet
	backlog    *publishers
	liveSource *publishers
	liveStages *stages
	crowd      *leanCrowd // logs in where there is no backlog; nil: f does
	logins     []leanLogin

	began             int64 // the storm; written before the logins
	refused           atomic.Int64
	why               atomic.Pointer[error] // of the first refusal
	drained           atomic.Int64
	allIn, allDrained int64 // ns after the storm's start
}

// Storm is the scenario of everybody logging in at once: how fast all are in, how fast their backlog is delivered, and what that
// does to the traffic of others.
func Storm(o StormOptions) (Scenario, error) {
	if err := o.validate(); err != nil {
		return Scenario{}, err
	}
	l := &stormLoad{o: o}
	return Scenario{
		Name: "storm", Parameters: o, ByWork: true, MQTT: true,
		Connect: l.connect,
		Load:    l.load,
		Settle: func(ctx context.Context, _ *Run) error {
			l.f.settle(ctx)
			if l.live == nil {
				return l.f.ended()
			}
			l.live.settle(ctx)
			return errors.Join(l.f.ended(), l.live.ended())
		},
		Collect: func(_ *Run, res *Result) { l.collect(res) },
		Judge:   l.o.judge,
		Close: func() {
			if l.crowd != nil {
				l.crowd.close()
			}
			closeLoad(l.f, l.backlog)
			closeLoad(l.live, l.liveSource)
		},
		Split: l.o.split, Connections: o.Users + o.LiveUsers + 2*stormPublishers,
	}, nil
}

// connect stores the backlog for users who are not there, and brings those online who are not part of the storm.
func (l *stormLoad) connect(ctx context.Context, r *Run) error {
	l.r = r
	l.in = r.counter("logged in")
	l.toLogin = r.latency("storm to login")
	l.ownLogin = r.latency("connect to login")
	if l.o.Backlog > 0 {
		l.toDrained = r.latency("storm to backlog acked")
	}
	l.f = newFleet(r, fleetOptions{users: l.o.Users, window: l.o.Window, backlog: l.o.Backlog, drained: l.userDrained, label: "backlog "})
	l.backlog = newPublishers(r, l.f, publishersOptions{
		publishers: stormPublishers, window: l.o.Backlog, payload: l.o.PayloadBytes, batch: 256, messages: int64(l.o.Users) * int64(l.o.Backlog),
	})
	if l.o.LiveUsers > 0 {
		l.liveStages = r.stages("live traffic before", "live traffic in the storm")
		l.live = newFleet(r, fleetOptions{users: l.o.LiveUsers, stages: l.liveStages, label: "live "})
		l.liveSource = newPublishers(r, l.live, publishersOptions{
			publishers: stormPublishers, rate: l.o.LiveRate, payload: l.o.PayloadBytes, batch: 256,
		})
		if err := errors.Join(l.live.connect(ctx), l.liveSource.connect(ctx)); err != nil {
			return err
		}
	}
	if l.o.Backlog == 0 {
		return l.gather(r)
	}
	if err := l.presign(r); err != nil {
		return err
	}
	if err := l.f.queue(ctx); err != nil {
		return err
	}
	if err := l.backlog.connect(ctx); err != nil {
		return err
	}
	if err := l.backlog.load(ctx); err != nil {
		return err
	}
	until(ctx, func() bool { return l.f.ledger.answered() >= l.f.ledger.sent.Load() })
	if n := l.f.ledger.accepted.Load(); n < int64(l.o.Users)*int64(l.o.Backlog) {
		return fmt.Errorf("only %d of %d messages of the backlog were accepted%s", n, l.o.Users*l.o.Backlog, &l.backlog.refused)
	}
	return nil
}

// gather makes ready the crowd that only logs in: users without a backlog need no client library. Tokens are signed here.
func (l *stormLoad) gather(r *Run) error {
	from := order{Addr: r.o.Target.Addr, PerSource: r.perSource}
	crowd, err := newLeanCrowd(leanOptions{
		addr: r.o.Target.Addr, name: l.f.userName, now: r.now, retry: true,
		speech:  leanTo(r.o.Target.MQTT, l.f.userName, leanHoldfast{window: l.o.Window, token: r.o.Target.Token}),
		source:  func(user int) net.IP { return source(from, l.f.first+user) },
		in:      l.joined,
		refused: func(_ int, err error) { l.denied(err) },
	})
	if err != nil {
		return err
	}
	l.crowd = crowd
	l.logins, err = crowd.hellos(0, l.o.Users)
	return err
}

// presign signs the tokens of the storm before it, so that signing is no part of what is measured.
func (l *stormLoad) presign(r *Run) error {
	sign := r.o.Target.Token
	if sign == nil {
		return nil
	}
	signed := make(map[string]string, l.o.Users)
	for user := range l.o.Users {
		name := l.f.userName(user)
		token, err := sign(name, false)
		if err != nil {
			return err
		}
		signed[name] = token
	}
	r.o.Target.Token = func(user string, publisher bool) (string, error) {
		if token, ok := signed[user]; ok && !publisher {
			return token, nil
		}
		return sign(user, publisher)
	}
	return nil
}

// userDrained notes that a user has acknowledged its backlog.
func (l *stormLoad) userDrained(user int) {
	l.toDrained.record(user, l.began, l.r.now())
	l.drained.Add(1)
}

// load measures the calm, then lets everybody in and waits for the backlog.
func (l *stormLoad) load(ctx context.Context, r *Run) error {
	if l.live == nil {
		return l.storm(ctx, r)
	}
	liveCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	live := make(chan error, 1)
	go func() { live <- l.liveSource.load(liveCtx) }()
	rest(ctx, l.o.Calm)
	err := l.storm(ctx, r)
	cancel()
	return errors.Join(err, <-live)
}

// storm lets everybody in and waits for the backlog.
func (l *stormLoad) storm(ctx context.Context, r *Run) error {
	r.mark(markStorm)
	l.began = r.now()
	if l.live != nil {
		l.liveStages.begin(1, l.began)
	}
	atOnce := l.o.AtOnce
	if atOnce == 0 {
		atOnce = l.o.Users
	}
	if err := l.letIn(ctx, atOnce); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return nil // the verdict says how many were in
		}
		return err
	}
	l.allIn = r.now() - l.began
	r.mark(markAllIn)
	if l.o.Backlog > 0 {
		until(ctx, func() bool { return l.drained.Load() >= int64(l.o.Users) })
		l.allDrained = r.now() - l.began
	}
	return nil
}

// letIn logs everybody in.
func (l *stormLoad) letIn(ctx context.Context, atOnce int) error {
	if l.crowd != nil {
		return l.crowd.login(ctx, l.logins, atOnce)
	}
	return l.f.login(ctx, atOnce, l.login)
}

// joined notes a login.
func (l *stormLoad) joined(user int, began int64) {
	now := l.r.now()
	l.toLogin.record(user, l.began, now)
	l.ownLogin.record(user, began, now)
	l.in.add(1)
}

// login is one user's; a refusal is counted, and then it tries on.
func (l *stormLoad) login(ctx context.Context, user int) error {
	began := l.r.now()
	err := l.f.members[user].tryDial(ctx, 1)
	if err != nil && ctx.Err() == nil {
		l.denied(err)
		err = l.f.members[user].dial(ctx)
	}
	if err != nil {
		return err
	}
	l.joined(user, began)
	return nil
}

// denied counts a login that failed, and is tried again.
func (l *stormLoad) denied(err error) {
	l.refused.Add(1)
	l.why.CompareAndSwap(nil, &err)
}

// The moments at which the server's CPU is noted.
const markStorm, markAllIn = "storm", "all in"

func (l *stormLoad) collect(res *Result) {
	res.Sums["refused"] += l.refused.Load()
	if why := l.why.Load(); why != nil && l.in.total.Load() < int64(l.o.Users) {
		res.Failures = append(res.Failures, "logins were refused, the first one: "+(*why).Error())
	}
	if l.crowd != nil && l.crowd.lost.Load() > 0 {
		res.Failures = append(res.Failures, fmt.Sprintf("%d connections ended after their login", l.crowd.lost.Load()))
	}
	res.Longest["all in"], res.Longest["all drained"] = l.allIn, l.allDrained
	t := l.f.ledger.tally()
	res.tally("backlog").merge(&t)
	if l.live != nil {
		t := l.live.ledger.tally()
		res.tally("live").merge(&t)
	}
}

func (o *StormOptions) judge(r *Run, report *Report) {
	res, users := r.result, float64(o.Users)
	refused := float64(res.Sums["refused"])
	if in := r.counted("logged in").total.Load(); in < int64(o.Users) {
		report.fail("only %d of %d users were logged in when the time was over", in, o.Users)
		report.figure("logins_refused", "logins refused at first", refused, "")
		return
	}
	allIn, allDrained := seconds(res.Longest["all in"]), seconds(res.Longest["all drained"])
	report.figure("all_in_seconds", "all are logged in after", allIn, "s")
	report.figure("logins_per_second", "logins", users/max(allIn, 1e-9), "/s")
	report.figure("logins_refused", "logins refused at first", refused, "")
	if calm, in := r.marked(markStorm).first, r.marked(markAllIn).last; calm.ok && in.ok {
		report.figure("server_cpu_us_per_login", "server CPU per login, until all are in", (in.server.cpu-calm.server.cpu).Seconds()*1e6/users, "us")
	}
	if o.Backlog > 0 {
		report.figure("all_delivered_seconds", "all backlog is acknowledged after", allDrained, "s")
		report.figure("backlog_per_second", "stored messages delivered and acknowledged", users*float64(o.Backlog)/max(allDrained, 1e-9), "/s")
		if h := r.latencyNamed("storm to backlog acked").merged(); h.TotalCount() > 0 {
			report.figure("fairness", "slowest user over median, until acknowledged", float64(h.Max())/float64(max(h.ValueAtQuantile(50), 1)), "")
		}
	}
	report.Tally = res.tally("backlog")
	report.Verdict.Failures = append(report.Verdict.Failures, report.Tally.failures(false)...)
	if o.LiveUsers > 0 {
		live := res.tally("live")
		report.figure("live_received", "live messages received", float64(live.Received), "")
		report.Verdict.Failures = append(report.Verdict.Failures, live.failures(false)...)
		if live.Received == 0 {
			report.fail("no live message arrived")
		}
	}
}
