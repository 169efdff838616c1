package delivery

import (
	"errors"

	"holdfast/codec"
)

// The ports of this package: what delivery needs of the rest. Implementations live in conn (Peer) and store (Queues, Messages).

// Peer is one live connection as delivery sees it. Every method may be called from any goroutine and never blocks.
type Peer interface {
	// Open ends a login that is under way: the WELCOME frame goes out first, frames that were pipelined behind the login are
	// handled after it, and from then on the connection hands attachment to its handler. It reports false when the
	// connection is gone. welcome is copied.
	Open(attachment any, welcome []byte) bool
	// Send queues one encoded frame behind the ones before it; frame is copied. It reports false when the connection is
	// closed or its outbox is over the high watermark (the handler's Drained follows once it is below the low one).
	Send(frame []byte) bool
	// Unsent is the number of bytes given to Send that the peer's TCP has not taken: outbox, loop buffer and the kernel's
	// send queue. 0 for a closed connection.
	Unsent() int
	// Close sends a CLOSE frame behind what is queued and ends the connection. Repeats do nothing.
	Close(code codec.Code, reason string, retryAfterMs int64)
}

// QueueID names one (user, device) queue of the store. It is valid until the process ends.
type QueueID uint32

// Ref names one stored delivery: one message in one queue. Seq rises with every append to the store, over restarts too, and is
// never given twice; Slot is where the store looks first. The zero Ref names nothing.
type Ref struct {
	Seq  uint64
	Slot uint32
}

// Waiter is told what became of an accepted message: once per Append, when it is durable, when it has ended before that (acked:
// it need not be written any more; a dead letter has to be), or with the reason why it could not be stored. Called from any
// goroutine; must not block.
type Waiter interface {
	Stored(i int, r codec.Result)
}

// What Queues.Claim refuses while the store is well.
var (
	ErrTooManyDevices = errors.New("the user has too many devices")
	ErrTooManyQueues  = errors.New("too many queues")
)

// Queues is the registry of users and devices.
type Queues interface {
	// Claim returns the queue of (user, device) for a login and notes that it was seen at nowMs (Unix). The first device of a
	// user that has only the default queue (device "") takes that queue over, messages included, under its own name.
	// Names are copied. A new device over a limit: ErrTooManyDevices, ErrTooManyQueues; other errors are faults of the store.
	Claim(user, device []byte, nowMs int64) (QueueID, error)
	// Targets appends the queues a push to user goes to: with device empty every device seen within the retention of
	// devices, or the default queue, created if need be; else that one device, which must be known.
	// duplicate reports that the message id hash was accepted for this user inside the dedup window (dst is then returned as given).
	Targets(dst []QueueID, user, device []byte, messageID []byte, nowMs int64) (targets []QueueID, duplicate bool, r codec.Result)
	// Join lets a duplicate wait for its first copy: while that is not durable, w.Stored(i, …) follows once, with ResultDuplicate
	// when it is, or with the reason why it could not be stored. false: nothing is pending, and w is not told. Without it a
	// repeat would be promised what only the next sync makes true.
	Join(user, messageID []byte, w Waiter, i int) bool
}

// Item is one stored message as read back.
type Item struct {
	Ref      Ref
	Command  []byte // encoded; valid until the next call that was given the same Buffer
	Attempts uint16 // counted so far, over restarts
	Sent     bool   // it was sent before (the client may have seen it)
}

// Buffer is scratch memory that Next and Read put commands into. The zero value is ready.
type Buffer struct {
	Items []Item
	Bytes []byte
}

// Messages holds every accepted message until it has ended. All methods are safe for concurrent use; only Next and Read touch the
// disk (short preads), none waits for a sync.
type Messages interface {
	// Append puts an encoded command at the tail of one priority class of a queue and into the commit buffer, and returns at
	// once; w.Stored(i, …) follows. A refusal (queue full, storage full, unavailable) is returned instead, and w is not told.
	// command is copied.
	Append(q QueueID, command []byte, m Meta, w Waiter, i int) (Ref, codec.Result)
	// Next fills b with up to n messages (and about maxBytes, at least one message) of one class of a queue, oldest first, whose Seq is above after.
	Next(b *Buffer, q QueueID, p codec.Priority, after uint64, n, maxBytes int) ([]Item, error)
	// Read fills b with one message; ok is false when it has ended.
	Read(b *Buffer, ref Ref) (item Item, ok bool, err error)
	// Note remembers the attempts made so far and that it was sent; lazily durable.
	Note(ref Ref, attempts uint16, sent bool)
}

// Meta is what the store indexes of a command.
type Meta struct {
	MessageID  []byte
	Priority   codec.Priority
	AcceptedMs int64 // Unix
	ExpireAtMs int64 // Unix, never 0
}

// Ender ends deliveries. A delivery ends once: the first caller wins.
type Ender interface {
	// End moves each delivery to its end state (StatusAcked, StatusExpired, StatusCancelled, StatusDead) and takes it out of
	// its queue; a dead one stays readable in the dead-letter list. It works in memory and is lazily durable.
	// It returns how many were still live.
	End(ends []Ending, nowMs int64) int
}

// Ending is one delivery's end.
type Ending struct {
	Ref      Ref
	Status   Status
	Level    codec.AckLevel // for StatusAcked
	Attempts uint16
	Reason   Reason
	Won      bool // set by End: this call ended it
}

// Record is what the store knows of one delivery, for look-ups by operators.
type Record struct {
	Ref        Ref
	MessageID  string
	User       string
	Device     string // "" for the default queue
	Status     Status // StatusOffline while stored; the caller refines it with what is in flight
	Attempts   uint16
	Sent       bool
	Level      codec.AckLevel
	Reason     Reason
	Priority   codec.Priority
	AcceptedMs int64 // Unix
	ExpireAtMs int64 // Unix; 0 when it has ended and is no longer known
	EndedMs    int64 // Unix; 0 while it lives
	Bytes      int
}

// QueueInfo is one queue for operators.
type QueueInfo struct {
	ID       QueueID
	User     string
	Device   string
	SeenMs   int64 // Unix; 0: never
	Messages int
	Bytes    int64
	OldestMs int64 // Unix, acceptance of the oldest message; 0: empty
}

// Lookup finds things for operators; not for the hot path.
type Lookup interface {
	Find(messageID string) []Record // live, dead and recently ended ones; empty: unknown
	Queue(q QueueID) QueueInfo
	UserQueues(user string) []QueueInfo
	// SweepExpired appends up to max live deliveries whose time is over, continuing where the last call stopped.
	SweepExpired(dst []Ref, nowMs int64, max int) []Ref
}

// Store is all of it, as main wires it.
type Store interface {
	Queues
	Messages
	Ender
	Lookup
}
