package bench

import (
	"bytes"
	"net"
	"strings"
	"testing"
	"time"

	"holdfast/codec"
)

// smallMisbehave is a load of a second and a half.
func smallMisbehave() MisbehaveOptions {
	o := MisbehaveOptions{
		FanoutOptions: smallFanout(), Share: 0.25, Before: 400 * time.Millisecond, During: 600 * time.Millisecond, After: 500 * time.Millisecond,
	}
	o.Rate = 500
	return o
}

func TestTheOthersAreMeasuredBeforeDuringAndAfter(t *testing.T) {
	for name, make := range map[string]func(MisbehaveOptions) (Scenario, error){"slow": Slow, "ackstorm": AckStorm} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := make(smallMisbehave())
			o := quick(t, "ack.timeout=1s")
			o.WarmUp, o.Duration = 0, 20*time.Second
			report := execute(t, o, s, err)
			wantPass(t, report)
			for i, stage := range []string{"others before", "others during", "others after"} {
				if l := report.Latencies[i]; l.Name != stage || l.Count < 50 {
					t.Errorf("latency %d: %+v, want %s", i, l, stage)
				}
			}
			if n := value(t, report, "copies_per_message"); n < 1 || n > 10 {
				t.Errorf("%v copies a message", n)
			}
			if n := value(t, report, "normal_after_seconds"); n <= 0 || n > 20 {
				t.Errorf("normal after %v s", n)
			}
			value(t, report, "others_p99_ratio")
			value(t, report, "rss_growth_bytes")
		})
	}
}

func TestMisbehaviourRefusesWhatCannotWork(t *testing.T) {
	for _, test := range []struct {
		change func(*MisbehaveOptions)
		want   string
	}{
		{func(o *MisbehaveOptions) { o.Rate = 0 }, "rate"},
		{func(o *MisbehaveOptions) { o.NoAck = true }, "fire and forget"},
		{func(o *MisbehaveOptions) { o.Share = 0.01 }, "share"},
		{func(o *MisbehaveOptions) { o.Share = 1 }, "share"},
		{func(o *MisbehaveOptions) { o.During = 0 }, "during"},
		{func(o *MisbehaveOptions) { o.Window = 0 }, "window"},
	} {
		o := smallMisbehave()
		test.change(&o)
		if _, err := Slow(o); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v, want one about %s", err, test.want)
		}
	}
}

// pipe is a gated connection and its other end.
func pipe(t *testing.T, g *gate) (gated, other net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	nc, err := dialTCP(t.Context(), ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if other, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close(); other.Close() })
	other.SetDeadline(time.Now().Add(10 * time.Second))
	return g.wrap(0, nc), other
}

func TestAGateForACKsLetsTheRestThroughAndKeepsTheOrder(t *testing.T) {
	g := &gate{closedFor: func(int) bool { return true }}
	gated, other := pipe(t, g)
	ping, one, two := codec.AppendPing(nil, nil), codec.AppendAckOne(nil, 1, codec.LevelProcessed), codec.AppendAckOne(nil, 2, codec.LevelProcessed)
	g.close()
	if n, err := gated.Write(append(append([]byte{}, one...), ping...)); err != nil || n != len(one)+len(ping) {
		t.Fatalf("wrote %d, error %v", n, err)
	}
	if _, err := gated.Write(two); err != nil {
		t.Fatal(err)
	}
	g.open()
	g.open() // again changes nothing
	want := append(append(append([]byte{}, ping...), one...), two...)
	got := make([]byte, len(want))
	for n := 0; n < len(got); {
		m, err := other.Read(got[n:])
		if err != nil {
			t.Fatal(err)
		}
		n += m
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%x came, want %x", got, want)
	}
}

func TestAGateForReadsHoldsThemUntilItOpens(t *testing.T) {
	g := &gate{closedFor: func(int) bool { return true }, reads: true}
	gated, other := pipe(t, g)
	g.close()
	if _, err := other.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := gated.Read(make([]byte, 1))
		read <- err
	}()
	select {
	case err := <-read:
		t.Errorf("it read although the gate is shut, error %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if _, err := gated.Write(codec.AppendAckOne(nil, 1, codec.LevelProcessed)); err != nil {
		t.Errorf("writes are not its business: %v", err)
	}
	g.open()
	if err := <-read; err != nil {
		t.Error(err)
	}
}

func TestSpreadPicksTheShareEvenly(t *testing.T) {
	for share, want := range map[float64]int{0.05: 5, 0.5: 50, 0.333: 33} {
		in := spread(100, share)
		n, first := 0, 0
		for user := range 100 {
			if in(user) {
				n++
				if user < 50 {
					first++
				}
			}
		}
		if n != want || first > want/2+1 || first < want/2-1 {
			t.Errorf("share %v: %d of 100, %d of them in the first half", share, n, first)
		}
	}
}
