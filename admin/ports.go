package admin

import (
	"context"

	"holdfast/codec"
	"holdfast/delivery"
)

// Pusher takes messages. Dispatch makes one of a delivery.Dispatcher.
type Pusher interface {
	// NewBatch is an empty batch. done is called once, from any goroutine, when every message of it has its outcome; from Push
	// until then nobody but the pusher may touch the batch.
	NewBatch(done func()) Batch
	// Push hands a batch over. It never blocks.
	Push(b Batch)
}

// Batch is what is pushed together.
type Batch interface {
	Add(it *codec.PublishItem) int  // copies; returns the index
	Result(i int) codec.Result      // once done was called
	Outcome(i int) delivery.Outcome // once done was called
	Release()                       // ends the use of the batch and of every slice read from it
}

// Inspector answers questions about messages and users. The calls end early with ctx's error.
type Inspector interface {
	// Message returns every delivery of a message as it stands; none: the id is unknown.
	Message(ctx context.Context, messageID string) ([]delivery.Delivery, error)
	// Wait returns when every delivery of a message has ended, with users those to them only; none: the id is unknown.
	Wait(ctx context.Context, messageID string, users ...string) ([]delivery.Delivery, error)
	// Cancel ends what has not ended yet, and returns every delivery as it stands afterwards and how many it cancelled.
	Cancel(ctx context.Context, messageID string) (after []delivery.Delivery, cancelled int, err error)
	// User describes the devices of a user; none: never seen.
	User(ctx context.Context, user string) (delivery.UserInfo, error)
}

// DeadLetters is the list of messages that were given up.
type DeadLetters interface {
	// DeadLetters returns up to n dead letters whose Seq is above after, oldest first.
	DeadLetters(after uint64, n int) ([]DeadLetter, error)
	// DropDead removes one for good; false: there is none with this Seq.
	DropDead(seq uint64) (bool, error)
}

// DeadLetter is one delivery that was given up, and the message as it was stored.
type DeadLetter struct {
	delivery.Record
	Command []byte // encoded delivery.Command; nil: it could not be read
}

// Dispatch is the Pusher over a dispatcher; the dispatcher itself is an Inspector.
func Dispatch(d *delivery.Dispatcher) Pusher { return dispatch{d} }

type dispatch struct{ dispatcher *delivery.Dispatcher }

func (p dispatch) NewBatch(done func()) Batch {
	b := delivery.NewBatch()
	b.Done = func(*delivery.Batch) { done() }
	return b
}

// Push: a batch of another pusher is a mistake of wiring, and may panic.
func (p dispatch) Push(b Batch) { p.dispatcher.Push(b.(*delivery.Batch)) }
