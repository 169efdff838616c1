package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// leanSpeech is what lean connections say and understand of a protocol. Its methods are called from several goroutines.
type leanSpeech interface {
	// hello is the login of a user. It may sign a token, so it is asked for before anything is measured.
	hello(user int) ([]byte, error)
	// ping keeps a connection alive.
	ping() []byte
	// heard looks at the frame at the start of b: its length (0: it is not all there) and whether it lets a login in. An error, a
	// *leanRefusal where the server gave a reason, ends the connection.
	heard(b []byte) (n int, in bool, err error)
}

// leanRefusal is a server's no to a login, or its goodbye later.
type leanRefusal struct {
	text  string
	after time.Duration // when to try again; 0: it did not say
}

func (e *leanRefusal) Error() string { return e.text }

var errLeanEOF = errors.New("the server closed the connection")

// leanOptions describe a crowd.
type leanOptions struct {
	addr      string
	name      func(user int) string // for errors
	speech    leanSpeech
	source    func(user int) net.IP // the address a user's connection comes from; nil, or a nil result: the system's choice
	keepalive time.Duration         // a ping this often; 0: none
	// now is a clock in nanoseconds. in is told of every login, with the time at which its last attempt began, and refused of every one
	// that failed; either may be nil. Both are called on the crowd's goroutines.
	now     func() int64
	in      func(user int, began int64)
	refused func(user int, err error)
	lost    func(user int, err error) // a connection ended after its login; may be nil
	retry   bool                      // failed logins are tried again until all are in
}

// leanCrowd is a population of connections that log in and stay, without what a client library needs to take messages: a few
// goroutines wait for all sockets, and a connection has neither a goroutine nor buffers. It is for scenarios in which the server's
// cost of a login or of an idle connection is measured and the generator's must not stand in its way.
type leanCrowd struct {
	o       leanOptions
	workers []*leanWorker
	running sync.WaitGroup
	held    atomic.Int64 // logged in
	lost    atomic.Int64 // ended after their login
}

// newLeanCrowd starts a crowd of nobody.
func newLeanCrowd(o leanOptions) (*leanCrowd, error) {
	target, err := net.ResolveTCPAddr("tcp", o.addr)
	if err != nil {
		return nil, fmt.Errorf("looking up %s: %w", o.addr, err)
	}
	c := &leanCrowd{o: o}
	for range runtime.GOMAXPROCS(0) {
		w, err := newLeanWorker(c, target)
		if err != nil {
			c.close()
			return nil, err
		}
		c.workers = append(c.workers, w)
		c.running.Go(w.run)
	}
	return c, nil
}

// leanLogin is one user to be logged in.
type leanLogin struct {
	user  int
	hello []byte
}

// hellos makes the logins of users from to from+count-1.
func (c *leanCrowd) hellos(from, count int) ([]leanLogin, error) {
	logins := make([]leanLogin, count)
	for i := range logins {
		hello, err := c.o.speech.hello(from + i)
		if err != nil {
			return nil, err
		}
		logins[i] = leanLogin{from + i, hello}
	}
	return logins, nil
}

// login lets users in, at most atOnce at a time, and returns when each of them is in or has failed for good, or ctx ends. The error
// is the first failure of a crowd that does not retry, or ctx's.
func (c *leanCrowd) login(ctx context.Context, logins []leanLogin, atOnce int) error {
	k := len(c.workers)
	jobs := make([]*leanJob, k)
	for i, w := range c.workers {
		var part []leanLogin
		for at := i; at < len(logins); at += k {
			part = append(part, logins[at])
		}
		jobs[i] = &leanJob{logins: part, atOnce: max(1, (atOnce+k-1-i)/k), done: make(chan struct{})}
		w.give(jobs[i])
	}
	stop := context.AfterFunc(ctx, func() {
		for i, w := range c.workers {
			jobs[i].ended.Store(true)
			w.wake()
		}
	})
	defer stop()
	var first error
	for _, j := range jobs {
		<-j.done
		if first == nil {
			first = j.err
		}
	}
	return errors.Join(ctx.Err(), first)
}

// close ends all connections and the goroutines.
func (c *leanCrowd) close() {
	for _, w := range c.workers {
		w.over.Store(true)
		w.wake()
	}
	c.running.Wait()
	for _, w := range c.workers {
		w.release()
	}
	c.workers = nil
}

// leanJob is what login gives a worker.
type leanJob struct {
	logins []leanLogin
	atOnce int
	ended  atomic.Bool // its context is over

	// Owned by the worker until done is closed.
	next     int // of logins
	underWay int // logging in, or waiting to try again
	err      error
	done     chan struct{}
}

// retryDelay is when a refused login is tried again: when the server said, else after a moment, and not with all others.
func retryDelay(err error) time.Duration {
	if no, ok := errors.AsType[*leanRefusal](err); ok && no.after > 0 {
		return no.after
	}
	return 100*time.Millisecond + rand.N(200*time.Millisecond)
}

// sockaddr is a TCP address as the system calls want it.
func sockaddr(ip net.IP, port int) (unix.Sockaddr, int) {
	if len(ip) == 0 { // ":7700" is a port of this machine
		ip = net.IPv4(127, 0, 0, 1)
	}
	if ip4 := ip.To4(); ip4 != nil {
		return &unix.SockaddrInet4{Port: port, Addr: [4]byte(ip4)}, unix.AF_INET
	}
	return &unix.SockaddrInet6{Port: port, Addr: [16]byte(ip.To16())}, unix.AF_INET6
}
