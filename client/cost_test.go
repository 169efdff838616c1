package client

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"holdfast/codec"
)

// discard is a connection that takes everything and never has anything to read.
type discard struct{ net.Conn }

func (discard) Write(b []byte) (int, error)      { return len(b), nil }
func (discard) Close() error                     { return nil }
func (discard) SetReadDeadline(time.Time) error  { return nil }
func (discard) SetWriteDeadline(time.Time) error { return nil }

// offline is a client in a session that the test feeds directly.
func offline(o Options) (*Client, *session) {
	o.Addrs, o.User = []string{"x:1"}, "alice"
	o.setDefaults()
	c := &Client{o: o, dedup: newDedup(o.DedupSize), open: map[dedupKey]*Message{}, pub: publisher{itemsMax: o.PublishBatch, queueMax: o.PublishQueue}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	s := c.newSession(discard{}, "x:1")
	s.info.FrameBytesMax = codec.FrameBytesDefault
	s.queueMsgsMax, s.queueBytesMax = 1000, 1<<20
	c.live = s
	c.pub.attach(s, 16)
	return c, s
}

func nothing(context.Context, *Message) error { return nil }

// What a message costs is what is handed to the program: the Message and its bytes.
func TestReceivingAllocatesOnlyWhatIsHandedOver(t *testing.T) {
	c, s := offline(Options{Inline: true, Handler: nothing})
	defer c.cancel()
	ids := make([][]byte, 5000) // fills the dedup ring
	for i := range ids {
		ids[i] = fmt.Appendf(nil, "message-%d", i)
	}
	p := codec.Push{Attempt: 1, Type: []byte("chat"), Payload: make([]byte, 160)}
	one := func() {
		p.Number++
		p.MessageID = ids[p.Number%uint64(len(ids))]
		c.receive(s, &p)
	}
	for range ids {
		one()
	}
	if n := testing.AllocsPerRun(1000, one); n > 2 {
		t.Errorf("%v allocations a message", n)
	}
}

func TestPublishingABatchAllocatesByTheCallNotByTheMessage(t *testing.T) {
	c, _ := offline(Options{Publisher: true})
	defer c.cancel()
	msgs := batch(100)
	x := codec.Published{Count: 100, AllAccepted: true}
	n := testing.AllocsPerRun(200, func() {
		if err := c.PublishAsync(context.Background(), msgs, func([]Result, error) {}); err != nil {
			t.Fatal(err)
		}
		x.Number++
		if err := c.pub.answer(&x); err != nil {
			t.Fatal(err)
		}
	})
	if n > 6 {
		t.Errorf("%v allocations for a batch of %d", n, len(msgs))
	}
}

func usedBytes() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// A load generator holds thousands of clients: one goroutine and a few KiB each while idle, over what a bare
// connection takes.
func TestIdleClientIsOneGoroutineAndAFewKilobytes(t *testing.T) {
	const n = 400
	s := newServer(t)
	go func() {
		welcome := codec.AppendWelcome(nil, fakeWelcome())
		for nc := range s.conns {
			t.Cleanup(func() { nc.Close() })
			if _, err := nc.Write(welcome); err != nil {
				t.Error(err)
			}
		}
	}()
	bare := make([]net.Conn, n)
	before := usedBytes()
	for i := range bare {
		nc, err := net.Dial("tcp", s.addr())
		if err != nil {
			t.Fatal(err)
		}
		bare[i] = nc
		defer nc.Close()
		if _, err := io.ReadFull(nc, make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
	}
	perConn := usedBytes() - before
	goroutines := runtime.NumGoroutine()
	clients := make([]*Client, n)
	before = usedBytes()
	for i := range clients {
		c, err := Dial(t.Context(), Options{Addrs: []string{s.addr()}, User: "alice", Handler: nothing})
		if err != nil {
			t.Fatal(err)
		}
		clients[i] = c
	}
	perClient := int64(usedBytes()-before-perConn) / n
	t.Logf("%d B an idle client over a bare connection of %d B (both ends)", perClient, perConn/n)
	if got := runtime.NumGoroutine() - goroutines; got > n+5 {
		t.Errorf("%d goroutines for %d clients", got, n)
	}
	if perClient > 16<<10 {
		t.Errorf("%d bytes a client", perClient)
	}
	var wg sync.WaitGroup
	for _, c := range clients {
		c.mu.Lock()
		s := c.live
		c.mu.Unlock()
		s.nc.Close() // no server is there to say goodbye to
		wg.Go(func() { c.Close() })
	}
	wg.Wait()
}

func BenchmarkReceive(b *testing.B) {
	for _, inline := range []bool{false, true} {
		b.Run(fmt.Sprintf("inline=%v", inline), func(b *testing.B) {
			const window = 64
			_, p, c := pair(b, Options{Inline: inline, Handler: nothing})
			b.ReportAllocs()
			b.SetBytes(200)
			x := codec.Push{Attempt: 1, Type: []byte("chat"), Payload: make([]byte, 160)}
			var buf []byte
			in, have := make([]byte, 4096), 0
			b.ResetTimer()
			for i := 0; i < b.N; {
				buf = buf[:0]
				n := min(window, b.N-i)
				for range n {
					x.Number++
					x.MessageID = fmt.Appendf(x.MessageID[:0], "message-%d", x.Number)
					buf = codec.AppendPush(buf, &x)
				}
				p.write(buf)
				i += n
				for acked := uint64(0); acked < x.Number; { // in order, one handler: the last of a window is confirmed last
					n, err := p.nc.Read(in[have:])
					if err != nil {
						b.Fatal(err)
					}
					have += n
					at := 0
					for {
						f, n, err := codec.Parse(in[at:have], len(in))
						if err != nil || codecAck(f, n, &acked) != nil {
							b.Fatal(err)
						}
						if n == 0 {
							break
						}
						at += n
					}
					have = copy(in, in[at:have])
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(c.Stats().AckFrames)/float64(b.N), "ackframes/op")
		})
	}
}

// codecAck reads the highest number an ACK frame confirms.
func codecAck(f codec.Frame, n int, acked *uint64) error {
	if n == 0 {
		return nil
	}
	var a codec.Ack
	if err := codec.DecodeAck(f, &a); err != nil {
		return err
	}
	if a.Kind == codec.AckUpTo {
		*acked = a.From
	}
	for r := range a.Ranges {
		*acked = r.From + r.Count - 1
	}
	return nil
}

func BenchmarkPublish(b *testing.B) {
	s := newServer(b)
	client := start(b, s, Options{Publisher: true})
	p, _ := s.login(func(w *codec.Welcome) { w.PublishWindow = 16 })
	c := client()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		var out []byte
		for {
			f, ok, _ := p.next(patience)
			if !ok || f.Type != codec.TypePublish {
				return
			}
			var x codec.Publish
			if codec.DecodePublish(f, &x) != nil {
				return
			}
			out = codec.AppendPublished(out[:0], &codec.Published{Number: x.Number, Count: x.Count, AllAccepted: true})
			if _, err := p.nc.Write(out); err != nil {
				return
			}
		}
	}()
	b.ReportAllocs()
	b.SetParallelism(64)
	payload := make([]byte, 160)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.Publish(context.Background(), Outgoing{User: "bob", Payload: payload}); err != nil {
				b.Error(err)
			}
		}
	})
	b.StopTimer()
	b.ReportMetric(float64(b.N)/float64(c.Stats().PublishFrames), "msgs/frame")
	p.nc.Close()
	<-stopped
}
