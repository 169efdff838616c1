package delivery

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"holdfast/ack"
)

// Dispatcher is the concurrent shell around the engines: lanes that are serial for their users, one ticker, one sweeper. It owns
// every goroutine, every clock reading and all randomness of this package.
type Dispatcher struct {
	// Static after construction.
	core  *core
	log   *slog.Logger
	lanes []*lane
	start time.Time // origin of the monotonic milliseconds

	// wallMs is what to add to them for Unix time. It starts right and follows the system's clock at one percent: when that is
	// stepped by an hour, no message expires an hour early and the dedup window does not move either.
	wallMs atomic.Int64

	draining atomic.Bool
	resting  atomic.Bool   // the ticker ticks slowly, since no timer is set
	hurried  chan struct{} // one token: it is to look now
	stop     chan struct{} // closed by Close: ticker and sweeper end
	closing  sync.Once
	clocks   sync.WaitGroup // ticker and sweeper
	running  sync.WaitGroup // lanes

	mu         sync.Mutex
	publishers map[*Link]struct{} // guarded by mu
}

// ErrClosed answers questions that came after Close.
var ErrClosed = errors.New("delivery is closed")

const (
	tickEvery      = 10 * time.Millisecond  // while timers are set
	restEvery      = 100 * time.Millisecond // while none is
	laneTickEvery  = 100                    // ms
	sweepEvery     = time.Second
	sweepBatch     = 256
	sweepsMax      = 64 // batches in a row: 16,384 endings a second
	refreshEvery   = time.Hour
	expireBatch    = 512
	askingMax      = 1024 // ACKs by message id of one link that wait for its lane
	drainPollEvery = 20 * time.Millisecond
)

// NewDispatcher wires a dispatcher; nothing runs before Start. Its metrics are in set from now on.
func NewDispatcher(c Config, s Store, set *metrics.Set, log *slog.Logger) (*Dispatcher, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("delivery settings: %w", err)
	}
	d := &Dispatcher{
		log: log, start: time.Now(), stop: make(chan struct{}), hurried: make(chan struct{}, 1),
		publishers: make(map[*Link]struct{}),
	}
	d.wallMs.Store(d.start.UnixMilli() - 1)
	d.core = newCore(c, s, set, d.now().MonoMs)
	for i := range c.Lanes {
		l := newLane(d, newEngine(d.core, rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))))
		d.lanes = append(d.lanes, l)
		set.NewGauge(fmt.Sprintf("holdfast_lane_depth{lane=\"%d\"}", i), func() float64 { return float64(l.depth()) })
	}
	return d, nil
}

// Start starts the goroutines.
func (d *Dispatcher) Start() {
	for _, l := range d.lanes {
		d.running.Go(l.run)
	}
	d.clocks.Go(d.tick)
	d.clocks.Go(d.sweep)
}

// Close ends the goroutines once every lane has handled what it was given, and waits for that. It closes no connection; pushes that
// come later are refused with ResultDraining.
func (d *Dispatcher) Close() {
	d.closing.Do(func() {
		d.draining.Store(true)
		close(d.stop)
		d.clocks.Wait()
		for _, l := range d.lanes {
			l.close()
		}
		d.running.Wait()
	})
}

// now reads both clocks.
func (d *Dispatcher) now() Now {
	mono := time.Since(d.start).Milliseconds() + 1
	return Now{MonoMs: mono, WallMs: mono + d.wallMs.Load()}
}

// followClock moves our Unix time by at most a millisecond towards the system's. Called every 100 ms, by the ticker.
func (d *Dispatcher) followClock(systemMs int64) {
	ahead := systemMs - d.now().WallMs
	d.wallMs.Add(max(-1, min(ahead, 1)))
}

// laneOf is the lane of a user. A shard of the table belongs to one lane as a whole, so that timeouts find it by shard.
func (d *Dispatcher) laneOf(shard int) *lane { return d.lanes[shard%len(d.lanes)] }

func (d *Dispatcher) laneOfLink(l *Link) *lane { return d.laneOf(ack.ShardOf(l.userHash)) }

// tick finds what has timed out and tells the lanes. A node on which nothing is in flight rests: a new timer is set for an ACK
// timeout at least, so a slow tick sees it in time and the ticks after that are fast; what may be set for less hurries the ticker.
func (d *Dispatcher) tick() {
	rest := max(min(restEvery, d.core.config.AckTimeout/2), tickEvery)
	timer := time.NewTimer(tickEvery)
	defer timer.Stop()
	lanesAt := int64(0)
	var fired []ack.Expired
	for {
		select {
		case <-d.stop:
			return
		case <-timer.C:
		case <-d.hurried:
		}
		d.resting.Store(false) // before the table is looked at: what is set from now on is seen, or hurries
		now := d.now()
		fired = d.fire(now, fired)
		if now.MonoMs >= lanesAt {
			lanesAt = now.MonoMs + laneTickEvery
			d.followClock(time.Now().UnixMilli())
			for _, l := range d.lanes {
				l.wantTick()
			}
			if len(fired) == 0 {
				d.resting.Store(true)
				inTable := d.core.table.Stats()
				d.resting.Store(inTable.Entries == inTable.Parked)
			}
		}
		if d.resting.Load() {
			timer.Reset(rest)
		} else {
			timer.Reset(tickEvery)
		}
	}
}

// fire tells the lanes what has timed out; the last of it is returned, for its memory.
func (d *Dispatcher) fire(now Now, fired []ack.Expired) []ack.Expired {
	for {
		fired = d.core.table.Expire(now.MonoMs, fired[:0], expireBatch)
		for i := range fired {
			d.laneOf(fired[i].Handle.Session().Shard()).fire(fired[i])
		}
		if len(fired) < expireBatch {
			return fired
		}
	}
}

// hurry has a resting ticker tick: a timer may have been set that is due before its next look.
func (d *Dispatcher) hurry() {
	if !d.resting.Load() {
		return
	}
	select {
	case d.hurried <- struct{}{}:
	default: // it will look
	}
}

// sweep ends what is over although nobody touches it, and keeps connected devices known.
func (d *Dispatcher) sweep() {
	ticker, refresh := time.NewTicker(sweepEvery), time.NewTicker(refreshEvery)
	defer ticker.Stop()
	defer refresh.Stop()
	var scratch sweepScratch
	for {
		select {
		case <-d.stop:
			return
		case <-refresh.C:
			for _, l := range d.lanes {
				l.call((*Engine).Refresh)
			}
			continue
		case <-ticker.C:
		}
		for range sweepsMax {
			if !d.core.sweep(&scratch, sweepBatch, d.now(), d.expire) {
				break
			}
		}
	}
}

// expire takes one overdue delivery to its lane.
func (d *Dispatcher) expire(o overdue) {
	d.laneOfUser(o.user).call(func(e *Engine, now Now) { e.Expire(o, now) })
}
