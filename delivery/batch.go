package delivery

import (
	"sync"

	"holdfast/ack"
	"holdfast/codec"
)

// Batch is messages on their way in. One goroutine fills it and gives it to Dispatcher.Push; from then on nobody touches it until
// Done is called. Get one from NewBatch.
type Batch struct {
	// Done is set before Push and called exactly once, when every message is either durable (or acknowledged by all its devices)
	// or refused. It runs on any goroutine, even inside Push, and must not block. Whom it is called for owns the batch again.
	Done   func(*Batch)
	Tag    any    // the caller's own
	Number uint64 // the caller's own

	// Owned by the filling goroutine, then by Push and the lanes.
	items  []item
	bytes  []byte // what the commands borrow from
	core   *core
	watch  *watch // nil unless following
	follow bool
	first  [ack.Shards]int32 // per lane: its first item, -1: none
	last   [ack.Shards]int32

	mu   sync.Mutex
	left int // guarded by mu: items without a result, and one while Push runs
}

// item is one message of a batch.
type item struct {
	cmd      Command
	ttlMs    uint64
	userHash uint64
	next     int32 // the next item for the same lane, -1: none
	sent     int32 // fire and forget: connections written to
	result   codec.Result

	// Guarded by Batch.mu.
	pending   int32 // targets that are not durable yet, and one while the lane routes
	stored    int32
	refusedBy codec.Result
	refused   []QueueID
}

// Outcome is what became of one message.
type Outcome struct {
	Result     codec.Result
	MessageID  []byte       // borrowed until Release
	Deliveries int          // devices it is stored for
	Sent       int          // fire and forget: connections it was written to
	Refused    []string     // devices whose queue refused it although others took it
	RefusedBy  codec.Result // and why
}

// batchBytesKept bounds what a released batch takes along into the pool.
const batchBytesKept = 1 << 20

var batches = sync.Pool{New: func() any { return new(Batch) }}

// NewBatch is an empty batch from a pool.
func NewBatch() *Batch { return batches.Get().(*Batch) }

// Release gives the batch back to the pool: before Push, or after Done. Whatever was read from it is invalid from now on.
func (b *Batch) Release() {
	if b.watch != nil {
		b.core.watches.close(b.watch)
	}
	clear(b.items)
	b.items, b.bytes = b.items[:0], b.bytes[:0]
	if cap(b.bytes) > batchBytesKept || cap(b.items) > codec.PublishItemsMax {
		b.items, b.bytes = nil, nil
	}
	b.Done, b.Tag, b.Number, b.core, b.watch, b.follow = nil, nil, 0, nil, nil, false
	batches.Put(b)
}

// Add copies one message into the batch and returns its index. An empty message id is made by Push, a ttl of 0 is the retention.
func (b *Batch) Add(x *codec.PublishItem) int {
	b.items = append(b.items, item{
		cmd: Command{
			MessageID:    b.copy(x.MessageID),
			User:         b.copy(x.User),
			Device:       b.copy(x.Device),
			Type:         b.copy(x.Type),
			Conversation: b.copy(x.Conversation),
			Payload:      b.copy(x.Payload),
			NoAck:        x.NoAck,
			Priority:     x.Priority,
		},
		ttlMs: x.TTLMs,
	})
	return len(b.items) - 1
}

// copy keeps p in the batch's own memory. When that has to grow, earlier copies stay where they are.
func (b *Batch) copy(p []byte) []byte {
	start := len(b.bytes)
	b.bytes = append(b.bytes, p...)
	return b.bytes[start:len(b.bytes):len(b.bytes)]
}

// Follow makes the batch remember how its deliveries end, for Dispatcher.WaitBatch. Call it before Push.
func (b *Batch) Follow() { b.follow = true }

// Len is the number of messages.
func (b *Batch) Len() int { return len(b.items) }

// Result is the answer to message i; after Done. A fire-and-forget message is accepted whether or not anybody was online.
func (b *Batch) Result(i int) codec.Result { return b.items[i].result }

// MessageID is the id of message i, given or made; after Done, borrowed until Release.
func (b *Batch) MessageID(i int) []byte { return b.items[i].cmd.MessageID }

// Outcome is all that is known of message i; after Done.
func (b *Batch) Outcome(i int) Outcome {
	it := &b.items[i]
	o := Outcome{
		Result: it.result, MessageID: it.cmd.MessageID,
		Deliveries: int(it.stored), Sent: int(it.sent), RefusedBy: it.refusedBy,
	}
	for _, q := range it.refused {
		o.Refused = append(o.Refused, b.core.store.Queue(q).Device)
	}
	return o
}

// begin starts the life of a batch inside Push.
func (b *Batch) begin(c *core) {
	b.core = c
	b.left = len(b.items) + 1
	for i := range b.items {
		b.items[i].pending = 1
	}
	if b.follow {
		b.watch = c.watches.open()
	}
}

// expect announces one more Stored for message i.
func (b *Batch) expect(i int) {
	b.mu.Lock()
	b.items[i].pending++
	b.mu.Unlock()
}

// unexpect takes back an expect: nothing is pending for message i.
func (b *Batch) unexpect(i int) {
	b.mu.Lock()
	b.items[i].pending--
	b.mu.Unlock()
}

// refusedTarget takes back an expect: queue q would not have the message.
func (b *Batch) refusedTarget(i int, q QueueID, r codec.Result) {
	b.mu.Lock()
	it := &b.items[i]
	it.pending--
	it.refusedBy = r
	it.refused = append(it.refused, q)
	b.mu.Unlock()
}

// settle ends the routing of message i; r is its result should no target have stored it. The batch may be gone when it returns.
func (b *Batch) settle(i int, r codec.Result) {
	b.mu.Lock()
	b.items[i].result = r
	b.step(i)
}

// Stored implements Waiter for the store: one target of message i is durable, or failed; or its first copy is, for a duplicate. The
// batch may be gone when it returns.
func (b *Batch) Stored(i int, r codec.Result) {
	b.mu.Lock()
	switch it := &b.items[i]; {
	case r == codec.ResultDuplicate:
	case r.OK():
		it.stored++
	default:
		it.refusedBy = r
	}
	b.step(i)
}

// step counts message i down by one; it is called with mu held and unlocks it.
func (b *Batch) step(i int) {
	it := &b.items[i]
	it.pending--
	if it.pending < 0 {
		panic("a message was told to be stored more often than it was appended")
	}
	done := false
	if it.pending == 0 {
		if it.stored > 0 {
			it.result = codec.ResultAccepted
		} else if it.refusedBy != 0 {
			it.result = it.refusedBy
		}
		b.core.count.published(it.result)
		b.left--
		done = b.left == 0
	}
	b.mu.Unlock()
	if done {
		b.finish()
	}
}

// release ends Push's own hold on the batch.
func (b *Batch) release() {
	b.mu.Lock()
	b.left--
	done := b.left == 0
	b.mu.Unlock()
	if done {
		b.finish()
	}
}

func (b *Batch) finish() {
	if b.watch != nil {
		b.core.watches.seal(b.watch)
	}
	b.Done(b)
}
