package bench

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast/codec"
)

// leanUser is one lean receiver without a connection: frames go in, and a clock of the test's says when.
func leanUser(window int, ackEach bool) (*leanHoldfastListener, *fleet) {
	r := bareRun()
	f := newFleet(r, fleetOptions{users: 1, window: window, ackEach: ackEach, lean: true})
	l := &leanFleet{f: f, all: make([]leanReceiver, 1)}
	f.leanly = l
	return &leanHoldfastListener{leanHoldfast: leanHoldfast{name: f.userName, window: window}, l: l}, f
}

// leanPush is message number n of user 0, as the ledger of f knows it.
func leanPush(f *fleet, n uint64) []byte {
	payload := make([]byte, PayloadBytesMin)
	for len(f.ledger.accounts[0].marks) < int(n) {
		f.ledger.send(0)
	}
	s := stamp{run: f.r.id, seq: uint32(n - 1)}
	s.put(payload)
	return codec.AppendPush(nil, &codec.Push{Number: n, Attempt: 1, MessageID: []byte("m"), Payload: payload})
}

// takeAll hands numbers to the receiver as one read and returns what leaves at its end.
func takeAll(t *testing.T, h *leanHoldfastListener, f *fleet, numbers ...uint64) (words []string) {
	t.Helper()
	var out []byte
	for _, n := range numbers {
		var err error
		if out, err = h.take(0, leanPush(f, n), out); err != nil {
			t.Fatal(err)
		}
	}
	return endOfRead(t, h, out)
}

func endOfRead(t *testing.T, h *leanHoldfastListener, out []byte) (words []string) {
	t.Helper()
	if out = h.answer(0, out); len(out) > 0 {
		h.answered(0)
	}
	return leanWords(t, out)
}

// leanWords shows the frames a receiver sends: "3", "<=7" or the name of their type.
func leanWords(t *testing.T, b []byte) (words []string) {
	t.Helper()
	for len(b) > 0 {
		f, n, err := codec.Parse(b, codec.FrameBytesMax)
		if err != nil || n == 0 {
			t.Fatalf("%x: %v", b, err)
		}
		b = b[n:]
		words = append(words, ackWord(t, f))
	}
	return words
}

func ackWord(t *testing.T, f codec.Frame) string {
	t.Helper()
	if f.Type != codec.TypeAck {
		return f.Type.String()
	}
	var x codec.Ack
	if err := codec.DecodeAck(f, &x); err != nil {
		t.Fatal(err)
	}
	text := ""
	if x.Kind == codec.AckUpTo {
		return "<=" + strconv.FormatUint(x.From, 10)
	}
	for r := range x.Ranges {
		text += strconv.FormatUint(r.From, 10)
	}
	return text
}

func TestLeanReceiversConfirmWhatOneReadBroughtWithOneFrame(t *testing.T) {
	type read struct {
		numbers []uint64
		want    []string
	}
	for _, test := range []struct {
		name    string
		ackEach bool
		reads   []read
		frames  uint64
		copies  uint64
	}{
		{"one read, one frame", false, []read{{[]uint64{1, 2, 3}, []string{"<=3"}}, {[]uint64{4}, []string{"4"}}}, 2, 0},
		{"a copy is confirmed again", false, []read{
			{[]uint64{1, 2}, []string{"<=2"}}, {[]uint64{1}, []string{"1"}}, {[]uint64{2, 3}, []string{"2", "3"}},
		}, 4, 2},
		{"one frame a message", true, []read{{[]uint64{1, 2, 1}, []string{"1", "2", "1"}}}, 3, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			h, f := leanUser(20, test.ackEach)
			for i, r := range test.reads {
				if words := takeAll(t, h, f, r.numbers...); !slices.Equal(words, r.want) {
					t.Errorf("read %d: %q", i, words)
				}
				if f.unacked() != 0 {
					t.Errorf("read %d: %d count as not confirmed", i, f.unacked())
				}
			}
			if s := h.l.stats(); s.AckFrames != test.frames || s.Duplicates != test.copies {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

// A server's PING is answered at once, and its answer confirms nothing.
func TestLeanReceiversAnswerPings(t *testing.T) {
	h, f := leanUser(20, false)
	out, err := h.take(0, codec.AppendPing(nil, []byte("x")), nil)
	if err != nil {
		t.Fatal(err)
	}
	if words := endOfRead(t, h, out); !slices.Equal(words, []string{"PONG"}) || h.l.stats().AckFrames != 0 || f.unacked() != 0 {
		t.Errorf("%q, %d not confirmed", words, f.unacked())
	}
}

// TestLeanReceiversConfirmOverASocket is the same over a socket.
func TestLeanReceiversConfirmOverASocket(t *testing.T) {
	r := bareRun()
	r.started = time.Now().Add(-time.Second)
	f := newFleet(r, fleetOptions{users: 1, window: 20, lean: true})
	frames := make(chan string, 10)
	r.o.Target.Addr = leanGateway(t, func(_ int64, c net.Conn) {
		x := readConnect(c)
		b := codec.AppendWelcome(nil, &codec.Welcome{SessionID: 1, User: x.User, Device: x.Device})
		_, _ = c.Write(append(append(b, leanPush(f, 1)...), leanPush(f, 2)...)) // one write, and so one read
		if frames <- readAck(t, c); t.Failed() {
			return
		}
		_, _ = c.Write(leanPush(f, 3))
		frames <- readAck(t, c)
	})
	t.Cleanup(f.close)
	if err := f.connect(ctxFor(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<=2", "3"} {
		select {
		case got := <-frames:
			if got != want {
				t.Errorf("confirmed %s, want %s", got, want)
			}
		case <-ctxFor(t, 10*time.Second).Done():
			t.Fatal("no confirmation came")
		}
	}
	until(ctxFor(t, 10*time.Second), func() bool { return f.unacked() == 0 })
	if s := f.stats(); s.Received != 3 || s.AckFrames != 2 || f.unacked() != 0 || r.counted("acked").total.Load() != 3 {
		t.Errorf("stats %+v, %d not confirmed", s, f.unacked())
	}
}

// readAck waits for one frame.
func readAck(t *testing.T, c net.Conn) string {
	var b [64]byte
	n, err := c.Read(b[:])
	if err != nil {
		t.Error(err)
		return ""
	}
	return strings.Join(leanWords(t, b[:n]), " ")
}

// TestALostReceiverFailsTheRun: a lean receiver does not come back, and a run without it would say less than it seems to.
func TestALostReceiverFailsTheRun(t *testing.T) {
	b := newFakeBroker(t, nil)
	for name, options := range map[string]Options{"gateway": quick(t), "broker": mqttQuick(t, b)} {
		t.Run(name, func(t *testing.T) {
			o := smallFanout()
			o.Rate = 200
			s, err := Fanout(o)
			if err != nil {
				t.Fatal(err)
			}
			load := s.Load
			s.Load = func(ctx context.Context, r *Run) error {
				takeOver(ctx, t, r, userName(3))
				return load(ctx, r)
			}
			options.Duration, options.SettleMax = time.Minute, time.Minute
			began := time.Now()
			if _, err := Execute(t.Context(), options, s); err == nil || !strings.Contains(err.Error(), "a receiver's connection ended") {
				t.Errorf("error %v", err)
			}
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("it took %v to notice", took)
			}
		})
	}
}

// takeOver logs in under a receiver's name, for which a server ends the receiver's own connection; the test's broker is told to.
func takeOver(ctx context.Context, t *testing.T, r *Run, name string) {
	t.Helper()
	speech := leanTo(r.o.Target.MQTT, func(int) string { return name }, leanHoldfast{})
	c, err := newLeanCrowd(leanOptions{addr: r.o.Target.Addr, name: func(int) string { return name }, now: r.now, speech: speech})
	if err != nil {
		t.Error(err)
		return
	}
	defer c.close()
	logins, err := c.hellos(0, 1)
	if err == nil {
		err = c.login(ctx, logins, 1)
	}
	if err != nil {
		t.Error(err)
	}
}
