package main

import (
	"context"
	"fmt"

	"holdfast/bench"
)

// benchPublish is the scenario publish.
type benchPublish struct {
	benchFlags `embed:""`
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
	return b.run(ctx, term, scenario, err)
}
