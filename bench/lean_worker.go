package bench

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// leanState is a lean connection's life.
type leanState uint8

const (
	leanConnecting leanState = iota // TCP's handshake is under way
	leanAsking                      // the login is sent
	leanIn                          // and was accepted
	leanOver
)

// leanConn is one connection.
type leanConn struct {
	login   leanLogin
	job     *leanJob // that it counts in until it is in
	fd      int
	state   leanState
	began   int64  // of this attempt
	heardAt int64  // last bytes
	rest    []byte // the beginning of a frame
}

// leanWorker is one goroutine with its sockets.
type leanWorker struct {
	// Static.
	crowd  *leanCrowd
	target unix.Sockaddr
	family int
	epoll  int
	event  int // written to wake the goroutine
	// listener is the crowd's speech where it takes messages, else nil.
	listener leanListener

	over atomic.Bool

	mu    sync.Mutex
	given []*leanJob // guarded by mu

	// Owned by the goroutine.
	job    *leanJob
	waits  []*leanJob
	conns  []leanConn
	free   []int     // places in conns
	pings  leanQueue // connections to be pinged
	retry  []leanRetry
	events [256]unix.EpollEvent
	buf    [16 << 10]byte
	out    []byte // answers to one read
}

// leanQueue is a queue in the order of time, since every connection waits equally long.
type leanQueue struct {
	items []leanDue
	head  int
}

type leanDue struct {
	conn int
	at   int64
}

func (q *leanQueue) push(d leanDue) {
	if q.head > 1024 && q.head*2 > len(q.items) {
		q.items, q.head = q.items[:copy(q.items, q.items[q.head:])], 0
	}
	q.items = append(q.items, d)
}

// first is the item that is due next.
func (q *leanQueue) first() (leanDue, bool) {
	if q.head == len(q.items) {
		return leanDue{}, false
	}
	return q.items[q.head], true
}

// leanRetry is a login that is tried again.
type leanRetry struct {
	login leanLogin
	at    int64
}

// wakeConn is the number of the wake-up descriptor among the connections.
const wakeConn = -1

// dialsPerTurn is how many connections are begun before answers are looked at.
const dialsPerTurn = 16

func newLeanWorker(c *leanCrowd, target *net.TCPAddr) (*leanWorker, error) {
	w := &leanWorker{crowd: c, epoll: -1, event: -1}
	w.listener, _ = c.o.speech.(leanListener)
	w.target, w.family = sockaddr(target.IP, target.Port)
	var err error
	if w.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("making an epoll: %w", err)
	}
	if w.event, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err == nil {
		err = w.watch(unix.EPOLL_CTL_ADD, w.event, wakeConn, unix.EPOLLIN)
	}
	if err != nil {
		w.release()
		return nil, fmt.Errorf("making a wake-up: %w", err)
	}
	return w, nil
}

// release closes what run has left.
func (w *leanWorker) release() {
	for _, fd := range [2]int{w.event, w.epoll} {
		if fd >= 0 {
			_ = unix.Close(fd) // nothing was written to it
		}
	}
}

func (w *leanWorker) watch(op, fd, conn int, events uint32) error {
	return unix.EpollCtl(w.epoll, op, fd, &unix.EpollEvent{Events: events, Fd: int32(conn)})
}

// give hands a job over.
func (w *leanWorker) give(j *leanJob) {
	w.mu.Lock()
	w.given = append(w.given, j)
	w.mu.Unlock()
	w.wake()
}

func (w *leanWorker) wake() {
	one := [8]byte{1}
	_, _ = unix.Write(w.event, one[:]) // it fails when so many wake-ups wait that one more does not matter
}

// run works until the crowd is closed.
func (w *leanWorker) run() {
	for !w.over.Load() {
		more := w.work()
		runtime.Gosched() // the wait that follows holds on to a processor for a while, and others may be ready for it
		n, err := unix.EpollWait(w.epoll, w.events[:], w.waitMs(more))
		if err != nil && !errors.Is(err, unix.EINTR) {
			panic("bench: waiting for sockets failed: " + err.Error())
		}
		for i := range max(n, 0) {
			w.ready(int(w.events[i].Fd), w.events[i].Events)
		}
		w.keepAlive()
	}
	for i := range w.conns {
		w.drop(&w.conns[i])
	}
	for w.take(); w.job != nil; w.take() {
		w.finish()
	}
}

// waitMs is how long the goroutine may sleep.
func (w *leanWorker) waitMs(more bool) int {
	if more {
		return 0
	}
	due := int64(-1)
	if d, ok := w.pings.first(); ok {
		due = d.at
	}
	for _, r := range w.retry {
		if due < 0 || r.at < due {
			due = r.at
		}
	}
	if due < 0 {
		return -1
	}
	return int(max(0, due-w.crowd.o.now())/int64(time.Millisecond)) + 1
}

// take makes the next job the current one.
func (w *leanWorker) take() {
	w.mu.Lock()
	w.waits = append(w.waits, w.given...)
	w.given = nil
	w.mu.Unlock()
	if w.job == nil && len(w.waits) > 0 {
		w.job, w.waits = w.waits[0], w.waits[1:]
	}
}

// work begins some of the job's logins and reports whether more could begin at once.
func (w *leanWorker) work() (more bool) {
	w.take()
	j := w.job
	if j == nil {
		return false
	}
	if j.ended.Load() {
		w.retry = nil
		w.finish()
		return true
	}
	w.again()
	for range dialsPerTurn {
		if j.next == len(j.logins) || j.underWay >= j.atOnce {
			break
		}
		j.next++
		j.underWay++
		w.begin(j.logins[j.next-1])
	}
	if j.next == len(j.logins) && j.underWay == 0 {
		w.finish()
		return true
	}
	return j.next < len(j.logins) && j.underWay < j.atOnce
}

// again begins the logins whose time has come once more. They have been under way all the time.
func (w *leanWorker) again() {
	if len(w.retry) == 0 {
		return
	}
	now := w.crowd.o.now()
	due := w.retry
	w.retry = nil
	for _, r := range due {
		if r.at > now {
			w.retry = append(w.retry, r)
		} else {
			w.begin(r.login)
		}
	}
}

// finish ends the current job.
func (w *leanWorker) finish() {
	close(w.job.done)
	w.job = nil
}
