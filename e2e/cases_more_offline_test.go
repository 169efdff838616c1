package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/codec"
)

// TestB1EverybodyComesBackAfterAKill: kill -9, a pause, a start on the same address: all users log in again, five messages to each
// arrive within the ACK timeout, nothing by hand.
func TestB1EverybodyComesBackAfterAKill(t *testing.T) {
	t.Parallel()
	const users = 250
	s := start(t, "ack.timeout=5s", "tcp.keepalive_min=1s")
	var boxes []*inbox
	for u := range users {
		boxes = append(boxes, s.listen(fmt.Sprint("b1-", u), "phone"))
	}
	s.kill()
	time.Sleep(2 * time.Second) // the node is away
	s.run()
	eventually(t, 10*time.Second, "all are back", func() bool { return s.metric("holdfast_online") == users })
	begun := time.Now()
	var items []map[string]any
	for u := range users {
		items = append(items, batch(fmt.Sprint("b1-", u), "", 5)...)
	}
	s.pushAll(items)
	for u, b := range boxes {
		eventually(t, time.Until(begun.Add(5*time.Second)), fmt.Sprintf("user %d has all five", u), func() bool { return len(b.all()) >= 5 })
		same(t, fmt.Sprint("user ", u), b.all(), texts("", 5))
	}
	eventually(t, 2*time.Second, "nothing is left", func() bool { return s.metric("holdfast_ledger_live") == 0 })
	if n := s.metric("holdfast_messages_retries_total"); n != 0 {
		t.Errorf("%v copies were sent again", n)
	}
	s.checkLedger()
}

// TestB4PublishingThroughAKill: publishes at a steady pace over kill -9; the user logs in 3 s later: every publish had a success or an
// error, and each success arrives, in order, without a hole.
func TestB4PublishingThroughAKill(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	d := s.login("b4", "phone")
	stop := make(chan struct{})
	var accepted, answered []int
	var publishing sync.WaitGroup
	publishing.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond): // 50 a second
			}
			a, err := s.call("POST", "/v1/push", map[string]any{"user": "b4", "text": fmt.Sprint(n), "message_id": fmt.Sprint("b4-", n)})
			answered = append(answered, n) // success or error, never silence
			if err == nil && a.Status == 200 {
				accepted = append(accepted, n)
			}
		}
	})
	for range 10 {
		d.ack(d.want(time.Second))
	}
	s.crash()
	time.Sleep(3 * time.Second) // the time away of the case
	d = s.login("b4", "phone")
	received, last := map[int]bool{}, -1
	read := func(until func() bool) {
		for !until() {
			m, err := d.push(500 * time.Millisecond)
			if errors.Is(err, errQuiet) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			n := -1
			if _, err := fmt.Sscan(m.Text, &n); err != nil {
				t.Fatal(err)
			}
			if !received[n] && n < last {
				t.Errorf("%d came after %d", n, last)
			}
			received[n], last = true, max(last, n)
			d.ack(m)
		}
	}
	read(func() bool { return len(received) > 100 })
	close(stop)
	publishing.Wait()
	read(func() bool { return false })
	before := 0
	for _, n := range accepted {
		if before < 10 { // these were read before the kill
			before++
			continue
		}
		if !received[n] {
			t.Errorf("%d was accepted and did not come", n)
		}
	}
	if len(accepted) < 100 || len(answered) != answered[len(answered)-1]+1 {
		t.Errorf("%d accepted, %d answered", len(accepted), len(answered))
	}
	s.checkLedger()
}

// TestB6EveryWayInIsRedeliveredAlike: messages that came one by one, as a batch, as a stream and as PUBLISH frames: a client that read
// and did not ACK them gets all of them again.
func TestB6EveryWayInIsRedeliveredAlike(t *testing.T) {
	t.Parallel()
	s := start(t, "ack.timeout=5s", "ack.window_messages=200", "ack.user_unacked_max=200")
	d := s.login("b6", "phone")
	for i := range 40 {
		s.push("b6", fmt.Sprint("single ", i))
	}
	s.pushAll(batch("b6", "batch ", 40))
	var lines strings.Builder
	for i := range 40 {
		fmt.Fprintf(&lines, "{\"user\":\"b6\",\"text\":\"stream %d\"}\n", i)
	}
	if answer := s.ndjson(lines.String()); strings.Count(answer, `"accepted"`) < 40 {
		t.Fatalf("stream: %.300s", answer)
	}
	var out []client.Outgoing
	for i := range 40 {
		out = append(out, client.Outgoing{User: "b6", Payload: fmt.Append(nil, "frame ", i)})
	}
	results, err := s.publisher("backend").Publish(context.Background(), out...)
	for _, r := range results {
		err = errors.Join(err, r.Err)
	}
	if err != nil {
		t.Fatal(err)
	}
	first := map[string]string{}
	for range 160 {
		m := d.want(2 * time.Second)
		first[m.Text] = m.ID
	}
	d.reset()
	d = s.login("b6", "phone")
	for range 160 {
		m := d.want(2 * time.Second)
		if first[m.Text] != m.ID || !m.Redelivered {
			t.Errorf("got %+v, its first copy had id %q", m, first[m.Text])
		}
		delete(first, m.Text)
		d.ack(m)
	}
	if len(first) != 0 {
		t.Errorf("%d did not come again", len(first))
	}
	s.checkLedger()
}

// TestD2LongAbsences: the case's three absences (40, 268 and 2400 messages) without a FIN: the link is just silent until the next
// login takes over. Every number arrives, and copies of what had been read are marked.
func TestD2LongAbsences(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	d := s.login("d2b", "phone")
	for _, absence := range []int{40, 268, 2400} {
		s.pushAll(batch("d2b", fmt.Sprint("seen ", absence, " "), 5))
		for i := range 5 {
			if m := d.want(2 * time.Second); i < 2 {
				d.ack(m)
			}
		}
		eventually(t, 2*time.Second, "two ACKs are in", func() bool { return s.userBacklog("d2b") == 3 })
		s.pushAll(batch("d2b", fmt.Sprint("away ", absence, " "), absence)) // d reads nothing
		d = s.login("d2b", "phone")
		want := slices.Concat(texts(fmt.Sprint("seen ", absence, " "), 5)[2:], texts(fmt.Sprint("away ", absence, " "), absence))
		for i, text := range want {
			m := d.want(3 * time.Second)
			if m.Text != text {
				t.Fatalf("%q came where %q was due", m.Text, text)
			}
			if i < 3 && !m.Redelivered {
				t.Errorf("the copy of %q is not marked", m.Text)
			}
			d.ack(m)
		}
		eventually(t, 2*time.Second, "nothing is left", func() bool { return s.userBacklog("d2b") == 0 })
	}
	s.checkLedger()
}

// TestD4HeartbeatsAndOthersDuringCompensation: a large backlog, a slow reader that is cut again and again: each login makes progress,
// PINGs are answered in time, memory for the user stays bounded, another user's latency does not change.
func TestD4HeartbeatsAndOthersDuringCompensation(t *testing.T) {
	s := start(t, "ack.timeout=5s", "tcp.keepalive_min=1s", "login.device_burst=1000", "store.queue_messages_max=20000", "store.queue_bytes_max=100MiB")
	const total = 10000
	pad := strings.Repeat("x", 1000)
	var out []client.Outgoing
	for i := range total {
		out = append(out, client.Outgoing{User: "d4b", Payload: fmt.Append(nil, i, " ", pad)})
	}
	p := s.publisher("backend")
	if _, err := p.Publish(context.Background(), out...); err != nil {
		t.Fatal(err)
	}
	quietTime := s.pulse("d4-calm", 5*time.Millisecond)
	time.Sleep(time.Second) // the measure to compare with
	calm := percentile(quietTime(), 95)
	before := s.rssKB()
	busy := s.pulse("d4-busy", 5*time.Millisecond)
	acked := map[string]bool{}
	var worstPong time.Duration
	logins, grown := 0, 0
	for begun := time.Now(); len(acked) < total && time.Since(begun) < 12*time.Second; logins++ {
		d := s.login("d4b", "phone")
		cut := time.Now().Add(500 * time.Millisecond)
		for time.Now().Before(cut) && len(acked) < total {
			for range 50 {
				m, err := d.push(time.Second)
				if err != nil {
					break
				}
				if acked[m.ID] {
					t.Fatalf("%.6q came again after its ACK", m.Text)
				}
				d.ack(m)
				acked[m.ID] = true
			}
			time.Sleep(10 * time.Millisecond) // the slow reader of the case
		}
		begun := time.Now()
		d.ping() // its PONG also says that the ACKs are in
		for {
			f, err := d.frame(2 * time.Second)
			if err != nil {
				t.Fatalf("no PONG: %v", err)
			}
			if f.Type == codec.TypePong {
				break
			}
		}
		worstPong = max(worstPong, time.Since(begun))
		grown = max(grown, s.rssKB()-before)
		d.reset()
	}
	latency := percentile(busy(), 95)
	t.Logf("%d logins, worst PONG %v, memory %d KB more, others' 95th percentile %v (calm %v)", logins, worstPong, grown, latency, calm)
	if len(acked) != total {
		t.Errorf("%d of %d after %d logins", len(acked), total, logins)
	}
	if worstPong > time.Second {
		t.Errorf("a PONG took %v during the compensation", worstPong)
	}
	if grown > 32<<10 {
		t.Errorf("the backlog cost %d KB of memory", grown)
	}
	if latency > 10*calm+50*time.Millisecond {
		t.Errorf("another user's latency went from %v to %v", calm, latency)
	}
	s.checkLedger()
}

// TestD6AtTheDefaultLimit: half as much again as the default queue holds, at full rate over PUBLISH frames: refusals are exact, nothing
// accepted is lost, several slow logins get it oldest first and without a crash.
func TestD6AtTheDefaultLimit(t *testing.T) {
	t.Parallel()
	const limit, total = 10000, 15000
	s := start(t, "ack.timeout=5s", "login.device_burst=100")
	var out []client.Outgoing
	for i := range total {
		out = append(out, client.Outgoing{User: "d6b", Payload: fmt.Append(nil, i)})
	}
	results, err := s.publisher("backend").Publish(context.Background(), out...)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		var refused *client.ResultError
		if i < limit && r.Err != nil {
			t.Fatalf("message %d: %v", i, r.Err)
		}
		if i >= limit && (!errors.As(r.Err, &refused) || r.Code != codec.ResultQueueFull) {
			t.Fatalf("message %d over the limit: %v", i, r.Err)
		}
	}
	if n := s.metric("holdfast_messages_refused_total", "queue_full"); n != total-limit {
		t.Errorf("%v refusals counted, want %d", n, total-limit)
	}
	next := 0
	for next < limit {
		d := s.login("d6b", "phone")
		for range 2600 {
			m := d.want(2 * time.Second)
			if m.Text != fmt.Sprint(next) {
				t.Fatalf("%q came where %d was due", m.Text, next)
			}
			next++
			d.ack(m)
			if next%100 == 0 {
				time.Sleep(5 * time.Millisecond) // slower than it was published
			}
			if next == limit {
				break
			}
		}
		eventually(t, 2*time.Second, "the ACKs are in", func() bool { return s.userBacklog("d6b") == limit-next })
		d.reset()
	}
	s.checkLedger()
}

// TestE6TwentyPublishers: bursts from twenty publishers at once, to one slow reader and then to a group of users: all that was accepted
// arrives, refusals are errors to their publisher, and the counters explain the difference exactly.
func TestE6TwentyPublishers(t *testing.T) {
	t.Parallel()
	const publishers, burst, users = 20, 150, 200
	s := start(t, "ack.timeout=5s", "store.queue_messages_max=2500")
	slow := s.login("e6b", "phone")
	var group []*inbox
	for u := range users {
		group = append(group, s.listen(fmt.Sprint("e6b-", u), "phone"))
	}
	var accepted, refused atomic.Int64
	var publishing sync.WaitGroup
	for n := range publishers {
		c := s.publisher(fmt.Sprint("backend-", n))
		publishing.Go(func() {
			var out []client.Outgoing
			for i := range burst {
				out = append(out, client.Outgoing{User: "e6b", Payload: fmt.Append(nil, n, " ", i)})
			}
			for u := range users {
				out = append(out, client.Outgoing{User: fmt.Sprint("e6b-", u), Payload: fmt.Append(nil, n)})
			}
			results, err := c.Publish(context.Background(), out...)
			if err != nil {
				t.Errorf("publisher %d: %v", n, err)
			}
			for i, r := range results {
				switch {
				case r.Err == nil && i < burst:
					accepted.Add(1)
				case r.Err != nil && (i >= burst || r.Code != codec.ResultQueueFull):
					t.Errorf("publisher %d, message %d: %v", n, i, r.Err)
				case r.Err != nil:
					refused.Add(1)
				}
			}
		})
	}
	publishing.Wait()
	last := map[string]int{}
	for got := int64(0); got < accepted.Load(); got++ {
		m := slow.want(2 * time.Second)
		n, i, _ := strings.Cut(m.Text, " ")
		var number int
		if _, err := fmt.Sscan(i, &number); err != nil {
			t.Fatal(err)
		}
		if at, ok := last[n]; ok && number <= at {
			t.Fatalf("publisher %s: %d after %d", n, number, at)
		}
		last[n] = number
		if got < 30 {
			time.Sleep(20 * time.Millisecond) // the slow reader of the case
		}
		slow.ack(m)
	}
	slow.quiet(200 * time.Millisecond)
	for u, b := range group {
		eventually(t, 3*time.Second, "the group has all", func() bool { return len(b.all()) >= publishers })
		if len(b.all()) != publishers {
			t.Errorf("user %d got %d messages of %d publishers", u, len(b.all()), publishers)
		}
	}
	t.Logf("%d accepted, %d refused", accepted.Load(), refused.Load())
	if n := s.metric("holdfast_messages_refused_total"); n != float64(refused.Load()) || accepted.Load()+refused.Load() != publishers*burst {
		t.Errorf("%d accepted and %d refused of %d; %v refusals counted", accepted.Load(), refused.Load(), publishers*burst, n)
	}
	eventually(t, 2*time.Second, "all ended", func() bool { return s.metric("holdfast_ledger_live") == 0 })
	s.checkLedger()
}
