package client

import (
	"net"
	"sync/atomic"

	"holdfast/codec"
)

const (
	readBytesMin  = 1 << 10  // what an idle connection keeps
	readBytesBusy = 32 << 10 // how far the buffer grows only to read more at once; a larger frame makes it larger
)

// frameReader cuts a connection's bytes into frames. Its buffer starts small, doubles while reads fill it, and shrinks
// when the connection is quiet, so that thousands of idle clients cost a kilobyte each. One goroutine uses it.
type frameReader struct {
	nc            net.Conn
	buf           []byte
	start, end    int // what is read and not yet parsed
	frameBytesMax int
	filled        bool // the last read left no room
	bytes         *atomic.Uint64
}

// frame returns the next frame that is complete in the buffer; ok is false when there is none. The frame borrows the
// buffer until the next fill. An error is the protocol's and final.
func (r *frameReader) frame() (f codec.Frame, ok bool, err error) {
	f, n, err := codec.Parse(r.buf[r.start:r.end], r.frameBytesMax)
	if err != nil {
		return f, false, protocolError(err)
	}
	if n == 0 {
		return f, false, nil
	}
	r.start += n
	return f, true, nil
}

// fill waits for more bytes. A timeout error leaves everything as it was.
func (r *frameReader) fill() error {
	r.makeRoom()
	n, err := r.nc.Read(r.buf[r.end:])
	if n > 0 {
		r.end += n
		r.filled = r.end == len(r.buf)
		r.bytes.Add(uint64(n))
		return nil
	}
	return err
}

// makeRoom moves an unfinished frame to the front and grows the buffer when the frame needs it or when reads fill it.
func (r *frameReader) makeRoom() {
	rest := r.end - r.start
	size := max(len(r.buf), readBytesMin)
	if rest == size || (r.filled && size < readBytesBusy) {
		size *= 2 // Parse refuses a frame over the maximum at its header, so this ends
	}
	if size != len(r.buf) {
		buf := make([]byte, size)
		copy(buf, r.buf[r.start:r.end])
		r.buf = buf
	} else if r.start > 0 {
		copy(r.buf, r.buf[r.start:r.end])
	}
	r.start, r.end, r.filled = 0, rest, false
}

// shrink gives the memory of a busier time back.
func (r *frameReader) shrink() {
	if r.start == r.end && len(r.buf) > readBytesMin {
		r.buf, r.start, r.end, r.filled = nil, 0, 0, false
	}
}
