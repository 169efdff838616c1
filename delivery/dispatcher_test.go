package delivery

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"holdfast/codec"
)

// client is a peer that answers: it logs in, acknowledges, and comes back.
type client struct {
	d    *Dispatcher
	ack  bool
	mu   sync.Mutex
	link *Link // guarded by mu
	open chan struct{}
	shut chan struct{}
	once sync.Once
	inc  chan codec.Push
	code atomic.Uint32
	ids  map[string]int // owned by the reader of inc
}

func newClient(d *Dispatcher, user, device string, ack bool) *client {
	c := &client{d: d, ack: ack, open: make(chan struct{}), shut: make(chan struct{}), inc: make(chan codec.Push, 1<<16)}
	d.Login(LoginRequest{Peer: c, User: []byte(user), Device: []byte(device)})
	return c
}

func (c *client) Open(attachment any, _ []byte) bool {
	c.mu.Lock()
	c.link = attachment.(*Link)
	c.mu.Unlock()
	close(c.open)
	return true
}

func (c *client) Send(frame []byte) bool {
	f, _, err := codec.Parse(append([]byte(nil), frame...), codec.FrameBytesMax)
	if err != nil {
		panic(err)
	}
	if f.Type != codec.TypePush {
		return true
	}
	var p codec.Push
	if err := codec.DecodePush(f, &p); err != nil {
		panic(err)
	}
	select {
	case c.inc <- p:
	default:
		return false
	}
	if c.ack && !p.NoAck {
		go c.confirm(p.Number) // as an event loop of its own would
	}
	return true
}

func (c *client) confirm(number uint64) {
	c.mu.Lock() // one event loop: calls for a link are serial
	defer c.mu.Unlock()
	if code, why := c.d.Ack(c.link, &codec.Ack{Kind: codec.AckOne, From: number, Count: 1}); code != 0 {
		panic(why)
	}
}

func (c *client) Unsent() int { return 0 }

func (c *client) Close(code codec.Code, _ string, _ int64) {
	c.once.Do(func() {
		c.code.Store(uint32(code))
		close(c.shut)
		go c.leave()
	})
}

// leave is the end of the connection.
func (c *client) leave() {
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	if l != nil {
		c.d.Gone(l)
	}
}

func within(t *testing.T, what string, ok <-chan struct{}) {
	t.Helper()
	select {
	case <-ok:
	case <-time.After(10 * time.Second):
		t.Fatalf("waited 10 s for %s", what)
	}
}

func newTestDispatcher(t *testing.T, s Store, change func(*Config)) *Dispatcher {
	t.Helper()
	c := testConfig()
	if change != nil {
		change(&c)
	}
	d, err := NewDispatcher(c, s, metrics.NewSet(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	d.Start()
	t.Cleanup(d.Close)
	return d
}

// publish pushes one batch and waits for its results.
func publish(t *testing.T, d *Dispatcher, items ...codec.PublishItem) (results []codec.Result) {
	t.Helper()
	done := make(chan struct{})
	b := NewBatch()
	for i := range items {
		b.Add(&items[i])
	}
	b.Done = func(b *Batch) {
		for i := range b.Len() {
			results = append(results, b.Result(i))
		}
		b.Release()
		close(done)
	}
	d.Push(b)
	within(t, "the results of a push", done)
	return results
}

func TestDispatcherDeliversToManyUsersInOrder(t *testing.T) {
	store := newFakeStore()
	d := newTestDispatcher(t, store, nil)
	const users, each = 20, 200
	var clients []*client
	for u := range users {
		clients = append(clients, newClient(d, fmt.Sprintf("user%d", u), "phone", true))
	}
	for _, c := range clients {
		within(t, "a login", c.open)
	}
	var wg sync.WaitGroup
	for p := range 4 {
		wg.Go(func() {
			for i := p * each / 4; i < (p+1)*each/4; i++ {
				var items []codec.PublishItem
				for u := range users {
					items = append(items, codec.PublishItem{User: fmt.Appendf(nil, "user%d", u), MessageID: fmt.Appendf(nil, "m%d-%d", u, i), Payload: []byte("x")})
				}
				for i, r := range publish(t, d, items...) {
					if r != codec.ResultAccepted {
						t.Errorf("item %d: %s", i, r)
					}
				}
			}
		})
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for u := range users {
		for i := range each {
			if _, err := d.Wait(ctx, fmt.Sprintf("m%d-%d", u, i)); err != nil {
				t.Fatalf("m%d-%d has not ended: %v", u, i, err)
			}
		}
	}
	s := d.Stats()
	if s.Acked != users*each || s.InFlight != 0 || s.Online != users || store.live != 0 {
		t.Fatalf("stats %+v, %d live", s, store.live)
	}
	for u, c := range clients {
		seen := make(map[string]bool)
		for range each {
			seen[string((<-c.inc).MessageID)] = true
		}
		if len(seen) != each || len(c.inc) != 0 {
			t.Fatalf("user%d saw %d messages, %d copies", u, len(seen), len(c.inc))
		}
	}
}
