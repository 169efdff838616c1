package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/codec"
)

func TestMessageCarriesEveryField(t *testing.T) {
	r := newRecorder()
	_, p, _ := pair(t, Options{Handler: r.handle})
	p.write(codec.AppendPush(nil, &codec.Push{Number: 5, Attempt: 2, ServerTimeMs: 1700000000123, MessageID: []byte("m-5"),
		Type: []byte("chat"), Conversation: []byte("conv"), Sequence: 9, ExpireAtMs: 1800000000000, Payload: []byte("hello"),
		Redelivered: true, FromBacklog: true, Priority: codec.PriorityUrgent}))
	m := r.next(t)
	if m.ID != "m-5" || m.Type != "chat" || m.Conversation != "conv" || m.Sequence != 9 || string(m.Payload) != "hello" ||
		m.RequestID != fakeBase+5 || m.Attempt != 2 || m.ServerTime.UnixMilli() != 1700000000123 ||
		m.ExpireAt.UnixMilli() != 1800000000000 || m.Priority != codec.PriorityUrgent || !m.Redelivered || !m.FromBacklog || m.NoAck {
		t.Errorf("message %+v", m)
	}
	if cap(m.Payload) != len(m.Payload) {
		t.Error("an append to the payload would write into memory behind it")
	}
	if got := p.acks(1); got[0] != "processed 5" {
		t.Error(got)
	}
}

func TestMessagesAreHandledOneByOneInOrder(t *testing.T) {
	r := newRecorder()
	_, p, c := pair(t, Options{Handler: r.handle})
	var frames [][]byte
	for i := range 500 {
		frames = append(frames, push(uint64(i+1), fmt.Sprint("m", i)))
		if len(frames) == 50 {
			p.write(frames...)
			p.acks(0)
			frames = nil
			for range 50 {
				r.next(t)
			}
		}
	}
	for i, m := range r.got {
		if m.ID != fmt.Sprint("m", i) {
			t.Fatalf("message %d is %s", i, m.ID)
		}
	}
	if s := c.Stats(); s.Received != 500 || s.Acked == 0 {
		t.Errorf("stats %+v", s)
	}
}

// A frame cut at any place is the same frame (CASES I1).
func TestI1FramesArriveHoweverTheyAreCut(t *testing.T) {
	r := newRecorder()
	_, p, _ := pair(t, Options{Handler: r.handle, WindowMsgs: 64})
	var all []byte
	for i := range 20 {
		all = append(all, push(uint64(i+1), strings.Repeat("x", i*3)+fmt.Sprint(i))...)
	}
	for len(all) > 0 {
		n := min(len(all), 7)
		p.write(all[:n])
		all = all[n:]
	}
	for i := range 20 {
		if m := r.next(t); !strings.HasSuffix(m.ID, fmt.Sprint(i)) {
			t.Fatalf("message %d is %s", i, m.ID)
		}
	}
}

func TestFramesUpToTheAnnouncedMaximumAreRead(t *testing.T) {
	r := newRecorder()
	_, p, _ := pair(t, Options{Handler: r.handle}, func(w *codec.Welcome) { w.FrameBytesMax, w.WindowBytes = 1<<20, 4<<20 })
	payload := make([]byte, 1<<20-100)
	for i := range 3 {
		p.write(codec.AppendPush(nil, &codec.Push{Number: uint64(i + 1), Attempt: 1, MessageID: fmt.Appendf(nil, "m%d", i), Payload: payload}))
		if m := r.next(t); len(m.Payload) != len(payload) {
			t.Fatalf("payload of %d bytes", len(m.Payload))
		}
	}
}

func TestFrameOverTheMaximumEndsTheConnection(t *testing.T) {
	s, p, c := pair(t, Options{Handler: newRecorder().handle})
	p.write([]byte{0xff, 0xff, 0x7f, 0x10})
	var x codec.Close
	if err := codec.DecodeClose(p.expect(codec.TypeClose), &x); err != nil || x.Code != codec.CodeFrameTooLarge {
		t.Errorf("close %+v, %v", x, err)
	}
	p.ended()
	s.login() // our fault or theirs: it comes back
	eventually(t, "a second login", func() bool { return c.Stats().Logins == 2 })
}

func TestHandlerErrorRefusesForNowAndRefusalForGood(t *testing.T) {
	errs := map[string]error{"later": errors.New("disk\nfull"), "never": fmt.Errorf("wrapped: %w", &Refusal{"bad format"})}
	_, p, c := pair(t, Options{RetryDelay: 1500 * time.Millisecond, Handler: func(_ context.Context, m *Message) error { return errs[m.ID] }})
	p.write(push(1, "later"))
	if n := p.nack(); n.Number != 1 || n.Never || n.DelayMs != 1500 || string(n.Reason) != "disk full" {
		t.Errorf("nack %+v", n)
	}
	p.write(push(2, "never"))
	if n := p.nack(); n.Number != 2 || !n.Never || string(n.Reason) != "bad format" {
		t.Errorf("nack %+v", n)
	}
	// Again under the same number: handed over again, and now it is good.
	errs["later"] = nil
	p.write(push(1, "later"))
	if got := p.acks(1); got[0] != "processed 1" {
		t.Error(got)
	}
	if st := c.Stats(); st.Nacked != 1 || st.Refused != 1 || st.Acked != 1 {
		t.Errorf("stats %+v", st)
	}
}

func TestRefusalIsRepeatedWhenItsConnectionWasLost(t *testing.T) {
	hold := make(chan struct{})
	calls := make(chan string, 10)
	s, p, _ := pair(t, Options{Handler: func(_ context.Context, m *Message) error {
		calls <- m.ID
		<-hold
		return &Refusal{"no"}
	}})
	p.write(push(1, "m"))
	receive(t, calls)
	p.nc.Close()
	p, _ = s.login()
	close(hold)
	p.write(push(1, "m"))
	if n := p.nack(); n.Number != 1 || !n.Never || string(n.Reason) != "no" {
		t.Errorf("nack %+v", n)
	}
	if len(calls) != 0 {
		t.Error("a refused message was handed over again")
	}
}

func TestAckBeforeConfirmsReceivedBeforeTheHandlerRuns(t *testing.T) {
	hold := make(chan struct{})
	_, p, _ := pair(t, Options{AckMode: AckBefore, Handler: func(context.Context, *Message) error { <-hold; return errors.New("too late") }})
	p.write(push(1, "m"))
	if got := p.acks(1); got[0] != "received 1" {
		t.Error(got)
	}
	close(hold)
	p.silent(30 * time.Millisecond)
}

func TestManualAckLevelsOnlyRise(t *testing.T) {
	r := newRecorder()
	_, p, _ := pair(t, Options{AckMode: AckManual, Handler: r.handle})
	p.write(push(1, "m"))
	m := r.next(t)
	p.silent(20 * time.Millisecond)
	m.AckLevel(codec.LevelReceived)
	m.Ack()
	m.AckLevel(codec.LevelReceived)
	m.Nack(0, "too late")
	m.AckLevel(codec.LevelRead)
	var got []string
	for range 3 {
		got = append(got, ackWords(p.ack()))
	}
	if want := []string{"received 1", "processed 1", "read 1"}; !slices.Equal(got, want) {
		t.Errorf("acks %q, want %q", got, want)
	}
	p.silent(20 * time.Millisecond)
}

func TestExtendAsksForMoreTime(t *testing.T) {
	r := newRecorder()
	_, p, _ := pair(t, Options{AckMode: AckManual, Handler: r.handle})
	p.write(push(3, "m"))
	m := r.next(t)
	m.Extend(1500 * time.Millisecond)
	var x codec.Extend
	if err := codec.DecodeExtend(p.expect(codec.TypeExtend), &x); err != nil || x.Number != 3 || x.MoreMs != 1500 {
		t.Errorf("extend %+v, %v", x, err)
	}
	m.Ack()
	m.Extend(time.Second)
	p.acks(1)
	p.silent(20 * time.Millisecond)
}

func TestFireAndForgetIsNeverConfirmed(t *testing.T) {
	r := newRecorder()
	_, p, _ := pair(t, Options{Handler: r.handle})
	p.write(codec.AppendPush(nil, &codec.Push{NoAck: true, Attempt: 1, MessageID: []byte("f"), Payload: []byte("x")}))
	m := r.next(t)
	m.Ack()
	m.Nack(0, "")
	m.Refuse("")
	m.Extend(0)
	if !m.NoAck || m.RequestID != 0 {
		t.Errorf("message %+v", m)
	}
	p.silent(30 * time.Millisecond)
}

func TestQueueIsBoundedAndWhatIsDroppedIsNotConfirmed(t *testing.T) {
	hold := make(chan struct{})
	r := newRecorder()
	_, p, c := pair(t, Options{Handler: func(ctx context.Context, m *Message) error { <-hold; return r.handle(ctx, m) }},
		func(w *codec.Welcome) { w.WindowMsgs = 8 })
	const sent = 200 // a server that ignores the window
	var frames [][]byte
	for i := range sent {
		frames = append(frames, push(uint64(i+1), fmt.Sprint("m", i)))
	}
	p.write(frames...)
	eventually(t, "all received", func() bool { return c.Stats().Received == sent })
	dropped := c.Stats().Dropped
	if kept := sent - dropped; kept < 8 || kept > 2*8+queueMsgsExtra+1 {
		t.Errorf("%d kept", kept)
	}
	close(hold)
	p.acks(int(sent - dropped))
	p.silent(80 * time.Millisecond)
}

func TestConcurrencyRunsSeveralHandlers(t *testing.T) {
	hold := make(chan struct{})
	running := make(chan string, 10)
	_, p, _ := pair(t, Options{Concurrency: 3, Handler: func(_ context.Context, m *Message) error {
		running <- m.ID
		<-hold
		return nil
	}})
	for i := range 5 {
		p.write(push(uint64(i+1), fmt.Sprint("m", i)))
	}
	for range 3 {
		receive(t, running)
	}
	select {
	case id := <-running:
		t.Errorf("a fourth handler runs: %s", id)
	case <-time.After(20 * time.Millisecond):
	}
	close(hold)
	p.acks(5)
}

func TestInlineHandlerConfirmsAChunkWithOneFrame(t *testing.T) {
	r := newRecorder()
	_, p, c := pair(t, Options{Inline: true, Handler: r.handle})
	var frames [][]byte
	for i := range 20 {
		frames = append(frames, push(uint64(i+1), fmt.Sprint("m", i)))
	}
	p.write(frames...)
	p.acks(20)
	if st := c.Stats(); st.AckFrames > 3 || st.Acked != 20 || st.Handled != 20 {
		t.Errorf("stats %+v", st)
	}
}
