package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// result is what a command did.
type result struct {
	code     int
	out, err string
}

// command runs one command line as main does, with the given standard input.
func command(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	code := run(t.Context(), args, &terminal{in: strings.NewReader(stdin), out: &out, err: &errOut})
	return result{code, out.String(), errOut.String()}
}

// want fails the test unless the command ended with code and said every text somewhere.
func (r result) want(t *testing.T, code int, texts ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d\nout: %s\nerr: %s", r.code, code, r.out, r.err)
	}
	for _, text := range texts {
		if !strings.Contains(r.out+r.err, text) {
			t.Errorf("nothing says %q\nout: %s\nerr: %s", text, r.out, r.err)
		}
	}
}

func TestEveryCommandHasHelpWithExamples(t *testing.T) {
	for _, name := range []string{"serve", "listen", "push", "publish", "trace", "config", "token"} {
		t.Run(name, func(t *testing.T) {
			args := []string{name, "--help"}
			if name == "config" {
				args = []string{"config", "show", "--help"}
			}
			command(t, "", args...).want(t, 0, "Examples:", "holdfast "+name)
		})
	}
	command(t, "").want(t, 0, "Run a gateway node.")
}

func TestUsageErrorsSayWhatToDo(t *testing.T) {
	for _, test := range []struct {
		args []string
		text string
	}{
		{[]string{"srve"}, "srve"},
		{[]string{"push", "hello"}, "--user"},
		{[]string{"push", "--user", "a", "--text", "x", "y"}, "give the payload once"},
		{[]string{"push", "--user", "a", "--ttl", "5", "y"}, "--ttl"},
		{[]string{"push", "--user", "a", "--priority", "high", "y"}, "urgent"},
		{[]string{"serve", "--set", "ack.timeout"}, "write --set section.key=value"},
		{[]string{"serve", "--set", "ack.timout=1s"}, `did you mean "ack.timeout"?`},
		{[]string{"serve", "--listen", ":7700"}, "--insecure-no-auth"},
		{[]string{"listen", "--user", "a", "--no-ack", "--refuse"}, "no-ack"},
		{[]string{"token", "--key", "none:x", "--user", "a"}, "HS256"},
		{[]string{"token", "--key", "HS256:x", "--user", "a", "--ttl", "0s"}, "--ttl"},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			command(t, "", test.args...).want(t, exitUsage, test.text)
		})
	}
}

func TestVersion(t *testing.T) {
	command(t, "", "version").want(t, 0, "holdfast "+version)
	var info versionInfo
	r := command(t, "", "version", "--json")
	if err := json.Unmarshal([]byte(r.out), &info); err != nil || info.Version != version || info.Protocol != 1 {
		t.Errorf("%v: %s", err, r.out)
	}
}

func TestConfigPrintsAndChecks(t *testing.T) {
	command(t, "", "config", "--set", "ack.timeout=5s").want(t, 0, `timeout: "5s" # flag --set`, "# default 10s")
	command(t, "", "config", "--short").want(t, 0, `timeout: "10s" # default`)
	good := writeConfig(t, "ack:\n  timeout: 5s\n")
	command(t, "", "config", "check", good).want(t, 0, "good, 1 settings")
	command(t, "", "config", "check", writeConfig(t, "ack:\n  timout: 5s\n")).want(t, exitUsage, `"ack.timout"`)
	r := command(t, "", "config", "--json", "--config", good)
	var all []settingJSON
	if err := json.Unmarshal([]byte(r.out), &all); err != nil {
		t.Fatal(err)
	}
	found := false
	for _, s := range all {
		found = found || s.Key == "ack.timeout" && s.Value == "5s" && s.Origin == "file "+good+":2" && s.Env == "HOLDFAST_ACK_TIMEOUT"
	}
	if !found {
		t.Errorf("ack.timeout is not told well: %s", r.out)
	}
}

// fakeGateway answers the HTTP API with what a test puts into it.
type fakeGateway struct {
	*httptest.Server
	mu      sync.Mutex
	pushed  []pushBody
	auth    string
	push    string   // answer of POST /v1/push
	status  int      // its status
	message []string // answers of GET /v1/messages, the last one for ever
	asked   int
}

func newFakeGateway(t *testing.T) *fakeGateway {
	g := &fakeGateway{status: http.StatusOK, push: `{"status":"accepted"}`}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/push", func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		defer g.mu.Unlock()
		var body pushBody
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Errorf("body of the push: %v", err)
		}
		g.pushed = append(g.pushed, body)
		g.auth = r.Header.Get("Authorization")
		w.WriteHeader(g.status)
		fmt.Fprint(w, g.push)
	})
	mux.HandleFunc("GET /v1/messages/{id}", func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if len(g.message) == 0 {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"error":{"code":"not_found","message":"no message with this id is known"}}`)
			return
		}
		fmt.Fprintf(w, `{"message_id":%q,"deliveries":[%s]}`, r.PathValue("id"), g.message[min(g.asked, len(g.message)-1)])
		g.asked++
	})
	g.Server = httptest.NewServer(mux)
	t.Cleanup(g.Close)
	return g
}

const (
	ackedByPhone = `{"user":"alice","device":"phone","state":"ACKED","online":true,"attempts":1,"level":"processed","priority":"normal",` +
		`"bytes":5,"accepted_at":"2026-12-01T10:00:00.000Z","ended_at":"2026-12-01T10:00:01.500Z","latency_ms":1500}`
	sentToPhone = `{"user":"alice","device":"phone","state":"SENT","online":true,"attempts":1,"request_number":7,"priority":"normal","bytes":5,` +
		`"accepted_at":"2026-12-01T10:00:00Z","expires_at":"2026-12-08T10:00:00Z","due_at":"2026-12-01T10:00:10Z"}`
	storedForBob = `{"user":"bob","state":"OFFLINE_BUFFERED","online":false,"attempts":0,"priority":"normal","bytes":5,"accepted_at":"2026-12-01T10:00:00Z"}`
	deadForCarol = `{"user":"carol","device":"tv","state":"DEAD_LETTER","reason":"refused","online":true,"attempts":1,"priority":"bulk","bytes":5,` +
		`"accepted_at":"2026-12-01T10:00:00Z","ended_at":"2026-12-01T10:00:01Z"}`
)

func TestPushTellsTheOutcome(t *testing.T) {
	for _, test := range []struct {
		name    string
		message []string
		code    int
		text    string
	}{
		{"acked at once", []string{ackedByPhone}, exitOK, "acked by alice/phone in 2.3 ms"},
		{"acked after a while", []string{sentToPhone, ackedByPhone}, exitOK, "acked by alice/phone in 1.5 s"},
		{"nobody there", []string{storedForBob}, exitOK, "stored: bob is not connected; it is delivered at the next login"},
		{"no answer in time", []string{sentToPhone}, exitWaiting, "no ACK from alice/phone yet: SENT after 1 attempt;"},
		{"given up", []string{ackedByPhone + "," + deadForCarol}, exitUndelivered, "not delivered to carol/tv: DEAD_LETTER (refused)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := newFakeGateway(t)
			g.message = test.message
			if len(test.message) == 1 && test.message[0] == ackedByPhone {
				g.push = `{"status":"accepted","complete":true,"waited_ms":2.31}`
			}
			r := command(t, "", "push", "--api", g.URL, "--user", "alice", "--timeout", "300ms", "--id", "m1", "hello")
			r.want(t, test.code, "m1\n", test.text)
		})
	}
}

func TestPushSendsWhatItWasGiven(t *testing.T) {
	g := newFakeGateway(t)
	g.message = []string{ackedByPhone}
	command(t, "", "push", "--api", g.URL, "--api-token", "secret", "--user", "alice", "--user", "bob", "--device", "phone", "--id", "m1",
		"--type", "t", "--conversation", "c", "--ttl", "10m", "--priority", "urgent", "--text=-dash").want(t, 0)
	command(t, "from stdin", "push", "--api", g.URL, "--user", "alice").want(t, 0)
	command(t, "", "push", "--api", g.URL, "--user", "alice", "--no-ack", "x").want(t, 0, "accepted")
	if len(g.pushed) != 3 {
		t.Fatalf("%d pushes", len(g.pushed))
	}
	first := g.pushed[0]
	if strings.Join(first.Users, ",") != "alice,bob" || first.Device != "phone" || first.MessageID != "m1" || first.Type != "t" ||
		first.Conversation != "c" || first.TTL != "10m" || first.Priority != "urgent" || string(first.Payload) != "-dash" || first.Wait != "delivered" {
		t.Errorf("pushed %+v", first)
	}
	if string(g.pushed[1].Payload) != "from stdin" || len(g.pushed[1].MessageID) != 20 {
		t.Errorf("pushed %+v", g.pushed[1])
	}
	if g.pushed[2].Ack == nil || *g.pushed[2].Ack || g.pushed[2].Wait != "accepted" {
		t.Errorf("pushed %+v", g.pushed[2])
	}
	if g.auth != "" {
		t.Errorf("a token nobody gave: %q", g.auth)
	}
}

func TestPushReportsRefusals(t *testing.T) {
	g := newFakeGateway(t)
	g.status, g.push = http.StatusTooManyRequests, `{"error":{"code":"queue_full","message":"the user's queue is at its limit","retry_after_s":5}}`
	command(t, "", "push", "--api", g.URL, "--user", "alice", "x").want(t, exitError, "queue_full: the user's queue is at its limit")
	g.status, g.push = http.StatusUnauthorized, `{"error":{"code":"unauthorized","message":"no token"}}`
	command(t, "", "push", "--api", g.URL, "--user", "alice", "x").want(t, exitError, "HOLDFAST_API_TOKEN")
	g.status, g.message = http.StatusOK, []string{ackedByPhone}
	g.push = `{"status":"partial","deliveries":[{"user":"bob","status":"refused","error":{"code":"queue_full","message":"full"}}]}`
	command(t, "", "push", "--api", g.URL, "--user", "alice", "--user", "bob", "x").want(t, exitError, "refused for bob: queue_full: full", "acked by alice/phone")
	g.push = `{"status":"duplicate"}`
	command(t, "", "push", "--api", g.URL, "--user", "alice", "--id", "m1", "x").want(t, exitOK, "duplicate", "acked by alice/phone in 1.5 s")
	g.status, g.push = http.StatusBadGateway, "<html>"
	command(t, "", "push", "--api", g.URL, "--user", "alice", "x").want(t, exitError, "HTTP status 502")
}

func TestShortTimesClaimNoMoreThanIsKnown(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "less than 1 ms", 1840 * time.Microsecond: "1.8 ms", 42 * time.Millisecond: "42 ms", 12345 * time.Millisecond: "12.3 s",
	} {
		if got := shortTime(d); got != want {
			t.Errorf("%d ns: %q, want %q", d, got, want)
		}
	}
}

func TestPushWithoutAGatewaySaysHowToRepeatIt(t *testing.T) {
	g := newFakeGateway(t)
	g.Close()
	command(t, "", "push", "--api", g.URL, "--user", "alice", "--id", "m1", "x").
		want(t, exitUnreachable, "holdfast serve", "push it again with --id m1")
}

func TestInterruptedPushSaysHowToRepeatItAndBlamesNobody(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	g := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { cancel(); <-over }))
	defer g.Close()
	defer close(over)
	var out, errOut bytes.Buffer
	code := run(ctx, []string{"push", "--api", g.URL, "--user", "alice", "--id", "m1", "x"}, &terminal{out: &out, err: &errOut})
	r := result{code, out.String(), errOut.String()}
	r.want(t, exitUnreachable, "interrupted", "push it again with --id m1")
	if strings.Contains(r.err, "holdfast serve") {
		t.Error(r.err)
	}
}

func TestTraceTellsTheStory(t *testing.T) {
	g := newFakeGateway(t)
	command(t, "", "trace", "--api", g.URL, "m0").want(t, exitError, "no message with this id is known")
	g.message = []string{ackedByPhone + "," + sentToPhone + "," + storedForBob + "," + deadForCarol}
	command(t, "", "trace", "--api", g.URL, "m1").want(t, exitOK, "message m1, 4 deliveries",
		"alice/phone: ACKED", "acknowledged (processed) after 1.5 s", "in flight as request 7", "due: the ACK, or the ACK timeout",
		"bob: OFFLINE_BUFFERED", "not connected", "carol/tv: DEAD_LETTER (refused)", "the client refused it for good")
	r := command(t, "", "trace", "--api", g.URL, "--json", "m1")
	var m messageReply
	if err := json.Unmarshal([]byte(r.out), &m); err != nil || len(m.Deliveries) != 4 {
		t.Errorf("%v: %s", err, r.out)
	}
}

// writeKeyPair makes an Ed25519 key pair and returns the paths of its files.
func writeKeyPair(t *testing.T) (private, public string) {
	t.Helper()
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, key any, marshal func(any) ([]byte, error)) string {
		der, err := marshal(key)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("token.pem", "PRIVATE KEY", priv, x509.MarshalPKCS8PrivateKey), write("token.pub.pem", "PUBLIC KEY", pub, x509.MarshalPKIXPublicKey)
}

func TestTokenIsSignedAsAsked(t *testing.T) {
	private, public := writeKeyPair(t)
	r := command(t, "", "token", "--key", "EdDSA:k1:"+private, "--user", "alice", "--device", "phone", "--ttl", "10m")
	r.want(t, 0)
	pubPEM, err := os.ReadFile(public)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Parse(strings.TrimSpace(r.out), func(*jwt.Token) (any, error) { return jwt.ParseEdPublicKeyFromPEM(pubPEM) })
	if err != nil {
		t.Fatal(err)
	}
	claims := token.Claims.(jwt.MapClaims)
	exp, err := claims.GetExpirationTime()
	if err != nil || time.Until(exp.Time) > 10*time.Minute || time.Until(exp.Time) < 9*time.Minute {
		t.Errorf("expires %v (%v)", exp, err)
	}
	if claims["sub"] != "alice" || claims["dev"] != "phone" || claims["role"] != "client" || token.Header["kid"] != "k1" {
		t.Errorf("claims %v, header %v", claims, token.Header)
	}
	command(t, "", "token", "--key", "EdDSA:"+public, "--user", "alice").want(t, exitError, "this is the public key")
	command(t, "", "token", "--key", "EdDSA:/nowhere", "--user", "alice").want(t, exitError, "reading the signing key")
}
