package bench

import (
	"context"
	"math"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/codec"
)

// smallFanout is a load that takes a second.
func smallFanout() FanoutOptions {
	return FanoutOptions{Users: 20, Publishers: 2, Window: 10, PayloadBytes: 64, Batch: 64}
}

func TestFanoutDeliversEverything(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*FanoutOptions)
		frames [2]float64 // messages per ACK frame, from and to; 0: no ACKs
	}{
		{"as fast as the windows allow", func(*FanoutOptions) {}, [2]float64{1, 1000}},
		{"open loop", func(o *FanoutOptions) { o.Rate = 500 }, [2]float64{1, 1000}},
		{"at random", func(o *FanoutOptions) { o.Random = true }, [2]float64{1, 1000}},
		{"one ACK frame a message", func(o *FanoutOptions) { o.AckEach = true }, [2]float64{0.99, 1.01}},
		{"fire and forget", func(o *FanoutOptions) { o.NoAck = true }, [2]float64{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			o := smallFanout()
			test.change(&o)
			s, err := Fanout(o)
			report := execute(t, quick(t), s, err)
			wantPass(t, report)
			if rate := value(t, report, "deliveries_per_second"); rate < 100 || (o.Rate > 0 && rate > 2*o.Rate) {
				t.Errorf("%v deliveries a second", rate)
			}
			if test.frames[1] > 0 {
				if n := value(t, report, "messages_per_ack_frame"); n < test.frames[0] || n > test.frames[1] {
					t.Errorf("%v messages per ACK frame", n)
				}
			}
			if len(report.Latencies) == 0 || report.Latencies[0].Count == 0 || report.Latencies[0].P50Ms <= 0 {
				t.Errorf("latencies %+v", report.Latencies)
			}
			if report.Server == nil || report.Server.RSSPeakBytes < 1<<20 || report.Server.Source != "/proc" {
				t.Errorf("server %+v", report.Server)
			}
		})
	}
}

func TestRefusalsSayWhyAndHowOften(t *testing.T) {
	var x refusals
	if x.String() != "" {
		t.Errorf("%q of nothing", x.String())
	}
	x.add(client.ErrUnanswered)
	x.add(&client.ResultError{Code: codec.ResultOverloaded})
	x.add(&client.ResultError{Code: codec.ResultOverloaded})
	if x.String() != " (2 overloaded, 1 unanswered)" {
		t.Errorf("%q", x.String())
	}
}

func TestFanoutEndsAfterItsMessages(t *testing.T) {
	o := smallFanout()
	o.Messages = 500
	s, err := Fanout(o)
	options := quick(t)
	options.WarmUp, options.Duration = 0, time.Minute
	report := execute(t, options, s, err)
	wantPass(t, report)
	if report.Tally.Sent != 500 || report.MeasuredSeconds > 30 {
		t.Errorf("%d sent in %v s", report.Tally.Sent, report.MeasuredSeconds)
	}
}

func TestFanoutRefusesWhatCannotWork(t *testing.T) {
	for _, test := range []struct {
		change func(*FanoutOptions)
		want   string
	}{
		{func(o *FanoutOptions) { o.Users = 0 }, "users"},
		{func(o *FanoutOptions) { o.Publishers = 21 }, "publishers"},
		{func(o *FanoutOptions) { o.Users = usersMax + 1 }, "users"},
		{func(o *FanoutOptions) { o.Rate = -1 }, "rate"},
		{func(o *FanoutOptions) { o.Rate = math.NaN() }, "rate"},
		{func(o *FanoutOptions) { o.Rate = math.Inf(1) }, "rate"},
		{func(o *FanoutOptions) { o.Messages = -1 }, "messages"},
		{func(o *FanoutOptions) { o.Window = 0 }, "window"},
		{func(o *FanoutOptions) { o.PayloadBytes = 23 }, "24 bytes"},
		{func(o *FanoutOptions) { o.Batch = 2000 }, "batch"},
	} {
		o := smallFanout()
		test.change(&o)
		if _, err := Fanout(o); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v, want one about %s", err, test.want)
		}
	}
}

func TestAServerThatDoesNotStartSaysWhy(t *testing.T) {
	s, err := Fanout(smallFanout())
	if err != nil {
		t.Fatal(err)
	}
	_, err = Execute(t.Context(), quick(t, "ack.timout=1s"), s)
	if err == nil || !strings.Contains(err.Error(), "ack.timeout") {
		t.Errorf("error %v does not name the setting", err)
	}
}

func TestAnInterruptedRunEndsSoonAndLeavesNothing(t *testing.T) {
	s, err := Fanout(smallFanout())
	if err != nil {
		t.Fatal(err)
	}
	o := quick(t)
	o.WarmUp, o.Duration = 0, time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	report, err := Execute(ctx, o, s)
	if err != nil {
		t.Fatal(err)
	}
	if report.Interrupted != "load" || report.Verdict.Pass || value(t, report, "deliveries_per_second") < 100 {
		t.Errorf("interrupted in %q, verdict %+v, figures %+v", report.Interrupted, report.Verdict, report.Figures)
	}
	var table strings.Builder
	if err := report.WriteTable(&table); err != nil || strings.Contains(table.String(), "FAIL") || !strings.Contains(table.String(), "interrupted in the phase load") {
		t.Errorf("error %v, table:\n%s", err, table.String())
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	if left, err := os.ReadDir(o.Target.Start.Dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, error %v", left, err)
	}
}

// stall stops the process of the server for d, as a machine does that is short of memory.
func (p *process) stall(ctx context.Context, after, d time.Duration) error {
	target, err := os.FindProcess(p.pid())
	if err != nil {
		return err
	}
	pause := func(d time.Duration) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	pause(after)
	if err := target.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	pause(d)
	return target.Signal(syscall.SIGCONT)
}

// TestAStalledServerShowsInTheLatency is the open loop: messages that could not be sent in time count from when they were meant to be.
func TestAStalledServerShowsInTheLatency(t *testing.T) {
	o := smallFanout()
	o.Rate = 300
	s, err := Fanout(o)
	options := quick(t)
	options.Duration = 1500 * time.Millisecond
	load := s.Load
	s.Load = func(ctx context.Context, r *Run) error {
		stalled := make(chan error, 1)
		go func() { stalled <- r.server.stall(ctx, 600*time.Millisecond, 500*time.Millisecond) }()
		err := load(ctx, r)
		if err == nil {
			err = <-stalled
		}
		return err
	}
	report := execute(t, options, s, err)
	wantPass(t, report)
	if l := report.Latencies[0]; l.MaxMs < 300 || l.P99Ms < 200 {
		t.Errorf("half a second of stall, and latencies are %+v", l)
	}
}

func TestHasAckLooksThroughTheFramesOfAWrite(t *testing.T) {
	ping := codec.AppendPing(nil, nil)
	ack := codec.AppendAckOne(nil, 3, codec.LevelProcessed)
	for _, test := range []struct {
		bytes []byte
		want  bool
	}{{nil, false}, {ping, false}, {ack, true}, {append(ping, ack...), true}, {ack[:1], false}} {
		if got := hasAck(test.bytes); got != test.want {
			t.Errorf("%x: %v", test.bytes, got)
		}
	}
}

func TestPickersShareTheUsers(t *testing.T) {
	p := &publishers{r: bareRun(), f: &fleet{members: make([]receiver, 7)}, clients: make([]publishing, 3)}
	for _, random := range []bool{false, true} {
		p.o.random = random
		seen := map[int]int{} // user to publisher
		for publisher := range 3 {
			pick := p.picker(publisher)
			for range 200 {
				user := pick.next()
				if other, ok := seen[user]; ok && other != publisher {
					t.Fatalf("user %d belongs to publishers %d and %d", user, other, publisher)
				}
				seen[user] = publisher
			}
		}
		if len(seen) != 7 {
			t.Errorf("random %v: users %v", random, seen)
		}
	}
}
