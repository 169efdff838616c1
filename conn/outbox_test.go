package conn

import (
	"testing"
	"time"

	"holdfast/codec"
)

// opened logs a client in and returns both ends.
func opened(t *testing.T, cfg Config, r *recorder) (*Server, *Session, *peer) {
	t.Helper()
	sessions := make(chan *Session, 1)
	r.login = func(s *Session, _ *codec.Connect, _ Identity) { s.Open(nil, welcome(s)); sessions <- s }
	s := start(t, cfg, r)
	p := dial(t, s)
	if err := p.SetReadBuffer(16 << 10); err != nil {
		t.Fatal(err)
	}
	p.login("alice")
	return s, <-sessions, p
}

// E6: a slow reader is told off by Send, never dropped: above the high watermark Send refuses, control frames still go, Drained
// follows once below the low one, and every frame that was taken arrives in order.
func TestE6SlowReaderAndWatermarks(t *testing.T) {
	r := newRecorder()
	drained := make(chan struct{}, 16)
	r.drained = func(*Session) { drained <- struct{}{} }
	s, session, p := opened(t, Config{}, r)
	taken := 0
	for payload := make([]byte, 1000); session.Send(pushFrame(taken+1, payload)); taken++ {
	}
	unsent := session.Unsent()
	if unsent < 256<<10 || unsent > 4<<20 {
		t.Fatalf("%d bytes unsent after %d frames", unsent, taken)
	}
	if !session.SendControl(codec.AppendSent(nil, &codec.Sent{ClientMessageID: []byte("m"), MessageID: []byte("id")})) {
		t.Fatal("a control frame was refused above the high watermark")
	}
	p.send(codec.AppendPing(nil, nil))
	select {
	case <-drained:
		t.Fatal("Drained though nothing was read")
	default:
	}
	var push codec.Push
	for n := 1; n <= taken; n++ {
		if err := codec.DecodePush(p.expect(codec.TypePush), &push); err != nil || push.Number != uint64(n) {
			t.Fatalf("frame %d is %d, %v", n, push.Number, err)
		}
	}
	p.expect(codec.TypeSent)
	p.expect(codec.TypePong)
	<-drained
	if !session.Send(pushFrame(1, nil)) {
		t.Fatal("Send refused after Drained")
	}
	p.expect(codec.TypePush)
	eventually(t, "everything to be acknowledged by the peer's TCP", func() bool { return session.Unsent() == 0 })
	if st := s.Stats(); st.OutboxFull == 0 || len(drained) != 0 {
		t.Fatalf("%d refusals counted, %d further Drained", st.OutboxFull, len(drained))
	}
}

// The count of frames bounds the outbox too.
func TestOutboxIsBoundedByFrames(t *testing.T) {
	_, session, p := opened(t, Config{OutboxHighFrames: 1000}, newRecorder())
	big := 0
	for payload := make([]byte, 16<<10); session.Unsent() < 1<<20 && session.Send(pushFrame(1, payload)); big++ {
	}
	// The kernel is full now. Let the outbox take small ones.
	for range big / 2 {
		p.expect(codec.TypePush)
	}
	small := 0
	for ; session.Send(pushFrame(1, nil)); small++ {
		if small > 100_000 {
			t.Fatal("no bound")
		}
	}
}

// Further report 9: beyond the hard limit the connection ends with a reason that a reader that wakes up still gets.
func TestHardLimitClosesASlowConsumer(t *testing.T) {
	r := newRecorder()
	s, session, p := opened(t, Config{LingerTimeout: 5 * time.Second}, r)
	reply := codec.AppendSent(nil, &codec.Sent{ClientMessageID: make([]byte, 0), MessageID: []byte("id")})
	reply = codec.AppendPush(reply[:0], &codec.Push{Number: 1, Attempt: 1, MessageID: []byte("m"), Payload: make([]byte, 8<<10)})
	for range 5000 {
		if !session.SendControl(reply) {
			break
		}
	}
	r.wait(t, "Closed", func() bool { return r.closings[session] == 1 })
	p.expectClose(codec.CodeSlowConsumer)
	if s.Stats().ClosesByCode[codec.CodeSlowConsumer] != 1 {
		t.Fatal("not counted")
	}
}

// A full socket that takes no byte for the stall limit ends the connection, though PINGs keep coming.
func TestStalledReaderIsClosed(t *testing.T) {
	t.Parallel()
	r := newRecorder()
	_, session, p := opened(t, Config{StallTimeout: 700 * time.Millisecond}, r)
	for payload := make([]byte, 8<<10); session.Send(pushFrame(1, payload)); {
	}
	began := time.Now()
	stop := make(chan struct{})
	pinging := make(chan struct{})
	go func() {
		defer close(pinging)
		for {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
				_, _ = p.Write(codec.AppendPing(nil, nil))
			}
		}
	}()
	r.wait(t, "Closed", func() bool { return r.closings[session] == 1 })
	if took := time.Since(began); took < 600*time.Millisecond || session.CloseCode() != codec.CodeSlowConsumer {
		t.Fatalf("closed after %s with %v", took, session.CloseCode())
	}
	close(stop)
	<-pinging
}

// Frames that come together leave in one write.
func TestFramesAreCoalesced(t *testing.T) {
	r := newRecorder()
	block, blocked := make(chan struct{}), make(chan struct{})
	r.frame = func(*Session, codec.Frame) (codec.Code, string) { close(blocked); <-block; return codec.CodeNone, "" }
	s, session, p := opened(t, Config{Loops: 1}, r)
	p.send(codec.AppendAckOne(nil, 1, 0))
	<-blocked // the loop is held, so that all of these meet in the outbox
	before := s.Stats().Writes
	for i := range 500 {
		session.Send(pushFrame(i+1, nil))
	}
	close(block)
	for range 500 {
		p.expect(codec.TypePush)
	}
	if n := s.Stats().Writes - before; n > 2 {
		t.Fatalf("%d writes for 500 frames", n)
	}
}

// Producers that never pause do not keep the loop from reading.
func TestReadsAreNotStarvedByProducers(t *testing.T) {
	r := newRecorder()
	sessions := make(chan *Session, 64)
	r.login = func(s *Session, _ *codec.Connect, _ Identity) { s.Open(nil, welcome(s)); sessions <- s }
	s := start(t, Config{Loops: 1}, r)
	var all []*Session
	for range 40 {
		p := dial(t, s).login("reader")
		all = append(all, <-sessions)
		go func() { // ends with the connection
			var sink [64 << 10]byte
			for {
				if _, err := p.TCPConn.Read(sink[:]); err != nil {
					return
				}
			}
		}()
	}
	asker := dial(t, s).login("asker")
	<-sessions
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		frame := pushFrame(1, make([]byte, 100))
		for {
			for _, session := range all {
				session.Send(frame)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	worst := time.Duration(0)
	for range 50 {
		began := time.Now()
		asker.send(codec.AppendPing(nil, nil))
		asker.expect(codec.TypePong)
		worst = max(worst, time.Since(began))
	}
	close(stop)
	<-stopped
	if worst > patience/2 { // starved it would wait as long as the producer runs
		t.Fatalf("a PING took %s", worst)
	}
	t.Logf("worst PING %s", worst)
}
