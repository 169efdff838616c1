package admin

import (
	"strings"
	"testing"

	"github.com/VictoriaMetrics/metrics"

	"holdfast/codec"
	"holdfast/delivery"
)

// closedStore refuses every message, which is all that Dispatch needs to be seen at work: what a store does with messages is shown
// end to end.
type closedStore struct{ delivery.Store }

func (closedStore) Targets(dst []delivery.QueueID, user, device, messageID []byte, nowMs int64) ([]delivery.QueueID, bool, codec.Result) {
	return dst, false, codec.ResultStorageFull
}

func (closedStore) SweepExpired(dst []delivery.Ref, nowMs int64, limit int) []delivery.Ref {
	return dst
}

func TestDispatchCarriesTheOutcomesOfADispatcher(t *testing.T) {
	d, err := delivery.NewDispatcher(delivery.DefaultConfig(), closedStore{}, metrics.NewSet(), nil)
	if err != nil {
		t.Fatal(err)
	}
	d.Start()
	t.Cleanup(d.Close)
	r := newRig(t, func(_ *Config, p *Parts) { p.Pusher = Dispatch(d) })
	wantProblem(t, r.post(`{"user":"u","text":"x"}`), 507, "storage_full", "")
	wantProblem(t, r.post(`{"user":"u","ttl":"8000h"}`), 400, "bad_ttl", "ttl")
	wantProblem(t, r.post(`{"user":"u","text":"`+strings.Repeat("x", 1<<20)+`"}`), 413, "too_large", "payload")
	got := r.post(`[{"user":"u","message_id":"m"},{"user":"u","type":"` + strings.Repeat("t", 65) + `"}]`)
	if got.status != 200 || !strings.Contains(got.body, `"refused":2`) || !strings.Contains(got.body, `"code":"bad_field"`) {
		t.Error(got)
	}
}
