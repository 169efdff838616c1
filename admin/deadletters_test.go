package admin

import (
	"encoding/json"
	"errors"
	"testing"

	"holdfast/codec"
	"holdfast/delivery"
)

func deadLetter(seq uint64, reason delivery.Reason, command []byte) DeadLetter {
	return DeadLetter{Command: command, Record: delivery.Record{
		Ref: delivery.Ref{Seq: seq}, MessageID: "m", User: "u", Device: "phone", Status: delivery.StatusDead, Reason: reason, Attempts: 20,
		AcceptedMs: 1000, EndedMs: 2000,
	}}
}

func TestDeadLettersAreListedPageByPageAndDropped(t *testing.T) {
	r := newRig(t)
	if got := r.get("/v1/dead-letters"); got.status != 200 || got.body != "{\"dead_letters\":[]}\n" {
		t.Error(got)
	}
	command := delivery.AppendCommand(nil, &delivery.Command{MessageID: []byte("m"), User: []byte("u"), Type: []byte("t"), Conversation: []byte("c"),
		Payload: []byte("hi"), AcceptedMs: 1000, ExpireAtMs: 9000, Priority: codec.PriorityUrgent})
	r.letters.letters = []DeadLetter{deadLetter(3, delivery.ReasonAttempts, command), deadLetter(7, delivery.ReasonUndecodable, []byte{0xff}), deadLetter(9, delivery.ReasonRefused, nil)}
	page := func(path string) (v deadLettersView) {
		t.Helper()
		got := r.get(path)
		if err := json.Unmarshal([]byte(got.body), &v); err != nil || got.status != 200 {
			t.Fatal(got, err)
		}
		return v
	}
	v := page("/v1/dead-letters?limit=2")
	if len(v.DeadLetters) != 2 || v.Next != "7" {
		t.Fatalf("got %+v", v)
	}
	if d := v.DeadLetters[0]; d.Seq != "3" || !d.Readable || d.Type != "t" || d.Conversation != "c" || string(d.Payload) != "hi" || d.Reason != "attempts" || d.Attempts != 20 {
		t.Errorf("got %+v", d)
	}
	if d := v.DeadLetters[1]; d.Readable || len(d.Payload) != 0 || d.Reason != "undecodable" {
		t.Errorf("got %+v", d)
	}
	if v = page("/v1/dead-letters?limit=2&after=7"); len(v.DeadLetters) != 1 || v.Next != "" || v.DeadLetters[0].Seq != "9" {
		t.Errorf("got %+v", v)
	}
	if got := r.do("DELETE", "/v1/dead-letters/7", "", ""); got.status != 200 || got.body != "{\"dropped\":\"7\"}\n" {
		t.Error(got)
	}
	wantProblem(t, r.do("DELETE", "/v1/dead-letters/7", "", ""), 404, "not_found", "")
	wantProblem(t, r.do("DELETE", "/v1/dead-letters/x", "", ""), 400, "bad_query", "seq")
	if v = page("/v1/dead-letters"); len(v.DeadLetters) != 2 {
		t.Errorf("got %+v", v)
	}
}

func TestDeadLetterQueryIsStrict(t *testing.T) {
	r := newRig(t)
	for query, field := range map[string]string{
		"limit=0": "limit", "limit=1001": "limit", "limit=x": "limit", "after=x": "after", "after=-1": "after", "offset=1": "offset", "limit=1&limit=2": "limit", "a=%zz": "",
	} {
		wantProblem(t, r.get("/v1/dead-letters?"+query), 400, "bad_query", field)
	}
	r.letters.err = errors.New("disk")
	wantProblem(t, r.get("/v1/dead-letters"), 503, "unavailable", "")
	wantProblem(t, r.do("DELETE", "/v1/dead-letters/1", "", ""), 503, "unavailable", "")
}

func TestNodeWithoutDeadLettersHasNone(t *testing.T) {
	r := newRig(t, func(_ *Config, p *Parts) { p.DeadLetters = nil })
	if got := r.get("/v1/dead-letters"); got.status != 200 {
		t.Error(got)
	}
	wantProblem(t, r.do("DELETE", "/v1/dead-letters/1", "", ""), 404, "not_found", "")
}

func TestDeadLetterPageIsBoundedByBytes(t *testing.T) {
	r := newRig(t)
	for seq := range uint64(100) {
		r.letters.letters = append(r.letters.letters, deadLetter(seq+1, delivery.ReasonUndecodable, make([]byte, 1<<20)))
	}
	seen, next := 0, ""
	for pages := 0; ; pages++ {
		var v deadLettersView
		if err := json.Unmarshal([]byte(r.get("/v1/dead-letters?limit=1000&after=0"+next).body), &v); err != nil {
			t.Fatal(err)
		}
		if len(v.DeadLetters) > 4 {
			t.Fatalf("%d MiB in one page", len(v.DeadLetters))
		}
		if seen += len(v.DeadLetters); v.Next == "" {
			break
		}
		next = v.Next // behind the 0 of the query
	}
	if seen != 100 {
		t.Errorf("%d of 100 seen", seen)
	}
}
