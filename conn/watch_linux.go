package conn

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// watcher is the one goroutine beside the event loops. It has an epoll set of its own because gnet has no call for "this socket can be
// written again" and its ticker knows no loops.
type watcher struct {
	// Static.
	epoll int
	event int // eventfd for kick

	mu      sync.Mutex
	armed   map[int32]*Session // waiting for room, by descriptor
	stopped bool
}

func newWatcher() (*watcher, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("conn: creating the watcher: %w", err)
	}
	event, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err == nil {
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, event, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(event)})
	}
	if err != nil {
		_ = unix.Close(epoll)
		return nil, fmt.Errorf("conn: creating the watcher: %w", err)
	}
	return &watcher{epoll: epoll, event: event, armed: make(map[int32]*Session)}, nil
}

// arm asks for one call of s's loop when its socket has room. On the loop of s.
func (w *watcher) arm(s *Session) error {
	w.mu.Lock()
	w.armed[s.fd] = s
	w.mu.Unlock()
	op := unix.EPOLL_CTL_MOD
	if !s.watched {
		s.watched, op = true, unix.EPOLL_CTL_ADD
	}
	return unix.EpollCtl(w.epoll, op, int(s.fd), &unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLONESHOT, Fd: s.fd})
}

// forget is called before the descriptor fd is closed, which also takes it out of the epoll set.
func (w *watcher) forget(fd int32) {
	w.mu.Lock()
	delete(w.armed, fd)
	w.mu.Unlock()
}

// kick wakes the watcher.
func (w *watcher) kick() {
	var one = [8]byte{1}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped {
		_, _ = unix.Write(w.event, one[:]) // can only fail when it is signalled to the brim already
	}
}

// close frees the descriptors. run must have returned, and no loop may be running.
func (w *watcher) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	_ = unix.Close(w.event)
	_ = unix.Close(w.epoll)
}

// run calls tick every tickInterval and puts sessions with room on their loops' dirty queues, until stopping reports true.
func (w *watcher) run(stopping func() bool, tick func()) {
	events := make([]unix.EpollEvent, 256)
	next := time.Now().Add(tickInterval)
	for !stopping() {
		wait := time.Until(next)
		if wait <= 0 {
			tick()
			next = time.Now().Add(tickInterval)
			continue
		}
		n, err := unix.EpollWait(w.epoll, events, int(wait/time.Millisecond)+1)
		if err != nil && err != unix.EINTR {
			panic("conn: waiting for sockets failed: " + err.Error())
		}
		for _, e := range events[:max(n, 0)] {
			if int(e.Fd) == w.event {
				var b [8]byte
				_, _ = unix.Read(w.event, b[:]) // only resets it
				continue
			}
			w.ready(e.Fd)
		}
	}
}

// ready puts the session that waits on fd on its dirty queue. If the descriptor has changed hands meanwhile, its new session is
// flushed once for nothing.
func (w *watcher) ready(fd int32) {
	w.mu.Lock()
	s := w.armed[fd]
	delete(w.armed, fd)
	w.mu.Unlock()
	if s != nil {
		s.nowWritable()
	}
}
