package store

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Sync says when a publisher is answered.
type Sync uint8

const (
	// SyncAlways answers after fdatasync: an answered message survives a power cut.
	SyncAlways Sync = iota
	// SyncInterval answers after write: an answered message survives kill -9, but a power cut takes the last Config.SyncInterval.
	SyncInterval
)

// CommandBytesMax is the largest command Append takes; the index has room for its length and no more.
const CommandBytesMax = 1 << 20

// Config are the settings of Local. The zero value of a field means its default.
type Config struct {
	Dir               string        // made if need be; one process at a time
	Sync              Sync          // SyncAlways
	SyncInterval      time.Duration // 1 s; for SyncInterval
	CommitDelay       time.Duration // 2 ms from the first put to the cut of its batch
	LazyDelay         time.Duration // 100 ms that ends and notes may wait for a batch to ride with
	RetryDelay        time.Duration // 1 s between attempts to write while the disk is full
	SegmentBytes      int64         // 64 MiB
	PendingBytesMax   int           // 8 MiB accepted and not yet on disk; over it ResultOverloaded
	QueueMessagesMax  int           // 10,000 a queue; over it ResultQueueFull
	QueueBytesMax     int64         // 10 MiB a queue, names and record heads included; over it ResultQueueFull
	StorageBytesMax   int64         // 10 GiB of files; over it ResultStorageFull, for bulk from 90 %
	DeadLettersMax    int           // 100,000; over it the oldest goes
	DedupWindow       time.Duration // 24 h that an ended message id is remembered
	DedupMax          int           // 1,048,576 ended deliveries remembered; a full memory shortens the window
	DeviceRetention   time.Duration // 30 d after which an unseen device is no target any more
	DevicesPerUserMax int           // 100
	QueuesMax         int           // 10,000,000 queues known at a time
	ReadCacheBytes    int64         // 16 MiB for blocks of the log that several queues are read from at a time; given back after seconds without use
	Log               *slog.Logger  // slog.Default()

	files      *files // nil: the operating system's
	blockBytes int64  // of the read cache; 64 KiB
}

// withDefaults fills in what is zero and checks the rest.
func (c Config) withDefaults() (Config, error) {
	if c.Dir == "" {
		return c, errors.New("store: no data directory given")
	}
	setDefault(&c.SyncInterval, time.Second)
	setDefault(&c.CommitDelay, 2*time.Millisecond)
	setDefault(&c.LazyDelay, 100*time.Millisecond)
	setDefault(&c.RetryDelay, time.Second)
	setDefault(&c.SegmentBytes, 64<<20)
	setDefault(&c.PendingBytesMax, 8<<20)
	setDefault(&c.QueueMessagesMax, 10_000)
	setDefault(&c.QueueBytesMax, 10<<20)
	setDefault(&c.StorageBytesMax, 10<<30)
	setDefault(&c.DeadLettersMax, 100_000)
	setDefault(&c.DedupWindow, 24*time.Hour)
	setDefault(&c.DedupMax, 1<<20)
	setDefault(&c.DeviceRetention, 30*24*time.Hour)
	setDefault(&c.DevicesPerUserMax, 100)
	setDefault(&c.QueuesMax, 10_000_000)
	setDefault(&c.ReadCacheBytes, 16<<20)
	setDefault(&c.blockBytes, cacheBlockBytes)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.files == nil {
		c.files = osFiles()
	}
	switch {
	case c.Sync > SyncInterval:
		return c, fmt.Errorf("store: unknown sync setting %d", c.Sync)
	case c.SegmentBytes < 4<<10 || c.SegmentBytes > 1<<30:
		return c, fmt.Errorf("store: segment size %d is not within 4 KiB and 1 GiB", c.SegmentBytes)
	case c.PendingBytesMax < 0 || c.PendingBytesMax > 512<<20:
		return c, fmt.Errorf("store: pending limit %d is not within 1 and 512 MiB", c.PendingBytesMax)
	case c.DedupMax < 0 || c.DedupMax > 1<<30:
		return c, fmt.Errorf("store: dedup limit %d is not within 1 and 2^30", c.DedupMax)
	case c.StorageBytesMax < 4*c.SegmentBytes:
		return c, fmt.Errorf("store: storage limit %d is below four segments of %d bytes", c.StorageBytesMax, c.SegmentBytes)
	case c.StorageBytesMax/c.SegmentBytes > segmentSlotsMax/2: // a segment is at least half full on the average
		return c, fmt.Errorf("store: storage limit %d needs more than %d segments of %d bytes", c.StorageBytesMax, segmentSlotsMax/2, c.SegmentBytes)
	case c.ReadCacheBytes < 0 || c.ReadCacheBytes > 1<<30:
		return c, fmt.Errorf("store: read cache of %d bytes is not within 1 and 1 GiB", c.ReadCacheBytes)
	case c.CommitDelay < 0 || c.LazyDelay < 0 || c.SyncInterval < 0 || c.RetryDelay < 0 || c.DedupWindow < 0 || c.DeviceRetention < 0:
		return c, errors.New("store: a duration is negative")
	case c.QueueMessagesMax < 0 || c.QueueBytesMax < 0 || c.DeadLettersMax < 0 || c.DevicesPerUserMax < 0 || c.QueuesMax < 0:
		return c, errors.New("store: a limit is negative")
	}
	return c, nil
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
