package client

import (
	"context"
	"testing"
	"time"

	"holdfast/codec"
)

func second(w *codec.Welcome) { w.KeepaliveS = 1 }

// CASES E2, E3: an idle but healthy pair stays together; each side's silence is answered within its interval.
func TestE3IdleClientPingsAtTheNegotiatedInterval(t *testing.T) {
	t.Parallel()
	_, p, c := pair(t, Options{Handler: newRecorder().handle}, second)
	last := time.Now()
	for range 3 {
		data, err := codec.DecodePing(p.expect(codec.TypePing))
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(last); d < 900*time.Millisecond || d > 1400*time.Millisecond {
			t.Errorf("ping after %v", d)
		}
		last = time.Now()
		p.write(codec.AppendPong(nil, data))
	}
	if c.Stats().Disconnects != 0 {
		t.Error("disconnected")
	}
}

func TestE2SilentServerIsLeftAfterOneAndAHalfIntervals(t *testing.T) {
	t.Parallel()
	s, p, c := pair(t, Options{Handler: newRecorder().handle}, second)
	began := time.Now()
	p.expect(codec.TypePing) // and no answer
	var x codec.Close
	if err := codec.DecodeClose(p.expect(codec.TypeClose), &x); err != nil || x.Code != codec.CodeKeepaliveTimeout {
		t.Errorf("close %+v, %v", x, err)
	}
	if d := time.Since(began); d < 1400*time.Millisecond || d > 3*time.Second {
		t.Errorf("left after %v", d)
	}
	p.ended()
	s.login()
	eventually(t, "a new session", func() bool { return c.Stats().Logins == 2 })
}

// Bytes that never make a frame are no life (CASES I3).
func TestI3TricklingBytesDoNotCountAsLife(t *testing.T) {
	t.Parallel()
	_, p, c := pair(t, Options{Handler: newRecorder().handle}, second)
	frame := push(1, "a message that is never finished")
	for i := 0; c.Stats().Disconnects == 0; i++ {
		if i == len(frame)-1 {
			t.Fatal("still connected")
		}
		if _, err := p.nc.Write(frame[i : i+1]); err != nil {
			break
		}
		time.Sleep(100 * time.Millisecond) // the server's pace, not a wait for the client
	}
}

// A handler that takes longer than the keepalive holds nothing up.
func TestSlowHandlerDoesNotCostTheConnection(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	_, p, c := pair(t, Options{Handler: func(context.Context, *Message) error { <-hold; return nil }}, second)
	p.write(push(1, "m"))
	for range 2 {
		data, _ := codec.DecodePing(p.expect(codec.TypePing))
		p.write(codec.AppendPong(nil, data))
	}
	close(hold)
	p.acks(1)
	if c.Stats().Disconnects != 0 {
		t.Error("disconnected")
	}
}

func TestPingIsAnsweredWithItsBytes(t *testing.T) {
	t.Parallel()
	_, p, _ := pair(t, Options{Handler: newRecorder().handle})
	p.write(codec.AppendPing(nil, []byte("12345678")))
	if data, err := codec.DecodePing(p.expect(codec.TypePong)); err != nil || string(data) != "12345678" {
		t.Errorf("%q %v", data, err)
	}
}
