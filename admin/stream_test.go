package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/delivery"
)

// line is one line of a stream's reply.
type line struct {
	Index     *int
	Status    string
	MessageID string `json:"message_id"`
	Complete  bool
	Error     struct{ Code, Field string }
}

func (l line) String() string {
	index := "-"
	if l.Index != nil {
		index = fmt.Sprint(*l.Index)
	}
	return strings.Join(strings.Fields(index+" "+l.Status+" "+l.MessageID+" "+l.Error.Code+" "+l.Error.Field), " ")
}

// lines reads a whole stream reply.
func lines(t *testing.T, body string) (out []line) {
	t.Helper()
	for text := range strings.SplitSeq(strings.TrimSpace(body), "\n") {
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		out = append(out, l)
	}
	return out
}

// conversation is an open stream: the test writes lines and reads answers.
type conversation struct {
	t    *testing.T
	rig  *rig
	out  *io.PipeWriter
	resp *http.Response
	in   *bufio.Scanner
	stop context.CancelFunc
}

func (r *rig) converse(t *testing.T, client *http.Client, query string) *conversation {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	reader, writer := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, "POST", r.url+"/v1/push"+query, reader)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	resp, err := client.Do(req) // the head comes before the first line is sent
	if err != nil {
		t.Fatal(err)
	}
	c := &conversation{t: t, rig: r, out: writer, resp: resp, in: bufio.NewScanner(resp.Body), stop: cancel}
	t.Cleanup(func() { cancel(); writer.Close(); resp.Body.Close() })
	return c
}

func (c *conversation) say(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c.out, text); err != nil {
		c.t.Fatal(err)
	}
}

func (c *conversation) hear() line {
	c.t.Helper()
	if !c.in.Scan() {
		c.t.Fatalf("the stream ended: %v", c.in.Err())
	}
	c.rig.checkLine(c.in.Text())
	return lines(c.t, c.in.Text())[0]
}

func TestStreamAnswersEachLineWhileTheNextOneIsStillToCome(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			r := newRig(t)
			client := r.client
			if proto == "HTTP/2.0" {
				client = h2cClient(t)
			}
			c := r.converse(t, client, "")
			if c.resp.Proto != proto || c.resp.Header.Get("Content-Type") != "application/x-ndjson" {
				t.Errorf("got %s, %v", c.resp.Proto, c.resp.Header)
			}
			for i := range 5 {
				c.say(fmt.Sprintf("{\"user\":\"u\",\"message_id\":\"m%d\"}\n", i))
				if got, want := c.hear().String(), fmt.Sprintf("%d accepted m%d", i, i); got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			}
			c.say(`{"user":"u",`)
			c.say(`"message_id":"last"}`) // no newline: the end of the body ends it
			c.out.Close()
			if got := c.hear().String(); got != "5 accepted last" {
				t.Errorf("got %s", got)
			}
			if c.in.Scan() || c.in.Err() != nil {
				t.Errorf("more came: %s %v", c.in.Text(), c.in.Err())
			}
		})
	}
}

func TestStreamGoesOnBehindABadLine(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Parts) { c.LineBytesMax, c.ItemsMax = 200, 3 })
	body := strings.Join([]string{`{"user":"u","message_id":"m0"}`, ``, `{"user":`, `  `, `{"usr":"u"}`, `{"user":"full","message_id":"m3"}`, `[{"user":"u"}]`,
		`{"user":"u","text":"` + strings.Repeat("x", 300) + `"}`, `{"user":"u","message_id":"m0"}`, `{"users":["a","b","c","d"]}`, `{"user":"u","timeout":5}`,
		`{"user":"u"} {"user":"u"}`, "{\"user\":\"u\",\"message_id\":\"m9\"}\r"}, "\n")
	got := r.do("POST", "/v1/push", "application/x-ndjson", body)
	want := []string{"0 accepted m0", "1 refused bad_json", "2 refused unknown_field usr", "3 refused m3 queue_full", "4 refused bad_json", "5 refused body_too_large",
		"6 duplicate m0", "7 refused too_many_items", "8 refused bad_field wait", "9 refused bad_json", "10 accepted m9"}
	for i, l := range lines(t, got.body) {
		if i >= len(want) || l.String() != want[i] {
			t.Errorf("line %d: %s", i, l)
		}
	}
	if n := strings.Count(got.body, "\n"); n != len(want) || r.node.released != r.node.made {
		t.Errorf("%d lines, %d of %d batches released", n, r.node.released, r.node.made)
	}
}

func TestStreamPassesOverALineThatIsFarTooLong(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Parts) { c.LineBytesMax, c.BodyMemoryMax, c.BodyBytesMax = 1000, 1<<20, 1000 })
	body := `{"user":"u","text":"` + strings.Repeat("x", 3<<20) + "\"}\n" + `{"user":"u","message_id":"m1"}` + "\n" + strings.Repeat("y", 1<<20)
	got := r.do("POST", "/v1/push", "application/x-ndjson", body)
	if l := lines(t, got.body); len(l) != 3 || l[0].String() != "0 refused body_too_large" || l[1].String() != "1 accepted m1" || l[2].String() != "2 refused body_too_large" {
		t.Errorf("got %s", got.body)
	}
	if used := r.server.bodies.used.Load(); used != 0 {
		t.Errorf("%d bytes stay charged", used)
	}
}

func TestStreamIsPushedInBoundedGroupsInOrder(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Parts) { c.GroupItemsMax = 10 })
	var body strings.Builder
	const n = 5000
	for i := range n {
		fmt.Fprintf(&body, "{\"user\":\"u%d\",\"message_id\":\"m%d\"}\n", i%7, i)
	}
	got := lines(t, r.do("POST", "/v1/push", "application/x-ndjson", body.String()).body)
	if len(got) != n || len(r.node.pushed) != n {
		t.Fatalf("%d lines, %d messages", len(got), len(r.node.pushed))
	}
	sizes := map[int]int{}
	for i, l := range got {
		if *l.Index != i || l.MessageID != fmt.Sprint("m", i) || string(r.node.pushed[i].MessageID) != l.MessageID {
			t.Fatalf("line %d: %s, pushed %s", i, l, r.node.pushed[i].MessageID)
		}
		if b := r.node.pushed[i].batch; true {
			if sizes[b]++; sizes[b] > 10 {
				t.Fatalf("a group of more than 10")
			}
		}
	}
	if used := r.server.bodies.used.Load(); used != 0 || r.node.released != r.node.made {
		t.Errorf("%d bytes stay charged, %d of %d batches released", used, r.node.released, r.node.made)
	}
}

func TestStreamStopsReadingWhenOutcomesDoNotCome(t *testing.T) {
	const groups = 3
	r := newRig(t, func(c *Config, _ *Parts) { c.GroupItemsMax, c.GroupsMax = 1, groups })
	c := r.converse(t, r.client, "")
	const n = 50
	go func() {
		for i := range n {
			if _, err := fmt.Fprintf(c.out, "{\"user\":\"slow\",\"message_id\":\"m%d\"}\n", i); err != nil {
				return
			}
		}
		c.out.Close()
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	for i := range n {
		// Whatever was let go is answered before more is let go, so what is held is all that is on its way.
		if want := min(groups, n-i); true {
			if err := r.node.until(ctx, func() bool { return len(r.node.held) >= want }); err != nil {
				t.Fatalf("%d groups were not pushed before line %d", want, i)
			}
		}
		r.node.mu.Lock()
		if held := len(r.node.held); held > groups {
			t.Errorf("%d groups are on their way", held)
		}
		first := r.node.held[0]
		r.node.held = r.node.held[1:]
		r.node.mu.Unlock()
		first.done()
		if got := c.hear().String(); got != fmt.Sprintf("%d accepted m%d", i, i) {
			t.Fatalf("got %s", got)
		}
	}
}

func TestStreamThatWaitsTellsHowDeliveriesEnded(t *testing.T) {
	r := newRig(t)
	c := r.converse(t, r.client, "?wait=delivered&timeout=10s")
	for _, id := range []string{"m0", "m1"} {
		c.say(`{"user":"u","message_id":"` + id + `"}` + "\n")
		r.endWhenPushed(id, delivery.StatusAcked, delivery.ReasonNone)
		if l := c.hear(); !l.Complete || l.MessageID != id {
			t.Errorf("got %s %v", l, l.Complete)
		}
	}
}

func TestStreamSaysWhichOutcomesAreUnknown(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Parts) { c.PushTimeout = 10 * time.Millisecond })
	got := lines(t, r.do("POST", "/v1/push", "application/x-ndjson", "{\"user\":\"slow\",\"message_id\":\"m0\"}\n{\"usr\":1}\n").body)
	if len(got) != 2 || got[0].String() != "0 unknown m0 timeout" || got[1].String() != "1 refused unknown_field usr" {
		t.Errorf("got %v", got)
	}
	r.node.release()
	if r.node.released != r.node.made {
		t.Errorf("%d of %d batches released", r.node.released, r.node.made)
	}
}

func TestStreamWithoutALineForTooLongEnds(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Parts) { c.IdleTimeout = 30 * time.Millisecond })
	c := r.converse(t, r.client, "")
	c.say(`{"user":"u","message_id":"m0"}` + "\n" + `{"user":"u","mess`)
	if got := c.hear().String(); got != "0 accepted m0" {
		t.Error(got)
	}
	if got := c.hear().String(); got != "- body_timeout" {
		t.Error(got)
	}
	if c.in.Scan() {
		t.Errorf("more came: %s", c.in.Text())
	}
}

func TestStreamThatIsCutTakesNoHalfLine(t *testing.T) {
	r := newRig(t)
	c := r.converse(t, r.client, "")
	c.say(`{"user":"u","message_id":"m0"}` + "\n")
	c.hear()
	c.say(`{"user":"u","message_id":"m1"}`) // complete to look at; its newline is not there
	c.stop()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := r.node.until(ctx, func() bool { return r.node.released == r.node.made }); err != nil {
		t.Errorf("%d of %d batches released", r.node.released, r.node.made)
	}
	r.node.mu.Lock()
	defer r.node.mu.Unlock()
	if len(r.node.pushed) != 1 {
		t.Errorf("%d messages were pushed", len(r.node.pushed))
	}
}

func TestStreamEndsWithAWordWhenTheServerStops(t *testing.T) {
	r := newRig(t)
	c := r.converse(t, r.client, "")
	c.say(`{"user":"u","message_id":"m0"}` + "\n")
	if got := c.hear().String(); got != "0 accepted m0" {
		t.Error(got)
	}
	stopped := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		stopped <- r.server.Shutdown(ctx)
	}()
	if got := c.hear().String(); got != "- draining" {
		t.Error(got)
	}
	c.out.Close()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestStreamOfNothingIsAnsweredWithNothing(t *testing.T) {
	r := newRig(t)
	for _, body := range []string{"", "\n", " \n\t\n\r\n"} {
		if got := r.do("POST", "/v1/push", "application/x-ndjson", body); got.status != 200 || got.body != "" {
			t.Errorf("%q: %d %q", body, got.status, got.body)
		}
	}
}

func TestStreamWhoseAnswersAreNotReadIsCut(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Parts) { c.WriteTimeout = 50 * time.Millisecond })
	c := r.raw(t, "POST /v1/push HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n")
	chunk := strings.Repeat("{\"user\":\"u\",\"ack\":false}\n", 1000)
	chunk = fmt.Sprintf("%x\r\n%s\r\n", len(chunk), chunk)
	var err error
	for range 10_000 { // until our own writes are refused: nobody reads them any more
		if _, err = io.WriteString(c, chunk); err != nil {
			break
		}
	}
	if err == nil {
		t.Error("the server went on reading")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := r.node.until(ctx, func() bool { return r.node.released == r.node.made }); err != nil {
		t.Errorf("%d of %d batches released", r.node.released, r.node.made)
	}
}
