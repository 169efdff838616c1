package store

import (
	"errors"
	"os"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"holdfast/codec"
	"holdfast/delivery"
)

// Errors that a caller may want to tell apart.
var (
	ErrInUse   = errors.New("store: the data directory is in use by another process")
	ErrVersion = errors.New("store: the data directory has another format")
	ErrMissing = errors.New("store: a segment is missing")
	ErrClosed  = errors.New("store: closed")
)

// Local is the embedded engine. All methods are safe for concurrent use. One goroutine of its own, the committer, does all
// writing; no lock is held across I/O.
type Local struct {
	cfg   Config
	sums  checksums
	seed  uint64
	doubt doubt
	cache *readCache
	lock  *os.File
	wake  chan struct{} // something is due earlier than the committer thinks
	stop  chan struct{}
	done  chan struct{}
	fatal chan error

	mu       sync.Mutex
	slab     slab
	index    table // by message id and user
	reg      registry
	ended    *endedRing
	segs     segments
	open     *batch
	flushing *batch // nil: none
	spare    *batch
	seq      uint64 // last given
	dead     deadList
	sweepAt  int // chunk that SweepExpired looked at last
	count    counters
	closed   bool
	failure  error // fail-stop: nothing is taken any more
	full     bool  // the disk was full at the last attempt

	// The committer's own, no lock. Open and Close have them before and after it.
	format   format
	devices  devicesFile
	journal  endedFiles
	mover    *mover
	lastSync time.Time
	dirty    bool // the active segment has bytes that were not synced
	retryAt  time.Time
	houseAt  time.Time
}

// Open takes the data directory, recovers what is in it, and starts the committer. It blocks for as long as recovery reads: about
// a second for a million messages.
func Open(cfg Config) (*Local, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	l := &Local{
		cfg: cfg, lock: lock, cache: newReadCache(cfg.ReadCacheBytes, cfg.blockBytes), reg: newRegistry(), open: new(batch), spare: new(batch),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}), fatal: make(chan error, 1),
	}
	l.ended = newEndedRing(cfg.DedupMax, &l.reg)
	l.index.home = func(slot uint32) uint64 {
		e := l.slab.at(slot)
		return home(e.mid, l.reg.queues[e.queue].user)
	}
	if err := l.start(); err != nil {
		return nil, errors.Join(err, l.closeFiles(), lock.Close())
	}
	go l.commitLoop()
	return l, nil
}

// Close writes what is pending, tells every waiter, and gives the directory back. Later calls of Append return
// ResultUnavailable. It returns the error that stopped the store, if one did.
func (l *Local) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		<-l.done
		return ErrClosed
	}
	l.closed = true
	l.mu.Unlock()
	close(l.stop)
	<-l.done
	err := errors.Join(l.failure, l.closeFiles()) // the committer has ended: failure and full are settled
	if l.failure == nil && !l.full {              // everything, notes of what was sent as well, is on the disk
		l.format.clean = true
		err = errors.Join(err, l.format.write(l.cfg.files, l.cfg.Dir))
	}
	return errors.Join(err, l.lock.Close())
}

// Failed delivers the one error after which the store takes nothing more: a sync that failed, or a write error other than a full
// disk. What the kernel did with the pages is then unknown, so the process should stop and recover by starting again.
func (l *Local) Failed() <-chan error { return l.fatal }

// hash is the keyed hash of a message id. Messages without one must not all stand in one place of the index.
func (l *Local) hash(messageID []byte, seq uint64) uint64 {
	if len(messageID) == 0 {
		return mix(seq)
	}
	var d xxhash.Digest
	d.ResetWithSeed(l.seed)
	_, _ = d.Write(messageID)
	return d.Sum64()
}

// Append implements delivery.Messages. A nil w is allowed.
func (l *Local) Append(q delivery.QueueID, command []byte, m delivery.Meta, w delivery.Waiter, i int) (delivery.Ref, codec.Result) {
	switch {
	case len(command) > CommandBytesMax:
		return delivery.Ref{}, codec.ResultTooLarge
	case len(m.MessageID) > codec.MessageIDBytesMax:
		return delivery.Ref{}, codec.ResultBadMessageID
	case m.Priority > codec.PriorityBulk:
		return delivery.Ref{}, codec.ResultBadField
	}
	l.mu.Lock()
	if r := l.admit(q, len(command), m.Priority); r != codec.ResultAccepted {
		l.count.refused[r]++
		l.mu.Unlock()
		return delivery.Ref{}, r
	}
	d := &l.reg.queues[q]
	l.seq++
	mid := l.hash(m.MessageID, l.seq)
	slot, e := l.slab.alloc(expireSeconds(m.ExpireAtMs))
	b := l.open
	off := len(b.buf)
	b.buf = appendPut(b.buf, &put{kind: framePut, class: byte(m.Priority), seq: l.seq, acceptedMs: m.AcceptedMs, expireMs: m.ExpireAtMs,
		message: m.MessageID, command: command}, l.reg.names[d.user].text, l.reg.names[d.device].text)
	size := len(b.buf) - off
	b.puts = append(b.puts, pending{seq: l.seq, slot: slot, off: off, size: size, w: w, i: i})
	b.live++
	e.seq, e.mid, e.queue, e.off, e.acceptedMs = l.seq, mid, uint32(q), uint32(off), uint32(m.AcceptedMs)
	e.lenFlags = uint32(size) | flagOpen | uint32(m.Priority)<<classShift
	l.link(d, slot, int(m.Priority))
	d.messages++
	d.bytes += int64(size)
	l.index.insert(slot)
	l.count.liveBytes += int64(size)
	first := b.live == 1
	if first {
		b.putAt = time.Now()
	}
	hurry := first || off < commitBytes && len(b.buf) >= commitBytes
	ref := e.ref(slot)
	l.mu.Unlock()
	if hurry {
		l.nudge()
	}
	return ref, codec.ResultAccepted
}

// admit says whether a message may be taken, by every limit. Called with the lock held.
func (l *Local) admit(q delivery.QueueID, n int, p codec.Priority) codec.Result {
	if l.failure != nil || l.closed {
		return codec.ResultUnavailable
	}
	if int(q) >= len(l.reg.queues) || q == 0 || l.reg.queues[q].gone {
		return codec.ResultUnknownDevice
	}
	d := &l.reg.queues[q]
	if int(d.messages) >= l.cfg.QueueMessagesMax || d.bytes+int64(n) > l.cfg.QueueBytesMax {
		return codec.ResultQueueFull
	}
	pendingBytes := len(l.open.buf)
	if l.flushing != nil {
		pendingBytes += len(l.flushing.buf)
	}
	limit := l.cfg.StorageBytesMax
	if p == codec.PriorityBulk {
		limit -= limit / 10
	}
	if l.full || l.segs.bytes+l.count.fileBytes+int64(pendingBytes+n) > limit {
		return codec.ResultStorageFull
	}
	if pendingBytes+n > l.cfg.PendingBytesMax && pendingBytes > 0 {
		return codec.ResultOverloaded
	}
	return codec.ResultAccepted
}

func expireSeconds(ms int64) uint32 {
	s := (ms + 999) / 1000
	return uint32(max(0, min(s, int64(noExpiry)-1)))
}

// Note implements delivery.Messages.
func (l *Local) Note(ref delivery.Ref, attempts uint16, sent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.slab.live(ref)
	if e == nil || e.is(flagDead) {
		return
	}
	e.attempts = max(e.attempts, attempts)
	if sent {
		e.set(flagSent)
	}
	l.open.notes = appendNote(l.open.notes, e.seq, e.attempts, e.is(flagSent))
	l.wakeLazy()
}

// End implements delivery.Ender.
func (l *Local) End(ends []delivery.Ending, nowMs int64) int {
	var told notices
	won := 0
	l.mu.Lock()
	for i := range ends {
		ends[i].Won = l.end(ends[i], nowMs, &told)
		if ends[i].Won {
			won++
		}
		if told.full() {
			l.mu.Unlock()
			told.tell()
			l.mu.Lock()
		}
	}
	if won > 0 {
		l.wakeLazy()
	}
	l.mu.Unlock()
	told.tell()
	return won
}

// end ends one delivery; false: it had ended. told must not be full. Called with the lock held.
func (l *Local) end(en delivery.Ending, nowMs int64, told *notices) bool {
	e := l.slab.live(en.Ref)
	if e == nil || e.is(flagDead) || !en.Status.End() {
		return false
	}
	slot := en.Ref.Slot
	q := e.queue
	d := &l.reg.queues[q]
	e.attempts = max(e.attempts, en.Attempts)
	l.unlink(d, e, e.class())
	d.messages--
	d.bytes -= int64(e.bytes())
	l.settle(e, en.Status == delivery.StatusDead, told)
	switch en.Status {
	case delivery.StatusAcked:
		l.count.acked++
		if d.device != 0 {
			l.reg.seen(q, nowMs)
		}
	case delivery.StatusExpired:
		l.count.expired++
	case delivery.StatusCancelled:
		l.count.cancelled++
	default:
		l.count.dead++
		l.bury(slot, e, en.Reason, nowMs, told)
		return true
	}
	l.discard(slot, e, en, nowMs)
	return true
}

// settle counts a message that ends before it is durable as accepted and answers its publisher, except for one that dies: its letter
// is a promise, so the publisher waits until it is written. Called with the lock held.
func (l *Local) settle(e *entry, dies bool, told *notices) {
	p := l.pending(e)
	if p == nil {
		l.count.live--
		return
	}
	p.counted = true
	l.count.accepted++
	if !dies {
		told.answer(p)
	}
}

// pending is the put of an entry that is not durable yet, nil when it is. Called with the lock held.
func (l *Local) pending(e *entry) *pending {
	switch {
	case e.is(flagOpen):
		return l.open.find(e.seq)
	case e.is(flagFlush):
		return l.flushing.find(e.seq)
	}
	return nil
}

// discard frees an entry that has ended for good, leaving the end for the log and the mark for the journal.
func (l *Local) discard(slot uint32, e *entry, en delivery.Ending, nowMs int64) {
	d := &l.reg.queues[e.queue]
	l.remember(endedEntry{mid: e.mid, seq: e.seq, acceptedMs: e.acceptedAt(nowMs), endedMs: nowMs, user: d.user, device: d.device,
		bytes: uint32(e.bytes()), attempts: e.attempts, status: en.Status, reason: en.Reason, level: en.Level,
		priority: codec.Priority(e.class())}, nowMs)
	if e.is(flagOpen) {
		l.count.elided++
		if l.open.live--; l.open.live == 0 {
			defer l.open.dropPuts()
		}
	} else {
		status := en.Status
		if e.is(flagDead) {
			status = statusDropped
		}
		l.open.ends = appendEnd(withRoom(l.open.ends, endBytes), end{seq: e.seq, endedMs: nowMs, attempts: e.attempts, status: status, reason: en.Reason})
	}
	l.free(slot, e)
}

// free takes an entry out of the index and the accounts. It is in no list any more.
func (l *Local) free(slot uint32, e *entry) {
	if !e.is(flagOpen) {
		g := l.segs.slots[e.seg]
		g.live--
		g.liveBytes -= int64(e.bytes())
	}
	l.count.liveBytes -= int64(e.bytes())
	l.index.remove(slot)
	l.slab.release(slot)
}

func (l *Local) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// wakeLazy starts the clock of what waits for a batch to ride with. Called with the lock held.
func (l *Local) wakeLazy() {
	if l.open.lazyAt.IsZero() && (l.open.lazy() || len(l.reg.changed) > 0) {
		l.open.lazyAt = time.Now()
		if l.open.live == 0 {
			l.nudge()
		}
	}
}
