package bench

import (
	"strings"
	"testing"
	"time"
)

func TestRecoveryFindsEverythingAgain(t *testing.T) {
	for _, drain := range []bool{true, false} {
		t.Run(map[bool]string{true: "fetched", false: "counted"}[drain], func(t *testing.T) {
			t.Parallel()
			s, err := Recovery(RecoveryOptions{Messages: 4000, Users: 40, PayloadBytes: 64, Batch: 64, ReadyMax: time.Minute, Drain: drain, AtOnce: 10})
			o := quick(t)
			o.WarmUp, o.Duration = 0, time.Minute
			report := execute(t, o, s, err)
			wantPass(t, report)
			for _, key := range []string{"ready_seconds", "published_per_second", "rss_bytes_stored", "rss_bytes_idle"} {
				if value(t, report, key) <= 0 {
					t.Errorf("%s is %v", key, value(t, report, key))
				}
			}
			if drain && report.Tally.Received != 4000 {
				t.Errorf("tally %+v", report.Tally)
			}
		})
	}
}

func TestRecoveryNeedsAServerOfItsOwn(t *testing.T) {
	s, err := Recovery(RecoveryOptions{Messages: 10, Users: 2, PayloadBytes: 64, Batch: 1, ReadyMax: time.Second, AtOnce: 1})
	o := quick(t)
	o.Target = Target{Addr: "127.0.0.1:1"}
	if err == nil {
		_, err = Execute(t.Context(), o, s)
	}
	if err == nil || !strings.Contains(err.Error(), "only be killed if the run starts it") {
		t.Errorf("error %v", err)
	}
}

func TestRecoveryRefusesWhatCannotWork(t *testing.T) {
	good := RecoveryOptions{Messages: 100, Users: 10, PayloadBytes: 64, Batch: 1, ReadyMax: time.Second, AtOnce: 1}
	for _, test := range []struct {
		change func(*RecoveryOptions)
		want   string
	}{
		{func(o *RecoveryOptions) { o.Messages = 101 }, "multiple"},
		{func(o *RecoveryOptions) { o.Users = 1 }, "users"},
		{func(o *RecoveryOptions) { o.PayloadBytes = 1 }, "payload"},
		{func(o *RecoveryOptions) { o.Batch = 0 }, "batch"},
		{func(o *RecoveryOptions) { o.ReadyMax = 0 }, "ready"},
		{func(o *RecoveryOptions) { o.AtOnce = 0 }, "at once"},
	} {
		o := good
		test.change(&o)
		if _, err := Recovery(o); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v, want one about %s", err, test.want)
		}
	}
}
