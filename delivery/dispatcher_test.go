package delivery

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
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

func message(user, id string) codec.PublishItem {
	return codec.PublishItem{User: []byte(user), MessageID: []byte(id), Payload: []byte("payload of " + id)}
}

func TestDispatcherDeliversToManyUsersEachOnce(t *testing.T) {
	store := newFakeStore()
	d := newTestDispatcher(t, store, nil)
	const users, each, publishers = 20, 100, 4
	var clients []*client
	for u := range users {
		clients = append(clients, newClient(d, fmt.Sprintf("user%d", u), "phone", true))
	}
	for _, c := range clients {
		within(t, "a login", c.open)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for p := range publishers {
		wg.Go(func() {
			for i := range each {
				b, done := NewBatch(), make(chan struct{})
				for u := range users {
					x := message(fmt.Sprintf("user%d", u), fmt.Sprintf("m%d-%d-%d", u, p, i))
					b.Add(&x)
				}
				b.Follow()
				b.Done = func(*Batch) { close(done) }
				d.Push(b)
				within(t, "the results of a push", done)
				if err := d.WaitBatch(ctx, b); err != nil {
					t.Errorf("batch %d-%d: %v", p, i, err)
				}
				b.Release()
			}
		})
	}
	wg.Wait()
	s := d.Stats()
	if s.Acked != users*each*publishers || s.InFlight != 0 || s.Online != users || store.live != 0 {
		t.Fatalf("stats %+v, %d live", s, store.live)
	}
	if n := d.core.watches.active.Load(); n != 0 || len(d.core.watches.byRef) != 0 {
		t.Fatalf("%d watches left", n)
	}
	for u, c := range clients {
		next := make(map[string]int)
		for range each * publishers {
			var uu, p, i int
			_, err := fmt.Sscanf(string((<-c.inc).MessageID), "m%d-%d-%d", &uu, &p, &i)
			if err != nil || uu != u || next[fmt.Sprint(p)] != i {
				t.Fatalf("user%d: message %d of publisher %d of user%d, want %d", u, i, p, uu, next[fmt.Sprint(p)])
			}
			next[fmt.Sprint(p)]++
		}
	}
}

// Further 1, with real concurrency: many logins of one device at once leave exactly one connection open, and it gets everything.
func TestFurther1ConcurrentLoginsLeaveOneConnection(t *testing.T) {
	d := newTestDispatcher(t, newFakeStore(), func(c *Config) { c.LoginBurst = 1000 })
	const logins = 50
	var clients [logins]*client
	var wg sync.WaitGroup
	for i := range logins {
		wg.Go(func() { clients[i] = newClient(d, "alice", "phone", true) })
	}
	wg.Wait()
	for _, c := range clients {
		select {
		case <-c.open:
		case <-c.shut: // replaced before it was let in
		case <-time.After(10 * time.Second):
			t.Fatal("a login was never decided")
		}
	}
	if r := publish(t, d, message("alice", "m1")); r[0] != codec.ResultAccepted {
		t.Fatal(r[0])
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := d.Wait(ctx, "m1"); err != nil {
		t.Fatal(err)
	}
	open, got := 0, 0
	for _, c := range clients {
		if codec.Code(c.code.Load()) != codec.CodeReplaced {
			open++
		}
		got += len(c.inc)
	}
	if s := d.Stats(); open != 1 || got != 1 || s.Online != 1 {
		t.Fatalf("%d open, %d copies, %d online", open, got, s.Online)
	}
}

func TestDispatcherTimeoutsRetriesAndLateAck(t *testing.T) {
	d := newTestDispatcher(t, newFakeStore(), func(c *Config) { c.AckTimeout = 100 * time.Millisecond })
	c := newClient(d, "alice", "phone", false)
	within(t, "a login", c.open)
	publish(t, d, message("alice", "m1"))
	first, second := <-c.inc, <-c.inc
	if first.Number != second.Number || second.Attempt != 2 {
		t.Fatalf("%+v then %+v", first, second)
	}
	c.confirm(second.Number)
	list, err := d.Wait(t.Context(), "m1")
	if err != nil || len(list) != 1 || list[0].Status != StatusAcked || !list[0].Online {
		t.Fatalf("%+v, %v", list, err)
	}
}

func TestQuestionsShowWhatIsInFlight(t *testing.T) {
	d := newTestDispatcher(t, newFakeStore(), nil)
	c := newClient(d, "alice", "phone", false)
	within(t, "a login", c.open)
	publish(t, d, message("alice", "m1"), message("bob", "m2"))
	list, err := d.Message(t.Context(), "m1")
	if err != nil || len(list) != 1 || list[0].Status != StatusSent || list[0].Number != 1 || list[0].DueMs == 0 || list[0].Attempts != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	list, err = d.Message(t.Context(), "m2")
	if err != nil || len(list) != 1 || list[0].Status != StatusOffline || list[0].Online {
		t.Fatalf("%+v, %v", list, err)
	}
	if list, err := d.Message(t.Context(), "m3"); err != nil || len(list) != 0 {
		t.Fatalf("%+v, %v", list, err)
	}
	u, err := d.User(t.Context(), "alice")
	if err != nil || len(u.Devices) != 1 || !u.Devices[0].Online || u.Devices[0].InFlight != 1 || u.Devices[0].State != "live" || u.Devices[0].Messages != 1 {
		t.Fatalf("%+v, %v", u, err)
	}
	if u, err := d.User(t.Context(), "nobody"); err != nil || len(u.Devices) != 0 {
		t.Fatalf("%+v, %v", u, err)
	}
	after, n, err := d.Cancel(t.Context(), "m1")
	if err != nil || n != 1 || len(after) != 1 || after[0].Status != StatusCancelled {
		t.Fatalf("%+v, %d, %v", after, n, err)
	}
	if _, n, err := d.Cancel(t.Context(), "m1"); err != nil || n != 0 {
		t.Fatalf("cancelled %d again, %v", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Wait(ctx, "m2"); err == nil {
		t.Fatal("waited for a message that has not ended")
	}
}

func TestAckByMessageIDReachesItsLane(t *testing.T) {
	d := newTestDispatcher(t, newFakeStore(), nil)
	c := newClient(d, "alice", "phone", false)
	within(t, "a login", c.open)
	publish(t, d, message("alice", "m1"))
	if code, why := d.Ack(c.link, &codec.Ack{Kind: codec.AckMessageID, MessageID: []byte("m1")}); code != 0 {
		t.Fatal(why)
	}
	if list, err := d.Wait(t.Context(), "m1"); err != nil || list[0].Status != StatusAcked {
		t.Fatalf("%+v, %v", list, err)
	}
}

func TestPublisherConnectionsHaveNoQueueAndMayNotConfirm(t *testing.T) {
	d := newTestDispatcher(t, newFakeStore(), nil)
	c := &client{d: d, open: make(chan struct{}), shut: make(chan struct{})}
	d.Login(LoginRequest{Peer: c, User: []byte("shop"), Device: []byte("1"), Publisher: true})
	within(t, "a login", c.open)
	if s := d.Stats(); s.Publishers != 1 || s.Online != 0 || !c.link.Publisher() || c.link.User() != "shop" || c.link.Device() != "1" {
		t.Fatalf("stats %+v", s)
	}
	if code, _ := d.Ack(c.link, &codec.Ack{}); code != codec.CodeUnexpectedFrame {
		t.Fatalf("ACK: %d", code)
	}
	if code, _ := d.Nack(c.link, &codec.Nack{}); code != codec.CodeUnexpectedFrame {
		t.Fatalf("NACK: %d", code)
	}
	if code, _ := d.Extend(c.link, &codec.Extend{}); code != codec.CodeUnexpectedFrame {
		t.Fatalf("EXTEND: %d", code)
	}
	d.Drained(c.link)
	d.Gone(c.link)
	d.Gone(c.link)
	if s := d.Stats(); s.Publishers != 0 {
		t.Fatalf("stats %+v", s)
	}
}

func TestDrainRefusesPushesAndLoginsAndEndsWhenAllAreGone(t *testing.T) {
	d := newTestDispatcher(t, newFakeStore(), nil)
	var clients []*client
	for i := range 20 {
		clients = append(clients, newClient(d, fmt.Sprintf("user%d", i), "phone", true))
		within(t, "a login", clients[i].open)
	}
	pub := &client{d: d, open: make(chan struct{}), shut: make(chan struct{})}
	d.Login(LoginRequest{Peer: pub, User: []byte("shop"), Device: []byte("1"), Publisher: true})
	within(t, "a login", pub.open)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := d.Drain(ctx, DrainOptions{Window: 300 * time.Millisecond, Servers: "b:7700"}); err != nil {
		t.Fatal(err)
	}
	for _, c := range append(clients, pub) {
		if codec.Code(c.code.Load()) != codec.CodeGoingAway {
			t.Fatalf("closed with %d", c.code.Load())
		}
	}
	if r := publish(t, d, message("user1", "m1")); r[0] != codec.ResultDraining || !d.Draining() {
		t.Fatal(r[0])
	}
	late := newClient(d, "late", "phone", true)
	within(t, "the refusal", late.shut)
	if codec.Code(late.code.Load()) != codec.CodeGoingAway {
		t.Fatalf("code %d", late.code.Load())
	}
}

func TestDrainClosesTheRestWhenItsTimeIsOver(t *testing.T) {
	d := newTestDispatcher(t, newFakeStore(), nil)
	c := newClient(d, "alice", "phone", false)
	within(t, "a login", c.open)
	publish(t, d, message("alice", "m1"))
	<-c.inc
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := d.Drain(ctx, DrainOptions{Window: 100 * time.Millisecond}); err == nil {
		t.Fatal("drained with a message in flight")
	}
	within(t, "the close", c.shut)
}

func TestClosedDispatcherAnswers(t *testing.T) {
	d := newTestDispatcher(t, newFakeStore(), nil)
	publish(t, d, message("alice", "m1"))
	d.Close()
	d.Close()
	if r := publish(t, d, message("alice", "m2")); r[0] != codec.ResultDraining {
		t.Fatal(r[0])
	}
	if _, err := d.User(t.Context(), "alice"); err != ErrClosed {
		t.Fatal(err)
	}
}

func TestNewDispatcherRefusesImpossibleSettings(t *testing.T) {
	c := testConfig()
	c.Lanes = 0
	if _, err := NewDispatcher(c, newFakeStore(), metrics.NewSet(), slog.New(slog.DiscardHandler)); err == nil {
		t.Fatal("a dispatcher without lanes")
	}
}

func TestSweeperReachesTheLanes(t *testing.T) {
	d := newTestDispatcher(t, newFakeStore(), nil)
	c := newClient(d, "alice", "phone", false)
	within(t, "a login", c.open)
	x, y := message("alice", "m1"), message("bob", "m2")
	x.TTLMs, y.TTLMs = 50, 50
	publish(t, d, x, y)
	for _, id := range []string{"m1", "m2"} {
		if list, err := d.Wait(t.Context(), id); err != nil || list[0].Status != StatusExpired || list[0].Reason != ReasonTTL {
			t.Fatalf("%+v, %v", list, err)
		}
	}
}

func TestAcksByMessageIDAreBoundedPerLink(t *testing.T) {
	d, err := NewDispatcher(testConfig(), newFakeStore(), metrics.NewSet(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l := newLink(LoginRequest{User: []byte("alice"), Device: []byte("phone")})
	for range askingMax + 10 { // no lane runs
		d.Ack(l, &codec.Ack{Kind: codec.AckMessageID, MessageID: []byte("m1")})
	}
	if n := d.core.count.ackIDsDropped.Get(); n != 10 || l.asking.Load() != askingMax {
		t.Fatalf("%d dropped, %d waiting", n, l.asking.Load())
	}
	if n := d.laneOfLink(l).depth(); n != askingMax {
		t.Fatalf("depth %d", n)
	}
}

func TestMetricsOfEveryKindAreWritten(t *testing.T) {
	set := metrics.NewSet()
	d, err := NewDispatcher(testConfig(), newFakeStore(), set, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	d.core.count.ackLatency.observe(3)
	d.core.count.ackLatency.observe(1 << 40)
	var b strings.Builder
	set.WritePrometheus(&b)
	for _, line := range []string{
		"holdfast_messages_accepted_total 0", `holdfast_messages_refused_total{reason="queue_full"} 0`, `holdfast_messages_dead_total{reason="attempts"} 0`,
		`holdfast_messages_noack_dropped_total{reason="offline"} 0`, "holdfast_online 0", "holdfast_inflight 0", `holdfast_lane_depth{lane="1"} 0`,
		`holdfast_ack_latency_seconds_bucket{le="0.004"} 1`, `holdfast_ack_latency_seconds_bucket{le="+Inf"} 2`, "holdfast_ack_latency_seconds_count 2",
	} {
		if !strings.Contains(b.String(), line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
}
