package admin

import (
	_ "embed"
	"net/http"
	"strconv"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

// document is the contract of this API, as it is served.
//
//go:embed openapi.yaml
var document []byte

// route is one method of one path. A test holds the list against openapi.yaml, both ways.
type route struct {
	method, path string
	guarded      bool // asks for the token
	handle       http.HandlerFunc
}

func (s *Server) routes() []route {
	return []route{
		{http.MethodPost, "/v1/push", true, s.handlePush},
		{http.MethodGet, "/v1/messages/{id}", true, s.handleMessage},
		{http.MethodDelete, "/v1/messages/{id}", true, s.handleCancel},
		{http.MethodGet, "/v1/users/{id}", true, s.handleUser},
		{http.MethodGet, "/v1/dead-letters", true, s.handleDeadLetters},
		{http.MethodDelete, "/v1/dead-letters/{seq}", true, s.handleDropDead},
		{http.MethodGet, "/metrics", false, s.handleMetrics},
		{http.MethodGet, "/livez", false, s.handleLive},
		{http.MethodGet, "/readyz", false, s.handleReady},
		{http.MethodGet, "/openapi.yaml", false, handleDocument},
	}
}

func (s *Server) handleMetrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	s.parts.Metrics.WritePrometheus(w)
	s.parts.Process(w)
}

// handleLive answers as long as the process can answer.
func (s *Server) handleLive(w http.ResponseWriter, _ *http.Request) {
	writeBody(w, http.StatusOK, []byte("{\"live\":true}\n"))
}

// handleReady tells a load balancer whether to send traffic here.
func (s *Server) handleReady(w http.ResponseWriter, _ *http.Request) {
	ready, reason := true, ""
	if s.stopping.Err() != nil {
		ready, reason = false, "stopping"
	} else if s.parts.Ready != nil {
		ready, reason = s.parts.Ready()
	}
	if ready {
		writeBody(w, http.StatusOK, []byte("{\"ready\":true}\n"))
		return
	}
	body := appendString([]byte(`{"ready":false,"reason":`), reason)
	writeBody(w, http.StatusServiceUnavailable, append(body, "}\n"...))
}

func handleDocument(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	w.Header().Set("Content-Length", strconv.Itoa(len(document)))
	_, _ = w.Write(document)
}

// meters are the metrics of this package, made once: nothing is looked up by name while a request is served.
type meters struct {
	accepted, duplicate, partial, refused *metrics.Counter
	codes                                 map[string]*metrics.Counter // refusals by error code, of requests and of items; not changed after New
}

func newMeters(set *metrics.Set, s *Server) meters {
	set.GetOrCreateGauge("holdfast_http_body_bytes", func() float64 { return float64(s.bodies.used.Load()) })
	item := func(status string) *metrics.Counter {
		return set.GetOrCreateCounter(`holdfast_http_push_items_total{status="` + status + `"}`)
	}
	m := meters{item(statusAccepted), item(statusDuplicate), item(statusPartial), item(statusRefused), map[string]*metrics.Counter{}}
	for _, code := range errorCodes() {
		m.codes[code] = set.GetOrCreateCounter(`holdfast_http_refused_total{code="` + code + `"}`)
	}
	return m
}

// refuse counts one refusal, of a request or of an item.
func (m *meters) refuse(code string) {
	if c := m.codes[code]; c != nil {
		c.Inc()
	}
}

// count adds up what a push request came to.
func (s *Server) count(t tally) {
	s.meters.accepted.Add(t.accepted)
	s.meters.duplicate.Add(t.duplicate)
	s.meters.partial.Add(t.partial)
	s.meters.refused.Add(t.refused)
}

// routeMeter counts the replies of one route by class of status.
type routeMeter struct {
	classes [6]*metrics.Counter // index: status / 100
	seconds *metrics.Histogram
}

func (meters) route(set *metrics.Set, r route) *routeMeter {
	m := &routeMeter{}
	labels := `route="` + r.method + " " + r.path + `"`
	for class := range m.classes {
		if class >= 2 {
			m.classes[class] = set.GetOrCreateCounter("holdfast_http_requests_total{" + labels + `,status="` + strconv.Itoa(class) + `xx"}`)
		}
	}
	m.seconds = set.GetOrCreateHistogram("holdfast_http_request_seconds{" + labels + "}")
	return m
}

func (m *routeMeter) observe(status int, took time.Duration) {
	if class := status / 100; class >= 2 && class < len(m.classes) {
		m.classes[class].Inc()
	}
	m.seconds.Update(took.Seconds())
}
