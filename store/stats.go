package store

import (
	"time"

	"holdfast/codec"
)

// counters are all Local counts. Guarded by Local.mu.
type counters struct {
	accepted, live, acked, expired, cancelled, dead int64

	refused          [64]int64 // by codec.Result
	duplicates       int64
	elided           int64 // never written: ended before their batch was cut
	written          int64
	dropped          int64 // of batches that could not be written
	deadEvicted      int64
	dedupShortened   int64
	devicesForgotten int64
	damaged          int64 // damaged places found
	lost             int64 // messages given up for damage
	diskFull         int64
	batches, syncs   int64
	syncTime         time.Duration
	bytesWritten     int64
	moved            int64
	movedBytes       int64
	segmentsRemoved  int64
	liveBytes        int64 // frames of everything in the index
	fileBytes        int64 // devices and ended files
}

// Ledger says where every accepted delivery is: Accepted = Live + Acked + Expired + Cancelled + Dead, at any moment. A delivery
// counts as accepted once it is durable or has ended. It begins anew at each start, with what was recovered.
type Ledger struct {
	Accepted  uint64
	Live      uint64
	Acked     uint64
	Expired   uint64
	Cancelled uint64
	Dead      uint64 // died, whether its letter is still kept or not
}

// Ledger returns the accounts of one moment.
func (l *Local) Ledger() Ledger {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count.ledger()
}

func (c *counters) ledger() Ledger {
	return Ledger{Accepted: uint64(c.accepted), Live: uint64(c.live), Acked: uint64(c.acked), Expired: uint64(c.expired),
		Cancelled: uint64(c.cancelled), Dead: uint64(c.dead)}
}

// Stats is what the store has to say for metrics. Counts are since the start.
type Stats struct {
	Ledger
	Refused map[codec.Result]int64 // by Append

	Queues      int // known now
	DeadLetters int // kept now
	Ended       int // remembered for dedup now
	Entries     int // in the index now: live, pending and dead

	LogBytes     int64 // of the segments
	LiveBytes    int64 // of what lives in them
	StorageBytes int64 // of all files
	Segments     int
	PendingBytes int // accepted and not yet written

	Duplicates       int64
	Elided           int64 // acknowledged before they were written, so never written
	Written          int64
	Dropped          int64 // told to their publishers as refused after a failed write
	DeadEvicted      int64 // dead letters that went for lack of room
	DedupShortened   int64 // marks that went before the window was over, for lack of room
	DevicesForgotten int64
	Damaged          int64 // damaged places found in files
	Lost             int64 // messages given up because their bytes are damaged
	DiskFull         int64 // failed writes for lack of room
	Batches          int64
	Syncs            int64
	SyncTime         time.Duration // sum
	BytesWritten     int64
	Moved            int64 // messages copied forward
	MovedBytes       int64
	SegmentsRemoved  int64
	Full             bool // the disk is full
}

// Stats returns the figures of one moment. It allocates; for a scrape, not for the hot path.
func (l *Local) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &l.count
	s := Stats{
		Ledger:  c.ledger(),
		Refused: map[codec.Result]int64{},
		Queues:  l.reg.used, DeadLetters: len(l.dead.slots), Ended: l.ended.len(), Entries: l.slab.used,
		LogBytes: l.segs.bytes, LiveBytes: c.liveBytes, StorageBytes: l.segs.bytes + c.fileBytes, Segments: len(l.segs.order),
		PendingBytes: len(l.open.buf), Duplicates: c.duplicates, Elided: c.elided, Written: c.written, Dropped: c.dropped,
		DeadEvicted: c.deadEvicted, DedupShortened: c.dedupShortened, DevicesForgotten: c.devicesForgotten, Damaged: c.damaged, Lost: c.lost,
		DiskFull: c.diskFull, Batches: c.batches, Syncs: c.syncs, SyncTime: c.syncTime, BytesWritten: c.bytesWritten,
		Moved: c.moved, MovedBytes: c.movedBytes, SegmentsRemoved: c.segmentsRemoved, Full: l.full,
	}
	if l.flushing != nil {
		s.PendingBytes += len(l.flushing.buf)
	}
	for r, n := range c.refused {
		if n > 0 {
			s.Refused[codec.Result(r)] = n
		}
	}
	return s
}
