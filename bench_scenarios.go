package main

import (
	"context"
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

// benchWorker is a further process of the generator.
type benchWorker struct {
	TokenKey string `placeholder:"ALG:FILE" help:"Log in with tokens signed by this key."`
}

// Run works until standard input ends.
func (b *benchWorker) Run(ctx context.Context, term *terminal) error {
	token, err := benchTokens(b.TokenKey)
	if err != nil {
		return err
	}
	return bench.Worker(ctx, term.in, term.out, token)
}
