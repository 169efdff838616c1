package bench

import (
	"net"
	"strings"
	"testing"
	"time"

	"holdfast/codec"
)

func TestAStormThatIsRefusedSaysWhy(t *testing.T) {
	addr := leanGateway(t, func(_ int64, c net.Conn) {
		readConnect(c)
		_, _ = c.Write(codec.AppendClose(nil, &codec.Close{Code: codec.CodeUnauthorized, Reason: []byte("no token")}))
	})
	s, err := Storm(StormOptions{Users: 4, PayloadBytes: 64})
	o := quick(t)
	o.Target = Target{Addr: addr}
	report := execute(t, o, s, err)
	if text := strings.Join(report.Verdict.Failures, "\n"); report.Verdict.Pass || !strings.Contains(text, "no token") || !strings.Contains(text, "only 0 of 4") {
		t.Errorf("verdict %+v", report.Verdict)
	}
}

func TestStormLetsEverybodyInAndDeliversTheBacklog(t *testing.T) {
	for _, test := range []struct {
		name string
		o    StormOptions
		want []string // figures above zero
	}{
		{"logins only", StormOptions{Users: 200, PayloadBytes: 64}, []string{"all_in_seconds", "logins_per_second"}},
		{"with a backlog", StormOptions{Users: 40, Backlog: 100, PayloadBytes: 64, AtOnce: 10, Window: 20},
			[]string{"all_delivered_seconds", "backlog_per_second", "fairness"}},
		{"beside live traffic", StormOptions{Users: 50, Backlog: 10, PayloadBytes: 64, LiveUsers: 10, LiveRate: 300, Calm: 300 * time.Millisecond},
			[]string{"live_received"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s, err := Storm(test.o)
			o := quick(t)
			o.Duration = 30 * time.Second
			report := execute(t, o, s, err)
			wantPass(t, report)
			for _, key := range test.want {
				if value(t, report, key) <= 0 {
					t.Errorf("%s is %v", key, value(t, report, key))
				}
			}
			if n := int64(test.o.Users * test.o.Backlog); report.Tally.Received != n {
				t.Errorf("%d received, want %d", report.Tally.Received, n)
			}
			names := map[string]int64{}
			for i := range report.Latencies {
				names[report.Latencies[i].Name] = report.Latencies[i].Count
			}
			if names["storm to login"] != int64(test.o.Users) || (test.o.Backlog > 0 && names["storm to backlog acked"] != int64(test.o.Users)) ||
				(test.o.LiveUsers > 0 && names["live traffic before"] == 0) {
				t.Errorf("latencies %v", names)
			}
		})
	}
}

func TestStormCountsRefusedLoginsAndFailsWhenNotAllAreIn(t *testing.T) {
	t.Parallel()
	s, err := Storm(StormOptions{Users: 20, PayloadBytes: 64})
	o := quick(t, "tcp.connections_max=15")
	o.WarmUp, o.Duration = 0, 2*time.Second
	report := execute(t, o, s, err)
	if report.Verdict.Pass || len(report.Verdict.Failures) != 2 || !strings.Contains(report.Verdict.Failures[0], "overloaded") ||
		report.Verdict.Failures[1] != "only 15 of 20 users were logged in when the time was over" || value(t, report, "logins_refused") < 5 {
		t.Errorf("verdict %+v, figures %+v", report.Verdict, report.Figures)
	}
}

func TestStormRefusesWhatCannotWork(t *testing.T) {
	good := StormOptions{Users: 10, PayloadBytes: 64}
	for _, test := range []struct {
		change func(*StormOptions)
		want   string
	}{
		{func(o *StormOptions) { o.Users = 1 }, "users"},
		{func(o *StormOptions) { o.Backlog = -1 }, "negative"},
		{func(o *StormOptions) { o.PayloadBytes = 1 }, "payload"},
		{func(o *StormOptions) { o.LiveUsers = 5 }, "rate"},
		{func(o *StormOptions) { o.LiveUsers, o.LiveRate = 1, 5 }, "live users"},
	} {
		o := good
		test.change(&o)
		if _, err := Storm(o); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v, want one about %s", err, test.want)
		}
	}
}

func TestStagesSplitByIntendedTime(t *testing.T) {
	r := bareRun()
	s := r.stages("before", "during", "after")
	s.begin(1, 100)
	s.record(0, 99, 200)
	s.record(0, 100, 200)
	s.record(0, 150, 200)
	s.begin(2, 150)
	s.record(0, 150, 200)
	for i, want := range []int64{1, 2, 1} {
		if n := s.latencies[i].merged().TotalCount(); n != want {
			t.Errorf("stage %d has %d, want %d", i, n, want)
		}
	}
}
