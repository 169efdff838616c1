//go:build !linux

package conn

import (
	"sync"
	"time"
)

// watcher without an epoll set: full sockets are tried again every few milliseconds. Good enough to develop on; nodes run on Linux.
type watcher struct {
	kicks chan struct{}

	mu    sync.Mutex
	armed map[int32]*Session
}

const retryInterval = 5 * time.Millisecond

func newWatcher() (*watcher, error) {
	return &watcher{kicks: make(chan struct{}, 1), armed: make(map[int32]*Session)}, nil
}

func (w *watcher) arm(s *Session) error {
	s.watched = true
	w.mu.Lock()
	w.armed[s.fd] = s
	w.mu.Unlock()
	return nil
}

func (w *watcher) forget(fd int32) {
	w.mu.Lock()
	delete(w.armed, fd)
	w.mu.Unlock()
}

func (w *watcher) kick() {
	select {
	case w.kicks <- struct{}{}:
	default:
	}
}

func (w *watcher) close() {}

func (w *watcher) run(stopping func() bool, tick func()) {
	ticks, retries := time.NewTicker(tickInterval), time.NewTicker(retryInterval)
	defer ticks.Stop()
	defer retries.Stop()
	for !stopping() {
		select {
		case <-ticks.C:
			tick()
		case <-w.kicks:
		case <-retries.C:
			w.mu.Lock()
			ready := w.armed
			w.armed = make(map[int32]*Session)
			w.mu.Unlock()
			for _, s := range ready {
				s.nowWritable()
			}
		}
	}
}
