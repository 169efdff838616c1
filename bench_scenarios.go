package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"holdfast/bench"
)

// benchPublish is the scenario publish.
type benchPublish struct {
	benchFlags `embed:""`
	spanFlags  `embed:""`
	Mode       string  `enum:"http,http-batch,frames" default:"frames" help:"http: one message a request; http-batch: an array a request; frames: PUBLISH frames on the TCP port."`
	Publishers int     `default:"4" help:"Connections."`
	Rate       float64 `default:"0" help:"Messages a second, open loop. 0: as fast as they are answered."`
	Users      int     `default:"1000" help:"Queues the messages are spread over; they belong to users who are absent."`
	Payload    int     `default:"128" help:"Bytes of a payload, at least 24."`
	Batch      int     `default:"100" help:"Messages in a request or frame; with http always one."`
	TTL        string  `name:"ttl" default:"1m" help:"How long the gateway keeps what nobody fetches, for example 1m."`
}

// Help is the long help of the command.
func (benchPublish) Help() string {
	return `Examples:
  holdfast bench publish --start --mode http-batch
  holdfast bench publish --start --mode frames --batch 256 --rate 50000 --html publish.html` + benchExits
}

// Run runs the scenario.
func (b *benchPublish) Run(ctx context.Context, term *terminal) error {
	ttl, err := parseDuration(b.TTL)
	if err != nil {
		return &exitCode{exitUsage, fmt.Errorf("--ttl: %w", err)}
	}
	scenario, err := bench.Publish(bench.PublishOptions{
		Mode: b.Mode, Publishers: b.Publishers, Rate: b.Rate, Users: b.Users, PayloadBytes: b.Payload, Batch: b.Batch, TTL: ttl,
	})
	return b.run(ctx, term, b.spanFlags, scenario, err)
}

// benchIdle is the scenario idle.
type benchIdle struct {
	benchFlags `embed:""`
	Sizes      []int         `default:"2000,10000,18000" help:"Numbers of connections, rising."`
	Hold       time.Duration `default:"10s" help:"How long each size is held and watched."`
	Keepalive  time.Duration `default:"60s" help:"Keepalive the connections ask for."`
}

// Help is the long help of the command.
func (benchIdle) Help() string {
	return `Further generator processes are started when one may not open enough files, and further source addresses of 127.0.0.0/8 are used when
the ports of one run out. The gateway's own limits (its file limit, tcp.connections_max) are for its operator.

Examples:
  holdfast bench idle --start
  holdfast bench idle --target mqtt://127.0.0.1:1883
  holdfast bench idle --server 127.0.0.1:7700 --sizes 1000,50000 --hold 60s` + benchExits
}

// Run runs the scenario.
func (b *benchIdle) Run(ctx context.Context, term *terminal) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("bench idle: %w", err)
	}
	worker := []string{self, "bench", "worker"}
	if b.TokenKey != "" {
		worker = append(worker, "--token-key", b.TokenKey)
	}
	scenario, err := bench.Idle(bench.IdleOptions{Sizes: b.Sizes, Hold: b.Hold, Keepalive: b.Keepalive, Worker: worker})
	span := spanFlags{Duration: time.Duration(len(b.Sizes)) * (2*b.Hold + b.ConnectMax)}
	return b.run(ctx, term, span, scenario, err)
}

// benchStorm is the scenario storm.
type benchStorm struct {
	benchFlags `embed:""`
	Users      int           `default:"5000" help:"Users that log in."`
	Backlog    int           `default:"0" help:"Messages that wait for each of them."`
	AtOnce     int           `default:"0" help:"Logins under way at a time. 0: all."`
	Window     int           `default:"0" help:"Receive window to ask for, messages. 0: the gateway's."`
	Payload    int           `default:"128" help:"Bytes of a payload, at least 24."`
	LiveUsers  int           `default:"100" help:"Users online already, with live traffic beside the storm. 0: none."`
	LiveRate   float64       `default:"500" help:"Live messages a second, open loop. 0: none."`
	Calm       time.Duration `default:"3s" help:"Live traffic before the storm, for comparison."`
	Duration   time.Duration `default:"60s" help:"Longest time for calm, logins and backlog."`
}

// Help is the long help of the command.
func (benchStorm) Help() string {
	return `Latencies start with the storm, so a login that had to wait for its turn counts from then. The figure "fairness" is the slowest user's
time until its backlog was acknowledged over the median one.

Examples:
  holdfast bench storm --start --users 15000 --live-users 0 --live-rate 0
  holdfast bench storm --start --users 500 --backlog 200
  holdfast bench storm --target mqtt://127.0.0.1:1883 --users 500 --backlog 200` + benchExits
}

// Run runs the scenario.
func (b *benchStorm) Run(ctx context.Context, term *terminal) error {
	if b.broker() && b.Window > 0 {
		return errBroker("--window", "MQTT 3.1.1 has no receive window")
	}
	scenario, err := bench.Storm(bench.StormOptions{
		Users: b.Users, Backlog: b.Backlog, AtOnce: b.AtOnce, Window: b.Window, PayloadBytes: b.Payload,
		LiveUsers: b.LiveUsers, LiveRate: b.LiveRate, Calm: b.Calm,
	})
	return b.run(ctx, term, spanFlags{Duration: b.Duration}, scenario, err)
}

// stageFlags are the flags of the scenarios in which some users misbehave for a time.
type stageFlags struct {
	Rate   float64       `default:"2000" help:"Messages a second, open loop, over all users."`
	Before time.Duration `default:"5s" help:"How long everybody behaves first."`
	During time.Duration `default:"10s" help:"How long some do not."`
	After  time.Duration `default:"5s" help:"How long the load goes on after that."`
}

// misbehave are the scenario's options.
func (f *stageFlags) misbehave(load *loadFlags, share float64) bench.MisbehaveOptions {
	return bench.MisbehaveOptions{FanoutOptions: load.fanout(f.Rate), Share: share, Before: f.Before, During: f.During, After: f.After}
}

// span bounds the load.
func (f *stageFlags) span() spanFlags {
	return spanFlags{Duration: f.Before + f.During + f.After + time.Second}
}

// benchSlow is the scenario slow.
type benchSlow struct {
	benchFlags `embed:""`
	loadFlags  `embed:""`
	stageFlags `embed:""`
	Share      float64 `default:"0.05" help:"Share of the users that stop reading."`
}

// Help is the long help of the command.
func (benchSlow) Help() string {
	return `The latencies of those who go on reading are told apart by before, during and after; those of the slow ones are left out. At the end
everybody must have got everything.

Examples:
  holdfast bench slow --start
  holdfast bench slow --start --share 0.2 --window 200 --payload 4096 --html slow.html` + benchExits
}

// Run runs the scenario.
func (b *benchSlow) Run(ctx context.Context, term *terminal) error {
	scenario, err := bench.Slow(b.misbehave(&b.loadFlags, b.Share))
	return b.run(ctx, term, b.span(), scenario, err)
}

// benchAckstorm is the scenario ackstorm.
type benchAckstorm struct {
	benchFlags `embed:""`
	loadFlags  `embed:""`
	stageFlags `embed:""`
	Share      float64 `default:"0.5" help:"Share of the users whose ACKs are held back."`
}

// Help is the long help of the command.
func (benchAckstorm) Help() string {
	return `The latencies are those of the clients that go on acknowledging, before, during and after. "Copies sent per message" is the cost of the
gateway's retries; "back to normal" is when no more is unacknowledged than twice what was before.

Examples:
  holdfast bench ackstorm --start
  holdfast bench ackstorm --start --share 0.1 --during 30s --set ack.timeout=5s` + benchExits
}

// Run runs the scenario.
func (b *benchAckstorm) Run(ctx context.Context, term *terminal) error {
	scenario, err := bench.AckStorm(b.misbehave(&b.loadFlags, b.Share))
	return b.run(ctx, term, b.span(), scenario, err)
}

// benchRecovery is the scenario recovery.
type benchRecovery struct {
	benchFlags `embed:""`
	Messages   int           `default:"1000000" help:"Messages that are stored, a multiple of --users."`
	Users      int           `default:"10000" help:"Users they are for, who are absent."`
	Payload    int           `default:"128" help:"Bytes of a payload, at least 24."`
	Batch      int           `default:"256" help:"Messages in one PUBLISH frame at most."`
	ReadyMax   time.Duration `default:"1m" help:"Longest time until the gateway is ready again; above it the verdict is no."`
	Hold       time.Duration `default:"5s" help:"How long the gateway is left alone before its memory is read."`
	Drain      bool          `default:"true" negatable:"" help:"Afterwards every user comes for its messages, and they are counted."`
	AtOnce     int           `default:"500" help:"Users that come at a time."`
	Duration   time.Duration `default:"15m" help:"Longest time for all of it."`
}

// Help is the long help of the command.
func (benchRecovery) Help() string {
	return `The gateway is always the run's own. Name a --start-dir on a disk: the system's default may be memory.

Examples:
  holdfast bench recovery --start-dir .
  holdfast bench recovery --start-dir . --messages 10000000 --no-drain` + benchExits
}

// Run runs the scenario.
func (b *benchRecovery) Run(ctx context.Context, term *terminal) error {
	scenario, err := bench.Recovery(bench.RecoveryOptions{
		Messages: b.Messages, Users: b.Users, PayloadBytes: b.Payload, Batch: b.Batch, ReadyMax: b.ReadyMax, Hold: b.Hold, Drain: b.Drain, AtOnce: b.AtOnce,
	})
	b.Start = true
	return b.run(ctx, term, spanFlags{Duration: b.Duration}, scenario, err)
}

// benchVerify is the scenario verify.
type benchVerify struct {
	benchFlags  `embed:""`
	spanFlags   `embed:""`
	loadFlags   `embed:""`
	Load        string         `enum:"fanout,storm,slow,ackstorm,publish" default:"fanout" help:"What goes on among the faults: fanout, storm, slow, ackstorm or publish."`
	Rate        float64        `default:"2000" help:"Messages a second, open loop. With publish 0: as fast as they are answered."`
	Backlog     int            `default:"100" help:"storm: messages that wait for each user."`
	Share       float64        `default:"0.2" help:"slow, ackstorm: share of the users that misbehave, in the middle third of --duration."`
	Mode        string         `enum:"http,http-batch,frames" default:"frames" help:"publish: how."`
	KillEvery   time.Duration  `default:"50ms" help:"Time between faults of receivers: in turn a connection breaks, and a receiver dies and comes back. 0: none."`
	AwayMax     time.Duration  `default:"500ms" help:"Longest absence of a receiver that died."`
	LostAcks    float64        `default:"0.02" help:"Share of ACK frames that get lost."`
	DoubledAcks float64        `default:"0.02" help:"Share of ACK frames that are sent twice."`
	CrashEvery  *time.Duration `placeholder:"TIME" help:"Time between two kill -9 of the gateway, which needs --start; then 3s is the default, and with storm just after its begin. 0: none."`
}

// Help is the long help of the command.
func (benchVerify) Help() string {
	return `One of the other loads among faults: receivers are killed and come back, connections break, ACKs get lost and doubled, and a gateway
of --start is killed. Then everything accepted must have been handed to its receiver, once, in order, and to nobody else.

  fanout    messages at --rate to users online
  storm     --users log in at once for --backlog messages each, beside 100 users with live traffic at --rate
  slow      fanout, and --share of the users read nothing for a third of the time
  ackstorm  fanout, and --share of the users hold back their ACKs for a third of the time
  publish   messages in the way of --mode to users who are absent; at the end they log in and fetch what was accepted

A message counts as lost when the gateway accepted it and its receiver was not handed it by the end of --settle-max; that must be longer
than the gateway's ack.timeout, or a lost ACK looks like a lost message. A gateway of --start has ack.timeout=1s unless --set says
otherwise, and must hold nothing at the end. Copies a receiver gets because it died before it had written down that it saw a message
are no duplicates.

Examples:
  holdfast bench verify --start
  holdfast bench verify --start --load storm --users 500 --backlog 200
  holdfast bench verify --start --load publish --mode http-batch --rate 5000
  holdfast bench verify --start --load ackstorm --processes 2
  holdfast bench verify --start --duration 5m --users 5000 --rate 10000
  holdfast bench verify --server 10.0.0.7:7700 --kill-every 1s --lost-acks 0.1` + benchExits
}

const (
	crashEveryDefault = 3 * time.Second
	verifyLiveUsers   = 100       // of a storm
	verifyTTL         = time.Hour // of published messages: what expires cannot be told from what is lost
)

// crashEvery is how often the gateway is killed.
func (b *benchVerify) crashEvery() time.Duration {
	switch {
	case b.CrashEvery != nil:
		return *b.CrashEvery
	case b.Start && b.Load == "storm":
		return b.WarmUp + stormCrash
	case b.Start:
		return crashEveryDefault
	default:
		return 0
	}
}

// load is the scenario among the faults, and how long it lasts.
func (b *benchVerify) load() (bench.Scenario, spanFlags, error) {
	span := b.spanFlags
	third := b.Duration / 3
	stages := stageFlags{Rate: b.Rate, Before: third, During: third, After: third}
	var scenario bench.Scenario
	var err error
	switch b.Load {
	case "storm":
		span.Duration += b.WarmUp + stormMax
		scenario, err = bench.Storm(bench.StormOptions{
			Users: b.Users, Backlog: b.Backlog, PayloadBytes: b.Payload, LiveUsers: verifyLiveUsers, LiveRate: b.Rate, Calm: b.WarmUp,
		})
	case "slow":
		scenario, err = bench.Slow(stages.misbehave(&b.loadFlags, b.Share))
		span = stages.span()
	case "ackstorm":
		scenario, err = bench.AckStorm(stages.misbehave(&b.loadFlags, b.Share))
		span = stages.span()
	case "publish":
		scenario, err = bench.Publish(bench.PublishOptions{
			Mode: b.Mode, Publishers: b.Publishers, Rate: b.Rate, Users: b.Users, PayloadBytes: b.Payload, Batch: b.Batch, TTL: verifyTTL,
		})
	default:
		scenario, err = bench.Fanout(b.fanout(b.Rate))
	}
	return scenario, span, err
}

const (
	stormMax   = time.Minute            // bounds a storm among faults
	stormCrash = 100 * time.Millisecond // into the storm, by default
)

// Run runs the scenario.
func (b *benchVerify) Run(ctx context.Context, term *terminal) error {
	scenario, span, err := b.load()
	if err == nil {
		scenario, err = bench.Verify(scenario, bench.FaultOptions{
			KillEvery: b.KillEvery, AwayMax: b.AwayMax, LostACKs: b.LostAcks, DoubledACKs: b.DoubledAcks, CrashEvery: b.crashEvery(),
		})
	}
	if err == nil && b.crashEvery() > 0 && !b.Start {
		err = errors.New("--crash-every kills the gateway that --start starts, and no other")
	}
	if b.Start {
		b.Set = append([]string{"ack.timeout=1s"}, b.Set...)
	}
	return b.run(ctx, term, span, scenario, err)
}

// benchWorker is a further process of the generator.
type benchWorker struct {
	Load     bool   `help:"A part of a load; otherwise idle connections."`
	TokenKey string `placeholder:"ALG:FILE" help:"Log in with tokens signed by this key."`
}

// Run works until standard input ends.
func (b *benchWorker) Run(ctx context.Context, term *terminal) error {
	token, err := benchTokens(b.TokenKey)
	if err != nil {
		return err
	}
	if b.Load {
		return bench.Work(ctx, term.in, term.out, token)
	}
	return bench.Worker(ctx, term.in, term.out, token)
}
