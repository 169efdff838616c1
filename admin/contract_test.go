package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	openapi3filter.RegisterBodyDecoder("application/x-ndjson",
		func(body io.Reader, _ http.Header, _ *openapi3.SchemaRef, _ openapi3filter.EncodingFn) (any, error) {
			text, err := io.ReadAll(body)
			return string(text), err
		})
	var err error
	if loaded.doc, loaded.router, err = contract(); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// loaded is the document, read once: reading it takes longer than most tests. Set by TestMain.
var loaded struct {
	doc    *openapi3.T
	router routers.Router
}

// rig is a server on a loopback port with a fake node behind it. Every exchange made with it is held against openapi.yaml.
type rig struct {
	t       testing.TB
	node    *fakeNode
	letters *fakeLetters
	server  *Server
	url     string
	client  *http.Client
	doc     *openapi3.T
	router  routers.Router
}

// contract loads the document as a client would.
func contract() (*openapi3.T, routers.Router, error) {
	doc, err := openapi3.NewLoader().LoadFromData(document)
	if err != nil {
		return nil, nil, err
	}
	doc.Servers = nil // any host
	router, err := gorillamux.NewRouter(doc)
	return doc, router, err
}

func newRig(t testing.TB, change ...func(*Config, *Parts)) *rig {
	t.Helper()
	r := &rig{t: t, node: newFakeNode(), letters: &fakeLetters{}}
	c := DefaultConfig()
	c.Addr = "127.0.0.1:0"
	p := Parts{Pusher: r.node, Inspector: r.node, DeadLetters: r.letters}
	for _, f := range change {
		f(&c, &p)
	}
	var err error
	if r.server, err = New(c, p); err != nil {
		t.Fatal(err)
	}
	if err := r.server.Start(); err != nil {
		t.Fatal(err)
	}
	r.doc, r.router = loaded.doc, loaded.router
	r.url = "http://" + r.server.Addr().String()
	transport := &http.Transport{}
	r.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		r.node.release()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		transport.CloseIdleConnections()
		if err := r.server.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	return r
}

// reply is an answer, read to its end.
type reply struct {
	status int
	header http.Header
	body   string
}

// do sends a request, and holds it and the answer against the contract: the answer always, the request when it was taken.
func (r *rig) do(method, path, contentType, body string, header ...string) reply {
	r.t.Helper()
	req, err := http.NewRequest(method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := r.client.Do(req)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatalf("%s %s: reading the reply: %v", method, path, err)
	}
	r.check(req, []byte(body), resp, got)
	return reply{resp.StatusCode, resp.Header, string(got)}
}

func (r *rig) post(body string) reply {
	r.t.Helper()
	return r.do("POST", "/v1/push", "application/json", body)
}
func (r *rig) get(path string) reply { r.t.Helper(); return r.do("GET", path, "", "") }

// check holds one exchange against openapi.yaml.
func (r *rig) check(req *http.Request, body []byte, resp *http.Response, got []byte) {
	r.t.Helper()
	like := httptest.NewRequest(req.Method, req.URL.RequestURI(), bytes.NewReader(body))
	like.Header = req.Header.Clone()
	if kind := media(req); kind == mediaJSON && len(body) > 0 {
		like.Header.Set("Content-Type", "application/json") // what it is taken for
	}
	route, params, err := r.router.FindRoute(like)
	if err != nil {
		if resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusMethodNotAllowed {
			r.t.Errorf("%s %s answers %d and is not in openapi.yaml", req.Method, req.URL.Path, resp.StatusCode)
		}
		return
	}
	in := &openapi3filter.RequestValidationInput{Request: like, PathParams: params, Route: route, Options: &openapi3filter.Options{
		AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true,
	}}
	emptyStream := media(req) == mediaLines && len(body) == 0 // which the document has no way to allow
	if resp.StatusCode == http.StatusOK && !emptyStream && !strings.Contains(string(got), `"refused"`) {
		if err := openapi3filter.ValidateRequest(context.Background(), in); err != nil {
			r.t.Errorf("%s %s was taken and is not as openapi.yaml has it: %v\n%s", req.Method, req.URL, err, body)
		}
	}
	out := &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: resp.StatusCode, Header: resp.Header, Options: in.Options}
	out.SetBodyBytes(got)
	if err := openapi3filter.ValidateResponse(context.Background(), out); err != nil {
		r.t.Errorf("the reply to %s %s is not as openapi.yaml has it: %v\n%s", req.Method, req.URL, err, got)
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/x-ndjson") {
		for text := range strings.Lines(string(got)) {
			r.checkLine(text)
		}
	}
}

// checkLine holds one line of a stream's reply against openapi.yaml.
func (r *rig) checkLine(text string) {
	r.t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		r.t.Errorf("%q: %v", text, err)
		return
	}
	schema := "ItemResult"
	if v["index"] == nil {
		schema = "Error"
	}
	if err := r.doc.Components.Schemas[schema].Value.VisitJSON(v); err != nil {
		r.t.Errorf("the line is no %s: %v\n%s", schema, err, text)
	}
}

func TestDocumentIsValidOpenAPI(t *testing.T) {
	doc := loaded.doc
	if err := doc.Validate(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestEveryRouteIsInTheDocumentAndTheOtherWayRound(t *testing.T) {
	doc := loaded.doc
	served := map[string]bool{}
	for _, rt := range new(Server).routes() {
		served[rt.method+" "+rt.path] = true
		item := doc.Paths.Find(rt.path)
		if item == nil || item.GetOperation(rt.method) == nil {
			t.Errorf("%s %s is served and not documented", rt.method, rt.path)
			continue
		}
		op := item.GetOperation(rt.method)
		if open := op.Security != nil && len(*op.Security) == 0; open == rt.guarded {
			t.Errorf("%s %s: the document says open=%v", rt.method, rt.path, open)
		}
	}
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			if !served[method+" "+path] {
				t.Errorf("%s %s is documented and not served", method, path)
			}
		}
	}
}
