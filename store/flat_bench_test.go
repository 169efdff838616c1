package store

import (
	"fmt"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"holdfast/codec"
	"holdfast/delivery"
)

// BenchmarkPushToAck is the way of a message from Dispatcher.Push over the durable store and the pending table to its ACK, with many
// connections and many messages that wait for theirs meanwhile. cpu-ns/msg should stay flat from the first line to the last; the
// time itself is the disk's, and an op is a round of 256 messages.
func BenchmarkPushToAck(b *testing.B) {
	for _, c := range []struct{ links, pending int }{
		{1000, 0}, {18_000, 0}, {1000, 10_000}, {1000, 1_000_000}, {18_000, 18_000}, {18_000, 1_008_000},
	} {
		b.Run(fmt.Sprintf("links=%d/pending=%d", c.links, c.pending), func(b *testing.B) {
			x := newRelay(b, c.links, c.pending/c.links)
			const round = 256
			x.rounds(200, round) // until buffers have their sizes
			runtime.GC()
			cpu := cpuTime()
			for b.Loop() { // not b.N: everybody would log in, and all that waits be sent, once for each attempt at a number
				x.rounds(1, round)
			}
			messages := float64(b.N * round)
			b.ReportMetric(float64((cpuTime()-cpu).Nanoseconds())/messages, "cpu-ns/msg")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/messages, "ns/msg")
			x.close()
		})
	}
}

// relay is a dispatcher on a store, with connections that take everything and acknowledge the oldest they have.
type relay struct {
	b        *testing.B
	d        *delivery.Dispatcher
	l        *Local
	peers    []relayPeer
	users    [][]byte
	pushed   []uint64 // by user
	acked    []uint64
	perUser  int
	turn     int
	sequence uint64
	id       []byte
	payload  []byte
	flying   chan struct{} // batches without an answer
	refused  atomic.Int64
}

// relayPeer is a socket that is always writable.
type relayPeer struct {
	link atomic.Pointer[delivery.Link]
	sent atomic.Uint64
}

func (p *relayPeer) Open(attachment any, _ []byte) bool {
	p.link.Store(attachment.(*delivery.Link))
	return true
}
func (p *relayPeer) Send([]byte) bool              { p.sent.Add(1); return true }
func (*relayPeer) Unsent() int                     { return 0 }
func (*relayPeer) Close(codec.Code, string, int64) {}

// newRelay logs everybody in and gives each user so many messages that it does not acknowledge.
func newRelay(b *testing.B, links, perUser int) *relay {
	b.Helper()
	x := &relay{
		b: b, peers: make([]relayPeer, links), users: make([][]byte, links), pushed: make([]uint64, links), acked: make([]uint64, links),
		perUser: perUser, payload: make([]byte, 128), flying: make(chan struct{}, 64),
	}
	x.l = open(b, Config{Dir: b.TempDir(), PendingBytesMax: 64 << 20, DedupMax: 1 << 16})
	c := delivery.DefaultConfig()
	c.AckTimeout, c.WindowMsgs, c.WindowBytes, c.LaneItemsMax = time.Hour, 4096, 1<<30, 1<<20
	d, err := delivery.NewDispatcher(c, x.l, metrics.NewSet(), quiet())
	if err != nil {
		b.Fatal(err)
	}
	x.d = d
	d.Start()
	for i := range x.peers {
		x.users[i] = fmt.Append(nil, "user", i)
		d.Login(delivery.LoginRequest{Peer: &x.peers[i], User: x.users[i], Device: []byte("phone")})
	}
	eventually(b, "everybody is logged in", func() bool {
		for i := range x.peers {
			if x.peers[i].link.Load() == nil {
				return false
			}
		}
		return true
	})
	for left := links * perUser; left > 0; {
		n := min(left, 256)
		x.push(n)
		left -= n
	}
	return x
}

// push publishes one message each to the next n users and returns when they are on the sockets.
func (x *relay) push(n int) {
	batch := delivery.NewBatch()
	batch.Done = x.answered
	for i := range n {
		user := (x.turn + i) % len(x.peers)
		x.sequence++
		x.id = strconv.AppendUint(x.id[:0], x.sequence, 10)
		batch.Add(&codec.PublishItem{User: x.users[user], MessageID: x.id, Payload: x.payload})
		x.pushed[user]++
	}
	x.flying <- struct{}{}
	x.d.Push(batch)
	for i := range n {
		for user := (x.turn + i) % len(x.peers); x.peers[user].sent.Load() < x.pushed[user]; {
			runtime.Gosched()
		}
	}
	x.turn = (x.turn + n) % len(x.peers)
}

func (x *relay) answered(b *delivery.Batch) {
	for i := range b.Len() {
		if b.Result(i) != codec.ResultAccepted {
			x.refused.Add(1)
		}
	}
	b.Release()
	<-x.flying
}

// rounds pushes to n users and has them acknowledge their oldest message, again and again.
func (x *relay) rounds(rounds, n int) {
	for range rounds {
		first := x.turn
		x.push(n)
		for i := range n {
			user := (first + i) % len(x.peers)
			x.acked[user]++
			a := codec.Ack{Kind: codec.AckOne, From: x.acked[user], Count: 1}
			if code, why := x.d.Ack(x.peers[user].link.Load(), &a); code != codec.CodeNone {
				x.b.Fatal(why)
			}
		}
	}
	if n := x.refused.Load(); n > 0 {
		x.b.Fatalf("%d messages were refused", n)
	}
}

func (x *relay) close() {
	for range cap(x.flying) { // every batch has its answer
		x.flying <- struct{}{}
	}
	x.d.Close()
	shut(x.b, x.l)
}
