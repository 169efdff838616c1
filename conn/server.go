package conn

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/panjf2000/gnet/v2"
)

// ErrEnded is what Err yields when the event loops ended though nobody had called Stop.
var ErrEnded = errors.New("conn: event loops ended unexpectedly")

// Server listens for connections and runs the event loops. New makes it, Start starts it, Stop ends it for good.
type Server struct {
	// Static after Start.
	cfg      Config
	handler  Handler
	addr     *net.TCPAddr
	connsMax int
	filesMax int
	base     time.Time // monotonic zero of every deadline
	bundleMs int32     // Config.BundleDelay
	engine   gnet.Engine
	watch    *watcher
	booted   chan struct{} // closed by OnBoot
	ran      chan struct{} // closed when the event loops have ended
	watched  chan struct{} // closed when the watcher has ended
	failed   chan error

	buffers buffers

	// Any goroutine, atomically.
	conns    atomic.Int64
	sessions atomic.Uint64 // last session id given
	draining atomic.Bool   // new connections are sent away
	stopping atomic.Bool
	fenced   atomic.Bool // no write any more
	watchEnd atomic.Bool
	fullLog  atomic.Int64 // when a full house was last logged, ms

	loopsMu sync.RWMutex
	loops   map[gnet.EventLoop]*loop // filled as loops get their first connection

	stopOnce sync.Once
	stopErr  error
}

// New checks cfg and takes in its defaults. h must be ready for calls before Start.
func New(cfg Config, h Handler) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, handler: h, base: time.Now(), bundleMs: int32(min(cfg.BundleDelay.Milliseconds(), 1000)),
		booted: make(chan struct{}), ran: make(chan struct{}), watched: make(chan struct{}), failed: make(chan error, 1),
		loops: make(map[gnet.EventLoop]*loop),
	}
	var seed [8]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return nil, fmt.Errorf("conn: drawing the first session id: %w", err)
	}
	s.sessions.Store(binary.LittleEndian.Uint64(seed[:]))
	if err := s.limitConns(); err != nil {
		return nil, err
	}
	return s, nil
}

// limitConns puts the connection limit below the descriptor limit: a failing accept ends a gnet engine.
func (s *Server) limitConns() error {
	files, err := filesMax()
	if err != nil {
		return fmt.Errorf("conn: reading the descriptor limit: %w", err)
	}
	room := files - s.cfg.FilesReserve
	if room < 1 {
		return fmt.Errorf("conn: files reserve %d leaves no connection of the descriptor limit %d", s.cfg.FilesReserve, files)
	}
	s.filesMax, s.connsMax = files, room
	if s.cfg.ConnsMax > 0 {
		s.connsMax = min(room, s.cfg.ConnsMax)
		if s.cfg.ConnsMax > room {
			s.cfg.Log.Warn("connection limit lowered to the descriptor limit less the reserve",
				"configured", s.cfg.ConnsMax, "descriptors", files, "reserve", s.cfg.FilesReserve, "limit", room)
		}
	}
	return nil
}

// Start binds the address and returns once connections are taken; errors say which address and why.
func (s *Server) Start() error {
	addr, err := probe(s.cfg.Addr)
	if err != nil {
		return err
	}
	s.addr = addr
	if s.watch, err = newWatcher(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		err := gnet.Run(&events{server: s}, "tcp://"+gnetAddr(addr), s.options()...)
		s.fence()
		close(s.ran)
		if !s.stopping.Load() {
			s.failed <- errors.Join(ErrEnded, err)
		}
		ended <- err
	}()
	go func() {
		s.watch.run(s.watchEnd.Load, s.tick)
		close(s.watched)
	}()
	select {
	case <-s.booted:
	case err := <-ended:
		s.endWatch()
		s.watch.close()
		s.watch = nil
		return fmt.Errorf("conn: listening on %s: %w", addr, errors.Join(ErrEnded, err))
	}
	if s.cfg.Metrics != nil {
		s.cfg.Metrics.RegisterMetricsWriter(s.writeMetrics)
	}
	return nil
}

// probe binds addr alone once and frees it. The event loops bind with SO_REUSEPORT, which would silently share the port with another
// server of the same user; and each would get another port for port 0.
func probe(addr string) (*net.TCPAddr, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("conn: binding the listener: %w", err)
	}
	bound := *ln.Addr().(*net.TCPAddr)
	if err := ln.Close(); err != nil {
		return nil, fmt.Errorf("conn: closing the probe of %s: %w", addr, err)
	}
	return &bound, nil
}

// gnetAddr is addr for gnet, which takes "[::]" for IPv6 alone, and an empty host for both families as everybody else does.
func gnetAddr(addr *net.TCPAddr) string {
	if addr.IP.Equal(net.IPv6unspecified) {
		return fmt.Sprintf(":%d", addr.Port)
	}
	return addr.String()
}

func (s *Server) options() []gnet.Option {
	return []gnet.Option{
		gnet.WithNumEventLoop(s.cfg.Loops),
		gnet.WithReusePort(true), // one accept at a time and in the loop that serves it: the only mode in which the limit holds
		gnet.WithReuseAddr(true),
		gnet.WithTCPNoDelay(gnet.TCPNoDelay),
		gnet.WithSocketSendBuffer(s.cfg.SendBufferBytes),
		gnet.WithLogger(gnetLog{s.cfg.Log}),
	}
}

// Addr is where the server listens; valid after Start.
func (s *Server) Addr() net.Addr { return s.addr }

// Err yields one error, wrapping ErrEnded, if the event loops end without Stop. The server is then of no more use.
func (s *Server) Err() <-chan error { return s.failed }

// Drain sends new connections away with CodeGoingAway; those that are open go on.
func (s *Server) Drain() { s.draining.Store(true) }

// Stop closes every connection with CodeGoingAway, waits for the goodbyes to arrive (at most LingerTimeout, and half of the time that ctx
// has), and ends the event loops. Frames that have arrived by then are still handled. Afterwards every call of a session is refused and no
// byte is written. It blocks until all that is done, or ctx is: then it returns ctx's error and the loops may still run. Repeats return
// the first result.
func (s *Server) Stop(ctx context.Context) error {
	s.stopOnce.Do(func() { s.stopErr = s.stop(ctx) })
	return s.stopErr
}

func (s *Server) stop(ctx context.Context) error {
	s.draining.Store(true)
	s.stopping.Store(true)
	if s.watch == nil {
		return nil // never started
	}
	s.sayGoodbye(ctx)
	s.fence()
	s.endWatch()
	// gnet's Stop polls twice a second; our context ends it when the loops have.
	stopped, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		<-s.ran
		cancel()
	}()
	_ = s.engine.Stop(stopped) // fails only when it has ended by itself or stopped is done, which ran and ctx tell
	select {
	case <-s.ran:
		s.watch.close()
		return nil
	case <-ctx.Done():
		return fmt.Errorf("conn: stopping the event loops: %w", ctx.Err())
	}
}

// endWatch ends the watcher's goroutine.
func (s *Server) endWatch() {
	s.watchEnd.Store(true)
	s.watch.kick()
	<-s.watched
}

// sayGoodbye closes all sessions politely and waits until they are gone or the linger limit is over.
func (s *Server) sayGoodbye(ctx context.Context) {
	for _, l := range s.allLoops() {
		l.endDue.Store(true)
		l.wake()
	}
	most := s.cfg.LingerTimeout + 2*tickInterval
	if end, ok := ctx.Deadline(); ok {
		most = min(most, time.Until(end)/2) // the loops have to end in time, too
	}
	limit := time.NewTimer(most)
	defer limit.Stop()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for s.conns.Load() > 0 {
		select {
		case <-again.C:
		case <-limit.C:
			return
		case <-ctx.Done():
			return
		case <-s.ran:
			return
		}
	}
}

// fence ends all writes and all wake-ups of the loops.
func (s *Server) fence() {
	s.fenced.Store(true)
	for _, l := range s.allLoops() {
		l.fence()
	}
}

// nowMs is the monotonic time of this server.
func (s *Server) nowMs() int64 { return s.clock().Milliseconds() }

// clock is the same, finer.
func (s *Server) clock() time.Duration { return time.Since(s.base) }

func (s *Server) tick() {
	for _, l := range s.allLoops() {
		l.tickDue.Store(true)
		l.wake()
	}
}

func (s *Server) allLoops() []*loop {
	s.loopsMu.RLock()
	defer s.loopsMu.RUnlock()
	all := make([]*loop, 0, len(s.loops))
	for _, l := range s.loops {
		all = append(all, l)
	}
	return all
}

// loopOf returns our part of a gnet loop. gnet names its loops only through their connections, so it is made at the first one.
func (s *Server) loopOf(el gnet.EventLoop) *loop {
	s.loopsMu.RLock()
	l := s.loops[el]
	s.loopsMu.RUnlock()
	if l != nil {
		return l
	}
	s.loopsMu.Lock()
	defer s.loopsMu.Unlock()
	l = &loop{server: s, gnet: el}
	l.wheel.tick = s.nowMs() / int64(tickInterval/time.Millisecond)
	l.isFenced = s.fenced.Load()
	s.loops[el] = l
	return l
}
