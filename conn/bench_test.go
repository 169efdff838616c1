package conn

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/codec"
)

// windowed counts ACKed pushes and gives their window back.
type windowed struct {
	acked atomic.Int64
	ready chan *Session
	room  chan struct{}
}

func (h *windowed) Login(s *Session, _ *codec.Connect, _ Identity) {
	s.Open(nil, welcome(s))
	h.ready <- s
}

func (h *windowed) Frame(_ *Session, f codec.Frame) (codec.Code, string) {
	var a codec.Ack
	if err := codec.DecodeAck(f, &a); err != nil {
		return codec.CodeMalformed, err.Error()
	}
	for range a.Count {
		<-h.room
	}
	h.acked.Add(int64(a.Count))
	return codec.CodeNone, ""
}

func (*windowed) Closed(*Session)  {}
func (*windowed) Drained(*Session) {}

// BenchmarkPushAck pushes 160-byte messages round robin to 200 connections on real sockets, 64 unacknowledged each on average; the
// clients acknowledge each read with one range. cpu-ns/op is the CPU time of server and clients together.
func BenchmarkPushAck(b *testing.B) {
	const conns, window = 200, 64
	h := &windowed{ready: make(chan *Session, conns), room: make(chan struct{}, conns*window)}
	s := start(b, Config{Loops: 1}, h)
	var clients sync.WaitGroup
	var sessions []*Session
	for range conns {
		p := dial(b, s).login("alice")
		sessions = append(sessions, <-h.ready)
		clients.Go(func() { p.ackAll() })
	}
	frame := pushFrame(1, make([]byte, 130))
	before := cpuNs(b)
	b.ResetTimer()
	for i := range b.N {
		h.room <- struct{}{}
		if !sessions[i%conns].Send(frame) {
			b.Fatal("refused inside the window")
		}
	}
	for h.acked.Load() < int64(b.N) {
		time.Sleep(100 * time.Microsecond)
	}
	b.StopTimer()
	b.ReportMetric(float64(cpuNs(b)-before)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(b.N)/float64(s.Stats().Writes-conns), "frames/write")
	stop(b, s)
	clients.Wait()
}

// ackAll acknowledges what it reads until the connection ends.
func (p *peer) ackAll() {
	var in [64 << 10]byte
	filled := 0
	for {
		n, err := p.TCPConn.Read(in[filled:])
		if err != nil {
			return
		}
		filled += n
		used, count := 0, uint64(0)
		for {
			f, n, err := codec.Parse(in[used:filled], codec.FrameBytesMax)
			if err != nil || n == 0 || f.Type != codec.TypePush {
				break
			}
			used += n
			count++
		}
		filled = copy(in[:], in[used:filled])
		if count > 0 {
			if _, err := p.Write(codec.AppendAckRange(nil, 1, count, codec.LevelReceived)); err != nil {
				return
			}
		}
	}
}

func cpuNs(b *testing.B) int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
