package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/codec"
)

// TestG8RepeatedPublish: repeats of a message id inside the window succeed and deliver nothing new; the gateway's own copies are
// no duplicates; an ACKed message does not come again, also over kill -9.
func TestG8RepeatedPublish(t *testing.T) {
	t.Parallel()
	s := start(t, append(quick, "store.dedup_window=6s")...)
	d := s.login("g8", "phone")
	again := func() api { return s.push("g8", "m", map[string]any{"message_id": "g8-1"}) }
	begun := time.Now()
	again()
	for range 2 { // copies 1 and 2 are swallowed
		d.want(4 * time.Second)
	}
	if a := again(); a.str("status") != "duplicate" {
		t.Fatalf("repeat while in flight: %s", a.Raw)
	}
	third := d.want(6 * time.Second)
	written := s.metric("holdfast_store_written_bytes_total")
	d.ack(third)
	eventually(t, time.Second, "acked", func() bool { return s.states("g8-1")["phone"] == "ACKED" })
	if a := again(); a.str("status") != "duplicate" && time.Since(begun) < 6*time.Second {
		t.Fatalf("repeat after the ACK: %s", a.Raw)
	}
	// Ends are lazily durable: a crash right after an ACK may bring the message again, one a moment later may not.
	eventually(t, 2*time.Second, "the end is on the disk", func() bool { return s.metric("holdfast_store_written_bytes_total") > written })
	s.crash()
	d = s.login("g8", "phone")
	if time.Since(begun) < 5*time.Second {
		if a := again(); a.str("status") != "duplicate" {
			t.Errorf("repeat after the restart: %s", a.Raw)
		}
	}
	d.quiet(500 * time.Millisecond)
	// Same id for another user is another message.
	s.push("g8-other", "m", map[string]any{"message_id": "g8-1"})
	s.login("g8-other", "phone").wantTexts(time.Second, "m")
	eventually(t, 10*time.Second, "the window is over", func() bool { return again().str("status") == "accepted" })
	s.checkLedger()
}

// TestH3TruthfulReplies: with every queue filling up, accepted = delivered + held, exactly.
func TestH3TruthfulReplies(t *testing.T) {
	t.Parallel()
	s := start(t, append(quick, "store.queue_messages_max=50")...)
	accepted := map[string]bool{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for p := range 4 {
		group.Go(func() {
			for i := range 300 {
				id := fmt.Sprintf("h3-%d-%d", p, i)
				a, err := s.call("POST", "/v1/push", map[string]any{"user": fmt.Sprintf("h3-%d", i%10), "text": id, "message_id": id})
				if err == nil && a.Status == 200 {
					mu.Lock()
					accepted[id] = true
					mu.Unlock()
				}
			}
		})
	}
	group.Wait()
	if len(accepted) != 500 {
		t.Errorf("%d accepted, want 10 queues of 50", len(accepted))
	}
	for u := range 10 {
		d := s.login(fmt.Sprintf("h3-%d", u), "phone")
		for {
			m, err := d.push(300 * time.Millisecond)
			if err != nil {
				break
			}
			if !accepted[m.ID] {
				t.Errorf("%s came though it was refused", m.ID)
			}
			delete(accepted, m.ID)
			d.ack(m)
		}
	}
	for id := range accepted {
		t.Errorf("%s was accepted and did not come", id)
	}
	s.checkLedger()
}

// TestH5IDsDoNotDependOnTheClock: generated ids are distinct over restarts and concurrent publishers.
func TestH5IDsDoNotDependOnTheClock(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	seen := map[string]bool{}
	for range 3 {
		var items []map[string]any
		for range 500 {
			items = append(items, map[string]any{"user": "h5", "text": "x"})
		}
		a := s.must("POST", "/v1/push", items)
		results, _ := a.Body["results"].([]any)
		if len(results) != 500 {
			t.Fatalf("%d results: %.200s", len(results), a.Raw)
		}
		for _, r := range results {
			m, _ := r.(map[string]any)
			id, _ := m["message_id"].(string)
			if id == "" || seen[id] {
				t.Fatalf("id %q twice or empty", id)
			}
			seen[id] = true
		}
		s.crash()
	}
}

// publisherFrame sends one PUBLISH with items and returns its PUBLISHED results.
func (d *device) publish(number uint64, items ...codec.PublishItem) []codec.ItemResult {
	d.t.Helper()
	var w codec.PublishWriter
	w.Reset(number)
	for i := range items {
		w.Add(&items[i])
	}
	d.write(w.AppendTo(nil))
	f, err := d.frame(5 * time.Second)
	if err != nil || f.Type != codec.TypePublished {
		d.t.Fatalf("PUBLISHED: %v %v", f.Type, err)
	}
	var p codec.Published
	if err := codec.DecodePublished(f, &p); err != nil {
		d.t.Fatal(err)
	}
	if p.Number != number || int(p.Count) != len(items) {
		d.t.Fatalf("PUBLISHED %d for %d items answers %d with %d", p.Number, p.Count, number, len(items))
	}
	results := make([]codec.ItemResult, len(items))
	for i := range results {
		if p.AllAccepted {
			results[i].MessageID = items[i].MessageID
			continue
		}
		var r codec.ItemResult
		if ok, err := p.Next(&r); !ok || err != nil {
			d.t.Fatalf("result %d: %v %v", i, ok, err)
		}
		results[i] = codec.ItemResult{Result: r.Result, MessageID: append([]byte(nil), r.MessageID...)}
	}
	return results
}

// TestPublishFrames: a back end publishes over the TCP port; refusals are per item; a client without the role may not.
func TestPublishFrames(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	p := s.login("backend", "1", func(c *codec.Connect) { c.Capabilities = codec.CapPublisher })
	d := s.login("pf", "phone")
	results := p.publish(1,
		codec.PublishItem{User: []byte("pf"), Payload: []byte("one"), MessageID: []byte("pf-1")},
		codec.PublishItem{User: []byte("pf"), Payload: []byte("two")},
		codec.PublishItem{User: []byte("pf"), Device: []byte("unknown"), Payload: []byte("x")},
		codec.PublishItem{User: []byte("pf"), Payload: []byte(strings.Repeat("x", 63<<10))},
		codec.PublishItem{User: []byte("pf"), Payload: []byte("one"), MessageID: []byte("pf-1")},
	)
	for i, want := range []codec.Result{codec.ResultAccepted, codec.ResultAccepted, codec.ResultUnknownDevice, codec.ResultTooLarge, codec.ResultDuplicate} {
		if results[i].Result != want {
			t.Errorf("item %d: %s, want %s", i, results[i].Result, want)
		}
	}
	d.wantTexts(time.Second, "one", "two")
	d.quiet(200 * time.Millisecond)
	results = p.publish(2, codec.PublishItem{User: []byte("pf"), Payload: []byte("three"), MessageID: []byte("pf-3")})
	if results[0].Result != codec.ResultAccepted {
		t.Error(results)
	}
	d.wantTexts(time.Second, "three")
	var w codec.PublishWriter
	w.Reset(1)
	w.Add(&codec.PublishItem{User: []byte("pf"), Payload: []byte("forged")})
	d.write(w.AppendTo(nil))
	d.wantClose(time.Second, codec.CodeForbidden)
}

// TestFireAndForget: ack=false goes to who is connected, is never stored, never resent.
func TestFireAndForget(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	s.push("ff", "nobody there", map[string]any{"ack": false})
	d := s.login("ff", "phone")
	d.quiet(200 * time.Millisecond)
	s.push("ff", "now", map[string]any{"ack": false})
	m := d.want(time.Second)
	if m.Text != "now" || !m.NoAck || m.Number != 0 {
		t.Fatalf("got %+v", m)
	}
	d.quiet(2 * time.Second)
	s.checkLedger()
}

// TestPriorities: in a backlog urgent messages come first, bulk last; order holds inside each class.
func TestPriorities(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	for i := range 3 {
		for _, p := range []string{"bulk", "normal", "urgent"} {
			s.push("prio", fmt.Sprintf("%s %d", p, i), map[string]any{"priority": p})
		}
	}
	d := s.login("prio", "phone")
	d.wantTexts(time.Second, "urgent 0", "urgent 1", "urgent 2", "normal 0", "normal 1", "normal 2", "bulk 0", "bulk 1", "bulk 2")
}

// TestWaitDelivered: the reply of a waiting push tells the outcome.
func TestWaitDelivered(t *testing.T) {
	s := start(t, quick...)
	d := s.login("wait", "phone")
	answer := make(chan api, 1)
	go func() {
		a, _ := s.call("POST", "/v1/push?wait=delivered&timeout=5s", map[string]any{"user": "wait", "text": "m"})
		answer <- a
	}()
	d.wantTexts(time.Second, "m")
	select {
	case a := <-answer:
		if a.Status != 200 || !strings.Contains(a.Raw, "ACKED") {
			t.Fatalf("HTTP %d %s", a.Status, a.Raw)
		}
	case <-time.After(3 * time.Second):
		t.Fatal("no answer after the ACK")
	}
	begun := time.Now()
	a := s.must("POST", "/v1/push?wait=delivered&timeout=300ms", map[string]any{"user": "absent", "text": "m"})
	if a.Status != 200 || !strings.Contains(a.Raw, "OFFLINE_BUFFERED") || time.Since(begun) > 2*time.Second {
		t.Fatalf("after %v: HTTP %d %s", time.Since(begun), a.Status, a.Raw)
	}
}
