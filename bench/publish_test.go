package bench

import (
	"strings"
	"testing"
	"time"
)

func TestPublishersAreAnswered(t *testing.T) {
	for _, mode := range []string{PublishHTTP, PublishHTTPBatch, PublishFrames} {
		for name, rate := range map[string]float64{"as fast as it goes": 0, "open loop": 400} {
			t.Run(mode+" "+name, func(t *testing.T) {
				t.Parallel()
				s, err := Publish(PublishOptions{Mode: mode, Publishers: 2, Users: 50, PayloadBytes: 64, Batch: 20, TTL: time.Minute, Rate: rate})
				o := quick(t)
				o.Duration = 700 * time.Millisecond
				report := execute(t, o, s, err)
				wantPass(t, report)
				if got := value(t, report, "published_per_second"); got < 50 || (rate > 0 && got > 3*rate) {
					t.Errorf("%v published a second", got)
				}
				if len(report.Latencies) != 1 || report.Latencies[0].P50Ms <= 0 {
					t.Errorf("latencies %+v", report.Latencies)
				}
			})
		}
	}
}

func TestRefusedPublishesAreCountedAndAllRefusedFails(t *testing.T) {
	for _, mode := range []string{PublishHTTP, PublishHTTPBatch, PublishFrames} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s, err := Publish(PublishOptions{Mode: mode, Publishers: 1, Users: 1, PayloadBytes: 64, Batch: 20, TTL: time.Minute, Rate: 200})
			o := quick(t, "store.queue_messages_max=10")
			o.Duration = 400 * time.Millisecond
			report := execute(t, o, s, err)
			if report.Verdict.Pass || value(t, report, "accepted") != 10 {
				t.Errorf("verdict %+v, figures %+v", report.Verdict, report.Figures)
			}
			found := false
			for _, f := range report.Figures {
				found = found || strings.HasPrefix(f.Key, "refused_")
			}
			if !found {
				t.Errorf("nothing says why: %+v", report.Figures)
			}
		})
	}
}

func TestPublishAnswersAreRead(t *testing.T) {
	for _, test := range []struct {
		status   int
		answer   string
		batch    bool
		accepted int
		why, err bool
	}{
		{200, `{"status":"accepted"}`, false, 5, false, false},
		{200, `{"results":[{"message_id":"\"counts\":"}],"counts":{"items":5,"accepted":3,"duplicate":2,"refused":0}}`, true, 5, false, false},
		{200, `{"results":[],"counts":{"items":5,"accepted":3,"refused":2}}`, true, 3, true, false},
		{200, `{"results":[]}`, true, 0, false, true},
		{200, `{"counts":x}`, true, 0, false, true},
		{429, `{}`, true, 0, true, false},
		{503, `{}`, false, 0, true, false},
		{400, `{"error":{"code":"bad_user"}}`, false, 0, false, true},
		{504, `{}`, false, 0, false, true},
	} {
		accepted, why, err := readAnswer(test.status, []byte(test.answer), 5, test.batch)
		if accepted != test.accepted || (why != nil) != test.why || (err != nil) != test.err {
			t.Errorf("%d %s: %d accepted, refused %v, error %v", test.status, test.answer, accepted, why, err)
		}
	}
}

func TestPublishRefusesWhatCannotWork(t *testing.T) {
	good := PublishOptions{Mode: PublishFrames, Publishers: 1, Users: 1, PayloadBytes: 64, Batch: 20, TTL: time.Minute}
	for _, test := range []struct {
		change func(*PublishOptions)
		want   string
	}{
		{func(o *PublishOptions) { o.Mode = "mail" }, "mail"},
		{func(o *PublishOptions) { o.Users = 0 }, "users"},
		{func(o *PublishOptions) { o.Rate = -1 }, "rate"},
		{func(o *PublishOptions) { o.PayloadBytes = 1 }, "payload"},
		{func(o *PublishOptions) { o.Batch = 0 }, "batch"},
		{func(o *PublishOptions) { o.TTL = 0 }, "time to live"},
	} {
		o := good
		test.change(&o)
		if _, err := Publish(o); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v, want one about %s", err, test.want)
		}
	}
}
