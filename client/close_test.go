package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"holdfast/codec"
)

// wantNormalClose reads the CLOSE that ends a client, and the end of its stream.
func wantNormalClose(t *testing.T, p *peer) {
	t.Helper()
	var x codec.Close
	if err := codec.DecodeClose(p.expect(codec.TypeClose), &x); err != nil || x.Code != codec.CodeNormal {
		t.Errorf("close %+v, %v", x, err)
	}
	p.ended()
	p.nc.Close()
}

func TestCloseSendsPendingAcksAndSaysNormal(t *testing.T) {
	events, ch := watch()
	s, p, c, r := held(t, Options{AckDelay: patience, Events: events})
	m := take(t, p, r, 1, 2, 3)
	m[1].Ack()
	m[3].Ack()
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	if got := ackWords(p.ack()); got != "processed 1,3" {
		t.Error(got)
	}
	wantNormalClose(t, p)
	if err := receive(t, closed); err != nil || !errors.Is(c.Err(), ErrClosed) {
		t.Error(err, c.Err())
	}
	wantEvents(t, ch, "connected n1", "disconnected lost final=true")
	m[2].Ack() // harmless
	c.Close()
	s.quiet(10 * time.Millisecond)
}

// CASES I5: the client's unread input does not turn its last confirmations into a reset.
func TestI5CloseWithUnreadInputStillDeliversTheAcks(t *testing.T) {
	hold := make(chan struct{})
	defer close(hold)
	_, p, c, r := held(t, Options{AckDelay: patience})
	m := take(t, p, r, 1, 2)
	m[1].Ack()
	go c.Close()
	for i := range 2000 {
		if _, err := p.nc.Write(push(uint64(i+3), "more")); err != nil {
			break
		}
	}
	if got := ackWords(p.ack()); got != "processed 1" {
		t.Error(got)
	}
	wantNormalClose(t, p)
	receive(t, c.Done())
}

func TestCloseFromAHandlerAndFromAnEvent(t *testing.T) {
	for _, inline := range []bool{false, true} {
		var c *Client
		ready := make(chan struct{})
		_, p, made := pair(t, Options{Inline: inline, Handler: func(ctx context.Context, _ *Message) error {
			<-ready
			c.Close()
			<-ctx.Done()
			return ctx.Err()
		}})
		c = made
		close(ready)
		p.write(push(1, "m"))
		wantNormalClose(t, p) // no ACK, and no NACK: the message stays with the server
		receive(t, c.Done())
	}
	var c *Client
	ready := make(chan struct{})
	s, p, made := pair(t, Options{Handler: newRecorder().handle, BackoffBase: time.Hour, BackoffMax: time.Hour,
		Events: Events{Reconnecting: func(int, time.Duration, string) {
			<-ready
			c.Close()
		}}})
	c = made
	close(ready)
	p.nc.Close()
	receive(t, c.Done())
	s.quiet(10 * time.Millisecond)
}

func TestCloseEndsTheWaitForTheNextTry(t *testing.T) {
	_, p, c := pair(t, Options{Handler: newRecorder().handle})
	p.close(codec.Close{Code: codec.CodeOverloaded, RetryAfterMs: 3600_000})
	eventually(t, "disconnected", func() bool { return c.Stats().Disconnects == 1 })
	c.Close()
	if !errors.Is(c.Err(), ErrClosed) {
		t.Error(c.Err())
	}
}

func TestCloseEndsALoginUnderWay(t *testing.T) {
	s, p, c := pair(t, Options{Handler: newRecorder().handle})
	p.nc.Close()
	s.accept().connect() // no answer
	c.Close()
	if !errors.Is(c.Err(), ErrClosed) {
		t.Error(c.Err())
	}
}

func TestShutdownFinishesWhatIsAtHand(t *testing.T) {
	hold := make(chan struct{})
	running := make(chan string, 10)
	_, p, c := pair(t, Options{Handler: func(_ context.Context, m *Message) error {
		running <- m.ID
		<-hold
		return nil
	}})
	p.write(push(1, "a"), push(2, "b"))
	receive(t, running)
	eventually(t, "both received", func() bool { return c.Stats().Received == 2 })
	down := make(chan error, 1)
	go func() { down <- c.Shutdown(t.Context()) }()
	eventually(t, "draining", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.draining })
	p.write(push(3, "too late"))
	eventually(t, "the late one dropped", func() bool { return c.Stats().Dropped == 1 })
	close(hold)
	p.acks(2)
	wantNormalClose(t, p)
	if err := receive(t, down); err != nil {
		t.Error(err)
	}
}

func TestShutdownWaitsForTheAnswersOfPublishes(t *testing.T) {
	_, p, c := pair(t, Options{Publisher: true})
	published := publishing(c, t.Context(), batch(1)...)
	number, _ := p.publish()
	down := make(chan error, 1)
	go func() { down <- c.Shutdown(t.Context()) }()
	p.silent(20 * time.Millisecond)
	p.allAccepted(number, 1)
	wantNormalClose(t, p)
	if err := receive(t, down); err != nil {
		t.Error(err)
	}
	if out := receive(t, published); out.err != nil {
		t.Error(out.err)
	}
}

func TestShutdownGivesUpWithItsContext(t *testing.T) {
	hold := make(chan struct{})
	_, p, c := pair(t, Options{Handler: func(context.Context, *Message) error { <-hold; return nil }})
	defer close(hold)
	p.write(push(1, "a"))
	eventually(t, "received", func() bool { return c.Stats().Received == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	down := make(chan error, 1)
	go func() { down <- c.Shutdown(ctx) }()
	wantNormalClose(t, p)
	if err := receive(t, down); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestShutdownWaitsForAnInlineHandler(t *testing.T) {
	hold, running := make(chan struct{}), make(chan struct{})
	_, p, c := pair(t, Options{Inline: true, Handler: func(context.Context, *Message) error { close(running); <-hold; return nil }})
	p.write(push(1, "a"))
	receive(t, running)
	down := make(chan error, 1)
	go func() { down <- c.Shutdown(t.Context()) }()
	p.silent(20 * time.Millisecond)
	close(hold)
	p.acks(1)
	wantNormalClose(t, p)
	if err := receive(t, down); err != nil {
		t.Error(err)
	}
}

func TestCloseFromTheDoneOfAPublish(t *testing.T) {
	s, p, c := pair(t, Options{Publisher: true})
	done := func([]Result, error) { c.Close() }
	if err := c.PublishAsync(t.Context(), batch(1), done); err != nil {
		t.Fatal(err)
	}
	number, _ := p.publish()
	p.allAccepted(number, 1)
	s.hangUp()
	receive(t, c.Done())

	_, p, c = pair(t, Options{Publisher: true, NoReconnect: true})
	if err := c.PublishAsync(t.Context(), batch(1), done); err != nil { // unanswered: done comes from the end of the client
		t.Fatal(err)
	}
	p.publish()
	p.nc.Close()
	receive(t, c.Done())
}

func TestCloseFromAWarning(t *testing.T) {
	store := &slowStore{asked: make(chan []string, 10), reply: make(chan error, 10)}
	for range 10 {
		store.reply <- errors.New("disk full")
	}
	for _, inline := range []bool{false, true} {
		var c *Client
		ready := make(chan struct{})
		s, p, made := pair(t, Options{Inline: inline, DedupStore: store, Handler: func(context.Context, *Message) error { <-ready; return nil },
			Events: Events{Warning: func(error) { c.Close() }}})
		c = made
		close(ready)
		p.write(push(1, "a"))
		s.hangUp()
		receive(t, c.Done())
	}
}
