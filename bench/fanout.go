package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// FanoutOptions describe the scenario of many users online and a few publishers.
type FanoutOptions struct {
	// Users are online, each with one device.
	Users int `json:"users"`
	// Publishers is the number of publishing connections.
	Publishers int `json:"publishers"`
	// Rate is messages a second, open loop. 0: as fast as the windows allow (closed loop).
	Rate float64 `json:"rate"`
	// Window is how many unacknowledged messages of one user may be under way.
	Window int `json:"window"`
	// PayloadBytes is the size of a payload, at least PayloadBytesMin.
	PayloadBytes int `json:"payload_bytes"`
	// AckEach sends one ACK frame a message instead of bundles.
	AckEach bool `json:"ack_each"`
	// NoAck publishes fire and forget.
	NoAck bool `json:"no_ack"`
	// Random picks users at random instead of in turn.
	Random bool `json:"random"`
	// Batch is how many messages a PUBLISH frame carries at most.
	Batch int `json:"batch"`
	// Library has the receivers use the client library, a goroutine and buffers each, as programs do. Otherwise they are lean
	// connections that confirm in the same way, so that the generator's cost stands less in the way of the server's figures.
	Library bool `json:"library,omitempty"`
	// Messages ends the load after this many; 0: with its time.
	Messages int64 `json:"messages,omitempty"`
}

// batchMax is the largest batch of a PUBLISH frame the client takes.
const batchMax = 1024

func (o *FanoutOptions) validate() error {
	switch {
	case o.Users < 1:
		return errors.New("users must be at least 1")
	case o.Publishers < 1 || o.Publishers > o.Users:
		return errors.New("publishers must be at least 1 and at most the users: each user's messages come over one connection")
	case o.Users > usersMax:
		return errUsers
	case !rateFits(o.Rate):
		return errRate
	case o.Messages < 0:
		return errors.New("the number of messages is negative")
	case o.Window < 1:
		return errors.New("the window must be at least 1")
	case o.PayloadBytes < PayloadBytesMin || o.PayloadBytes > 60<<10:
		return fmt.Errorf("the payload must be %d bytes to 60 KiB", PayloadBytesMin)
	case o.Batch < 1 || o.Batch > batchMax:
		return fmt.Errorf("the batch must be 1 to %d", batchMax)
	}
	return nil
}

func (o *FanoutOptions) publishers() publishersOptions {
	return publishersOptions{
		publishers: o.Publishers, rate: o.Rate, window: o.Window, payload: o.PayloadBytes, random: o.Random, noAck: o.NoAck,
		messages: o.Messages, batch: o.Batch,
	}
}

// Fanout is the scenario of users online and publishers who push to them: acknowledged deliveries a second, what they cost the
// server, and latencies.
func Fanout(o FanoutOptions) (Scenario, error) {
	if err := o.validate(); err != nil {
		return Scenario{}, err
	}
	var f *fleet
	var p *publishers
	return Scenario{
		Name: "fanout", Parameters: o, MQTT: true,
		Connect: func(ctx context.Context, r *Run) error {
			f = newFleet(r, fleetOptions{users: o.Users, window: o.Window, ackEach: o.AckEach, lean: !o.Library})
			p = newPublishers(r, f, o.publishers())
			if err := f.connect(ctx); err != nil {
				return err
			}
			return p.connect(ctx)
		},
		Load: func(ctx context.Context, _ *Run) error { return f.together(ctx, p.load) },
		Settle: func(ctx context.Context, _ *Run) error {
			if o.NoAck {
				until(ctx, func() bool { return f.ledger.answered() >= f.ledger.sent.Load() })
				// What has not come by then was dropped on the way, which fire and forget allows.
				brief, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				until(brief, f.ledger.settled)
			} else {
				_ = f.together(ctx, func(ctx context.Context) error { // its error is that of ended
					f.settle(ctx)
					return nil
				})
			}
			return f.ended()
		},
		Collect: func(_ *Run, res *Result) { collectLoad(res, f, p) },
		Judge:   func(r *Run, report *Report) { judgeDeliveries(r, report, o.NoAck) },
		Close:   func() { closeLoad(f, p) },
		Split:   o.split, Connections: o.Users + o.Publishers,
	}, nil
}

// togetherEvery is how often a load looks whether everybody is still there.
const togetherEvery = 200 * time.Millisecond

// together runs a phase, and ends it with an error when a receiver's connection has ended for good: what is measured without it is
// another load, and what is under way for it would be waited for in vain. Among faults receivers come and go.
func (f *fleet) together(ctx context.Context, run func(context.Context) error) error {
	if f.r.faults != nil {
		return run(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var watch sync.WaitGroup
	watch.Go(func() {
		tick := time.NewTicker(togetherEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if f.ended() != nil {
					cancel()
					return
				}
			}
		}
	})
	err := run(ctx)
	cancel()
	watch.Wait()
	if ended := f.ended(); ended != nil {
		return ended // the load's own error comes from it
	}
	return err
}

// closeLoad ends what Connect opened, as far as it came.
func closeLoad(f *fleet, p *publishers) {
	if p != nil {
		p.close()
	}
	if f != nil {
		f.close()
	}
}

// collectLoad adds what a load of publishers on a fleet has counted beside its counters.
func collectLoad(res *Result, f *fleet, p *publishers) {
	stats := f.stats()
	res.Sums["copies"] += int64(stats.Received)
	res.Sums["duplicates"] += int64(stats.Duplicates)
	res.Sums["ack_frames"] += int64(stats.AckFrames)
	t := f.ledger.tally()
	res.tally(strings.TrimSpace(f.o.label)).merge(&t)
	res.addRefused(&p.refused)
}

// judgeDeliveries adds the figures of a load of publishers on a fleet, and the verdict of its ledger.
func judgeDeliveries(r *Run, report *Report, noAck bool) {
	res := r.result
	acked, word := r.counted("acked").inSpan(), "acknowledged"
	if noAck {
		word = "received"
	}
	span := max(report.MeasuredSeconds, 1e-9)
	report.figure("deliveries_per_second", word+" deliveries", float64(acked)/span, "/s")
	if cpu, ok := report.perMillion(acked); ok {
		report.figure("server_cpu_seconds_per_million", "server CPU per million deliveries", cpu, "s")
	}
	report.figure("published_per_second", "published and answered", float64(r.counted("published").inSpan())/span, "/s")
	if n := res.Sums["ack_frames"]; n > 0 {
		report.figure("messages_per_ack_frame", "messages per ACK frame", float64(r.counted("acked").total.Load())/float64(n), "")
	}
	t := res.tally("")
	report.Tally = t
	report.figure("sent", "messages sent", float64(t.Sent), "")
	report.figure("accepted", "accepted", float64(t.Accepted), "")
	report.figure("received", "received", float64(t.Received), "")
	if t.Refused > 0 {
		report.figure("refused", "refused", float64(t.Refused), "")
	}
	if noAck && t.Lost > 0 {
		report.figure("not_received", "not received (fire and forget)", float64(t.Lost), "")
	}
	if n := res.Sums["duplicates"] + t.Copies; n > 0 {
		report.figure("copies", "copies the clients recognised", float64(n), "")
	}
	report.refusals(res)
	report.Verdict.Failures = append(report.Verdict.Failures, t.failures(noAck)...)
	if t.Unanswered > 0 {
		report.fail("%d publishes were never answered", t.Unanswered)
	}
	if acked == 0 {
		report.fail("nothing was delivered in the measured span")
	}
}
