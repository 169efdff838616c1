package client

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/codec"
)

// Client is one user's device, or one publisher, with a connection that is kept up. All methods may be called from
// any goroutine.
type Client struct {
	// Static after Dial.
	o      Options
	ctx    context.Context // ends at Close
	cancel context.CancelFunc
	done   chan struct{}
	store  DedupStore

	// Owned by the run goroutine (before it starts, by Dial).
	targets targets
	token   tokenState
	tries   int // since the last good session
	epoch   uint64

	pub publisher // has its own lock

	bytesIn, bytesOut, handled atomic.Uint64
	callbacks                  atomic.Int32 // calls of the program's code that Close must not wait for: it may come from them

	storeMu sync.Mutex // serialises DedupStore.Append; never taken together with mu

	// Guarded by mu. It is held for moments only, never over I/O or the program's code. Order: mu or publisher.mu,
	// then outbox.mu.
	mu           sync.Mutex
	live         *session // nil: not logged in
	last         SessionInfo
	resumeID     uint64 // the last session
	resumeNumber uint64 // the highest request number seen in it
	queue        queue
	workers      int
	unsettled    int                   // messages handed over or queued that are not settled
	open         map[dedupKey]*Message // the same, by id
	dedup        dedup
	refused      map[dedupKey][]byte // refused for good: the reason
	carry        []ackRef            // confirmations for the next session
	unstored     []string            // ids for the DedupStore
	timer        *time.Timer         // flushes confirmations; nil until the first one waits
	timerArmed   bool
	reading      bool // the reader is among frames that have arrived already
	draining     bool // no new messages are taken
	drained      chan struct{}
	closed       bool
	err          error
	stats        Stats
}

// Stats are counters since Dial.
type Stats struct {
	Received      uint64 // PUSH frames
	Handled       uint64 // handler calls that returned
	Duplicates    uint64 // copies not handed over
	Dropped       uint64 // not handed over and not confirmed: beyond the announced window, or fire and forget faster than the handler
	Acked         uint64 // messages confirmed
	AckFrames     uint64 // ACK frames that took
	Nacked        uint64 // refused for now
	Refused       uint64 // refused for good
	Published     uint64 // published messages that were answered
	PublishFrames uint64 // PUBLISH frames sent
	Logins        uint64
	Disconnects   uint64
	BytesIn       uint64
	BytesOut      uint64 // of this session's frames only what the socket took
}

// Dial logs in and returns a client that keeps itself connected until Close, or until the server says not to come
// back. ctx bounds Dial only. Options.DialAttempts says how often it tries what may work later. The error is or wraps
// a *CloseError when the server refused the login.
func Dial(ctx context.Context, o Options) (*Client, error) {
	o.setDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	c := &Client{
		o:       o,
		done:    make(chan struct{}),
		store:   o.DedupStore,
		targets: newTargets(o.Addrs),
		dedup:   newDedup(o.DedupSize),
		pub:     publisher{itemsMax: o.PublishBatch, queueMax: o.PublishQueue},
	}
	if o.DedupSize > 0 && !o.Publisher {
		c.open = make(map[dedupKey]*Message)
		c.refused = make(map[dedupKey][]byte)
	}
	if c.store != nil {
		if err := c.store.Load(func(id string) bool {
			c.dedup.put(c.dedup.key(borrow(id)), codec.LevelProcessed)
			return true
		}); err != nil {
			return nil, fmt.Errorf("load remembered message ids: %w", err)
		}
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	s, err := c.comeBack(ctx, nil, o.DialAttempts)
	if err != nil {
		c.cancel()
		return nil, err
	}
	go c.run(s)
	return c, nil
}

// Session tells about the present session, or the last one.
func (c *Client) Session() SessionInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// Stats returns the counters. They are not read in one instant.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	s, live := c.stats, c.live
	c.mu.Unlock()
	s.Handled = c.handled.Load()
	s.BytesIn, s.BytesOut = c.bytesIn.Load(), c.bytesOut.Load()
	if live != nil {
		s.BytesOut += live.out.bytes()
	}
	c.pub.mu.Lock()
	s.Published, s.PublishFrames = c.pub.answered, c.pub.frames
	c.pub.mu.Unlock()
	return s
}

// Done is closed when the client has ended for good: closed, or told by the server not to come back.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err is why the client has ended: ErrClosed after Close, a *CloseError when the server ended it (for example
// codec.CodeReplaced: the device logged in elsewhere). nil while it lives, also while it is reconnecting.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close sends the confirmations that are pending, says CLOSE normal and ends the client. Messages that are queued or
// in a handler and not settled stay with the server. It does not wait for running handlers (their ctx ends), so that it
// can be called from one; use Shutdown to finish first. Publishes that are not answered fail. It always returns nil.
func (c *Client) Close() error {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	s := c.live
	if first && s != nil {
		s.nc.SetWriteDeadline(time.Now().Add(lingerMax))
		c.leave(s)
		s.nc.SetReadDeadline(time.Now().Add(lingerMax))
	} else {
		c.mu.Unlock()
	}
	c.cancel()
	if c.callbacks.Load() == 0 {
		<-c.done
	}
	return nil
}

// Shutdown takes no more messages, waits until those at hand went through the handler and every publish is answered,
// and closes. When ctx ends first it closes at once and returns the context's error. Not to be called from a handler
// an Events function or the done of PublishAsync: it would wait for itself.
func (c *Client) Shutdown(ctx context.Context) error {
	c.mu.Lock()
	c.draining = true
	var drained chan struct{}
	if c.workers > 0 {
		if c.drained == nil {
			c.drained = make(chan struct{})
		}
		drained = c.drained
	}
	c.mu.Unlock()
	var err error
	if drained != nil {
		select {
		case <-drained:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err == nil {
		err = c.pub.waitIdle(ctx)
	}
	_ = c.Close() // always nil
	return err
}

// wakeDrainLocked tells Shutdown that the last worker has gone.
func (c *Client) wakeDrainLocked() {
	if c.workers == 0 && c.drained != nil {
		close(c.drained)
		c.drained = nil
	}
}

// end is the last act of the run goroutine.
func (c *Client) end(err error) {
	c.cancel()
	c.mu.Lock()
	c.closed = true
	c.err = err
	if c.timer != nil {
		c.timer.Stop()
	}
	c.storeMarks()
	c.pub.fail(err)
}

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// emit calls the program's code.
func (c *Client) emit(call func(*Events)) {
	c.callbacks.Add(1)
	call(&c.o.Events)
	c.callbacks.Add(-1)
}

func (c *Client) connected() {
	c.emit(func(e *Events) {
		if e.Connected != nil {
			e.Connected(c.Session())
		}
	})
}

func (c *Client) disconnected(err error, final bool) {
	c.emit(func(e *Events) {
		if e.Disconnected != nil {
			e.Disconnected(err, final)
		}
	})
}

func (c *Client) warn(doing string, err error) {
	c.emit(func(e *Events) {
		if e.Warning != nil {
			e.Warning(fmt.Errorf("%s: %w", doing, err))
		}
	})
}
