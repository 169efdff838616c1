package admin

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"holdfast/delivery"
)

func h2cClient(t *testing.T) *http.Client {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &p}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestServerSpeaksHTTP2WithoutTLS(t *testing.T) {
	r := newRig(t)
	resp, err := h2cClient(t).Post(r.url+"/v1/push", "application/json", strings.NewReader(`{"user":"u"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.ProtoMajor != 2 || resp.StatusCode != 200 {
		t.Errorf("got %s %s", resp.Proto, resp.Status)
	}
}

func TestUnknownPathsAndMethodsAreAnsweredInJSON(t *testing.T) {
	r := newRig(t)
	for _, path := range []string{"/", "/v1", "/v1/pushes", "/v1/messages/", "/v1/messages/a/b", "/favicon.ico"} {
		wantProblem(t, r.get(path), 404, "not_found", "")
	}
	for path, allow := range map[string]string{
		"/v1/push": "POST", "/v1/messages/m": "GET, DELETE", "/v1/users/u": "GET", "/v1/dead-letters": "GET", "/v1/dead-letters/1": "DELETE", "/livez": "GET",
	} {
		got := r.do("PUT", path, "", "")
		wantProblem(t, got, 405, "method_not_allowed", "")
		if got.header.Get("Allow") != allow {
			t.Errorf("%s allows %q", path, got.header.Get("Allow"))
		}
	}
}

func TestTokenIsAskedForOnEveryV1PathAndNowhereElse(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Parts) { c.Token = "s3cret" })
	for _, rt := range r.server.routes() {
		path := strings.NewReplacer("{id}", "x", "{seq}", "1").Replace(rt.path)
		for _, header := range []string{"", "Bearer", "Bearer ", "Bearer s3cre", "Bearer s3cret2", "Basic s3cret", "s3cret"} {
			got := r.do(rt.method, path, "", "", "Authorization", header)
			if strings.HasPrefix(path, "/v1/") {
				wantProblem(t, got, 401, "unauthorized", "")
			} else if got.status != 200 {
				t.Errorf("%s: %d", path, got.status)
			}
		}
		if got := r.do(rt.method, path, "", "", "Authorization", "Bearer s3cret"); got.status == 401 {
			t.Errorf("%s: the token is not taken", path)
		}
	}
	if got := r.do("POST", "/v1/push", "", `{"user":"u"}`, "Authorization", "bearer s3cret"); got.status != 200 {
		t.Error(got)
	}
}

func TestPageOfAnotherOriginMayNotPush(t *testing.T) {
	r := newRig(t)
	wantProblem(t, r.do("POST", "/v1/push", "text/plain", `{"user":"u"}`, "Origin", "https://evil.example"), 403, "cross_origin", "")
	wantProblem(t, r.do("DELETE", "/v1/messages/m", "", "", "Sec-Fetch-Site", "cross-site"), 403, "cross_origin", "")
	if got := r.do("POST", "/v1/push", "", `{"user":"u"}`, "Sec-Fetch-Site", "same-origin"); got.status != 200 {
		t.Error(got)
	}
	if len(r.node.pushed) != 1 {
		t.Errorf("%d messages were pushed", len(r.node.pushed))
	}
}

func TestHealthTellsReasons(t *testing.T) {
	ready, reason := true, ""
	r := newRig(t, func(_ *Config, p *Parts) { p.Ready = func() (bool, string) { return ready, reason } })
	if got := r.get("/livez"); got.status != 200 || got.body != "{\"live\":true}\n" {
		t.Error(got)
	}
	if got := r.get("/readyz"); got.status != 200 || got.body != "{\"ready\":true}\n" {
		t.Error(got)
	}
	ready, reason = false, "the store is being recovered"
	if got := r.get("/readyz"); got.status != 503 || got.body != "{\"ready\":false,\"reason\":\"the store is being recovered\"}\n" {
		t.Error(got)
	}
}

func TestMetricsAreThoseOfTheSetAndOfTheProcess(t *testing.T) {
	set := metrics.NewSet()
	set.NewCounter("holdfast_test_total").Inc()
	r := newRig(t, func(_ *Config, p *Parts) { p.Metrics = set })
	r.post(`{"user":"full"}`)
	got := r.get("/metrics").body
	for _, want := range []string{"holdfast_test_total 1", `holdfast_http_requests_total{route="POST /v1/push",status="4xx"} 1`, "process_resident_memory_bytes", "go_goroutines", "holdfast_http_body_bytes 0"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s", want)
		}
	}
}

func TestDocumentIsServed(t *testing.T) {
	r := newRig(t)
	if got := r.get("/openapi.yaml"); got.status != 200 || got.body != string(document) {
		t.Error(got.status, len(got.body))
	}
}

// raw sends bytes on a connection of its own and returns it.
func (r *rig) raw(t *testing.T, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", r.server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c
}

// hear reads one reply from a raw connection.
func hearRaw(t *testing.T, c net.Conn) reply {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, string(body)}
}

const rawHead = "POST /v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"

func TestBodyThatDoesNotArriveInTimeIsRefused(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Parts) { c.BodyTimeout = 20 * time.Millisecond })
	wantProblem(t, hearRaw(t, r.raw(t, fmt.Sprintf(rawHead, 100)+`{"user":`)), 408, "body_timeout", "")
}

func TestBodyThatEndsEarlyIsRefused(t *testing.T) {
	r := newRig(t)
	c := r.raw(t, fmt.Sprintf(rawHead, 100)+`{"user":"u"}`)
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	wantProblem(t, hearRaw(t, c), 400, "bad_json", "")
	if len(r.node.pushed) != 0 {
		t.Error("half a request was pushed")
	}
}

func TestHeadThatDoesNotArriveInTimeEndsTheConnection(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Parts) { c.ReadHeaderTimeout = 20 * time.Millisecond })
	if _, err := io.ReadAll(r.raw(t, "POST /v1/push HTTP/1.1\r\nHost:")); err != nil {
		t.Errorf("the connection is still open: %v", err)
	}
}

// The deadline for the body must not cut the wait that follows it.
func TestWaitMayBeLongerThanTheBodyTimeout(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Parts) { c.BodyTimeout = 50 * time.Millisecond })
	got := r.do("POST", "/v1/push?wait=delivered&timeout=200ms", "", `{"user":"u"}`)
	if got.status != 200 || !strings.Contains(got.body, `"complete":false`) {
		t.Error(got)
	}
}

func TestConnectionsOverTheLimitWaitTheirTurn(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Parts) { c.ConnsMax = 1 })
	first := r.raw(t, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
	if got := hearRaw(t, first); got.status != 200 {
		t.Error(got)
	}
	second := r.raw(t, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
	_ = second.SetReadDeadline(time.Now().Add(30 * time.Millisecond))
	if n, err := second.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Error("a second connection was served")
	}
	first.Close()
	_ = second.SetReadDeadline(time.Now().Add(10 * time.Second))
	if got := hearRaw(t, second); got.status != 200 {
		t.Error(got)
	}
	second.Close()
}

func TestShutdownEndsWaitsAndAnswersThem(t *testing.T) {
	r := newRig(t)
	done := make(chan reply, 1)
	go func() {
		done <- r.do("POST", "/v1/push?wait=delivered&timeout=60s", "", `{"user":"u","message_id":"m"}`)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := r.node.until(ctx, func() bool { return len(r.node.messages["m"]) > 0 }); err != nil {
		t.Fatal(err)
	}
	if err := r.server.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if got := <-done; got.status != 200 || !strings.Contains(got.body, `"complete":false`) || !strings.Contains(got.body, `"state":"SENT"`) {
		t.Error(got)
	}
	if ds, _ := r.node.Message(ctx, "m"); ds[0].Status != delivery.StatusSent {
		t.Error("the stop ended a delivery")
	}
}

func TestShutdownCutsWhatDoesNotEnd(t *testing.T) {
	r := newRig(t)
	go func() {
		resp, err := r.client.Post(r.url+"/v1/push", "", strings.NewReader(`{"user":"slow"}`))
		if err == nil {
			resp.Body.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := r.node.until(ctx, func() bool { return len(r.node.held) > 0 }); err != nil {
		t.Fatal(err)
	}
	short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
	defer stop()
	if err := r.server.Shutdown(short); err == nil {
		t.Error("no error")
	}
}

func TestConfigNamesWhatCannotWork(t *testing.T) {
	c := DefaultConfig()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"Addr":          func(c *Config) { c.Addr = "" },
		"ItemsMax":      func(c *Config) { c.ItemsMax = 0 },
		"PushTimeout":   func(c *Config) { c.PushTimeout = -1 },
		"WaitDefault":   func(c *Config) { c.WaitDefault = 2 * c.WaitMax },
		"BodyMemoryMax": func(c *Config) { c.BodyMemoryMax = 1 },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := New(c, Parts{Pusher: newFakeNode(), Inspector: newFakeNode()}); err == nil {
			t.Errorf("%s: New took it", name)
		}
	}
	if _, err := New(DefaultConfig(), Parts{}); err == nil {
		t.Error("New works without its parts")
	}
}

func TestStartTellsWhyItCannotListen(t *testing.T) {
	r := newRig(t)
	c := DefaultConfig()
	c.Addr = r.server.Addr().String()
	s, err := New(c, Parts{Pusher: r.node, Inspector: r.node})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err == nil || !strings.Contains(err.Error(), c.Addr) {
		t.Errorf("got %v", err)
	}
}

func TestHTTP2StreamOutlivesTheTimeOfOneAnswer(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Parts) { c.WriteTimeout = 30 * time.Millisecond })
	c := r.converse(t, h2cClient(t), "")
	for i := range 2 {
		c.say(fmt.Sprintf(`{"user":"u","message_id":"m%d"}`+"\n", i))
		if got := c.hear(); got.Status != "accepted" {
			t.Errorf("got %s", got)
		}
		time.Sleep(60 * time.Millisecond)
	}
}

// A reader that stops reading must not hold a reply and its memory for ever, whatever it asked for.
func TestReplyThatIsNotReadIsCut(t *testing.T) {
	big := strings.Repeat("x", 64<<20)
	r := newRig(t, func(c *Config, p *Parts) {
		c.WriteTimeout = 50 * time.Millisecond
		p.Process = func(w io.Writer) { _, _ = io.WriteString(w, big) }
	})
	nc, err := net.Dial("tcp", r.server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	fmt.Fprint(nc, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := r.server.http.Shutdown(ctx); err != nil {
		t.Errorf("the reply is still being written: %v", err)
	}
}
