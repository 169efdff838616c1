package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// api is a decoded JSON object of an HTTP answer, and its status code.
type api struct {
	Status int
	Body   map[string]any
	Raw    string
}

func (a api) str(key string) string { s, _ := a.Body[key].(string); return s }

// code is the error code of a refused request ("" for success).
func (a api) code() string {
	e, _ := a.Body["error"].(map[string]any)
	s, _ := e["code"].(string)
	return s
}

func (s *server) call(method, path string, body any) (api, error) {
	var in io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		in = strings.NewReader(b)
	default:
		raw, err := json.Marshal(b)
		if err != nil {
			return api{}, err
		}
		in = bytes.NewReader(raw)
	}
	req, err := http.NewRequest(method, "http://"+s.http+path, in)
	if err != nil {
		return api{}, err
	}
	client := http.Client{Timeout: 90 * time.Second}
	resp, err := client.Do(req)
	if err != nil {
		return api{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return api{}, err
	}
	a := api{Status: resp.StatusCode, Raw: string(raw)}
	_ = json.Unmarshal(raw, &a.Body)
	return a, nil
}

func (s *server) must(method, path string, body any) api {
	s.t.Helper()
	a, err := s.call(method, path, body)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

// push sends one text to a user and fails the test unless it was accepted; extra are more fields.
func (s *server) push(user, text string, extra ...map[string]any) api {
	s.t.Helper()
	body := map[string]any{"user": user, "text": text}
	for _, m := range extra {
		maps.Copy(body, m)
	}
	a := s.must("POST", "/v1/push", body)
	if a.Status != http.StatusOK {
		s.t.Fatalf("push to %s: HTTP %d %s", user, a.Status, a.Raw)
	}
	return a
}

// states returns the state of each delivery of a message, by device.
func (s *server) states(id string) map[string]string {
	s.t.Helper()
	a := s.must("GET", "/v1/messages/"+id, nil)
	out := map[string]string{}
	list, _ := a.Body["deliveries"].([]any)
	for _, d := range list {
		m, _ := d.(map[string]any)
		dev, _ := m["device"].(string)
		state, _ := m["state"].(string)
		out[dev] = state
	}
	return out
}

// metric sums the samples of one metric over its labels that contain match.
func (s *server) metric(name string, match ...string) float64 {
	s.t.Helper()
	resp, err := http.Get("http://" + s.http + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	sum := 0.0
next:
	for line := range strings.Lines(string(raw)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || (key != name && !strings.HasPrefix(key, name+"{")) {
			continue
		}
		for _, m := range match {
			if !strings.Contains(key, m) {
				continue next
			}
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			s.t.Fatalf("metric line %q: %v", line, err)
		}
		sum += v
	}
	return sum
}

// checkLedger is the conservation law: what was accepted is held or has ended, exactly.
func (s *server) checkLedger() {
	s.t.Helper()
	var report string
	eventually(s.t, 5*time.Second, "the ledger adds up", func() bool {
		accepted := s.metric("holdfast_ledger_accepted")
		parts := 0.0
		for _, p := range []string{"live", "acked", "expired", "cancelled", "dead"} {
			parts += s.metric("holdfast_ledger_" + p)
		}
		report = fmt.Sprintf("accepted %v, parts %v", accepted, parts)
		return accepted == parts
	})
	s.t.Log("ledger:", report)
}

// ndjson pushes a stream of lines and returns the answer's lines.
func (s *server) ndjson(lines string) string {
	s.t.Helper()
	resp, err := http.Post("http://"+s.http+"/v1/push", "application/x-ndjson", strings.NewReader(lines))
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(raw)
}
