package bench

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/codec"
)

// smallFaults are every fault that needs no server of our own.
func smallFaults() FaultOptions {
	return FaultOptions{KillEvery: 30 * time.Millisecond, AwayMax: 200 * time.Millisecond, LostACKs: 0.1, DoubledACKs: 0.1}
}

// smallPublish publishes to absent users.
func smallPublish(mode string) PublishOptions {
	return PublishOptions{Mode: mode, Publishers: 2, Users: 20, PayloadBytes: 64, Batch: 20, TTL: time.Hour, Rate: 1000}
}

// verifyFanout is a small load among faults.
func verifyFanout(o FaultOptions) (Scenario, error) {
	load := smallFanout()
	load.Rate = 600
	s, err := Fanout(load)
	if err != nil {
		return s, err
	}
	return Verify(s, o)
}

func TestVerifyPassesAGatewayThatKeepsItsPromises(t *testing.T) {
	t.Parallel()
	o := smallFaults()
	o.CrashEvery = 700 * time.Millisecond
	s, err := verifyFanout(o)
	options := quick(t, "ack.timeout=1s")
	options.Duration = 2 * time.Second
	report := execute(t, options, s, err)
	wantPass(t, report)
	for _, key := range []string{"receiver_kills", "connections_cut", "acks_lost", "acks_doubled", "server_kills"} {
		if value(t, report, key) == 0 {
			t.Errorf("%s is zero", key)
		}
	}
}

// TestVerifyOutlastsLostACKs loses so many ACKs that messages use up their live attempts and wait for the next login: the server is
// not to be blamed for holding them.
func TestVerifyOutlastsLostACKs(t *testing.T) {
	t.Parallel()
	o := smallFaults()
	o.LostACKs = 0.7
	s, err := verifyFanout(o)
	options := quick(t, "ack.timeout=300ms")
	options.Duration = time.Second
	wantPass(t, execute(t, options, s, err))
}

// TestVerifyNamesEachFault spoils a run that goes well, behind the fleet's back: the verdict must name exactly that.
func TestVerifyNamesEachFault(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault func(f *fleet)
		want  string
	}{
		{"lost", func(f *fleet) { f.ledger.answer(0, f.ledger.send(0), true) }, "1 lost"},
		{"doubled", func(f *fleet) { f.ledger.receive(0, &stamp{run: f.ledger.run}) }, "1 duplicated"},
		{"swapped", func(f *fleet) {
			first, second := f.ledger.send(1), f.ledger.send(1)
			for _, seq := range []uint32{second, first} {
				f.ledger.answer(1, seq, true)
				f.ledger.receive(1, &stamp{run: f.ledger.run, user: 1, seq: seq})
			}
		}, "1 out of order"},
		{"misdelivered", func(f *fleet) { f.ledger.receive(1, &stamp{run: f.ledger.run, user: 0, seq: 0}) }, "1 at the wrong user"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := bareRun()
			f := newFleet(r, fleetOptions{users: 2})
			p := newPublishers(r, f, publishersOptions{})
			for user, stamps := range deliver(f.ledger, 3) {
				for i := range stamps {
					f.ledger.receive(user, &stamps[i])
				}
			}
			f.acked.closed.Store(6)
			report := &Report{}
			judge := func() {
				r.result = newResult()
				collectLoad(r.result, f, p)
				judgeDeliveries(r, report, false)
			}
			judge()
			if len(report.Verdict.Failures) > 0 {
				t.Fatalf("failures before the fault: %q", report.Verdict.Failures)
			}
			test.fault(f)
			judge()
			if got := report.Verdict.Failures; len(got) != 2 || got[0] != test.want {
				t.Errorf("failures %q, want %q and an example", got, test.want)
			}
		})
	}
}

// TestVerifySeesALossEndToEnd takes one accepted message away between the server and the ledger.
func TestVerifySeesALossEndToEnd(t *testing.T) {
	t.Parallel()
	o := smallFaults()
	o.KillEvery, o.LostACKs, o.DoubledACKs = 0, 0, 0
	s, err := verifyFanout(o)
	if err != nil {
		t.Fatal(err)
	}
	load := s.Load
	s.Load = func(ctx context.Context, r *Run) error {
		c, err := client.Dial(ctx, client.Options{
			Addrs: []string{r.o.Target.Addr}, User: userName(3), Device: "bench", // takes the session over, and what comes with it
			Handler: func(context.Context, *client.Message) error { return nil }, NoReconnect: true,
		})
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		return load(ctx, r)
	}
	s.Settle = nil // the receiver that was thrown out would end the run before its verdict
	report := execute(t, quick(t), s, nil)
	if failures := strings.Join(report.Verdict.Failures, "\n"); report.Verdict.Pass || !strings.Contains(failures, " lost") || !strings.Contains(failures, "lost: ") {
		t.Errorf("verdict %+v", report.Verdict)
	}
}

func TestVerifyRefusesWhatCannotWork(t *testing.T) {
	for _, test := range []struct {
		change func(*FaultOptions)
		want   string
	}{
		{func(o *FaultOptions) { o.LostACKs, o.DoubledACKs = 0.5, 0.5 }, "ACKs"},
		{func(o *FaultOptions) { o.KillEvery = -1 }, "negative"},
	} {
		o := smallFaults()
		test.change(&o)
		if _, err := verifyFanout(o); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v, want one about %s", err, test.want)
		}
	}
	noAck, closed, brief := smallFanout(), smallFanout(), smallPublish(PublishFrames)
	noAck.NoAck = true
	brief.TTL = time.Minute
	for want, load := range map[string]func() (Scenario, error){
		"fire and forget": func() (Scenario, error) { return Fanout(noAck) },
		"rate":            func() (Scenario, error) { return Fanout(closed) },
		"backlog":         func() (Scenario, error) { return Storm(StormOptions{Users: 10, PayloadBytes: 64}) },
		"time to live":    func() (Scenario, error) { return Publish(brief) },
		"idle delivers": func() (Scenario, error) {
			return Idle(IdleOptions{Sizes: []int{1}, Hold: time.Second, Keepalive: time.Minute})
		},
	} {
		s, err := load()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Verify(s, smallFaults()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %s", err, want)
		}
	}
	o := smallFaults()
	o.CrashEvery = time.Second
	s, err := verifyFanout(o)
	if err != nil {
		t.Fatal(err)
	}
	options := Options{Target: Target{Addr: "127.0.0.1:1"}, Duration: time.Second, ConnectMax: time.Second}
	if _, err := Execute(t.Context(), options, s); err == nil || !strings.Contains(err.Error(), "only be killed") {
		t.Errorf("error %v", err)
	}
}

func TestSpoiledWritesLoseAndDoubleWholeACKsOnly(t *testing.T) {
	ping, ack := codec.AppendPing(nil, nil), codec.AppendAckOne(nil, 5, codec.LevelProcessed)
	in := append(append(append([]byte{}, ping...), ack...), ping...)
	for _, test := range []struct {
		lost, doubled float64
		acks          int
	}{{0, 0, 1}, {1, 0, 0}, {0, 1, 2}} {
		x := newFaults(bareRun(), FaultOptions{LostACKs: test.lost, DoubledACKs: test.doubled})
		c := &faultConn{x: x, rnd: rand.New(rand.NewPCG(1, 2))}
		out := c.spoil(nil, in)
		pings, acks := 0, 0
		for len(out) > 0 {
			f, n, err := codec.Parse(out, codec.FrameBytesMax)
			if err != nil || n == 0 {
				t.Fatalf("not whole frames: %v", err)
			}
			switch f.Type {
			case codec.TypePing:
				pings++
			case codec.TypeAck:
				acks++
			}
			out = out[n:]
		}
		if pings != 2 || acks != test.acks {
			t.Errorf("%d pings and %d ACKs, want 2 and %d", pings, acks, test.acks)
		}
	}
}

func TestIDMemoryIsBoundedAndGivesTheNewestBack(t *testing.T) {
	m := &idMemory{ledger: newLedger(7, 1)}
	for seq := range uint32(3 * idsMax) {
		_ = m.Append([]string{messageID(7, 0, seq)})
	}
	var last string
	n := 0
	_ = m.Load(func(id string) bool { n, last = n+1, id; return true })
	if n > 2*idsMax || n < idsMax || last != messageID(7, 0, 3*idsMax-1) {
		t.Errorf("%d ids, the last is %s", n, last)
	}
}
