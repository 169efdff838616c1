package delivery

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"holdfast/ack"
	"holdfast/codec"
)

// fakePeer is a connection that records what it is given.
type fakePeer struct {
	mu         sync.Mutex
	welcome    []byte
	attachment any
	frames     [][]byte // not yet looked at
	unsent     int
	full       bool // the outbox is over its high watermark
	gone       bool
	closed     codec.Code
	retryAfter int64
	discard    bool          // keep no frames
	sent       chan struct{} // when set: one token a frame
}

func (p *fakePeer) Open(attachment any, welcome []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return false
	}
	p.attachment, p.welcome = attachment, slices.Clone(welcome)
	if p.sent != nil {
		p.sent <- struct{}{}
	}
	return true
}

func (p *fakePeer) Send(frame []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone || p.full || p.closed != 0 {
		return false
	}
	if !p.discard {
		p.frames = append(p.frames, slices.Clone(frame))
	}
	if p.sent != nil {
		p.sent <- struct{}{}
	}
	return true
}

func (p *fakePeer) Unsent() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unsent
}

func (p *fakePeer) Close(code codec.Code, _ string, retryAfterMs int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed == 0 {
		p.closed, p.retryAfter = code, retryAfterMs
	}
}

// count is how many frames have not been looked at.
func (p *fakePeer) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.frames)
}

// pushes decodes and forgets the PUSH frames so far.
func (p *fakePeer) pushes() (list []codec.Push) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.frames {
		f, _, err := codec.Parse(b, codec.FrameBytesMax)
		if err != nil {
			panic(err)
		}
		var x codec.Push
		if f.Type != codec.TypePush {
			continue
		}
		if err := codec.DecodePush(f, &x); err != nil {
			panic(err)
		}
		list = append(list, x)
	}
	p.frames = nil
	return list
}

// harness drives one engine with manual time, without a goroutine.
type harness struct {
	t              testing.TB
	store          *fakeStore
	core           *core
	e              *Engine
	rand           *rand.Rand
	now            Now
	settles        int
	fired, entries []ack.Expired
	sweep          sweepScratch
}

func testConfig() Config {
	c := DefaultConfig()
	c.Lanes = 2
	return c
}

func newHarness(t testing.TB, change func(c *Config)) *harness {
	c := testConfig()
	if change != nil {
		change(&c)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	h := &harness{t: t, store: newFakeStore(), rand: rand.New(rand.NewPCG(1, 2)), now: Now{MonoMs: 1000, WallMs: 1_700_000_000_000}}
	h.boot(c)
	t.Cleanup(func() { h.core.table.Check() })
	return h
}

// boot starts a node on the store, as after a restart.
func (h *harness) boot(c Config) {
	h.core = newCore(c, h.store, metrics.NewSet(), h.now.MonoMs)
	h.e = newEngine(h.core, h.rand)
}

// settle ends the connections that were replaced, as their event loops would, lets the engine finish and checks what must always hold.
func (h *harness) settle() {
	for _, l := range h.e.links {
		if l.heir() != nil {
			h.e.Gone(l, h.now)
		}
	}
	for h.e.Turn(h.now) {
	}
	h.e.Check()
	if h.settles++; h.settles%256 == 0 { // the table's own check walks every wheel
		h.core.table.Check()
	}
}

// advance lets time pass, with timeouts, lane ticks and sweeps as the dispatcher makes them. Moments at which nothing can happen
// are skipped.
func (h *harness) advance(d time.Duration) {
	for end := h.now.MonoMs + d.Milliseconds(); h.now.MonoMs < end; {
		step := h.nextMs(end) - h.now.MonoMs
		h.now.MonoMs += step
		h.now.WallMs += step
		h.fired = h.core.table.Expire(h.now.MonoMs, h.fired[:0], 10_000)
		for i := range h.fired {
			h.e.Fired(&h.fired[i], h.now)
		}
		if h.now.MonoMs%100 == 0 {
			h.e.Tick(h.now)
		}
		if h.now.MonoMs%1000 == 0 {
			h.core.sweep(&h.sweep, 1000, h.now, func(o overdue) { h.e.Expire(o, h.now) })
		}
		for h.e.Turn(h.now) {
		}
	}
	h.settle()
}

// nextMs is the next moment at which anything can happen.
func (h *harness) nextMs(end int64) int64 {
	now := h.now.MonoMs
	next := min(end, (now/1000+1)*1000)
	if h.e.Ticking() {
		next = min(next, (now/100+1)*100)
	}
	for _, l := range h.e.links {
		h.entries = h.core.table.Entries(l.session, h.entries[:0])
		for i := range h.entries {
			if x := &h.entries[i].Entry; x.Armed {
				next = min(next, max(x.DeadlineMs, now+10))
			}
		}
	}
	return next
}

// login opens a connection for user/device.
func (h *harness) login(name string) (*Link, *fakePeer) {
	user, device, _ := strings.Cut(name, "/")
	p := &fakePeer{}
	l := newLink(LoginRequest{Peer: p, User: []byte(user), Device: []byte(device)})
	h.e.Login(l, h.now)
	h.settle()
	return l, p
}

func (h *harness) gone(l *Link) {
	h.e.Gone(l, h.now)
	h.settle()
}

// push publishes one message and returns its result; follow-ups as change says.
func (h *harness) push(user, id string, change func(x *codec.PublishItem)) Outcome {
	x := codec.PublishItem{User: []byte(user), MessageID: []byte(id), Payload: []byte("payload of " + id)}
	if change != nil {
		change(&x)
	}
	var o Outcome
	done := 0
	b := NewBatch()
	b.Add(&x)
	b.Done = func(b *Batch) { done++; o = b.Outcome(0); o.MessageID = slices.Clone(o.MessageID) }
	b.begin(h.core)
	if r := b.admit(h.core, 0, h.now, h.rand.Uint64); r != codec.ResultAccepted {
		b.settle(0, r)
	} else {
		h.e.Push(b, 0, h.now)
	}
	b.release()
	h.settle()
	if h.store.manualSync {
		h.store.sync()
	}
	if done != 1 {
		h.t.Fatalf("Done was called %d times for %s", done, id)
	}
	return o
}

func (h *harness) pushMany(user string, from, to int) {
	for i := from; i <= to; i++ {
		if o := h.push(user, fmt.Sprintf("m%d", i), nil); o.Result != codec.ResultAccepted {
			h.t.Fatalf("m%d: %s", i, o.Result)
		}
	}
}

// ackOne confirms one request number and does what follows, as the dispatcher would.
func (h *harness) ackOne(l *Link, number uint64) {
	h.t.Helper()
	h.take(l, &codec.Ack{Kind: codec.AckOne, From: number, Count: 1})
}

func (h *harness) take(l *Link, a *codec.Ack) {
	h.t.Helper()
	h.after(l, h.core.ack(l, a, h.now))
}

func (h *harness) after(l *Link, x heard) {
	h.t.Helper()
	if x.code != codec.CodeNone {
		h.t.Fatalf("protocol fault: %s", x.reason)
	}
	if x.delay {
		h.e.Delay(l, x.ref, x.dueMs, h.now)
	}
	if x.wake {
		h.e.Wake(l, h.now)
	}
	h.settle()
}

// end is how the only delivery of a message ended; "" while it lives.
func (h *harness) status(id string) string {
	h.t.Helper()
	found := h.store.Find(id)
	if len(found) != 1 {
		h.t.Fatalf("%d deliveries of %s", len(found), id)
	}
	x := h.e.describe(found[0], h.now)
	if x.Reason != ReasonNone {
		return x.Status.String() + " " + x.Reason.String()
	}
	return x.Status.String()
}

func (h *harness) wantStatus(id, want string) {
	h.t.Helper()
	if got := h.status(id); got != want {
		h.t.Fatalf("%s is %s, want %s", id, got, want)
	}
}

// wantPushes checks the ids that arrived since the last look, in order, and returns the frames.
func (h *harness) wantPushes(p *fakePeer, ids ...string) []codec.Push {
	h.t.Helper()
	list := p.pushes()
	var got []string
	for i := range list {
		got = append(got, string(list[i].MessageID))
	}
	if !slices.Equal(got, ids) {
		h.t.Fatalf("arrived %v, want %v", got, ids)
	}
	return list
}
