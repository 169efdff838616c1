//go:build !race

package delivery

import (
	"testing"
	"unsafe"

	"holdfast/codec"
)

// The race detector makes pools forget, so these ceilings are for the plain build.

// hot is a connected user on an engine, ready for pushes and ACKs in steady state.
type hot struct {
	*harness
	link *Link
	x    codec.PublishItem
	done func(*Batch)
	sent uint64
}

func newHot(t testing.TB) *hot {
	h := &hot{harness: newHarness(t, nil)}
	h.store.noHistory = true
	p := &fakePeer{discard: true}
	h.link = newLink(LoginRequest{Peer: p, User: []byte("alice"), Device: []byte("phone")})
	h.e.Login(h.link, h.now)
	h.settle()
	h.x = codec.PublishItem{User: []byte("alice"), MessageID: []byte("0123456789"), Type: []byte("note"), Payload: make([]byte, 200)}
	h.done = (*Batch).Release
	return h
}

// push is what Dispatcher.Push and a lane do for a batch of n messages.
func (h *hot) push(n int) {
	b := NewBatch()
	for range n {
		b.Add(&h.x)
	}
	b.Done = h.done
	b.begin(h.core)
	for i := range n {
		if r := b.admit(h.core, i, h.now, h.rand.Uint64); r != codec.ResultAccepted {
			h.t.Fatal(r)
		}
		h.e.Push(b, i, h.now)
	}
	b.release()
	h.sent += uint64(n)
}

func (h *hot) ackAll() {
	a := codec.Ack{Kind: codec.AckUpTo, From: h.sent}
	if x := h.core.ack(h.link, &a, h.now); x.code != 0 {
		h.t.Fatal(x.reason)
	}
}

func TestPushAndAckAllocateNothing(t *testing.T) {
	h := newHot(t)
	for range 100 {
		h.push(16)
		h.ackAll()
	}
	if n := testing.AllocsPerRun(1000, func() { h.push(16); h.ackAll() }); n != 0 {
		t.Fatalf("%v allocations for 16 pushes and their ACK", n)
	}
	if h.store.live != 0 || h.link.backlog {
		t.Fatalf("%d live, backlog %v: not the hot path", h.store.live, h.link.backlog)
	}
}

func TestPumpAllocatesNothing(t *testing.T) {
	h := newHot(t)
	cycle := func() {
		h.push(100) // more than the window
		for h.store.live > 0 {
			h.now.MonoMs += 1000
			state, _ := h.core.table.State(h.link.session)
			a := codec.Ack{Kind: codec.AckUpTo, From: state.NumberLast}
			if h.core.ack(h.link, &a, h.now).wake {
				h.e.Wake(h.link, h.now)
			}
			for h.e.Turn(h.now) {
			}
		}
		state, _ := h.core.table.State(h.link.session)
		h.sent = state.NumberLast
	}
	for range 20 {
		cycle()
	}
	if n := testing.AllocsPerRun(100, cycle); n != 0 {
		t.Fatalf("%v allocations for a backlog of 100", n)
	}
}

func BenchmarkPushAndAck(b *testing.B) {
	h := newHot(b)
	b.ReportAllocs()
	for i := 0; i < b.N; i += 16 {
		h.push(16)
		h.ackAll()
	}
}

// An idle connection has a link like any other: 192 bytes is a size class of the allocator.
func TestALinkIsSmall(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) == 8 && unsafe.Sizeof(Link{}) > 192 {
		t.Errorf("%d bytes", unsafe.Sizeof(Link{}))
	}
}
