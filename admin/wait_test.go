package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/delivery"
)

// endWhenPushed ends a message as soon as the node has it.
func (r *rig) endWhenPushed(id string, status delivery.Status, reason delivery.Reason) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := r.node.until(ctx, func() bool { return len(r.node.messages[id]) > 0 }); err == nil {
		r.node.end(id, status, reason)
	}
}

func TestPushThatWaitsTellsHowItsDeliveriesEnded(t *testing.T) {
	for _, c := range []struct {
		name   string
		path   string
		body   string
		status delivery.Status
		reason delivery.Reason
		want   []string
	}{
		{"acked, by query", "/v1/push?wait=delivered", `{"user":"u","message_id":"m"}`, delivery.StatusAcked, delivery.ReasonNone,
			[]string{`"complete":true`, `"state":"ACKED"`, `"level":"processed"`, `"latency_ms":3`, `"device":"phone"`, `"attempts":1`, `"waited_ms":`}},
		{"acked, by field", "/v1/push", `{"user":"u","message_id":"m","wait":"delivered","timeout":"20s"}`, delivery.StatusAcked, delivery.ReasonNone,
			[]string{`"complete":true`, `"state":"ACKED"`}},
		{"expired", "/v1/push?wait=delivered&timeout=5", `{"user":"u","message_id":"m"}`, delivery.StatusExpired, delivery.ReasonTTL,
			[]string{`"complete":true`, `"state":"EXPIRED"`, `"reason":"ttl"`}},
		{"dead", "/v1/push?wait=delivered", `{"users":["u","v"],"message_id":"m"}`, delivery.StatusDead, delivery.ReasonRefused,
			[]string{`"complete":true`, `"state":"DEAD_LETTER"`, `{"user":"v",`, `"reason":"refused"`}},
		{"batch", "/v1/push?wait=delivered", `[{"user":"u","message_id":"m"},{"user":"full"},{"user":"v","ack":false}]`, delivery.StatusAcked, delivery.ReasonNone,
			[]string{`"index":0,"status":"accepted","message_id":"m"`, `"complete":true`, `"code":"queue_full"`, `"sent":1`, `"accepted":2`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			done := make(chan struct{})
			go func() { defer close(done); r.endWhenPushed("m", c.status, c.reason) }()
			got := r.do("POST", c.path, "application/json", c.body)
			<-done
			for _, want := range c.want {
				if got.status != 200 || !strings.Contains(got.body, want) {
					t.Errorf("%d %s lacks %s", got.status, got.body, want)
				}
			}
		})
	}
}

func TestPushThatWaitsInVainTellsHowItStands(t *testing.T) {
	r := newRig(t)
	got := r.do("POST", "/v1/push?wait=delivered&timeout=20ms", "", `{"users":["u","new"],"message_id":"m"}`)
	for _, want := range []string{`"status":"accepted"`, `"complete":false`, `"state":"SENT"`, `"state":"OFFLINE_BUFFERED"`} {
		if got.status != 200 || !strings.Contains(got.body, want) {
			t.Errorf("%d %s lacks %s", got.status, got.body, want)
		}
	}
}

// TestG8 (CASES), as far as HTTP shows it: a publisher's repeat that waits is told the outcome of the first message.
func TestG8RepeatThatWaitsGetsTheOutcomeOfTheFirst(t *testing.T) {
	r := newRig(t)
	r.post(`{"user":"u","message_id":"m"}`)
	r.node.end("m", delivery.StatusAcked, delivery.ReasonNone)
	got := r.do("POST", "/v1/push?wait=delivered", "", `{"user":"u","message_id":"m"}`)
	for _, want := range []string{`"status":"duplicate"`, `"complete":true`, `"state":"ACKED"`} {
		if got.status != 200 || !strings.Contains(got.body, want) {
			t.Errorf("%d %s lacks %s", got.status, got.body, want)
		}
	}
}

func TestWaitingNeverExceedsItsMaximum(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Parts) { c.WaitDefault, c.WaitMax = 10*time.Millisecond, 20*time.Millisecond })
	for _, path := range []string{"/v1/push?wait=delivered&timeout=24h", "/v1/push?wait=delivered"} {
		if got := r.do("POST", path, "", `{"user":"u"}`); got.status != 200 || !strings.Contains(got.body, `"complete":false`) {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
}

func TestQueryOfAPushIsStrict(t *testing.T) {
	r := newRig(t)
	for query, field := range map[string]string{
		"wait=acked": "wait", "wait=": "wait", "waitt=delivered": "waitt", "timeout=0": "timeout", "timeout=-1s": "timeout",
		"timeout=soon": "timeout", "wait=delivered&wait=accepted": "wait", "timeout=": "timeout", "a=%zz": "", "timeout=NaN": "timeout",
	} {
		wantProblem(t, r.do("POST", "/v1/push?"+query, "", `{"user":"u"}`), 400, "bad_query", field)
	}
	wantProblem(t, r.do("POST", "/v1/push?wait=delivered", "", `{"user":"u","ack":false}`), 400, "bad_field", "wait")
	if len(r.node.pushed) != 0 {
		t.Errorf("%d messages were pushed", len(r.node.pushed))
	}
}

func TestClientThatGoesAwayEndsItsWait(t *testing.T) {
	r := newRig(t)
	for _, body := range []string{`{"user":"u","message_id":"m"}`, `{"user":"slow"}`} {
		ctx, cancel := context.WithCancel(context.Background())
		req, err := http.NewRequestWithContext(ctx, "POST", r.url+"/v1/push?wait=delivered&timeout=60s", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		before := len(r.node.pushed)
		go func() {
			limit, stop := context.WithTimeout(context.Background(), 5*time.Second)
			defer stop()
			_ = r.node.until(limit, func() bool { return len(r.node.pushed) > before })
			cancel()
		}()
		if resp, err := r.client.Do(req); err == nil {
			resp.Body.Close()
			t.Error("the request was answered")
		}
	}
	// The first batch is given back by its handler, the other one by whoever completes it.
	r.node.release()
	limit, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	if err := r.node.until(limit, func() bool { return r.node.released == 2 }); err != nil {
		t.Errorf("%d of 2 batches were released", r.node.released)
	}
}

func TestFailingQuestionsDoNotUnmakeAnAcceptedPush(t *testing.T) {
	r := newRig(t)
	r.node.err = context.DeadlineExceeded
	got := r.do("POST", "/v1/push?wait=delivered", "", `{"user":"u","message_id":"m"}`)
	if got.status != 200 || !strings.Contains(got.body, `"status":"accepted"`) || !strings.Contains(got.body, `"complete":false`) {
		t.Errorf("%d %s", got.status, got.body)
	}
	wantProblem(t, r.get("/v1/messages/m"), 503, "unavailable", "")
	wantProblem(t, r.do("DELETE", "/v1/messages/m", "", ""), 503, "unavailable", "")
	wantProblem(t, r.get("/v1/users/u"), 503, "unavailable", "")
}

func TestMessageIsShownWithEveryDelivery(t *testing.T) {
	r := newRig(t)
	wantProblem(t, r.get("/v1/messages/m"), 404, "not_found", "")
	wantProblem(t, r.get("/v1/messages/"+strings.Repeat("m", 65)), 400, "bad_message_id", "message_id")
	wantProblem(t, r.get("/v1/messages/m?wait=delivered"), 400, "bad_query", "wait")
	r.post(`{"users":["u","new"],"message_id":"m","ttl":60,"priority":"bulk","text":"12345"}`)
	var v messageView
	got := r.get("/v1/messages/m")
	if err := json.Unmarshal([]byte(got.body), &v); err != nil || got.status != 200 || len(v.Deliveries) != 2 || v.Complete {
		t.Fatal(got, err)
	}
	if d := v.Deliveries[0]; d.User != "u" || d.Device != "phone" || d.State != "SENT" || !d.Online || d.Attempts != 1 || d.Priority != "bulk" || d.Bytes != 5 ||
		d.Ended != nil || d.Expires.Sub(*d.Accepted) != time.Minute {
		t.Errorf("got %+v", d)
	}
	if d := v.Deliveries[1]; d.User != "new" || d.Device != "" || d.State != "OFFLINE_BUFFERED" || d.Online || d.Attempts != 0 {
		t.Errorf("got %+v", d)
	}
	r.node.end("m", delivery.StatusAcked, delivery.ReasonNone)
	got = r.get("/v1/messages/m")
	if err := json.Unmarshal([]byte(got.body), &v); err != nil || !v.Complete || v.Deliveries[0].Level != "processed" || *v.Deliveries[0].LatencyMs != 3 {
		t.Error(got, err)
	}
}

func TestMessageIDWithEverySortOfCharacterIsFound(t *testing.T) {
	r := newRig(t)
	r.post(`{"user":"u","message_id":"a/b ?%#ü"}`)
	if got := r.get("/v1/messages/a%2Fb%20%3F%25%23%C3%BC"); got.status != 200 || !strings.Contains(got.body, `"message_id":"a/b ?%#ü"`) {
		t.Error(got)
	}
}

func TestMessageCanBeWaitedFor(t *testing.T) {
	r := newRig(t)
	r.post(`{"user":"u","message_id":"m"}`)
	if got := r.get("/v1/messages/m?wait=ended&timeout=10ms"); got.status != 200 || !strings.Contains(got.body, `"complete":false`) {
		t.Error(got)
	}
	done := make(chan reply)
	go func() { done <- r.get("/v1/messages/m?wait=ended") }()
	r.node.end("m", delivery.StatusExpired, delivery.ReasonTTL)
	if got := <-done; got.status != 200 || !strings.Contains(got.body, `"complete":true`) {
		t.Error(got)
	}
}

func TestCancelTellsWhatHappenedToEachDelivery(t *testing.T) {
	r := newRig(t)
	wantProblem(t, r.do("DELETE", "/v1/messages/m", "", ""), 404, "not_found", "")
	r.post(`{"users":["u","new"],"message_id":"m"}`)
	got := r.do("DELETE", "/v1/messages/m", "", "")
	if got.status != 200 || !strings.Contains(got.body, `"cancelled":2`) || strings.Count(got.body, `"state":"CANCELLED"`) != 2 {
		t.Error(got)
	}
	got = r.do("DELETE", "/v1/messages/m", "", "")
	wantProblem(t, got, 409, "already_ended", "")
	if !strings.Contains(got.body, `"reason":"publisher"`) {
		t.Error(got.body)
	}
}

func TestUserIsShownWithDevicesAndBacklog(t *testing.T) {
	r := newRig(t)
	wantProblem(t, r.get("/v1/users/nobody"), 404, "not_found", "")
	wantProblem(t, r.get("/v1/users/"+strings.Repeat("u", 129)), 400, "bad_user", "user")
	r.node.users["a/b"] = delivery.UserInfo{User: "a/b", Devices: []delivery.DeviceInfo{
		{QueueInfo: delivery.QueueInfo{User: "a/b", Device: "phone", SeenMs: 1000, Messages: 3, Bytes: 30, OldestMs: 5000}, Online: true,
			SessionID: 1<<63 + 1, Remote: "127.0.0.1:5", State: "live", InFlight: 2, Parked: 1, LastAckMs: 2000, ConnectedMs: 1000},
		{QueueInfo: delivery.QueueInfo{User: "a/b", Messages: 2, Bytes: 20, OldestMs: 4000}, State: "offline"},
	}}
	got := r.get("/v1/users/a%2Fb")
	var v userView
	if err := json.Unmarshal([]byte(got.body), &v); err != nil || got.status != 200 {
		t.Fatal(got, err)
	}
	if v.User != "a/b" || v.Online != 1 || v.InFlight != 2 || v.Backlog.Messages != 5 || v.Backlog.Bytes != 50 || v.Backlog.OldestAt.UnixMilli() != 4000 {
		t.Errorf("got %+v", v)
	}
	if d := v.Devices[0]; d.SessionID != "8000000000000001" || d.LastSeenAt.UnixMilli() != 1000 || d.State != "live" || d.Parked != 1 {
		t.Errorf("got %+v", d)
	}
	if d := v.Devices[1]; d.SessionID != "" || d.LastSeenAt != nil || d.Online || d.Device != "" {
		t.Errorf("got %+v", d)
	}
}

// Message ids are unique for one user only: the refused user's older message of the same name is not this push's.
func TestPushThatWaitsDoesNotWaitForWhatWasRefused(t *testing.T) {
	r := newRig(t)
	r.node.messages["m"] = []delivery.Delivery{{Record: delivery.Record{MessageID: "m", User: "full", Device: "phone", Status: delivery.StatusSent}}}
	go func() {
		_ = r.node.until(t.Context(), func() bool { return len(r.node.messages["m"]) > 1 })
		r.node.mu.Lock()
		defer r.node.mu.Unlock()
		r.node.messages["m"][1].Status = delivery.StatusAcked
		r.node.notify()
	}()
	got := r.do("POST", "/v1/push?wait=delivered&timeout=2s", "", `{"users":["u","full"],"message_id":"m"}`)
	if got.status != 200 || !strings.Contains(got.body, `"complete":true`) || !strings.Contains(got.body, "queue_full") {
		t.Errorf("%d %s", got.status, got.body)
	}
}
