package conn

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"holdfast/codec"
)

func sendFrame(id string) []byte {
	return codec.AppendSend(nil, &codec.Send{ClientMessageID: []byte(id), Conversation: []byte("c"), Payload: []byte("p")})
}

func pushFrame(n int, payload []byte) []byte {
	return codec.AppendPush(nil, &codec.Push{Number: uint64(n), Attempt: 1, MessageID: []byte(strconv.Itoa(n)), Payload: payload})
}

// I5: everything sent before the FIN takes effect, replies that are due come, then the server closes.
func TestI5HalfCloseKeepsWhatWasSent(t *testing.T) {
	r := newRecorder()
	r.frame = func(s *Session, f codec.Frame) (codec.Code, string) {
		if f.Type == codec.TypeSend {
			s.SendControl(codec.AppendSent(nil, &codec.Sent{ClientMessageID: []byte("x"), MessageID: []byte("y")}))
		}
		return codec.CodeNone, ""
	}
	s := start(t, Config{}, r)
	p := dial(t, s).login("alice")
	var data []byte
	for i := range 50 {
		data = codec.AppendAckOne(data, uint64(i+1), 0)
	}
	for i := range 20 {
		data = append(data, sendFrame(strconv.Itoa(i))...)
	}
	p.send(data)
	if err := p.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	r.wait(t, "all frames and the end", func() bool { return len(r.frames) == 70 && len(r.closings) == 1 })
	for range 20 {
		p.expect(codec.TypeSent)
	}
	if _, err := p.next(); !errors.Is(err, io.EOF) {
		t.Fatalf("behind the replies: %v", err)
	}
	eventually(t, "the socket to be freed", func() bool { return s.Stats().Conns == 0 })
}

// C1: ACKs sent just before a reset count, also when the server finds the reset by writing.
func TestC1FramesBeforeAResetCount(t *testing.T) {
	for _, full := range []bool{false, true} {
		t.Run(fmt.Sprintf("outbox full %v", full), func(t *testing.T) {
			r := newRecorder()
			sessions := make(chan *Session, 1)
			r.login = func(s *Session, _ *codec.Connect, _ Identity) { s.Open(nil, welcome(s)); sessions <- s }
			s := start(t, Config{}, r)
			p := dial(t, s).login("alice")
			session := <-sessions
			for payload := make([]byte, 32<<10); full && session.Send(pushFrame(1, payload)); {
			}
			for i := range 5 {
				p.send(codec.AppendAckOne(nil, uint64(i+1), 0))
			}
			if err := p.SetLinger(0); err != nil {
				t.Fatal(err)
			}
			p.Close()
			r.wait(t, "five ACKs and the end", func() bool { return len(r.frames) == 5 && r.closings[session] == 1 })
			if session.Send([]byte("x")) || session.SendControl([]byte("x")) || session.Unsent() != 0 {
				t.Fatal("a closed session takes frames")
			}
		})
	}
}

// CLOSE comes behind what is queued; repeats do nothing; the code of the first is kept.
func TestCloseComesBehindWhatIsQueued(t *testing.T) {
	r := newRecorder()
	sessions := make(chan *Session, 1)
	r.login = func(s *Session, _ *codec.Connect, _ Identity) { s.Open(nil, welcome(s)); sessions <- s }
	s := start(t, Config{}, r)
	p := dial(t, s).login("alice")
	session := <-sessions
	for i := range 100 {
		if !session.Send(pushFrame(i+1, nil)) {
			t.Fatal("refused")
		}
	}
	session.Close(codec.CodeReplaced, "logged in elsewhere", 0)
	session.Close(codec.CodeInternal, "again", 0)
	if session.Send([]byte("x")) {
		t.Fatal("Send works behind Close")
	}
	for range 100 {
		p.expect(codec.TypePush)
	}
	p.expectClose(codec.CodeReplaced)
	r.wait(t, "Closed", func() bool { return r.closings[session] == 1 })
	if session.CloseCode() != codec.CodeReplaced {
		t.Fatalf("code %v", session.CloseCode())
	}
}

// A peer that is still sending megabytes reads the reason all the same: the server does not answer unread bytes with a reset.
func TestCloseReachesAPeerThatIsStillSending(t *testing.T) {
	s := start(t, Config{}, newRecorder())
	p := dial(t, s).login("alice")
	p.send(append(header(1<<20), make([]byte, 300<<10)...))
	p.expectClose(codec.CodeFrameTooLarge)
}

// A peer that never closes does not keep its socket beyond the linger limit.
func TestLingerIsBounded(t *testing.T) {
	r := newRecorder()
	s := start(t, Config{LingerTimeout: 300 * time.Millisecond}, r)
	p := dial(t, s).login("alice")
	p.send(connect("alice", "phone"))
	p.expectClose(codec.CodeUnexpectedFrame)
	eventually(t, "the socket to be freed", func() bool { return s.Stats().Conns == 0 })
}

// A session that is over never writes into the socket that got its descriptor. Writers hold on to every session there was, while
// descriptors go from client to client.
func TestStaleSessionNeverWritesIntoAnotherSocket(t *testing.T) {
	r := newRecorder()
	var mu sync.Mutex
	var all []*Session
	r.login = func(s *Session, _ *codec.Connect, _ Identity) {
		s.Open(nil, welcome(s))
		mu.Lock()
		all = append(all, s)
		mu.Unlock()
	}
	s := start(t, Config{Loops: 2}, r)
	stopWriters := make(chan struct{})
	var writers sync.WaitGroup
	for range 2 {
		writers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stopWriters:
					return
				default:
				}
				mu.Lock()
				list := all
				mu.Unlock()
				for _, session := range list[max(0, len(list)-50):] {
					session.Send(pushFrame(1, []byte(r.user(session))))
					session.Unsent()
				}
				time.Sleep(100 * time.Microsecond)
			}
		})
	}
	var clients sync.WaitGroup
	for c := range 4 {
		clients.Go(func() {
			for i := range 60 {
				user := fmt.Sprintf("user-%d-%d", c, i)
				p := dial(t, s)
				p.send(connect(user, "phone"))
				for range 3 {
					f, err := p.next()
					if err != nil {
						t.Errorf("%s: %v", user, err)
						return
					}
					var push codec.Push
					if f.Type == codec.TypePush && (codec.DecodePush(f, &push) != nil || string(push.Payload) != user) {
						t.Errorf("%s got a frame of %q", user, push.Payload)
					}
				}
				if i%2 == 0 {
					_ = p.SetLinger(0)
				}
				p.Close()
			}
		})
	}
	clients.Wait()
	close(stopWriters)
	writers.Wait()
	r.wait(t, "every end once", func() bool { return len(r.closings) == 240 })
	for session, n := range r.closings {
		if n != 1 {
			t.Fatalf("Closed called %d times for %d", n, session.ID())
		}
	}
}

// Send, SendControl, Unsent and Close from many goroutines: frames of one writer stay in order, Closed comes once.
func TestConcurrentSendAndClose(t *testing.T) {
	const rounds, writers = 30, 6
	r := newRecorder()
	sessions := make(chan *Session, 1)
	r.login = func(s *Session, _ *codec.Connect, _ Identity) { s.Open(nil, welcome(s)); sessions <- s }
	s := start(t, Config{Loops: 2}, r)
	for round := range rounds {
		p := dial(t, s).login("alice")
		session := <-sessions
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for i := 1; i <= 200; i++ {
					frame := pushFrame(i, []byte{byte(w)})
					if w%2 == 0 {
						session.Send(frame)
					} else {
						session.SendControl(frame)
					}
					session.Unsent()
				}
			})
		}
		for range 2 {
			wg.Go(func() {
				if round%2 == 0 {
					session.Close(codec.CodeReplaced, "", 0)
				}
			})
		}
		var last [writers]uint64
		for range writers * 200 {
			f, err := p.next()
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			if f.Type == codec.TypeClose {
				break
			}
			var push codec.Push
			if err := codec.DecodePush(f, &push); err != nil {
				t.Fatal(err)
			}
			if w := push.Payload[0]; push.Number <= last[w] {
				t.Fatalf("writer %d: %d behind %d", w, push.Number, last[w])
			} else {
				last[w] = push.Number
			}
		}
		p.Close()
		wg.Wait()
	}
	r.wait(t, "every end once", func() bool { return len(r.closings) == rounds })
	for _, n := range r.closings {
		if n != 1 {
			t.Fatalf("Closed called %d times", n)
		}
	}
}

// K1: connecting and leaving in every wrong way leaves nothing behind. TestMain checks goroutines.
func TestK1ChurnLeavesNothing(t *testing.T) {
	r := newRecorder()
	s := start(t, Config{}, r)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 100 {
				c, err := net.Dial("tcp", s.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				switch i % 4 {
				case 1:
					_, _ = c.Write(connect("", "refused"))
				case 2:
					_, _ = c.Write(connect("alice", "phone")[:5])
				case 3:
					_, _ = c.Write(connect("alice", "phone"))
				}
				c.Close()
			}
		})
	}
	wg.Wait()
	eventually(t, "all connections to go", func() bool { st := s.Stats(); return st.Conns == 0 && st.Closes == 400 })
	r.wait(t, "an end for every login", func() bool { return len(r.closings) == r.logins })
	for _, l := range s.allLoops() {
		l.each(func(*Session) { t.Error("a session is still on a wheel") })
	}
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	if n := len(s.watch.armed); n != 0 {
		t.Errorf("%d sessions still watched", n)
	}
}

// A slow reader that is closed while its socket is full still learns why, as long as it goes on reading.
func TestReasonReachesASlowReader(t *testing.T) {
	t.Parallel()
	r := newRecorder()
	_, session, p := opened(t, Config{LingerTimeout: 400 * time.Millisecond}, r)
	for payload := make([]byte, 8<<10); session.Send(pushFrame(1, payload)); {
	}
	session.Close(codec.CodeReplaced, "logged in elsewhere", 0)
	var chunk [16 << 10]byte
	for range 12 { // about a second, well over the linger limit
		time.Sleep(80 * time.Millisecond)
		n, err := p.r.Read(chunk[:])
		if err != nil {
			t.Fatal(err)
		}
		p.buf = append(p.buf, chunk[:n]...)
	}
	p.expectClose(codec.CodeReplaced)
}

// C1: what the peer had sent when the session is closed from elsewhere (a takeover) is still handled, before Closed: its ACKs count.
func TestC1WhatHasArrivedIsHandledBeforeAClose(t *testing.T) {
	r := newRecorder()
	sessions := make(chan *Session, 2)
	r.login = func(s *Session, _ *codec.Connect, _ Identity) { s.Open(nil, welcome(s)); sessions <- s }
	entered, goOn := make(chan struct{}), make(chan struct{})
	r.frame = func(from *Session, _ codec.Frame) (codec.Code, string) {
		if r.user(from) == "bob" {
			close(entered) // the loop is busy: nothing of the old connection is read
			<-goOn
		}
		return codec.CodeNone, ""
	}
	s := start(t, Config{Loops: 1}, r)
	old := dial(t, s).login("alice")
	oldSession := <-sessions
	other := dial(t, s).login("bob")
	other.send(codec.AppendAckOne(nil, 1, codec.LevelReceived))
	<-entered
	var acks []byte
	for i := range uint64(40) {
		acks = codec.AppendAckOne(acks, 100+i, codec.LevelReceived)
	}
	old.send(acks) // over loopback: in the socket when send returns
	oldSession.Close(codec.CodeReplaced, "logged in elsewhere", 0)
	close(goOn)
	r.wait(t, "Closed", func() bool { return r.closings[oldSession] == 1 })
	if n := len(r.seen()); n != 41 {
		t.Fatalf("%d frames were handled, want 41", n)
	}
	old.expectClose(codec.CodeReplaced)
}

// C1: the same for a stop: the ACKs that have arrived by then count, however many reads they take.
func TestC1WhatHasArrivedIsHandledBeforeAStop(t *testing.T) {
	r := newRecorder()
	entered, goOn := make(chan struct{}), make(chan struct{})
	r.frame = func(from *Session, _ codec.Frame) (codec.Code, string) {
		if r.user(from) == "bob" {
			close(entered) // the loop is busy: nothing of the others is read
			<-goOn
		}
		return codec.CodeNone, ""
	}
	s := start(t, Config{Loops: 1}, r)
	p, other := dial(t, s).login("alice"), dial(t, s).login("bob")
	other.send(codec.AppendAckOne(nil, 1, codec.LevelReceived))
	<-entered
	const bytesMin = 100 << 10 // more than one read of an event loop takes
	var acks []byte
	n := 1
	for ; len(acks) < bytesMin; n++ {
		acks = codec.AppendAckOne(acks, uint64(n), codec.LevelReceived)
	}
	p.send(acks)
	done := make(chan struct{})
	go func() { defer close(done); stop(t, s) }()
	eventually(t, "the loop is told to end", func() bool {
		return slices.ContainsFunc(s.allLoops(), func(l *loop) bool { return l.endDue.Load() })
	})
	close(goOn)
	p.expectClose(codec.CodeGoingAway)
	p.Close()
	other.Close()
	<-done
	if got := len(r.seen()); got != n {
		t.Fatalf("%d frames were handled, want %d", got, n)
	}
}
