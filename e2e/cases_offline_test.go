package e2e

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"holdfast/codec"
)

// TestFurther15PlainOffline: log in, log out, one message, log in: it is there; also over kill -9, and for a user never seen.
func TestFurther15PlainOffline(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	s.login("f15", "phone").logout()
	eventually(t, time.Second, "offline", func() bool { return s.metric("holdfast_online") == 0 })
	s.push("f15", "while away")
	s.push("never-seen", "first device takes it")
	d := s.login("f15", "phone")
	d.wantTexts(time.Second, "while away")
	d.logout()
	s.push("f15", "before the crash")
	s.crash()
	d = s.login("f15", "phone")
	d.wantTexts(time.Second, "before the crash")
	n := s.login("never-seen", "tablet")
	n.wantTexts(time.Second, "first device takes it")
	second := s.login("never-seen", "watch")
	second.quiet(300 * time.Millisecond)
	s.push("never-seen", "to both")
	n.wantTexts(time.Second, "to both")
	second.wantTexts(time.Second, "to both")
	s.checkLedger()
}

// TestD2EveryNumberAfterAnAbsence: an abrupt absence under steady pushes loses no number, whatever its length; copies are marked.
func TestD2EveryNumberAfterAnAbsence(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	d := s.login("d2", "phone")
	next, sent := 0, 0
	for _, absence := range []int{3, 40, 400} {
		for range 5 {
			s.push("d2", fmt.Sprint(sent))
			sent++
		}
		for range 3 { // read three of them, ACK two, vanish
			if m := d.want(time.Second); m.Text == fmt.Sprint(next) && next%5 < 2 {
				d.ack(m)
			}
		}
		d.reset()
		for range absence {
			s.push("d2", fmt.Sprint(sent))
			sent++
		}
		d = s.login("d2", "phone")
		seen := map[string]bool{}
		for last := ""; last != fmt.Sprint(sent-1); {
			m := d.want(5 * time.Second)
			if seen[m.Text] {
				t.Fatalf("%s twice in one login", m.Text)
			}
			seen[m.Text], last = true, m.Text
			d.ack(m)
		}
		for n := sent - absence - 3; n < sent; n++ {
			if !seen[fmt.Sprint(n)] {
				t.Fatalf("number %d is missing", n)
			}
		}
		next = sent
	}
	s.checkLedger()
}

// TestD4ProgressOnEachLogin: 2000 stored messages of 1 KB, a slow reader that is cut again and again: what was ACKed does not
// come again, and it ends.
func TestD4ProgressOnEachLogin(t *testing.T) {
	t.Parallel()
	s := start(t, append(quick, "login.device_burst=1000")...)
	pad := strings.Repeat("x", 1000)
	var items []map[string]any
	for i := range 2000 {
		items = append(items, map[string]any{"user": "d4", "text": fmt.Sprintf("%d %s", i, pad)})
	}
	for i := 0; i < 2000; i += 500 {
		if a := s.must("POST", "/v1/push", items[i:i+500]); a.Status != 200 {
			t.Fatal(a.Raw)
		}
	}
	acked := map[string]bool{}
	logins := 0
	for len(acked) < 2000 {
		logins++
		d := s.login("d4", "phone")
		for range 150 {
			m, err := d.push(2 * time.Second)
			if err != nil {
				break
			}
			if acked[m.ID] {
				t.Fatalf("message %.10q came again after its ACK", m.Text)
			}
			d.ack(m)
			acked[m.ID] = true
		}
		d.ping()
		for { // the ACKs are in when the PONG is here
			f, err := d.frame(2 * time.Second)
			if err != nil || f.Type == codec.TypePong {
				break
			}
		}
		d.reset()
		if logins > 40 {
			t.Fatalf("%d of 2000 after %d logins", len(acked), logins)
		}
	}
	s.checkLedger()
}

// TestD6QueueLimit: more than the limit to one absent user: the rest is refused visibly and counted exactly; the user gets what was
// accepted, oldest first.
func TestD6QueueLimit(t *testing.T) {
	t.Parallel()
	s := start(t, append(quick, "store.queue_messages_max=1000")...)
	accepted := 0
	for i := range 15 {
		var items []map[string]any
		for j := range 100 {
			items = append(items, map[string]any{"user": "d6", "text": fmt.Sprint(i*100 + j)})
		}
		a := s.must("POST", "/v1/push", items)
		if i < 10 && a.Status != 200 {
			t.Fatalf("batch %d: %s", i, a.Raw)
		}
		if i >= 10 && !strings.Contains(a.Raw, "queue_full") {
			t.Fatalf("batch %d over the limit: %.200s", i, a.Raw)
		}
		if i < 10 {
			accepted += 100
		}
	}
	single := s.must("POST", "/v1/push", map[string]any{"user": "d6", "text": "one more"})
	if single.Status != 429 || single.code() != "queue_full" {
		t.Fatalf("over the limit: HTTP %d %s", single.Status, single.Raw)
	}
	if n := s.metric("holdfast_messages_refused_total", "queue_full"); n != 501 {
		t.Errorf("refusals counted: %v, want 501", n)
	}
	d := s.login("d6", "phone")
	for i := range accepted {
		m := d.want(3 * time.Second)
		if m.Text != fmt.Sprint(i) {
			t.Fatalf("%q came where %d was due", m.Text, i)
		}
		d.ack(m)
	}
	d.quiet(300 * time.Millisecond)
	s.push("d6", "room again")
	d.wantTexts(time.Second, "room again")
	s.checkLedger()
}

// TestR14BacklogBeforeLive: messages pushed while the backlog drains join its tail; first receipts rise.
func TestR14BacklogBeforeLive(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	for i := range 300 {
		s.push("r14", fmt.Sprint(i))
	}
	d := s.login("r14", "phone", func(c *codec.Connect) { c.WindowMsgs = 8 })
	for i := range 600 {
		if i%2 == 0 && 300+i/2 < 600 {
			s.push("r14", fmt.Sprint(300+i/2))
		}
		m := d.want(3 * time.Second)
		if m.Text != fmt.Sprint(i) {
			t.Fatalf("%q came where %d was due", m.Text, i)
		}
		d.ack(m)
	}
	s.checkLedger()
}

// TestFurther6And7ResumeCursors: clients that never received anything, and clients with nonsense in the resume fields, log in at
// once and get what is due.
func TestFurther6And7ResumeCursors(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	s.login("f6", "phone").reset()
	s.push("f6", "gap")
	for i, resume := range [][2]uint64{{0, 0}, {1, 1 << 60}, {^uint64(0), 5}, {42, 0}} {
		d := s.login("f6", "phone", func(c *codec.Connect) {
			c.HasResume, c.ResumeSession, c.ResumeNumberSeen = true, resume[0], resume[1]
		})
		m := d.want(time.Second)
		if m.Text != "gap" {
			t.Fatalf("cursor %d: got %q", i, m.Text)
		}
		d.reset()
	}
	s.login("f6", "phone").wantTexts(time.Second, "gap")
}

// TestFurther8ManyInOneMillisecond: 500 messages accepted at the same time all arrive, in order.
func TestFurther8ManyInOneMillisecond(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	var items []map[string]any
	var texts []string
	for i := range 500 {
		items = append(items, map[string]any{"user": "f8", "text": fmt.Sprint(i)})
		texts = append(texts, fmt.Sprint(i))
	}
	s.must("POST", "/v1/push", items)
	d := s.login("f8", "phone")
	d.wantTexts(3*time.Second, texts...)
	d.quiet(200 * time.Millisecond)
}

// TestTTLAndCancel: what has expired or was cancelled is not delivered; the ledger knows where it went.
func TestTTLAndCancel(t *testing.T) {
	s := start(t, quick...)
	expired := s.push("ttl", "short", map[string]any{"ttl": "300ms"}).str("message_id")
	cancelled := s.push("ttl", "regretted").str("message_id")
	s.push("ttl", "kept")
	if a := s.must("DELETE", "/v1/messages/"+cancelled, nil); a.Status != 200 {
		t.Fatalf("cancel: HTTP %d %s", a.Status, a.Raw)
	}
	time.Sleep(400 * time.Millisecond) // the message's own time
	d := s.login("ttl", "phone")
	d.wantTexts(time.Second, "kept")
	d.quiet(300 * time.Millisecond)
	for id, want := range map[string]string{expired: "EXPIRED", cancelled: "CANCELLED"} {
		eventually(t, 3*time.Second, want, func() bool {
			for _, st := range s.states(id) {
				return st == want
			}
			return false
		})
	}
	if a := s.must("DELETE", "/v1/messages/"+cancelled, nil); a.Status != 409 {
		t.Errorf("cancelling twice: HTTP %d", a.Status)
	}
	s.checkLedger()
}

// TestE2HalfOpenThroughAProxy: the client's side is gone but the proxy keeps ours open: the gateway closes by missing keepalives and
// what comes meanwhile is kept.
func TestE2HalfOpenThroughAProxy(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	direct := s.tcp
	go func() {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		upstream, err := net.Dial("tcp", direct)
		if err != nil {
			return
		}
		go func() { _, _ = io.Copy(client, upstream) }()
		// When the client goes, upstream stays open: that is the proxy's fault under test.
		_, _ = io.Copy(upstream, client)
		t.Cleanup(func() { _ = upstream.Close() })
	}()
	s.tcp = listener.Addr().String()
	d := s.login("e2", "phone", func(c *codec.Connect) { c.KeepaliveS = 1 })
	s.tcp = direct
	d.fin()
	begun := time.Now()
	eventually(t, 8*time.Second, "the session is gone", func() bool { return s.metric("holdfast_online") == 0 })
	if took := time.Since(begun); took > 7*time.Second {
		t.Errorf("cut after %v, limit 1.5 s + 5 s", took)
	}
	s.push("e2", "meanwhile")
	s.login("e2", "phone").wantTexts(time.Second, "meanwhile")
	s.checkLedger()
}
