package client

import (
	"context"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/codec"
)

// piped is a logged-in client and its server's end without a network, for tests whose time is their own.
func piped(t *testing.T, o Options, window uint64) (*peer, *Client) {
	t.Helper()
	ours, theirs := net.Pipe()
	p := &peer{t: t, nc: theirs, max: codec.FrameBytesDefault}
	o.Addrs, o.User = []string{"pipe"}, "alice"
	o.Handler = func(context.Context, *Message) error { return nil }
	o.Inline = true // confirmed by the time the server's write returns and everything rests
	o.DialConn = func(context.Context, string) (net.Conn, error) { return ours, nil }
	made := make(chan *Client, 1)
	go func() {
		c, err := Dial(t.Context(), o)
		if err != nil {
			t.Error(err)
		}
		made <- c
	}()
	p.connect()
	p.welcome(func(w *codec.Welcome) { w.WindowMsgs = window })
	c := <-made
	t.Cleanup(func() {
		go c.Close()
		for ok := true; ok; { // its last words
			_, ok, _ = p.next(time.Second)
		}
		theirs.Close()
		<-c.Done()
	})
	return p, c
}

// within fails unless the next ACK comes at this time after began, and says want.
func (p *peer) within(began time.Time, after time.Duration, want string) {
	p.t.Helper()
	got := ackWords(p.ack())
	if took := time.Since(began); got != want || took != after {
		p.t.Errorf("%s after %v, want %s after %v", got, took, want, after)
	}
}

func TestAFirstAckLeavesAtOnceAndThoseOfTheNext20msTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, c := piped(t, Options{}, 64)
		time.Sleep(time.Second)
		for round := range uint64(3) {
			began, first := time.Now(), round*4+1
			p.write(push(first, "m"+fmt.Sprint(first)))
			p.within(began, 0, fmt.Sprintf("processed %d", first))
			for i := range uint64(3) {
				time.Sleep(4 * time.Millisecond)
				p.write(push(first+1+i, "m"+fmt.Sprint(first+1+i)))
			}
			// The wait begins with the first of them, 4 ms into the round.
			p.within(began, 24*time.Millisecond, fmt.Sprintf("processed <=%d", first+3))
			time.Sleep(ackBundle)
		}
		if n := c.Stats().AckFrames; n != 6 {
			t.Errorf("%d frames", n)
		}
	})
}

func TestHalfTheWindowOfAcksDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := piped(t, Options{}, 6)
		began := time.Now()
		p.write(push(1, "m1"))
		p.within(began, 0, "processed 1")
		p.write(push(2, "m2"))
		p.write(push(3, "m3"))
		p.write(push(4, "m4"))
		p.within(began, 0, "processed <=4")
	})
}

func TestTheAnswerToACopyDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, c := piped(t, Options{}, 64)
		began := time.Now()
		p.write(push(1, "m1"))
		p.within(began, 0, "processed 1")
		p.write(push(2, "m2"))
		p.write(push(1, "m1"))
		p.within(began, 0, "processed <=2") // and what waits goes with it
		p.write(push(2, "m2"))
		p.within(began, 0, "processed 2")
		if n := c.Stats().Duplicates; n != 2 {
			t.Errorf("%d copies", n)
		}
	})
}

func TestTheDelayBoundsTheWaitForCompany(t *testing.T) {
	for delay, after := range map[time.Duration]time.Duration{-1: 0, 5 * time.Millisecond: 5 * time.Millisecond, time.Hour: ackBundle} {
		t.Run(delay.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, _ := piped(t, Options{AckDelay: delay}, 64)
				began := time.Now()
				p.write(push(1, "m1"))
				p.within(began, 0, "processed 1")
				p.write(push(2, "m2"))
				p.within(began, after, "processed 2")
			})
		})
	}
}
