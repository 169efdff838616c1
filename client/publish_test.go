package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/codec"
)

type publishOutcome struct {
	results []Result
	err     error
}

func publishing(c *Client, ctx context.Context, msgs ...Outgoing) chan publishOutcome {
	ch := make(chan publishOutcome, 1)
	go func() {
		r, err := c.Publish(ctx, msgs...)
		ch <- publishOutcome{r, err}
	}()
	return ch
}

func batch(n int) []Outgoing {
	msgs := make([]Outgoing, n)
	for i := range msgs {
		msgs[i] = Outgoing{ID: fmt.Sprint("p", i), User: "bob", Payload: []byte("x")}
	}
	return msgs
}

func TestPublishCarriesEveryField(t *testing.T) {
	s := newServer(t)
	client := start(t, s, Options{Publisher: true, User: "backend"})
	p, x := s.login()
	c := client()
	if x.Capabilities != codec.CapPublisher || len(x.Device) != 0 {
		t.Errorf("connect %+v", x)
	}
	done := publishing(c, t.Context(), Outgoing{ID: "p1", User: "bob", Device: "phone", Type: "chat", Conversation: "conv", Payload: []byte("hi"),
		TTL: 1500*time.Millisecond + 1, Priority: codec.PriorityBulk, NoAck: true})
	var f codec.Publish
	if err := codec.DecodePublish(p.expect(codec.TypePublish), &f); err != nil || f.Number != 1 {
		t.Fatal(f, err)
	}
	var it codec.PublishItem
	if ok, err := f.Next(&it); !ok || err != nil || string(it.User) != "bob" || string(it.Device) != "phone" || string(it.MessageID) != "p1" ||
		string(it.Type) != "chat" || string(it.Conversation) != "conv" || string(it.Payload) != "hi" || it.TTLMs != 1501 ||
		it.Priority != codec.PriorityBulk || !it.NoAck {
		t.Errorf("item %+v", it)
	}
	p.allAccepted(1, 1)
	if out := receive(t, done); out.err != nil || out.results[0].Err != nil || out.results[0].MessageID != "p1" {
		t.Errorf("%+v", out)
	}
}

// CASES H3, H4: each item has its own truthful result; a duplicate is success.
func TestH4ResultsAreTypedPerItem(t *testing.T) {
	_, p, c := pair(t, Options{Publisher: true})
	done := publishing(c, t.Context(), append(batch(3), Outgoing{User: "bob"})...)
	number, ids := p.publish()
	if len(ids) != 4 || len(ids[3]) < 20 {
		t.Fatalf("ids %q", ids)
	}
	p.published(number, codec.ItemResult{Result: codec.ResultAccepted}, codec.ItemResult{Result: codec.ResultDuplicate},
		codec.ItemResult{Result: codec.ResultQueueFull}, codec.ItemResult{Result: codec.ResultBadUser, MessageID: []byte("server-id")})
	out := receive(t, done)
	var full, bad *ResultError
	if out.err != nil || out.results[0].Err != nil || out.results[1].Err != nil || out.results[1].Code != codec.ResultDuplicate ||
		!errors.As(out.results[2].Err, &full) || !full.Retry() || full.Error() != "publish refused: queue_full" ||
		!errors.As(out.results[3].Err, &bad) || bad.Retry() || out.results[3].MessageID != "server-id" {
		t.Errorf("%+v", out)
	}
}

func TestPublishIDsAreMadeWhenEmptyAndDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := newCall([]Outgoing{{User: "bob"}}).results[0].MessageID
		if seen[id] || !codec.ValidMessageID([]byte(id)) {
			t.Fatal(id)
		}
		seen[id] = true
	}
}

func TestPublishWindowBoundsUnansweredFrames(t *testing.T) {
	_, p, c := pair(t, Options{Publisher: true, PublishBatch: 10}, func(w *codec.Welcome) { w.PublishWindow = 2 })
	done := publishing(c, t.Context(), batch(45)...)
	for n := uint64(1); n <= 2; n++ {
		if number, ids := p.publish(); number != n || len(ids) != 10 {
			t.Fatalf("frame %d with %d items", number, len(ids))
		}
	}
	p.silent(30 * time.Millisecond)
	p.allAccepted(2, 10) // answers may come in any order
	if number, _ := p.publish(); number != 3 {
		t.Fatal(number)
	}
	p.allAccepted(1, 10)
	p.allAccepted(3, 10)
	for range 2 {
		number, ids := p.publish()
		p.allAccepted(number, len(ids))
	}
	out := receive(t, done)
	for i, r := range out.results {
		if r.Err != nil || r.MessageID != fmt.Sprint("p", i) {
			t.Fatalf("%d: %+v", i, r)
		}
	}
	if st := c.Stats(); st.Published != 45 || st.PublishFrames != 5 {
		t.Errorf("stats %+v", st)
	}
}

func TestPublishFramesStayUnderTheMaximum(t *testing.T) {
	_, p, c := pair(t, Options{Publisher: true}, func(w *codec.Welcome) { w.FrameBytesMax = 1000; w.PublishWindow = 100 })
	p.max = 1000
	msgs := batch(40)
	for i := range msgs {
		msgs[i].Payload = make([]byte, 10*i)
	}
	msgs[20].Payload = make([]byte, 1000) // fits in no frame
	done := publishing(c, t.Context(), msgs...)
	var got []string
	for len(got) < 39 {
		number, ids := p.publish()
		got = append(got, ids...)
		p.allAccepted(number, len(ids))
	}
	out := receive(t, done)
	if r := out.results[20]; r.Code != codec.ResultTooLarge || r.Err == nil {
		t.Errorf("%+v", r)
	}
	if out.results[19].Err != nil || out.results[21].Err != nil || slices.Contains(got, "p20") {
		t.Error("its neighbours suffered")
	}
}

func TestAMessageThatCannotBeSentIsAnsweredAlone(t *testing.T) {
	_, _, c := pair(t, Options{Publisher: true})
	r, err := c.Publish(t.Context(), Outgoing{User: "bob", TTL: -1}, Outgoing{User: "bob", Priority: 9})
	if err != nil || r[0].Code != codec.ResultBadTTL || r[1].Code != codec.ResultBadField {
		t.Errorf("%+v %v", r, err)
	}
}

// CASES H1: what was not answered goes again under the same ids, in order.
func TestH1UnansweredMessagesAreSentAgainWithTheSameIDs(t *testing.T) {
	s, p, c := pair(t, Options{Publisher: true, PublishBatch: 2}, func(w *codec.Welcome) { w.PublishWindow = 3 })
	done := publishing(c, t.Context(), append(batch(7), Outgoing{User: "bob"})...)
	for range 3 {
		p.publish()
	}
	p.allAccepted(2, 2)
	_, ids := p.publish()
	generated := ids[1]
	p.nc.Close()
	p, _ = s.login(func(w *codec.Welcome) { w.PublishWindow = 3 })
	var again []string
	for n := uint64(1); n <= 3; n++ {
		number, ids := p.publish()
		if number != n {
			t.Errorf("number %d, want %d", number, n)
		}
		again = append(again, ids...)
		p.published(number, codec.ItemResult{Result: codec.ResultDuplicate}, codec.ItemResult{Result: codec.ResultDuplicate})
	}
	if want := []string{"p0", "p1", "p4", "p5", "p6", generated}; !slices.Equal(again, want) {
		t.Errorf("again %q, want %q", again, want)
	}
	if out := receive(t, done); out.err != nil || out.results[0].Code != codec.ResultDuplicate || out.results[2].Code != codec.ResultAccepted {
		t.Errorf("%+v", out)
	}
}

func TestPublishAfterTheEndSaysWhyItEnded(t *testing.T) {
	_, p, c := pair(t, Options{Publisher: true})
	p.close(codec.Close{Code: codec.CodeRevoked})
	receive(t, c.Done())
	if _, err := c.Publish(t.Context(), batch(1)...); err == nil || !strings.Contains(err.Error(), "revoked") {
		t.Error(err)
	}
}

func TestRolesAreKeptApart(t *testing.T) {
	_, _, c := pair(t, Options{Handler: newRecorder().handle})
	if _, err := c.Publish(t.Context(), batch(1)...); !errors.Is(err, errNotPublisher) {
		t.Error(err)
	}
	if err := c.PublishAsync(t.Context(), batch(1), func([]Result, error) {}); !errors.Is(err, errNotPublisher) {
		t.Error(err)
	}
	_, p, _ := pair(t, Options{Publisher: true, NoReconnect: true})
	p.write(push(1, "m"))
	if x := wantClose(t, p); x.Code != codec.CodeUnexpectedFrame {
		t.Errorf("close %s", x.Code)
	}
}

func TestPublishWaitsForTheConnection(t *testing.T) {
	s, p, c := pair(t, Options{Publisher: true})
	p.nc.Close()
	done := publishing(c, t.Context(), batch(1)...)
	p, _ = s.login()
	number, ids := p.publish()
	p.allAccepted(number, len(ids))
	if out := receive(t, done); out.err != nil {
		t.Error(out.err)
	}
}

func TestPublishEndsWithItsContextAndSaysWhatIsOpen(t *testing.T) {
	s, p, c := pair(t, Options{Publisher: true, PublishBatch: 2}, func(w *codec.Welcome) { w.PublishWindow = 2 })
	ctx, cancel := context.WithCancel(t.Context())
	done := publishing(c, ctx, batch(6)...)
	p.publish()
	p.publish()
	p.published(1, codec.ItemResult{}, codec.ItemResult{Result: codec.ResultOverloaded})
	p.publish()
	cancel()
	out := receive(t, done)
	if !errors.Is(out.err, context.Canceled) || out.results[0].Err != nil || out.results[1].Code != codec.ResultOverloaded ||
		!errors.Is(out.results[2].Err, ErrUnanswered) || !errors.Is(out.results[5].Err, ErrUnanswered) {
		t.Errorf("%+v", out)
	}
	p.allAccepted(2, 2) // a late answer changes nothing
	other := publishing(c, t.Context(), Outgoing{ID: "next", User: "bob"})
	if _, ids := p.publish(); !slices.Equal(ids, []string{"next"}) {
		t.Error(ids)
	}
	p.nc.Close() // what was given up is not sent again
	p, _ = s.login()
	number, ids := p.publish()
	if !slices.Equal(ids, []string{"next"}) {
		t.Error(ids)
	}
	p.allAccepted(number, 1)
	receive(t, other)
}

func TestPublishQueueIsBounded(t *testing.T) {
	_, p, c := pair(t, Options{Publisher: true, PublishBatch: 2, PublishQueue: 4}, func(w *codec.Welcome) { w.PublishWindow = 1 })
	first := publishing(c, t.Context(), batch(6)...) // 2 in flight, 4 queued
	number, _ := p.publish()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if r, err := c.Publish(ctx, batch(1)...); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(r[0].Err, ErrUnanswered) {
		t.Errorf("%+v %v", r, err)
	}
	second := publishing(c, t.Context(), Outgoing{ID: "late", User: "bob"})
	var all []string
	for range 4 {
		p.allAccepted(number, 2-len(all)/6)
		var ids []string
		if number, ids = 0, nil; len(all) < 5 {
			number, ids = p.publish()
			all = append(all, ids...)
		}
		if len(all) == 5 {
			p.allAccepted(number, len(ids))
			break
		}
	}
	if receive(t, first).err != nil || receive(t, second).err != nil || !slices.Contains(all, "late") {
		t.Error(all)
	}
}

func TestPublishAsyncCallsDoneOnce(t *testing.T) {
	s, p, c := pair(t, Options{Publisher: true})
	ch := make(chan publishOutcome, 10)
	done := func(r []Result, err error) { ch <- publishOutcome{r, err} }
	for i := range 3 {
		if err := c.PublishAsync(t.Context(), []Outgoing{{ID: fmt.Sprint("a", i), User: "bob"}}, done); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		number, ids := p.publish()
		p.allAccepted(number, len(ids))
		if out := receive(t, ch); out.err != nil || out.results[0].MessageID != ids[0] {
			t.Errorf("%+v", out)
		}
	}
	p.publish()
	s.hangUp()
	c.Close() // fails what is open
	if out := receive(t, ch); !errors.Is(out.err, ErrClosed) || !errors.Is(out.results[0].Err, ErrUnanswered) {
		t.Errorf("%+v", out)
	}
	if err := c.PublishAsync(t.Context(), batch(1), done); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if len(ch) != 0 {
		t.Error("done was called again")
	}
}

func TestAnswerToAnUnknownPublishEndsTheConnection(t *testing.T) {
	for name, answer := range map[string][]byte{
		"number": codec.AppendPublished(nil, &codec.Published{Number: 9, Count: 1, AllAccepted: true}),
		"fewer":  codec.AppendPublished(nil, &codec.Published{Number: 1, AllAccepted: true, Count: 1}),
	} {
		t.Run(name, func(t *testing.T) {
			s, p, c := pair(t, Options{Publisher: true})
			done := publishing(c, t.Context(), batch(2)...)
			p.publish()
			p.write(answer)
			var x codec.Close
			if err := codec.DecodeClose(p.expect(codec.TypeClose), &x); err != nil || x.Code != codec.CodeUnexpectedFrame {
				t.Errorf("close %+v %v", x, err)
			}
			p, _ = s.login()
			number, ids := p.publish()
			p.allAccepted(number, len(ids))
			if out := receive(t, done); out.err != nil || len(ids) != 2 {
				t.Error(out.err, ids)
			}
		})
	}
}

// Many goroutines over a connection that is cut again and again: every message is answered under its own id.
func TestManyPublishersSurviveManyDisconnects(t *testing.T) {
	s, p, c := pair(t, Options{Publisher: true, PublishBatch: 8})
	accepted := map[string]int{}
	served := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(served)
		for turn := 0; ; turn++ {
			for range 20 {
				f, ok, err := p.next(20 * time.Millisecond)
				if !ok {
					if err != nil && strings.Contains(err.Error(), "timeout") {
						select {
						case <-stop:
							return
						default:
							continue
						}
					}
					break
				}
				if f.Type != codec.TypePublish {
					continue
				}
				var x codec.Publish
				if err := codec.DecodePublish(f, &x); err != nil {
					t.Error(err)
					return
				}
				var it codec.PublishItem
				for {
					ok, err := x.Next(&it)
					if err != nil || !ok {
						break
					}
					accepted[string(it.MessageID)]++
				}
				if _, err := p.nc.Write(codec.AppendPublished(nil, &codec.Published{Number: x.Number, Count: x.Count, AllAccepted: true})); err != nil {
					break
				}
			}
			select {
			case <-stop:
				return
			default:
			}
			p.nc.Close()
			p, _ = s.login()
		}
	}()
	const workers, each = 8, 100
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				id := fmt.Sprintf("%d-%d", w, i)
				r, err := c.Publish(t.Context(), Outgoing{ID: id, User: "bob", Payload: []byte(id)})
				if err != nil || r[0].Err != nil || r[0].MessageID != id {
					t.Errorf("%s: %+v %v", id, r, err)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	receive(t, served)
	if len(accepted) != workers*each {
		t.Errorf("%d of %d arrived", len(accepted), workers*each)
	}
}

// However large the server's window of frames, a publisher leaves a bounded number of messages and bytes unanswered.
func TestUnansweredMessagesAreBounded(t *testing.T) {
	for name, payload := range map[string]int{"messages": 0, "bytes": 20_000} {
		t.Run(name, func(t *testing.T) {
			_, p, c := pair(t, Options{Publisher: true, PublishBatch: 1000, PublishQueue: 1 << 20},
				func(w *codec.Welcome) { w.PublishWindow = 1000; w.FrameBytesMax = 64 << 10 })
			msgs := batch(10_000)
			for i := range msgs {
				msgs[i].Payload = make([]byte, payload)
			}
			done := publishing(c, t.Context(), msgs...)
			items, bytes := 0, 0
			var open []uint64
			sizes := map[uint64]int{}
			for items < unansweredItemsMax && bytes < unansweredBytesMax {
				number, ids := p.publish()
				items += len(ids)
				bytes += len(ids) * payload
				open, sizes[number] = append(open, number), len(ids)
			}
			p.silent(30 * time.Millisecond)
			for answered := 0; answered < len(msgs); {
				number := open[0]
				open = open[1:]
				p.allAccepted(number, sizes[number])
				answered += sizes[number]
				if items < len(msgs) {
					number, ids := p.publish()
					items += len(ids)
					open, sizes[number] = append(open, number), len(ids)
				}
			}
			receive(t, done)
		})
	}
}
