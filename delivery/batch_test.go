package delivery

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"holdfast/codec"
)

func TestPushValidatesEveryItem(t *testing.T) {
	h := newHarness(t, nil)
	long := func(n int) []byte { return bytes.Repeat([]byte("x"), n) }
	for name, c := range map[string]struct {
		change func(x *codec.PublishItem)
		want   codec.Result
	}{
		"good":                  {nil, codec.ResultAccepted},
		"no user":               {func(x *codec.PublishItem) { x.User = nil }, codec.ResultBadUser},
		"long user":             {func(x *codec.PublishItem) { x.User = long(129) }, codec.ResultBadUser},
		"control character":     {func(x *codec.PublishItem) { x.User = []byte("a\nb") }, codec.ResultBadUser},
		"long device":           {func(x *codec.PublishItem) { x.Device = long(65) }, codec.ResultBadDevice},
		"unknown device":        {func(x *codec.PublishItem) { x.Device = []byte("car") }, codec.ResultUnknownDevice},
		"long message id":       {func(x *codec.PublishItem) { x.MessageID = long(65) }, codec.ResultBadMessageID},
		"long type":             {func(x *codec.PublishItem) { x.Type = long(65) }, codec.ResultBadField},
		"long conversation":     {func(x *codec.PublishItem) { x.Conversation = long(129) }, codec.ResultBadField},
		"unknown class":         {func(x *codec.PublishItem) { x.Priority = 3 }, codec.ResultBadField},
		"largest payload":       {func(x *codec.PublishItem) { x.Payload = long(60 << 10) }, codec.ResultAccepted},
		"payload over the line": {func(x *codec.PublishItem) { x.Payload = long(60<<10 + 1) }, codec.ResultTooLarge},
		"ttl at the retention":  {func(x *codec.PublishItem) { x.TTLMs = 7 * 24 * 3600 * 1000 }, codec.ResultAccepted},
		"ttl over it":           {func(x *codec.PublishItem) { x.TTLMs = 7*24*3600*1000 + 1 }, codec.ResultBadTTL},
	} {
		if o := h.push("alice", "id of "+name, c.change); o.Result != c.want {
			t.Errorf("%s: %s, want %s", name, o.Result, c.want)
		}
	}
}

// The largest message there can be fits a frame of the smallest size the settings allow for it.
func TestLargestMessageFitsItsFrame(t *testing.T) {
	c := Command{
		MessageID: make([]byte, codec.MessageIDBytesMax), Type: make([]byte, codec.TypeBytesMax),
		Conversation: make([]byte, codec.ConversationBytesMax), Payload: make([]byte, 60<<10),
		AcceptedMs: 1 << 62, ExpireAtMs: 1 << 62, OwnTTL: true,
	}
	p := c.push()
	p.Number, p.Attempt, p.Sequence = 1<<42, 20000, 1<<62
	if n := len(codec.AppendPush(nil, &p)); n > c.size() {
		t.Fatalf("a frame of %d bytes was taken for %d", n, c.size())
	}
}

func TestMadeMessageIDsAreRandomAndWellFormed(t *testing.T) {
	h := newHarness(t, nil)
	seen := make(map[string]bool)
	for range 1000 {
		o := h.push("alice", "", nil)
		id := string(o.MessageID)
		if len(id) != messageIDBytes || strings.Trim(id, "0123456789abcdefghijklmnopqrstuv") != "" || seen[id] {
			t.Fatalf("id %q", id)
		}
		seen[id] = true
	}
}

func TestEmptyBatchIsDoneAtOnce(t *testing.T) {
	d := newTestDispatcher(t, newFakeStore(), nil)
	if r := publish(t, d); len(r) != 0 {
		t.Fatal(r)
	}
}

// R22: bulk is shed first, urgent last; what is refused is answered, and the rest of the batch goes on.
func TestR22FullLaneShedsBulkFirst(t *testing.T) {
	c := testConfig()
	c.Lanes, c.LaneItemsMax = 1, 100
	d, err := NewDispatcher(c, newFakeStore(), metrics.NewSet(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	b := NewBatch()
	for i := range 300 {
		b.Add(&codec.PublishItem{User: []byte("alice"), Priority: codec.Priority(i % 3)})
	}
	b.Done = func(*Batch) { close(done) }
	d.lanes[0].call(func(*Engine, Now) {}) // it has something to do, so pushes wait their turn
	d.Push(b)                              // nothing runs yet: the lane fills up
	d.Start()
	defer d.Close()
	within(t, "the results", done)
	accepted := make(map[codec.Priority]int)
	for i := range b.Len() {
		switch r := b.Result(i); r {
		case codec.ResultAccepted:
			accepted[codec.Priority(i%3)]++
		case codec.ResultOverloaded:
		default:
			t.Fatalf("item %d: %s", i, r)
		}
	}
	// 50 go in from all classes alike, then no bulk up to 90, then urgent only up to 100.
	if accepted[codec.PriorityBulk] != 16 || accepted[codec.PriorityNormal] != 37 || accepted[codec.PriorityUrgent] != 47 {
		t.Fatalf("accepted %v", accepted)
	}
	if s := d.Stats(); s.Accepted != 100 || s.Refused != 200 {
		t.Fatalf("stats %+v", s)
	}
	b.Release()
}

func TestWaitBatchEndsWithItsContextAndLeavesNothingBehind(t *testing.T) {
	d := newTestDispatcher(t, newFakeStore(), nil)
	b, done := NewBatch(), make(chan struct{})
	x := message("alice", "m1")
	b.Add(&x)
	b.Follow()
	b.Done = func(*Batch) { close(done) }
	d.Push(b)
	within(t, "the results", done)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := d.WaitBatch(ctx, b); err != context.DeadlineExceeded {
		t.Fatal(err)
	}
	b.Release()
	if n := d.core.watches.active.Load(); n != 0 || len(d.core.watches.byRef) != 0 {
		t.Fatalf("%d watches left", n)
	}
}

// H3: a repeat of a message that is accepted but not durable yet is answered when the first copy is, not before.
func TestH3RepeatOfAPendingMessageWaitsWithIt(t *testing.T) {
	s := newFakeStore()
	s.manualSync = true
	d := newTestDispatcher(t, s, nil)
	answers := make(chan codec.Result, 2)
	for range 2 {
		b := NewBatch()
		b.Add(&codec.PublishItem{User: []byte("alice"), MessageID: []byte("m1"), Payload: []byte("x")})
		b.Done = func(b *Batch) { answers <- b.Result(0); b.Release() }
		d.Push(b)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := d.User(ctx, "alice"); err != nil { // both pushes are through the lane when this is answered
		t.Fatal(err)
	}
	select {
	case r := <-answers:
		t.Fatalf("answered %s before anything was durable", r)
	default:
	}
	s.sync()
	if first, second := <-answers, <-answers; first != codec.ResultAccepted || second != codec.ResultDuplicate {
		t.Fatalf("answers %s, %s", first, second)
	}
}
