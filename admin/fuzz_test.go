package admin

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzPushBody holds the decoder against encoding/json: what it takes is JSON and means the same, and what it calls no JSON is none.
func FuzzPushBody(f *testing.F) {
	for _, seed := range []string{
		`{"user":"u","text":"hé\n\u20ac\ud83d\ude00"}`, `{"user":"u","payload":"aGk=","ttl":"10m","priority":"bulk","ack":false}`,
		`{"users":["a","b"],"device":"d","message_id":"m","type":"t","conversation":"c","ttl":1.5e3,"wait":"delivered","timeout":"5s"}`,
		`[{"user":"u"},{"usr":[1,{"a":null}]},{"user":true}]`, `[]`, `{"user":"u","user":"v"}`, "{\"user\":\"\xff\"}", `{"user":"\ud800"}`,
		`{"user":"u","payload":"?"}`, `{"user":"u","ttl":-0.0}`, `[[[[[[]]]]]]`, ` {"user" : "u" } `, `{"user":"u"}x`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		node := newFakeNode()
		b := node.NewBatch(func() {}).(*fakeBatch)
		r := &pushRequest{body: append([]byte(nil), body...)}
		single, _, p, ok := r.decodeBody(b, &limits{100, 1 << 20, &memory{max: 1 << 20}})
		if ok != (p.code == "") {
			t.Fatalf("ok %v with problem %+v", ok, p)
		}
		plain := utf8.Valid(body) && !bytes.Contains(body, []byte(`\u`)) && !bytes.Contains(body, bytes.Repeat([]byte("["), depthMax/2)) &&
			!bytes.Contains(body, bytes.Repeat([]byte("{"), depthMax/2)) && bytes.ContainsAny(body[:min(1, len(body))], "{[")
		switch {
		case ok && !json.Valid(body):
			t.Fatalf("taken, and no JSON: %q", body)
		case p.code == codeBadJSON && plain && json.Valid(body) && strings.Count(string(body), "[")+strings.Count(string(body), "{") < depthMax:
			t.Fatalf("JSON, and refused with %q: %q", p.text, body)
		case ok && single:
			sameAsJSON(t, body, b)
		}
		if len(b.items) != r.added {
			t.Fatalf("%d messages in the batch, %d counted", len(b.items), r.added)
		}
	})
}

// sameAsJSON compares one decoded item with what encoding/json makes of it.
func sameAsJSON(t *testing.T, body []byte, b *fakeBatch) {
	t.Helper()
	var v struct {
		User, Device, Type, Text, Conversation, Priority string
		Users                                            []string
		MessageID                                        string `json:"message_id"`
		Payload                                          *string
		Ack                                              *bool
	}
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	if v.Users == nil {
		v.Users = []string{v.User}
	}
	if len(v.Users) != len(b.items) {
		t.Fatalf("%q: %d users, %d messages", body, len(v.Users), len(b.items))
	}
	for i, it := range b.items {
		if string(it.User) != v.Users[i] || string(it.Device) != v.Device || string(it.Type) != v.Type || string(it.Conversation) != v.Conversation ||
			(v.MessageID != "" && string(it.MessageID) != v.MessageID) || (v.Payload == nil && string(it.Payload) != v.Text) ||
			it.NoAck != (v.Ack != nil && !*v.Ack) || (v.Priority != "" && it.Priority.String() != v.Priority) {
			t.Fatalf("%q: got %+v", body, it)
		}
	}
}

// chunks gives a body in pieces of n bytes.
type chunks struct {
	rest []byte
	n    int
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.rest[:min(len(c.rest), c.n)])
	c.rest = c.rest[n:]
	return n, nil
}

// FuzzStreamSplit: a stream is answered the same however the network cuts it.
func FuzzStreamSplit(f *testing.F) {
	f.Add([]byte("{\"user\":\"u\",\"message_id\":\"a\"}\n\n{\"usr\":1}\r\n{\"user\":\"full\"}\n{\"user\":\"u\",\"message_id\":\"a\"}"), 3)
	f.Add([]byte("x\n"+strings.Repeat("y", 200)+"\n{\"user\":\"u\"}\n"), 7)
	f.Add([]byte(strings.Repeat("z", 130)), 64)
	f.Fuzz(func(t *testing.T, body []byte, n int) {
		if n < 1 || bytes.Contains(body, []byte("slow")) {
			return // a slow user's outcome would have to be asked for
		}
		whole, split := streamed(t, body, len(body)+1), streamed(t, body, n)
		if whole != split {
			t.Fatalf("whole:\n%s\nin pieces of %d:\n%s", whole, n, split)
		}
	})
}

// streamed pushes a stream to a node of its own and returns the lines, without what differs from run to run.
func streamed(t *testing.T, body []byte, n int) string {
	t.Helper()
	node := newFakeNode()
	c := DefaultConfig()
	c.LineBytesMax, c.GroupItemsMax = 100, 3
	s, err := New(c, Parts{Pusher: node, Inspector: node})
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	req := httptest.NewRequest("POST", "/v1/push", &chunks{body, n})
	req.Header.Set("Content-Type", "application/x-ndjson")
	w := httptest.NewRecorder()
	s.http.Handler.ServeHTTP(w, req)
	var out strings.Builder
	for text := range strings.Lines(w.Body.String()) {
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if len(l.MessageID) == 20 {
			l.MessageID = "made"
		}
		out.WriteString(l.String() + "\n")
	}
	if s.bodies.used.Load() != 0 || node.made != node.released {
		t.Fatalf("%d bytes stay charged, %d of %d batches released", s.bodies.used.Load(), node.released, node.made)
	}
	return out.String()
}
