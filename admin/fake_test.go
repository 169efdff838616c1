package admin

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/codec"
	"holdfast/delivery"
)

// fakeNode is a Pusher and an Inspector whose outcomes a test decides by names:
//
//	user "full"             queue_full          user "slow"     its batch is done only when the test says so (release)
//	user "broken"           unavailable         user "storage"  storage_full
//	user "new"              default queue       every other     device "phone", accepted
//	message id seen before  duplicate
//
// Deliveries end only through end. It is a node without time of its own.
type fakeNode struct {
	mu       sync.Mutex
	pushed   []pushedItem
	messages map[string][]delivery.Delivery
	users    map[string]delivery.UserInfo
	changed  chan struct{} // closed and replaced at every change
	held     []*fakeBatch
	released int // batches given back
	made     int
	err      error // what questions fail with
	nowMs    int64
}

var _ Inspector = (*delivery.Dispatcher)(nil)

type pushedItem struct {
	codec.PublishItem
	batch int
}

func newFakeNode() *fakeNode {
	return &fakeNode{messages: map[string][]delivery.Delivery{}, users: map[string]delivery.UserInfo{}, changed: make(chan struct{}), nowMs: 1_764_000_000_000}
}

type fakeBatch struct {
	node     *fakeNode
	number   int
	done     func()
	items    []codec.PublishItem
	outcomes []delivery.Outcome
}

func (n *fakeNode) NewBatch(done func()) Batch {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.made++
	return &fakeBatch{node: n, number: n.made, done: done}
}

func clone(b []byte) []byte { return append([]byte(nil), b...) }

func (b *fakeBatch) Add(it *codec.PublishItem) int {
	c := *it
	c.User, c.Device, c.MessageID = clone(it.User), clone(it.Device), clone(it.MessageID)
	c.Type, c.Conversation, c.Payload = clone(it.Type), clone(it.Conversation), clone(it.Payload)
	b.items = append(b.items, c)
	return len(b.items) - 1
}

func (b *fakeBatch) Result(i int) codec.Result      { return b.outcomes[i].Result }
func (b *fakeBatch) Outcome(i int) delivery.Outcome { return b.outcomes[i] }

func (b *fakeBatch) Release() {
	b.node.mu.Lock()
	defer b.node.mu.Unlock()
	b.node.released++
	b.node.notify()
	b.items, b.outcomes = nil, nil // a use after this panics
}

func (n *fakeNode) Push(batch Batch) {
	b := batch.(*fakeBatch)
	n.mu.Lock()
	hold := false
	for i := range b.items {
		it := &b.items[i]
		hold = hold || strings.HasPrefix(string(it.User), "slow")
		n.pushed = append(n.pushed, pushedItem{*it, b.number})
		b.outcomes = append(b.outcomes, n.outcome(it))
	}
	if hold {
		n.held = append(n.held, b)
	}
	n.notify()
	n.mu.Unlock()
	if !hold {
		b.done()
	}
}

func (n *fakeNode) outcome(it *codec.PublishItem) delivery.Outcome {
	o := delivery.Outcome{MessageID: it.MessageID, Deliveries: 1}
	switch {
	case !codec.ValidUser(it.User):
		o.Result = codec.ResultBadUser
	case !codec.ValidMessageID(it.MessageID):
		o.Result = codec.ResultBadMessageID
	case string(it.Device) == "gone":
		o.Result = codec.ResultUnknownDevice
	case len(it.Payload) > 1000:
		o.Result = codec.ResultTooLarge
	case it.TTLMs > uint64((7*24*time.Hour)/time.Millisecond):
		o.Result = codec.ResultBadTTL
	case string(it.User) == "full":
		o.Result = codec.ResultQueueFull
	case string(it.User) == "broken":
		o.Result = codec.ResultUnavailable
	case string(it.User) == "storage":
		o.Result = codec.ResultStorageFull
	case string(it.User) == "draining":
		o.Result = codec.ResultDraining
	case string(it.MessageID) == "taken":
		o.Result = codec.ResultConflict
	}
	if !o.Result.OK() {
		return o
	}
	if it.NoAck {
		o.Deliveries, o.Sent = 0, 1
		return o
	}
	id := string(it.MessageID)
	for _, d := range n.messages[id] {
		if d.User == string(it.User) {
			o.Result, o.Deliveries = codec.ResultDuplicate, 0
			return o
		}
	}
	d := delivery.Delivery{Online: true, Record: delivery.Record{
		MessageID: id, User: string(it.User), Device: "phone", Status: delivery.StatusSent, Attempts: 1, AcceptedMs: n.nowMs,
		ExpireAtMs: n.nowMs + int64(it.TTLMs), Priority: it.Priority, Bytes: len(it.Payload), Sent: true,
	}}
	if d.User == "new" {
		d.Device, d.Status, d.Attempts, d.Sent, d.Online = "", delivery.StatusOffline, 0, false, false
	}
	if d.User == "partly" {
		o.Refused, o.RefusedBy = []string{"tablet"}, codec.ResultQueueFull
	}
	n.messages[id] = append(n.messages[id], d)
	return o
}

// notify wakes whoever waits for a change; n.mu is held.
func (n *fakeNode) notify() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// release completes the batches of slow users.
func (n *fakeNode) release() {
	n.mu.Lock()
	held := n.held
	n.held = nil
	n.mu.Unlock()
	for _, b := range held {
		b.done()
	}
}

// end ends every delivery of a message.
func (n *fakeNode) end(id string, status delivery.Status, reason delivery.Reason) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range n.messages[id] {
		d := &n.messages[id][i]
		if !d.Status.End() {
			d.Status, d.Reason, d.EndedMs, d.Level = status, reason, n.nowMs+3, codec.LevelProcessed
		}
	}
	n.notify()
}

// until blocks until cond holds, which is asked again at every change.
func (n *fakeNode) until(ctx context.Context, cond func() bool) error {
	for {
		n.mu.Lock()
		ok, changed := cond(), n.changed
		n.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (n *fakeNode) Message(_ context.Context, id string) ([]delivery.Delivery, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]delivery.Delivery(nil), n.messages[id]...), n.err
}

func (n *fakeNode) Wait(ctx context.Context, id string, users ...string) ([]delivery.Delivery, error) {
	of := func() []delivery.Delivery {
		return slices.DeleteFunc(slices.Clone(n.messages[id]), func(d delivery.Delivery) bool {
			return len(users) > 0 && !slices.Contains(users, d.User)
		})
	}
	if err := n.until(ctx, func() bool { return n.err != nil || allEnded(of()) }); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return of(), n.err
}

func (n *fakeNode) Cancel(ctx context.Context, id string) ([]delivery.Delivery, int, error) {
	n.mu.Lock()
	cancelled := 0
	for _, d := range n.messages[id] {
		if !d.Status.End() {
			cancelled++
		}
	}
	n.mu.Unlock()
	n.end(id, delivery.StatusCancelled, delivery.ReasonPublisher)
	ds, err := n.Message(ctx, id)
	return ds, cancelled, err
}

func (n *fakeNode) User(_ context.Context, user string) (delivery.UserInfo, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.users[user], n.err
}

// fakeLetters is a list of dead letters.
type fakeLetters struct {
	letters []DeadLetter
	err     error
}

func (f *fakeLetters) DeadLetters(after uint64, n int) ([]DeadLetter, error) {
	var out []DeadLetter
	for _, l := range f.letters {
		if l.Ref.Seq > after && len(out) < n {
			out = append(out, l)
		}
	}
	return out, f.err
}

func (f *fakeLetters) DropDead(seq uint64) (bool, error) {
	for i, l := range f.letters {
		if l.Ref.Seq == seq {
			f.letters = append(f.letters[:i:i], f.letters[i+1:]...)
			return true, f.err
		}
	}
	return false, f.err
}
