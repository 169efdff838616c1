//go:build linux && !race

package conn

import (
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"holdfast/codec"
)

// R19: reading ACKs allocates nothing.
func TestReadingAcksAllocatesNothing(t *testing.T) {
	l, s, _, h := bench(t)
	var data []byte
	for i := range 100 {
		data = codec.AppendAckOne(data, uint64(i+1), codec.LevelProcessed)
	}
	in := s.conn.(*buffered)
	if n := testing.AllocsPerRun(100, func() { in.in = data; l.traffic(s) }); n != 0 {
		t.Fatalf("%v allocations per 100 ACKs", n)
	}
	if h.frames != 101*100 {
		t.Fatalf("%d frames handled", h.frames)
	}
}

// Sending and flushing allocate nothing in the steady state, PONG included.
func TestSendingAllocatesNothing(t *testing.T) {
	l, s, other, _ := bench(t)
	frame := pushFrame(1, make([]byte, 160))
	in := s.conn.(*buffered)
	ping := codec.AppendPing(nil, []byte("12345678"))
	var sink [64 << 10]byte
	n := testing.AllocsPerRun(1000, func() {
		for range 16 {
			if !s.Send(frame) || !s.SendControl(frame) {
				t.Fatal("refused")
			}
		}
		in.in = ping
		l.traffic(s)
		_ = l.Run(t.Context())
		l.signal.Store(true)
		l.flushed = 0
		if _, err := unix.Read(other, sink[:]); err != nil {
			t.Fatal(err)
		}
	})
	if n > 0.1 { // a garbage collection in between empties the pool
		t.Fatalf("%v allocations per 33 frames", n)
	}
}

// A session is small: a node holds hundreds of thousands.
func TestSessionIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(Session{}); size > 256 {
		t.Fatalf("a session has %d bytes", size)
	}
}

// Memory of idle connections, gnet's included. The clients are bare descriptors, so the heap is the server's.
func TestIdleConnectionsAreCheap(t *testing.T) {
	const conns = 2000
	s := start(t, Config{}, newRecorder())
	a := s.addr.AddrPort()
	to := &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().Unmap().As4()}
	hello := connect("alice", "phone")
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	fds := make([]int, 0, conns)
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
		eventually(t, "all to leave", func() bool { return s.Stats().Conns == 0 })
	}()
	for range conns {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
		if err := unix.Connect(fd, to); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Write(fd, hello); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all logins", func() bool { return s.Stats().Logins == conns })
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&after)
	per := (int64(after.HeapAlloc) + int64(after.StackInuse) - int64(before.HeapAlloc) - int64(before.StackInuse)) / conns
	t.Logf("%d bytes per idle connection, %d of them the session", per, unsafe.Sizeof(Session{}))
	if per > 1200 {
		t.Fatalf("%d bytes per idle connection", per)
	}
}

func BenchmarkReadAck(b *testing.B) {
	l, s, _, _ := bench(b)
	var data []byte
	for i := range 64 {
		data = codec.AppendAckOne(data, uint64(i+1), codec.LevelProcessed)
	}
	in := s.conn.(*buffered)
	b.ReportAllocs()
	for n := 0; n < b.N; n += 64 {
		in.in = data
		l.traffic(s)
	}
}

func BenchmarkSendFlush16(b *testing.B) {
	l, s, other, _ := bench(b)
	l.server.bundleMs = 0 // every flush writes
	frame := pushFrame(1, make([]byte, 160))
	var sink [64 << 10]byte
	b.ReportAllocs()
	for n := 0; n < b.N; n += 16 {
		for range 16 {
			s.Send(frame)
		}
		_ = l.Run(b.Context())
		l.signal.Store(true)
		l.flushed = 0
		if _, err := unix.Read(other, sink[:]); err != nil {
			b.Fatal(err)
		}
	}
}

// Sessions of idle connections are most of what a node with many of them needs: 176 bytes is a size class of the allocator.
func TestAnIdleSessionIsSmall(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) == 8 && unsafe.Sizeof(Session{}) > 176 {
		t.Errorf("%d bytes", unsafe.Sizeof(Session{}))
	}
}
