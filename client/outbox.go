package client

import (
	"net"
	"sync"
	"time"
)

const (
	bufferBytesKept = 64 << 10 // a larger buffer is given back after its write
	bufferBytesIdle = 1 << 10  // what an idle connection keeps
)

// outbox collects frames and writes them with as few calls as it can, without a goroutine of its own: who finds nobody
// writing writes, and goes on until nothing is left; who comes meanwhile leaves its frames and goes away. What it
// holds is bounded by the windows of the protocol (acknowledgements by the receive window, PUBLISH frames by the
// publish window), not here.
//
// Use: buf := lock(); buf = codec.Append…(buf, …); unlock(buf); flush().
type outbox struct {
	nc net.Conn // static

	// Guarded by mu.
	mu       sync.Mutex
	buf      []byte // not yet given to the socket
	spare    []byte // the other buffer, when nobody writes
	writing  bool
	last     bool          // nothing comes behind what is there: end the write side
	idle     chan struct{} // closed when the writer at work is done; nil: nobody waits for it
	err      error
	appended uint64 // bytes ever put in
	written  uint64 // bytes the socket took
	wroteAt  time.Time
}

// lock returns the buffer to append to. It holds the outbox until unlock.
func (o *outbox) lock() []byte {
	o.mu.Lock()
	return o.buf
}

// unlock stores the buffer that lock gave out, with what was appended, and returns the position of its end in the
// stream: it has left when sent(position).
func (o *outbox) unlock(buf []byte) uint64 {
	o.appended += uint64(len(buf) - len(o.buf))
	o.buf = buf
	end := o.appended
	if o.err != nil {
		o.buf = nil // nothing will leave any more
	}
	o.mu.Unlock()
	return end
}

// sent reports whether the socket took everything up to the position.
func (o *outbox) sent(position uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.written >= position
}

// lastWrite is when the socket last took something.
func (o *outbox) lastWrite() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.wroteAt
}

// bytes is how much the socket took.
func (o *outbox) bytes() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.written
}

// flush writes what is there, unless somebody is at it. It blocks as long as the socket does; the session keeps a
// write deadline a few keepalive intervals ahead, which also bounds this. A failed write closes the socket, so that
// the reader notices.
func (o *outbox) flush() {
	o.mu.Lock()
	if o.writing {
		o.mu.Unlock()
		return
	}
	o.writing = true
	for len(o.buf) > 0 && o.err == nil {
		w := o.buf
		o.buf, o.spare = o.spare[:0], nil
		o.mu.Unlock()
		n, err := o.nc.Write(w)
		now := time.Now()
		o.mu.Lock()
		o.written += uint64(n)
		o.wroteAt = now
		if cap(w) <= bufferBytesKept {
			o.spare = w[:0]
		}
		if err != nil {
			o.err, o.buf, o.spare = err, nil, nil
			o.nc.Close()
		}
	}
	o.writing = false
	if o.idle != nil {
		close(o.idle)
		o.idle = nil
	}
	last := o.last && o.err == nil
	o.mu.Unlock()
	if half, ok := o.nc.(interface{ CloseWrite() error }); ok && last {
		_ = half.CloseWrite() // an error shows at the reader
	}
}

// flushAndWait is flush that also waits for a writer that is at it already, as long as the write deadline lets it.
func (o *outbox) flushAndWait() {
	o.flush()
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.writing {
		if o.idle == nil {
			o.idle = make(chan struct{})
		}
		idle := o.idle
		o.mu.Unlock()
		<-idle
		o.mu.Lock()
	}
}

// finish writes what is there and then ends the write side of the connection, where it has one.
func (o *outbox) finish() {
	o.mu.Lock()
	o.last = true
	o.mu.Unlock()
	o.flush()
}

// shrink gives back the memory of a busier time. Called when the connection has been quiet.
func (o *outbox) shrink() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.writing && len(o.buf) == 0 {
		if cap(o.buf) > bufferBytesIdle {
			o.buf = nil
		}
		if cap(o.spare) > bufferBytesIdle {
			o.spare = nil
		}
	}
}
