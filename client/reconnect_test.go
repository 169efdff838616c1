package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/codec"
)

// watch records events as words.
func watch() (Events, chan string) {
	ch := make(chan string, 100)
	return Events{
		Connected: func(s SessionInfo) { ch <- "connected " + s.Node },
		Disconnected: func(err error, final bool) {
			word := "lost"
			if ce, ok := errors.AsType[*CloseError](err); ok {
				word = ce.Code.String()
			}
			ch <- fmt.Sprintf("disconnected %s final=%v", word, final)
		},
		Reconnecting: func(attempt int, _ time.Duration, _ string) { ch <- fmt.Sprint("reconnecting ", attempt) },
		GoAway:       func(in time.Duration, servers []string) { ch <- fmt.Sprint("goaway ", in, servers) },
	}, ch
}

func wantEvents(t *testing.T, ch chan string, want ...string) {
	t.Helper()
	for _, w := range want {
		if got := receive(t, ch); got != w {
			t.Fatalf("event %q, want %q", got, w)
		}
	}
}

func TestDialTellsWhatTheServerSaid(t *testing.T) {
	events, ch := watch()
	s := newServer(t)
	client := start(t, s, Options{Handler: newRecorder().handle, Device: "phone", ClientName: "test/1", Keepalive: 45 * time.Second,
		WindowMsgs: 10, WindowBytes: 1000, Events: events})
	_, x := s.login(func(w *codec.Welcome) { w.Backlog, w.KeepaliveS = 3, 20 })
	c := client()
	if x.Version != 1 || x.KeepaliveS != 45 || x.WindowMsgs != 10 || x.WindowBytes != 1000 || x.HasResume || x.Capabilities != 0 ||
		string(x.User) != "alice" || string(x.Device) != "phone" || string(x.ClientName) != "test/1" {
		t.Errorf("connect %+v", x)
	}
	if i := c.Session(); i.Node != "n1" || i.Backlog != 3 || i.Keepalive != 20*time.Second || i.AckTimeout != 10*time.Second ||
		i.WindowMsgs != 64 || i.SessionID != 7 || i.User != "alice" || i.Addr != s.addr() {
		t.Errorf("session %+v", i)
	}
	wantEvents(t, ch, "connected n1")
}

func TestEachCloseCodeStopsOrReconnects(t *testing.T) {
	codes := []codec.Code{codec.CodeGoingAway, codec.CodeOverloaded, codec.CodeKeepaliveTimeout, codec.CodeSlowConsumer, codec.CodeInternal,
		codec.CodeLoginTimeout, codec.CodeUnavailable, 99, codec.CodeReplaced, codec.CodeUnauthorized, codec.CodeTokenExpired, codec.CodeForbidden,
		codec.CodeVersion, codec.CodeMalformed, codec.CodeFrameTooLarge, codec.CodeUnexpectedFrame, codec.CodeBadField, codec.CodeRevoked,
		codec.CodeNormal, 199, 65535}
	for _, code := range codes {
		t.Run(fmt.Sprint(uint16(code)), func(t *testing.T) {
			s, p, c := pair(t, Options{Handler: newRecorder().handle})
			p.close(codec.Close{Code: code, Reason: []byte("because")})
			if code.Reconnect() {
				s.login()
				return
			}
			receive(t, c.Done())
			var ce *CloseError
			if err := c.Err(); !errors.As(err, &ce) || ce.Code != code || ce.Reason != "because" || ce.Local {
				t.Errorf("err %v", err)
			}
			s.quiet(10 * time.Millisecond)
		})
	}
}

// CASES further 1: the replaced client gets a distinct reason and does not come back by itself.
func TestReplacedClientDoesNotComeBack(t *testing.T) {
	events, ch := watch()
	s, p, c := pair(t, Options{Handler: newRecorder().handle, Events: events})
	p.close(codec.Close{Code: codec.CodeReplaced})
	wantEvents(t, ch, "connected n1", "disconnected replaced final=true")
	receive(t, c.Done())
	s.quiet(50 * time.Millisecond)
}

func TestLostConnectionComesBackAndEventsTellIt(t *testing.T) {
	events, ch := watch()
	r := newRecorder()
	s, p, c := pair(t, Options{Handler: r.handle, Events: events})
	p.nc.Close()
	p, _ = s.login(func(w *codec.Welcome) { w.Node = []byte("n2") })
	wantEvents(t, ch, "connected n1", "disconnected lost final=false", "reconnecting 1", "connected n2")
	p.write(push(1, "m"))
	r.next(t)
	p.acks(1)
	if st := c.Stats(); st.Logins != 2 || st.Disconnects != 1 {
		t.Errorf("stats %+v", st)
	}
}

// CASES J4: no try comes before the server's retry-after.
func TestJ4RetryAfterIsHonoured(t *testing.T) {
	s, p, _ := pair(t, Options{Handler: newRecorder().handle})
	began := time.Now()
	p.close(codec.Close{Code: codec.CodeOverloaded, RetryAfterMs: 150})
	p = s.accept()
	if d := time.Since(began); d < 150*time.Millisecond || d > 5*time.Second {
		t.Errorf("came back after %v", d)
	}
	p.connect()
	began = time.Now()
	p.close(codec.Close{Code: codec.CodeOverloaded, RetryAfterMs: 100}) // also when the login is refused
	s.login()
	if d := time.Since(began); d < 100*time.Millisecond {
		t.Errorf("came back after %v", d)
	}
}

func TestFullJitterStaysUnderItsCeilingAndSpreads(t *testing.T) {
	const base, limit = 500 * time.Millisecond, time.Minute
	for try, ceiling := range map[int]time.Duration{0: base, 1: 2 * base, 3: 8 * base, 7: limit, 20: limit, 100: limit} {
		var low, high int
		for range 2000 {
			d := fullJitter(base, limit, try)
			if d < 0 || d >= ceiling {
				t.Fatalf("try %d: %v", try, d)
			}
			if d < ceiling/4 {
				low++
			}
			if d > ceiling*3/4 {
				high++
			}
		}
		if low < 350 || high < 350 {
			t.Errorf("try %d: %d in the lowest and %d in the highest quarter of 2000", try, low, high)
		}
	}
}

func TestDialGivesUpAfterItsAttempts(t *testing.T) {
	var dialled atomic.Int32
	refuse := func(context.Context, string) (net.Conn, error) { dialled.Add(1); return nil, errors.New("refused") }
	o := Options{Addrs: []string{"a:1"}, User: "alice", Publisher: true, DialConn: refuse, DialAttempts: 3, BackoffBase: time.Millisecond, BackoffMax: 2 * time.Millisecond}
	if _, err := Dial(context.Background(), o); err == nil || !strings.Contains(err.Error(), "refused") || dialled.Load() != 3 {
		t.Errorf("%v after %d", err, dialled.Load())
	}
	o.DialAttempts = -1
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, o); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "refused") {
		t.Error(err)
	}
}

func TestDialReportsARefusedLoginAtOnce(t *testing.T) {
	s := newServer(t)
	ch := make(chan error, 1)
	go func() {
		_, err := Dial(context.Background(), Options{Addrs: []string{s.addr()}, User: "alice", Publisher: true, DialAttempts: -1})
		ch <- err
	}()
	p := s.accept()
	p.connect()
	p.close(codec.Close{Code: codec.CodeUnauthorized, Reason: []byte("no token")})
	var ce *CloseError
	if err := receive(t, ch); !errors.As(err, &ce) || ce.Code != codec.CodeUnauthorized || !strings.Contains(err.Error(), "no token") {
		t.Error(err)
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	s := newServer(t)
	ctx, cancel := context.WithCancel(context.Background())
	ch := make(chan error, 1)
	go func() {
		_, err := Dial(ctx, Options{Addrs: []string{s.addr()}, User: "alice", Publisher: true})
		ch <- err
	}()
	s.accept().connect() // and never answers
	cancel()
	if err := receive(t, ch); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestSilentServerIsGivenUpAfterTheDialTimeout(t *testing.T) {
	s := newServer(t)
	_, err := Dial(context.Background(), Options{Addrs: []string{s.addr()}, User: "alice", Publisher: true, DialTimeout: 30 * time.Millisecond})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestExpiredTokenIsRenewedAndOthersAreReused(t *testing.T) {
	var asked atomic.Int32
	token := func(context.Context) (string, error) { return fmt.Sprint("token", asked.Add(1)), nil }
	s := newServer(t)
	client := start(t, s, Options{Handler: newRecorder().handle, Token: token})
	p, x := s.login()
	c := client()
	if string(x.Token) != "token1" {
		t.Errorf("token %s", x.Token)
	}
	p.nc.Close()
	p, x = s.login()
	if string(x.Token) != "token1" {
		t.Errorf("token %s after a lost connection", x.Token)
	}
	p.close(codec.Close{Code: codec.CodeTokenExpired})
	for i := range 4 { // fresh ones as well: a clock is wrong, which may be put right
		p = s.accept()
		if x = p.connect(); string(x.Token) != fmt.Sprint("token", i+2) {
			t.Errorf("token %s after token_expired", x.Token)
		}
		p.close(codec.Close{Code: codec.CodeTokenExpired})
	}
	s.login()
	eventually(t, "logged in", func() bool { return c.Stats().Logins == 3 })
}

func TestTokenErrorIsTriedAgain(t *testing.T) {
	var asked atomic.Int32
	token := func(context.Context) (string, error) {
		if asked.Add(1) < 3 {
			return "", errors.New("identity service away")
		}
		return "good", nil
	}
	s := newServer(t)
	client := start(t, s, Options{Handler: newRecorder().handle, Token: token, DialAttempts: 5})
	if _, x := s.login(); string(x.Token) != "good" || asked.Load() != 3 {
		t.Errorf("token %s after %d", x.Token, asked.Load())
	}
	client()
}

// CASES further 7: whatever the server makes of the resume fields, one login suffices.
func TestResumeNamesTheLastSessionAndWhatWasSeen(t *testing.T) {
	r := newRecorder()
	s, p, _ := pair(t, Options{Handler: r.handle})
	p.write(push(1, "a"), push(4, "b"))
	p.acks(2)
	p.nc.Close()
	p, x := s.login(func(w *codec.Welcome) { w.SessionID = 99 })
	if !x.HasResume || x.ResumeSession != 7 || x.ResumeNumberSeen != 4 {
		t.Errorf("%+v", x)
	}
	p.nc.Close() // nothing was received in this one (further 6)
	_, x = s.login()
	if !x.HasResume || x.ResumeSession != 99 || x.ResumeNumberSeen != 0 {
		t.Errorf("%+v", x)
	}
}

// CASES J1: the client leaves when it was told to, to where it was told, and confirms on the old connection first.
func TestJ1GoAwayMovesTheClientAfterItsWait(t *testing.T) {
	other := newServer(t)
	events, ch := watch()
	s, p, c, r := held(t, Options{AckDelay: patience, Events: events})
	m := take(t, p, r, 1, 2)
	m[1].Ack()
	began := time.Now()
	p.write(codec.AppendGoAway(nil, &codec.GoAway{ReconnectAfterMs: 80, DeadlineMs: 5000, Servers: []byte(" " + other.addr() + " ,")}))
	next := other.accept()
	if d := time.Since(began); d < 80*time.Millisecond || d > 5*time.Second {
		t.Errorf("moved after %v", d)
	}
	if got := ackWords(p.ack()); got != "processed 1" {
		t.Error(got)
	}
	var x codec.Close
	if err := codec.DecodeClose(p.expect(codec.TypeClose), &x); err != nil || x.Code != codec.CodeNormal {
		t.Errorf("close %+v %v", x, err)
	}
	p.ended()
	p.nc.Close()
	next.connect()
	next.welcome(func(w *codec.Welcome) { w.Node = []byte("n2") })
	m[2].Ack()
	if got := ackWords(next.ack()); got != "processed id m2" {
		t.Error(got)
	}
	wantEvents(t, ch, "connected n1", fmt.Sprintf("goaway 80ms [%s]", other.addr()), "connected n2")
	if c.Session().Addr != other.addr() {
		t.Error(c.Session().Addr)
	}
	s.quiet(10 * time.Millisecond)
}

func TestGoAwayKeepsTheOldConnectionUntilANewOneIsThere(t *testing.T) {
	var tries atomic.Int32
	var up atomic.Bool
	s := newServer(t)
	r := newRecorder()
	client := start(t, s, Options{Handler: r.handle, DialConn: func(ctx context.Context, addr string) (net.Conn, error) {
		if tries.Add(1) > 1 && !up.Load() {
			return nil, errors.New("not there")
		}
		return dialTCP(ctx, addr)
	}})
	p, _ := s.login()
	client()
	p.write(codec.AppendGoAway(nil, &codec.GoAway{DeadlineMs: 60000, Servers: []byte("gone:1")}))
	eventually(t, "tries", func() bool { return tries.Load() > 3 })
	p.write(push(1, "m"))
	r.next(t) // still served
	p.acks(1)
	s.hangUp()
	up.Store(true)
	p2, _ := s.login()
	p2.write(push(1, "m2"))
	r.next(t)
}

func TestCloseNamesServersForTheNextTry(t *testing.T) {
	other := newServer(t)
	s, p, _ := pair(t, Options{Handler: newRecorder().handle})
	p.close(codec.Close{Code: codec.CodeGoingAway, Servers: []byte(other.addr())})
	p, _ = other.login()
	p.nc.Close()
	s.login() // a hint is used once
}

func TestTargetsTakeTurnsFromARandomStart(t *testing.T) {
	starts := map[string]bool{}
	for range 100 {
		tg := newTargets([]string{"a", "b", "c"})
		first := tg.next()
		starts[first] = true
		if seen := map[string]bool{first: true, tg.next(): true, tg.next(): true}; len(seen) != 3 {
			t.Fatal("an address was left out")
		}
		tg.hint([]string{"x", "y"})
		if seen := map[string]bool{tg.next(): true, tg.next(): true}; !seen["x"] || !seen["y"] {
			t.Fatal("hints come first")
		}
		if next := tg.next(); next != first {
			t.Fatalf("%s after the hints, want %s", next, first)
		}
	}
	if len(starts) != 3 {
		t.Errorf("starts %v", starts)
	}
}

func TestNoReconnectEndsWithTheFirstConnection(t *testing.T) {
	s, p, c := pair(t, Options{Handler: newRecorder().handle, NoReconnect: true})
	p.close(codec.Close{Code: codec.CodeInternal})
	receive(t, c.Done())
	s.quiet(10 * time.Millisecond)
	if c.Err() == nil {
		t.Error("no reason")
	}
}

func TestOptionsThatCannotWorkAreNamed(t *testing.T) {
	h := newRecorder().handle
	for want, o := range map[string]Options{
		"Addrs":        {User: "a", Handler: h},
		"Handler":      {Addrs: []string{"x"}, User: "a"},
		"User is":      {Addrs: []string{"x"}, Handler: h},
		`User "a\n"`:   {Addrs: []string{"x"}, User: "a\n", Handler: h},
		"Device":       {Addrs: []string{"x"}, User: "a", Device: "\x7f", Handler: h},
		"Inline":       {Addrs: []string{"x"}, User: "a", Handler: h, Inline: true, Concurrency: 2},
		"Concurrency":  {Addrs: []string{"x"}, User: "a", Handler: h, Concurrency: -1},
		"AckBatch":     {Addrs: []string{"x"}, User: "a", Handler: h, AckBatch: 257},
		"PublishBatch": {Addrs: []string{"x"}, User: "a", Handler: h, PublishBatch: 5000},
		"PublishQueue": {Addrs: []string{"x"}, User: "a", Handler: h, PublishQueue: -1},
		"BackoffMax":   {Addrs: []string{"x"}, User: "a", Handler: h, BackoffBase: time.Hour},
		"duration":     {Addrs: []string{"x"}, User: "a", Handler: h, Keepalive: -1},
		"window":       {Addrs: []string{"x"}, User: "a", Handler: h, WindowMsgs: -1},
	} {
		if _, err := Dial(context.Background(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// A server that lets a token in and calls it expired at once (two clocks) must not make the client spin.
func TestTokenThatExpiresRightAfterTheLoginBacksOff(t *testing.T) {
	s := newServer(t)
	client := start(t, s, Options{Handler: newRecorder().handle, BackoffBase: time.Hour, BackoffMax: time.Hour,
		Token: func(context.Context) (string, error) { return rand.Text(), nil }})
	p, _ := s.login()
	client()
	p.close(codec.Close{Code: codec.CodeTokenExpired})
	p, _ = s.login() // the first one is renewed at once
	p.close(codec.Close{Code: codec.CodeTokenExpired})
	s.quiet(200 * time.Millisecond)
}

func TestExpiredTokenGivenAgainEndsTheClient(t *testing.T) {
	s := newServer(t)
	client := start(t, s, Options{Handler: newRecorder().handle, Token: func(context.Context) (string, error) { return "token", nil }})
	p, _ := s.login()
	c := client()
	p.close(codec.Close{Code: codec.CodeTokenExpired})
	receive(t, c.Done())
	if ce, ok := errors.AsType[*CloseError](c.Err()); !ok || ce.Code != codec.CodeTokenExpired {
		t.Error(c.Err())
	}
	s.quiet(10 * time.Millisecond)
}
