package admin

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/codec"
	"holdfast/delivery"
)

// instantNode copies what it is given, as the real batch does, and accepts it at once.
type instantNode struct {
	fakeNode
	pool sync.Pool // as the real batches have, or the benchmark measures the fake
}

type instantBatch struct {
	node  *instantNode
	done  func()
	ids   [][]byte
	bytes []byte
}

func (n *instantNode) NewBatch(done func()) Batch {
	b, ok := n.pool.Get().(*instantBatch)
	if !ok {
		b = &instantBatch{node: n}
	}
	b.done, b.ids, b.bytes = done, b.ids[:0], b.bytes[:0]
	return b
}
func (n *instantNode) Push(b Batch) { b.(*instantBatch).done() }

func (b *instantBatch) Add(it *codec.PublishItem) int {
	for _, field := range [][]byte{it.User, it.Device, it.Type, it.Conversation, it.Payload} {
		b.bytes = append(b.bytes, field...)
	}
	from := len(b.bytes)
	b.bytes = append(b.bytes, it.MessageID...)
	b.ids = append(b.ids, b.bytes[from:len(b.bytes):len(b.bytes)])
	return len(b.ids) - 1
}
func (b *instantBatch) Result(int) codec.Result { return codec.ResultAccepted }
func (b *instantBatch) Outcome(i int) delivery.Outcome {
	return delivery.Outcome{MessageID: b.ids[i], Deliveries: 1}
}
func (b *instantBatch) Release() { b.node.pool.Put(b) }

// nowhere is a ResponseWriter that keeps nothing.
type nowhere struct{ header http.Header }

func (w *nowhere) Header() http.Header         { return w.header }
func (w *nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (w *nowhere) Flush()                      {}
func (w *nowhere) WriteHeader(status int) {
	if status != http.StatusOK {
		panic(status)
	}
}

func benchServer(b testing.TB) *Server {
	b.Helper()
	node := &instantNode{}
	s, err := New(DefaultConfig(), Parts{Pusher: node, Inspector: node})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.stop)
	return s
}

func batchBody(n int) []byte {
	body := []byte{'['}
	for i := range n {
		if i > 0 {
			body = append(body, ',')
		}
		body = fmt.Appendf(body, `{"user":"user-%d","message_id":"order-%08d","type":"order.paid","payload":"%s","ttl":"10m"}`, i, i,
			"eyJvcmRlciI6NDcxMSwiYW1vdW50IjoiMTIuMzQgRVVSIiwiYXQiOiIyMDI2LTExLTMwVDIwOjE1OjAwWiJ9")
	}
	return append(body, ']')
}

// cpuTime is what this process used so far: on a machine that is shared it says more than the clock, garbage collection included.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkPush is the cost of this layer without sockets: request in, batch out, reply in. It reports the processor time of one message.
func BenchmarkPush(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s, body := benchServer(b), batchBody(n)
			handler, w, reader := s.http.Handler, &nowhere{http.Header{}}, bytes.NewReader(nil)
			req := httptest.NewRequest("POST", "/v1/push", reader)
			req.Header.Set("Content-Type", "application/json")
			req.ContentLength = int64(len(body))
			b.ReportAllocs()
			start := cpuTime()
			for b.Loop() {
				reader.Reset(body)
				handler.ServeHTTP(w, req)
			}
			b.ReportMetric(float64(cpuTime()-start)/float64(b.N*n), "cpu-ns/msg")
		})
	}
}

// BenchmarkDecode is the part of it that reads JSON.
func BenchmarkDecode(b *testing.B) {
	body := batchBody(100)
	r, l := &pushRequest{body: body}, benchServer(b).limits()
	batch := &instantBatch{}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	start := cpuTime()
	for b.Loop() {
		batch.bytes, batch.ids = batch.bytes[:0], batch.ids[:0]
		if _, _, p, ok := r.decodeBody(batch, l); !ok {
			b.Fatal(p)
		}
	}
	b.ReportMetric(float64(cpuTime()-start)/float64(b.N*100), "cpu-ns/msg")
}

func TestDecodingABatchDoesNotAllocate(t *testing.T) {
	r, l := &pushRequest{body: batchBody(100)}, benchServer(t).limits()
	batch := &instantBatch{}
	decode := func() {
		batch.bytes, batch.ids = batch.bytes[:0], batch.ids[:0]
		if _, _, p, ok := r.decodeBody(batch, l); !ok {
			t.Fatal(p)
		}
	}
	decode()
	if n := testing.AllocsPerRun(100, decode); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkStream is one message of an NDJSON stream, without sockets.
func BenchmarkStream(b *testing.B) {
	s := benchServer(b)
	body := batchBody(10_000)
	body = bytes.ReplaceAll(body[1:len(body)-1], []byte("},{"), []byte("}\n{"))
	b.ReportAllocs()
	start := cpuTime()
	for b.Loop() {
		req := httptest.NewRequest("POST", "/v1/push", bytes.NewReader(body))
		req.Header.Set("Content-Type", "application/x-ndjson")
		s.http.Handler.ServeHTTP(&nowhere{http.Header{}}, req)
	}
	b.ReportMetric(float64(cpuTime()-start)/float64(b.N*10_000), "cpu-ns/msg")
}
