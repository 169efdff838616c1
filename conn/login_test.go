package conn

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/codec"
)

// stream is a mix of frames a client may send after its login, with what the handler must be told.
func stream(n int) (data []byte, want []string) {
	for i := range n {
		before := len(data)
		switch i % 4 {
		case 0:
			data = codec.AppendAckOne(data, uint64(i+1), codec.LevelReceived)
		case 1:
			data = codec.AppendNack(data, &codec.Nack{Number: uint64(i + 1), Reason: []byte("later")})
		case 2:
			data = codec.AppendPing(data, []byte{1, 2, 3})
			continue
		case 3:
			data = codec.AppendSend(data, &codec.Send{
				ClientMessageID: []byte("m"), Conversation: []byte("c"), Payload: []byte(strings.Repeat("x", i%300))})
		}
		f, used, err := codec.Parse(data[before:], codec.FrameBytesMax)
		if err != nil || used != len(data)-before {
			panic("the test's own frame does not parse")
		}
		want = append(want, frameText(f))
	}
	return data, want
}

// I1: one byte a write, all in one write, cut at every offset: the same frames, each once, in order.
func TestI1SameFramesForEveryCut(t *testing.T) {
	data, want := stream(40)
	all := append(connect("alice", "phone"), data...)
	run := func(name string, pieces ...[]byte) {
		r := newRecorder()
		s := start(t, Config{Loops: 1}, r)
		p := dial(t, s)
		for _, piece := range pieces {
			p.send(piece)
		}
		r.wait(t, name, func() bool { return len(r.frames) >= len(want) })
		p.expect(codec.TypeWelcome)
		for range 10 {
			p.expect(codec.TypePong)
		}
		if got := r.seen(); !slices.Equal(got, want) {
			t.Fatalf("%s: got %d frames %v", name, len(got), got)
		}
		p.Close()
		stop(t, s)
	}
	run("all in one write", all)
	var bytes [][]byte
	for i := range all {
		bytes = append(bytes, all[i:i+1])
	}
	run("one byte a write", bytes...)

	r := newRecorder()
	s := start(t, Config{Loops: 1}, r)
	data, want = stream(8)
	all = append(connect("alice", "phone"), data...)
	for cut := 1; cut < len(all); cut++ {
		r.mu.Lock()
		r.frames = nil
		r.mu.Unlock()
		p := dial(t, s)
		p.send(all[:cut])
		p.send(all[cut:])
		r.wait(t, "a cut stream", func() bool { return len(r.frames) >= len(want) })
		if got := r.seen(); !slices.Equal(got, want) {
			t.Fatalf("cut at %d: %v", cut, got)
		}
		p.Close()
	}
}

// I1: frames behind the login in the same write are handled after a good login, behind the WELCOME, however late it is given.
func TestI1PipelinedFramesWaitForOpen(t *testing.T) {
	r := newRecorder()
	pending := make(chan *Session, 1)
	r.login = func(s *Session, _ *codec.Connect, _ Identity) { pending <- s }
	s := start(t, Config{}, r)
	p := dial(t, s)
	data, want := stream(53)
	p.send(append(connect("alice", "phone"), data...))
	session := <-pending
	p.send(codec.AppendPing(nil, nil))
	if n := len(r.seen()); n != 0 {
		t.Fatalf("%d frames handled before the login was accepted", n)
	}
	if session.Send([]byte{2, 4, 0}) {
		t.Fatal("Send works before Open")
	}
	if !session.Open("attached", welcome(session)) {
		t.Fatal("Open refused")
	}
	if session.Open("again", welcome(session)) {
		t.Fatal("a session opened twice")
	}
	if session.Attachment() != "attached" {
		t.Fatalf("attachment %v", session.Attachment())
	}
	p.expect(codec.TypeWelcome)
	r.wait(t, "the pipelined frames", func() bool { return len(r.frames) >= len(want) })
	if got := r.seen(); !slices.Equal(got, want) {
		t.Fatalf("got %v", got)
	}
}

// I1: after a refused login nothing that was pipelined behind it has an effect.
func TestI1RefusedLoginDropsWhatFollows(t *testing.T) {
	r := newRecorder()
	pending := make(chan *Session, 1)
	r.login = func(s *Session, _ *codec.Connect, _ Identity) { pending <- s }
	s := start(t, Config{}, r)
	p := dial(t, s)
	data, _ := stream(50)
	p.send(append(connect("alice", "phone"), data...))
	session := <-pending
	session.Close(codec.CodeUnavailable, "store does not answer", 1500)
	if session.Open(nil, welcome(session)) {
		t.Fatal("Open works after Close")
	}
	if c := p.expectClose(codec.CodeUnavailable); c.RetryAfterMs != 1500 || string(c.Reason) != "store does not answer" {
		t.Fatalf("got %+v", c)
	}
	r.wait(t, "Closed", func() bool { return r.closings[session] == 1 })
	if n := len(r.seen()); n != 0 {
		t.Fatalf("%d frames of a refused login were handled", n)
	}
}

// Wrong logins are answered with their code, and the handler never hears of them.
func TestWrongLoginsAreRefused(t *testing.T) {
	r := newRecorder()
	s := start(t, Config{}, r)
	other := codec.AppendConnect(nil, &codec.Connect{Version: 9, User: []byte("a"), Device: []byte("d")})
	for name, c := range map[string]struct {
		data []byte
		code codec.Code
	}{
		"no connect":     {codec.AppendPing(nil, nil), codec.CodeUnexpectedFrame},
		"other version":  {other, codec.CodeVersion},
		"no user":        {connect("", "phone"), codec.CodeBadField},
		"no device":      {connect("alice", ""), codec.CodeBadField},
		"control char":   {connect("al\x01ice", "phone"), codec.CodeBadField},
		"no utf-8":       {connect("al\xffice", "phone"), codec.CodeBadField},
		"user too long":  {connect(strings.Repeat("u", codec.UserBytesMax+1), "phone"), codec.CodeBadField},
		"token too long": {longToken(), codec.CodeBadField},
		"garbage":        {[]byte("GET / HTTP/1.1\r\n\r\n" + strings.Repeat("x", 100)), codec.CodeMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			p := dial(t, s)
			data, _ := stream(8)
			p.send(append(c.data, data...))
			p.expectClose(c.code)
		})
	}
	eventually(t, "all connections to go", func() bool { return s.Stats().Conns == 0 })
	if st := s.Stats(); st.LoginsRefused[codec.CodeBadField] != 6 || st.LoginsRefused[codec.CodeVersion] != 1 {
		t.Fatalf("refusals counted: %v", st.LoginsRefused)
	}
	if r.logins != 0 || len(r.frames) != 0 || len(r.closings) != 0 {
		t.Fatalf("the handler saw %d logins, %d frames, %d ends", r.logins, len(r.frames), len(r.closings))
	}
}

func longToken() []byte {
	return codec.AppendConnect(nil, &codec.Connect{Version: 1, User: []byte("a"), Device: []byte("d"), Token: make([]byte, codec.TokenBytesMax+1)})
}

// I3: a connection that has not logged in is closed at the limit, whatever trickles in.
func TestI3TrickleBeforeLoginIsCutAtTheLimit(t *testing.T) {
	t.Parallel()
	s := start(t, Config{LoginTimeout: time.Second}, newRecorder())
	began := time.Now()
	p := dial(t, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, b := range connect(strings.Repeat("u", 100), "phone") {
			if _, err := p.Write([]byte{b}); err != nil {
				return
			}
			time.Sleep(30 * time.Millisecond)
		}
	}()
	p.expectClose(codec.CodeLoginTimeout)
	if took := time.Since(began); took < time.Second || took > 2500*time.Millisecond {
		t.Fatalf("cut after %s", took)
	}
	p.Close()
	<-done
}

// A login that the store does not answer is cut at the limit too, and its end is told.
func TestUnansweredLoginIsCutAtTheLimit(t *testing.T) {
	t.Parallel()
	r := newRecorder()
	r.login = func(*Session, *codec.Connect, Identity) {}
	s := start(t, Config{LoginTimeout: 500 * time.Millisecond}, r)
	p := dial(t, s)
	p.send(connect("alice", "phone"))
	p.expectClose(codec.CodeLoginTimeout)
	r.wait(t, "Closed", func() bool { return len(r.closings) == 1 })
}

// What waits behind a login is bounded.
func TestBytesBehindALoginAreBounded(t *testing.T) {
	r := newRecorder()
	r.login = func(*Session, *codec.Connect, Identity) {}
	s := start(t, Config{LoginBytesMax: 8 << 10}, r)
	p := dial(t, s)
	data, _ := stream(2000)
	p.send(append(connect("alice", "phone"), data...))
	p.expectClose(codec.CodeOverloaded)
}

// The wish of the client is moved into the configured bounds.
func TestKeepaliveIsNegotiated(t *testing.T) {
	s := start(t, Config{KeepaliveMin: 5 * time.Second, KeepaliveMax: 100 * time.Second, KeepaliveDefault: 50 * time.Second}, newRecorder())
	for wishS, want := range map[uint64]uint64{0: 50, 1: 5, 60: 60, 1 << 60: 100} {
		p := dial(t, s)
		p.send(codec.AppendConnect(nil, &codec.Connect{Version: 1, User: []byte("a"), Device: []byte("d"), KeepaliveS: wishS}))
		var w codec.Welcome
		if err := codec.DecodeWelcome(p.expect(codec.TypeWelcome), &w); err != nil {
			t.Fatal(err)
		}
		if w.KeepaliveS != want {
			t.Errorf("wished %d, got %d, want %d", wishS, w.KeepaliveS, want)
		}
	}
}

// The handler can tell a login whose client has left meanwhile.
func TestPeerShutTellsWhoHasLeft(t *testing.T) {
	r := newRecorder()
	type seen struct{ before, after bool }
	result := make(chan seen, 2)
	leave := make(chan func() error, 2)
	r.login = func(s *Session, _ *codec.Connect, _ Identity) {
		before := s.PeerShut()
		_ = (<-leave)() // over loopback the kernel knows at once
		result <- seen{before, s.PeerShut()}
		s.Open(nil, welcome(s))
	}
	s := start(t, Config{}, r)
	for name, how := range map[string]func(p *peer) error{
		"fin": func(p *peer) error { return p.CloseWrite() },
		"rst": func(p *peer) error { return errors.Join(p.SetLinger(0), p.Close()) },
	} {
		p := dial(t, s)
		leave <- func() error { return how(p) }
		p.send(connect("alice", "phone"))
		if got := <-result; got.before || !got.after {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
