package admin

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"holdfast/codec"
)

func TestPushOfOneMessageIsHandedOverAsItWasWritten(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		name, body string
		want       codec.PublishItem
	}{
		{"text", `{"user":"u","text":"hé\n\u20ac\ud83d\ude00"}`, codec.PublishItem{Payload: []byte("hé\n€😀")}},
		{"base64", `{"user":"u","payload":"aGk="}`, codec.PublishItem{Payload: []byte("hi")}},
		{"base64 without padding", `{"user":"u","payload":"aGk"}`, codec.PublishItem{Payload: []byte("hi")}},
		{"nothing in it", `{"user":"u"}`, codec.PublishItem{}},
		{"nulls", `{"user":"u","text":null,"ttl":null,"device":null}`, codec.PublishItem{}},
		{"white space", " \t\r\n{ \"user\" : \"u\" , \"text\" : \"x\" } \n", codec.PublishItem{Payload: []byte("x")}},
		{"device, id, type, conversation", `{"user":"u","device":"d","message_id":"m","type":"t","conversation":"c"}`,
			codec.PublishItem{Device: []byte("d"), MessageID: []byte("m"), Type: []byte("t"), Conversation: []byte("c")}},
		{"ttl as duration", `{"user":"u","ttl":"1h30m"}`, codec.PublishItem{TTLMs: 5_400_000}},
		{"ttl as seconds", `{"user":"u","ttl":1.5}`, codec.PublishItem{TTLMs: 1500}},
		{"ttl as bare seconds in a string", `{"user":"u","ttl":"30"}`, codec.PublishItem{TTLMs: 30_000}},
		{"ttl under a millisecond is not none", `{"user":"u","ttl":"1us"}`, codec.PublishItem{TTLMs: 1}},
		{"urgent", `{"user":"u","priority":"urgent"}`, codec.PublishItem{Priority: codec.PriorityUrgent}},
		{"bulk", `{"user":"u","priority":"bulk"}`, codec.PublishItem{Priority: codec.PriorityBulk}},
		{"fire and forget", `{"user":"u","ack":false}`, codec.PublishItem{NoAck: true}},
		{"confirmed", `{"user":"u","ack":true}`, codec.PublishItem{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := r.post(c.body); got.status != 200 {
				t.Fatalf("%d %s", got.status, got.body)
			}
			it := r.node.pushed[len(r.node.pushed)-1].PublishItem
			if string(it.User) != "u" || string(it.Payload) != string(c.want.Payload) || string(it.Device) != string(c.want.Device) ||
				string(it.Type) != string(c.want.Type) || string(it.Conversation) != string(c.want.Conversation) ||
				it.TTLMs != c.want.TTLMs || it.Priority != c.want.Priority || it.NoAck != c.want.NoAck {
				t.Errorf("got %+v", it)
			}
			if len(c.want.MessageID) > 0 && string(it.MessageID) != string(c.want.MessageID) || len(it.MessageID) == 0 {
				t.Errorf("message id %q", it.MessageID)
			}
		})
	}
}

func TestPushRefusesAndNamesWhatIsWrong(t *testing.T) {
	long := strings.Repeat("x", 1001)
	r := newRig(t)
	for _, c := range []struct {
		name, body  string
		status      int
		code, field string
	}{
		{"empty body", ``, 400, "bad_json", ""},
		{"no object", `"x"`, 400, "bad_json", ""},
		{"cut", `{"user":"u"`, 400, "bad_json", ""},
		{"something behind it", `{"user":"u"} {}`, 400, "bad_json", ""},
		{"trailing comma", `{"user":"u",}`, 400, "bad_json", ""},
		{"control character", "{\"user\":\"u\",\"text\":\"a\nb\"}", 400, "bad_json", ""},
		{"no UTF-8", "{\"user\":\"u\",\"text\":\"\xff\"}", 400, "bad_json", ""},
		{"half a surrogate pair", `{"user":"u","text":"\ud800"}`, 400, "bad_json", ""},
		{"bad escape", `{"user":"u","text":"\x"}`, 400, "bad_json", ""},
		{"number with a leading zero", `{"user":"u","ttl":010}`, 400, "bad_json", ""},
		{"literal misspelt", `{"user":"u","ack":tru}`, 400, "bad_json", ""},
		{"nested too deeply", `{"user":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, 400, "bad_json", ""},
		{"unknown field", `{"user":"u","tll":"10m"}`, 400, "unknown_field", "tll"},
		{"field twice", `{"user":"u","text":"a","text":"b"}`, 400, "bad_field", "text"},
		{"no user", `{"text":"x"}`, 400, "bad_user", "user"},
		{"user is a number", `{"user":7}`, 400, "bad_user", "user"},
		{"user is empty", `{"user":""}`, 400, "bad_user", "user"},
		{"user too long", `{"user":"` + strings.Repeat("u", 129) + `"}`, 400, "bad_user", "user"},
		{"user with a control character", `{"user":"a\u0000b"}`, 400, "bad_user", "user"},
		{"user and users", `{"user":"u","users":["v"]}`, 400, "bad_field", "users"},
		{"users is a string", `{"users":"u"}`, 400, "bad_user", "users"},
		{"users is empty", `{"users":[]}`, 400, "bad_user", "users"},
		{"users holds a number", `{"users":["u",1]}`, 400, "bad_user", "users"},
		{"device is empty", `{"user":"u","device":""}`, 400, "bad_device", "device"},
		{"unknown device", `{"user":"u","device":"gone"}`, 404, "unknown_device", "device"},
		{"message id is empty", `{"user":"u","message_id":""}`, 400, "bad_message_id", "message_id"},
		{"message id too long", `{"user":"u","message_id":"` + strings.Repeat("m", 65) + `"}`, 400, "bad_message_id", "message_id"},
		{"message id of another message", `{"user":"u","message_id":"taken"}`, 409, "conflict", "message_id"},
		{"payload and text", `{"user":"u","payload":"","text":""}`, 400, "bad_field", "text"},
		{"payload is no base64", `{"user":"u","payload":"h i"}`, 400, "bad_field", "payload"},
		{"payload is an object", `{"user":"u","payload":{"a":[1,"x",null]}}`, 400, "bad_field", "payload"},
		{"too large", `{"user":"u","text":"` + long + `"}`, 413, "too_large", "payload"},
		{"ttl 0", `{"user":"u","ttl":0}`, 400, "bad_ttl", "ttl"},
		{"ttl negative", `{"user":"u","ttl":"-5s"}`, 400, "bad_ttl", "ttl"},
		{"ttl no duration", `{"user":"u","ttl":"soon"}`, 400, "bad_ttl", "ttl"},
		{"ttl out of range", `{"user":"u","ttl":1e300}`, 400, "bad_ttl", "ttl"},
		{"ttl in days no number", `{"user":"u","ttl":"xd"}`, 400, "bad_ttl", "ttl"},
		{"ttl in days over the retention", `{"user":"u","ttl":"8d"}`, 400, "bad_ttl", "ttl"},
		{"ttl over the retention", `{"user":"u","ttl":"169h"}`, 400, "bad_ttl", "ttl"},
		{"ttl is a list", `{"user":"u","ttl":[1]}`, 400, "bad_ttl", "ttl"},
		{"priority", `{"user":"u","priority":"high"}`, 400, "bad_field", "priority"},
		{"priority is a number", `{"user":"u","priority":1}`, 400, "bad_field", "priority"},
		{"ack", `{"user":"u","ack":"no"}`, 400, "bad_field", "ack"},
		{"wait", `{"user":"u","wait":"acked"}`, 400, "bad_field", "wait"},
		{"timeout", `{"user":"u","timeout":0}`, 400, "bad_field", "timeout"},
		{"waiting for fire and forget", `{"user":"u","ack":false,"wait":"delivered"}`, 400, "bad_field", "wait"},
		{"queue full", `{"user":"full"}`, 429, "queue_full", ""},
		{"store does not answer", `{"user":"broken"}`, 503, "unavailable", ""},
		{"storage full", `{"user":"storage"}`, 507, "storage_full", ""},
		{"draining", `{"user":"draining"}`, 503, "draining", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := r.post(c.body)
			wantProblem(t, got, c.status, c.code, c.field)
			if retry := got.header.Get("Retry-After") != ""; retry != (c.status == 429 || c.status >= 500) {
				t.Errorf("Retry-After is %q with status %d", got.header.Get("Retry-After"), c.status)
			}
		})
	}
}

// wantProblem checks an error reply.
func wantProblem(t *testing.T, got reply, status int, code, field string) {
	t.Helper()
	var v struct {
		Error struct{ Code, Field, Message string }
	}
	if err := json.Unmarshal([]byte(got.body), &v); err != nil {
		t.Fatalf("%d %s: %v", got.status, got.body, err)
	}
	if got.status != status || v.Error.Code != code || v.Error.Field != field || v.Error.Message == "" {
		t.Errorf("got %d %s, want %d %s %q", got.status, got.body, status, code, field)
	}
}

func TestPushSaysWhatBecameOfTheMessage(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct{ name, body, want string }{
		{"accepted for days", `{"user":"u","message_id":"days","ttl":"2d"}`, `"status":"accepted","message_id":"days","expires_at":"`},
		{"accepted", `{"user":"u","message_id":"m1","ttl":"10m"}`, `"status":"accepted","message_id":"m1","expires_at":"`},
		{"duplicate", `{"user":"u","message_id":"m1"}`, `{"status":"duplicate","message_id":"m1","deliveries":[{"user":"u","status":"duplicate"}]}`},
		{"the id was made here", `{"user":"u"}`, `"message_id":"`},
		{"fire and forget", `{"user":"u","message_id":"m2","ack":false}`, `{"status":"accepted","message_id":"m2","deliveries":[{"user":"u","status":"accepted","sent":1}]}`},
		{"several users", `{"users":["a","b"],"message_id":"m3"}`, `"deliveries":[{"user":"a","status":"accepted","devices":1},{"user":"b","status":"accepted","devices":1}]`},
		{"some of several users", `{"users":["a","full"],"message_id":"m4"}`, `{"status":"partial","message_id":"m4"`},
		{"some devices", `{"user":"partly","message_id":"m5"}`, `"refused_by":"queue_full","refused_devices":["tablet"]`},
		{"a name with quotes", `{"user":"a\"b\\c","message_id":"m6"}`, `{"user":"a\"b\\c",`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := r.post(c.body); got.status != 200 || !strings.Contains(got.body, c.want) {
				t.Errorf("got %d %s, want %s", got.status, got.body, c.want)
			}
		})
	}
}

func TestPushToSeveralUsersIsOneMessage(t *testing.T) {
	r := newRig(t)
	if got := r.post(`{"users":["a","b","c"],"text":"x"}`); got.status != 200 {
		t.Fatal(got)
	}
	id := string(r.node.pushed[0].MessageID)
	if len(r.node.pushed) != 3 || len(id) != 20 {
		t.Fatalf("%d messages, id %q", len(r.node.pushed), id)
	}
	for _, p := range r.node.pushed {
		if string(p.MessageID) != id || string(p.Payload) != "x" {
			t.Errorf("got %+v", p)
		}
	}
}

func TestPushTakesEveryContentTypeThatPlainToolsSend(t *testing.T) {
	r := newRig(t)
	for _, ct := range []string{"", "application/json", "application/json; charset=utf-8", "application/x-www-form-urlencoded", "text/plain"} {
		if got := r.do("POST", "/v1/push", ct, `{"user":"bob","payload":"aGk="}`); got.status != 200 {
			t.Errorf("%q: %d %s", ct, got.status, got.body)
		}
	}
	wantProblem(t, r.do("POST", "/v1/push", "application/xml", `<a/>`), 415, "unsupported_media_type", "")
	wantProblem(t, r.do("POST", "/v1/push", "application/json", `{"user":"u"}`, "Content-Encoding", "gzip"), 415, "unsupported_media_type", "")
}

// TestH3 and TestE6 (CASES): a refused message is an error to its publisher, item by item, and the counts explain every one.
func TestH3BatchRefusalsAreToldItemByItem(t *testing.T) {
	r := newRig(t)
	got := r.post(`[{"user":"u","message_id":"m1"}, {"user":"full","message_id":"m2"}, {"usr":"u"}, {"user":"u","message_id":"m1"},
		{"users":["u","full"],"message_id":"m3"}, {"user":"u","payload":{"deep":[1,2]}}, 7, {"user":"u","wait":"delivered"}]`)
	var v struct {
		Results []struct {
			Index     int
			Status    string
			MessageID string `json:"message_id"`
			Error     struct{ Code, Field string }
		}
		Counts map[string]int
	}
	if err := json.Unmarshal([]byte(got.body), &v); err != nil || got.status != 200 {
		t.Fatal(got, err)
	}
	want := []string{"accepted", "refused queue_full", "refused unknown_field usr", "duplicate", "partial", "refused bad_field payload", "refused bad_json", "refused bad_field wait"}
	for i, res := range v.Results {
		if is := strings.TrimSpace(strings.Join([]string{res.Status, res.Error.Code, res.Error.Field}, " ")); i >= len(want) || is != want[i] || res.Index != i {
			t.Errorf("item %d: %s", i, is)
		}
	}
	if c := v.Counts; len(v.Results) != 8 || c["items"] != 8 || c["accepted"] != 1 || c["duplicate"] != 1 || c["partial"] != 1 || c["refused"] != 5 {
		t.Errorf("%d results, counts %v", len(v.Results), v.Counts)
	}
	metrics := r.get("/metrics").body
	for _, m := range []string{`{status="accepted"} 1`, `{status="duplicate"} 1`, `{status="partial"} 1`, `{status="refused"} 5`} {
		if !strings.Contains(metrics, "holdfast_http_push_items_total"+m) {
			t.Errorf("no %s in the metrics", m)
		}
	}
	r.post(`{"user":"full"}`)
	metrics = r.get("/metrics").body
	for _, m := range []string{`{code="queue_full"} 3`, `{code="unknown_field"} 1`, `{code="bad_field"} 2`, `{code="storage_full"} 0`} {
		if !strings.Contains(metrics, "holdfast_http_refused_total"+m) {
			t.Errorf("no %s in the metrics", m)
		}
	}
}

func TestBatchThatIsNoJSONPushesNothing(t *testing.T) {
	r := newRig(t)
	for _, body := range []string{`[{"user":"u"},`, `[{"user":"u"} {"user":"v"}]`, `[{"user":"u"}] x`, `[{"user":"u"},{"usr":}]`, `[,]`, `[] x`} {
		wantProblem(t, r.post(body), 400, "bad_json", "")
		if len(r.node.pushed) != 0 || r.node.released != r.node.made {
			t.Errorf("%s: %d messages were pushed, %d of %d batches released", body, len(r.node.pushed), r.node.released, r.node.made)
		}
	}
	if got := r.post(`[]`); got.status != 200 || !strings.Contains(got.body, `"items":0`) {
		t.Error(got)
	}
}

func TestPushLimits(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Parts) { c.ItemsMax, c.BodyBytesMax = 3, 200 })
	wantProblem(t, r.post(`[{"user":"a"},{"user":"b"},{"user":"c"},{"user":"d"}]`), 413, "too_many_items", "")
	wantProblem(t, r.post(`[{"users":["a","b"]},{"users":["a","b"]}]`), 413, "too_many_items", "")
	wantProblem(t, r.post(`{"users":["a","b","c","d"]}`), 413, "too_many_items", "")
	wantProblem(t, r.post(`[1,2,3,4]`), 413, "too_many_items", "")
	wantProblem(t, r.post(`{"user":"a","text":"`+strings.Repeat("x", 200)+`"}`), 413, "body_too_large", "")
	wantProblem(t, r.do("POST", "/v1/push", "", strings.Repeat(" ", 1000)), 413, "body_too_large", "")
	if got := r.post(`[{"user":"a"},{"user":"b"},{"user":"c"}]`); got.status != 200 {
		t.Error(got)
	}
	if len(r.node.pushed) != 3 {
		t.Errorf("%d messages were pushed", len(r.node.pushed))
	}
}

func TestPushLimitsWhatAShortBodyCanGrowTo(t *testing.T) {
	users := strings.Repeat(`"u",`, 100) + `"u"`
	body := `{"users":[` + users + `],"text":"` + strings.Repeat("x", 400) + `"}`
	r := newRig(t, func(c *Config, _ *Parts) { c.BodyBytesMax, c.LineBytesMax = 10_000, 10_000 })
	wantProblem(t, r.post(body), 413, "too_many_items", "users")
	if got := lines(t, r.do("POST", "/v1/push", "application/x-ndjson", body).body); got[0].String() != "0 refused too_many_items users" {
		t.Errorf("got %v", got)
	}
	r = newRig(t, func(c *Config, _ *Parts) { c.BodyBytesMax, c.LineBytesMax, c.BodyMemoryMax = 20_000, 20_000, 40_000 })
	wantProblem(t, r.post(body), 429, "overloaded", "")
	if got := lines(t, r.do("POST", "/v1/push", "application/x-ndjson", body).body); got[0].String() != "0 refused overloaded" {
		t.Errorf("got %v", got)
	}
	if used := r.server.bodies.used.Load(); used != 0 || len(r.node.pushed) != 0 {
		t.Errorf("%d bytes stay charged, %d messages were pushed", used, len(r.node.pushed))
	}
	r = newRig(t)
	if got := r.post(body); got.status != 200 || r.server.bodies.used.Load() != 0 {
		t.Error(got, r.server.bodies.used.Load())
	}
}

func TestPushRefusesWhenBodiesFillTheirMemory(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Parts) { c.BodyBytesMax, c.LineBytesMax, c.BodyMemoryMax = 1000, 1000, 8<<10 })
	if !r.server.bodies.take(8 << 10) {
		t.Fatal("the budget is not free")
	}
	wantProblem(t, r.post(`{"user":"u"}`), 429, "overloaded", "")
	r.server.bodies.give(8 << 10)
	if got := r.post(`{"user":"u"}`); got.status != 200 {
		t.Error(got)
	}
	if used := r.server.bodies.used.Load(); used != 0 {
		t.Errorf("%d bytes stay charged", used)
	}
}

func TestPushThatDoesNotBecomeDurableInTimeNamesItsID(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Parts) { c.PushTimeout = 10 * time.Millisecond })
	got := r.post(`{"user":"slow","message_id":"m1"}`)
	wantProblem(t, got, 504, "timeout", "")
	if !strings.Contains(got.body, `"message_id":"m1"`) {
		t.Error(got.body)
	}
	if r.node.released != 0 {
		t.Error("the batch was released while the pusher had it")
	}
	r.node.release()
	if r.node.released != 1 {
		t.Error("the batch was not released when it was done")
	}
}
