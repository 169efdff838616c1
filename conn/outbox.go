package conn

import (
	"sync"

	"golang.org/x/sys/unix"

	"holdfast/codec"
)

// outBuffer is a run of whole encoded frames on its way to one socket. An idle session has none.
type outBuffer struct {
	bytes  []byte
	off    int // written so far
	frames int32
}

// outBufferKeep caps what goes back to the pool, so that one burst does not pin memory for ever.
const outBufferKeep = 64 << 10

// buffers recycles outBuffers of one server.
type buffers struct{ pool sync.Pool }

func (p *buffers) get() *outBuffer {
	if b, ok := p.pool.Get().(*outBuffer); ok {
		return b
	}
	return &outBuffer{bytes: make([]byte, 0, 1024)}
}

func (p *buffers) put(b *outBuffer) {
	if cap(b.bytes) > outBufferKeep {
		return
	}
	b.bytes, b.off, b.frames = b.bytes[:0], 0, 0
	p.pool.Put(b)
}

func (s *Session) outLocked() *outBuffer {
	if s.out == nil {
		s.out = s.loop.server.buffers.get()
	}
	return s.out
}

func (s *Session) appendLocked(frame []byte) {
	b := s.outLocked()
	b.bytes = append(b.bytes, frame...)
	b.frames++
	s.queuedFrames++
	s.queuedBytes += int32(len(frame))
}

func (s *Session) dropOutLocked() {
	s.queuedBytes -= int32(len(s.out.bytes) - s.out.off)
	s.queuedFrames -= s.out.frames
	s.loop.server.buffers.put(s.out)
	s.out = nil
}

// takeLocked moves the outbox to the loop's side.
func (s *Session) takeLocked() {
	if s.out != nil && !s.prompt {
		s.loop.messages += s.out.frames
	}
	s.head, s.out, s.prompt = s.out, nil, false
}

// flush writes what is queued, on the loop: all frames that came together in one write(2). What the kernel does not take stays in
// s.head until the watcher reports room. It then acts on what Open and Close left for the loop. The session may be gone afterwards.
// dequeued says that s is marked as queued but not on the dirty queue (any more): only then may it be put there again.
func (l *loop) flush(s *Session, dequeued bool) {
	s.mu.Lock()
	if dequeued {
		s.queued = false
	}
	if s.writable {
		s.writable, s.blocked = false, false
	}
	resume := s.resume
	s.resume = false
	idle := s.out == nil && s.head == nil && s.state.Load() <= stateOpen
	s.mu.Unlock()
	if idle || s.state.Load() == stateGone {
		return
	}
	if !l.write(s) || resume && !l.opened(s) {
		l.drop(s)
		return
	}
	s.mu.Lock()
	drained := s.wantsDrained && l.belowLowLocked(s) && s.state.Load() == stateOpen
	if drained {
		s.wantsDrained = false
	}
	s.mu.Unlock()
	if drained {
		l.server.handler.Drained(s)
	}
	if s.state.Load() == stateClosing {
		if !l.write(s) { // the CLOSE frame may be younger than the write above
			l.drop(s)
			return
		}
		l.linger(s)
	}
	if s.state.Load() == stateLingering {
		l.shutWhenFlushed(s)
	}
}

func (l *loop) belowLowLocked(s *Session) bool {
	cfg := &l.server.cfg
	return int(s.queuedBytes) <= cfg.OutboxLowBytes && int(s.queuedFrames) <= cfg.OutboxLowFrames
}

// write hands queued bytes to the kernel until it is full or nothing is left; false: the socket is broken. It is the one place where
// bytes leave: a transform of the outgoing stream (TLS) belongs here, over s.head.bytes.
func (l *loop) write(s *Session) bool {
	for !s.blocked && !l.server.fenced.Load() {
		if s.head == nil {
			s.mu.Lock()
			s.takeLocked()
			s.mu.Unlock()
			if s.head == nil {
				return true
			}
		}
		n, err := unix.Write(int(s.fd), s.head.bytes[s.head.off:])
		l.stats.writes.Add(1)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			n = 0
		case err != nil:
			return false
		}
		l.wrote(s, n)
		if s.head != nil { // the kernel took less than all: it is full
			return l.block(s)
		}
	}
	return true
}

// wrote accounts for n bytes taken by the kernel and frees the head once it is through.
func (l *loop) wrote(s *Session, n int) {
	b := s.head
	begun := b.off == 0
	b.off += n
	done := b.off == len(b.bytes)
	s.mu.Lock()
	s.queuedBytes -= int32(n)
	if done {
		s.queuedFrames -= b.frames
	}
	s.mu.Unlock()
	l.stats.bytesOut.Add(uint64(n))
	nowMs := l.server.nowMs()
	s.wroteMs = uint16(nowMs)
	if !done && (n > 0 || begun) {
		s.progressMs = nowMs // the stall limit counts from the first try, and again from each byte taken
	}
	if done {
		l.stats.framesOut.Add(uint64(b.frames))
		s.head = nil
		l.server.buffers.put(b)
	}
}

// block asks the watcher for a call when the socket has room.
func (l *loop) block(s *Session) bool {
	s.blocked = true
	s.unsent = int32(kernelUnsent(int(s.fd)))
	l.schedule(s) // the stall limit may be the next deadline
	return l.server.watch.arm(s) == nil
}

// reply queues a frame from the loop itself; the pass that is under way flushes it, so no wake-up is needed. Over the hard limit the
// session is closed.
func (l *loop) reply(s *Session, build func(dst, data []byte) []byte, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Load() != stateOpen {
		return
	}
	if int(s.queuedBytes) > l.server.cfg.OutboxHardBytes {
		s.closeLocked(codec.CodeSlowConsumer, "too many unread replies", 0)
		return
	}
	s.prompt = true
	b := s.outLocked()
	n := len(b.bytes)
	b.bytes = build(b.bytes, data)
	b.frames++
	s.queuedFrames++
	s.queuedBytes += int32(len(b.bytes) - n)
}
