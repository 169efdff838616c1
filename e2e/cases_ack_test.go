package e2e

import (
	"fmt"
	"testing"
	"time"

	"holdfast/codec"
)

// short settings: the tests wait for real timeouts, so they are made small. The relations between them stay those of the defaults.
var quick = []string{"ack.timeout=1s", "tcp.keepalive_min=1s"}

// TestC1UnackedComesAgainAfterEveryKindOfClose: read ten, ACK five, close in four ways; the other five come again with the same
// ids, the ACKed ones do not.
func TestC1UnackedComesAgainAfterEveryKindOfClose(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	closes := map[string]func(*device){
		"fin":       (*device).fin,
		"rst":       (*device).reset,
		"logout":    (*device).logout,
		"blackhole": func(*device) {}, // stays open and silent; the next login takes over
	}
	for name, closing := range closes {
		for _, wait := range []time.Duration{0, 1500 * time.Millisecond} {
			t.Run(fmt.Sprintf("%s after %v", name, wait), func(t *testing.T) {
				user := fmt.Sprintf("c1-%s-%d", name, wait)
				d := s.login(user, "phone")
				ids := map[string]string{}
				var last message
				for i := range 10 {
					s.push(user, fmt.Sprint(i))
				}
				for i := range 10 {
					m := d.want(5 * time.Second)
					ids[m.Text] = m.ID
					if i == 4 {
						last = m
					}
				}
				d.ackUpTo(last.Number)
				d.ping() // the ACK was read when its PONG is here
				if f, err := d.frame(5 * time.Second); err != nil || f.Type != codec.TypePong {
					t.Fatalf("PONG: %v %v", f.Type, err)
				}
				closing(d)
				time.Sleep(wait) // the case asks for this much time away
				d = s.login(user, "phone")
				for i := 5; i < 10; i++ {
					m := d.want(5 * time.Second)
					if m.Text != fmt.Sprint(i) || m.ID != ids[m.Text] || !m.Redelivered {
						t.Fatalf("got %+v, want text %d under id %s, marked redelivered", m, i, ids[fmt.Sprint(i)])
					}
					d.ack(m)
				}
				d.quiet(300 * time.Millisecond)
			})
		}
	}
	s.checkLedger()
}

// TestC2SecondCopyOnALiveConnection: a swallowed message comes again between 1 and 1.5 ACK timeouts, under the same number and
// id; after its ACK there is no third copy.
func TestC2SecondCopyOnALiveConnection(t *testing.T) {
	s := start(t, quick...)
	d := s.login("c2", "phone")
	begun := time.Now()
	s.push("c2", "m")
	first := d.want(time.Second)
	second := d.want(3 * time.Second)
	if took := time.Since(begun); took < time.Second || took > 1600*time.Millisecond {
		t.Errorf("second copy after %v, want between 1 s and 1.5 s", took)
	}
	if second.ID != first.ID || second.Number != first.Number || second.Attempt != 2 || !second.Redelivered {
		t.Errorf("second copy %+v does not match the first %+v", second, first)
	}
	d.ack(second)
	d.quiet(3 * time.Second)
	eventually(t, time.Second, "nothing is in flight", func() bool { return s.metric("holdfast_inflight") == 0 })
	s.checkLedger()
}

// TestC2SwallowedForEver: the tries stop at the live limit; the message waits for the next login; a client that stays away from
// ACKs for good makes it a dead letter at the life limit (G5: the count survives reconnects and restarts).
func TestC2SwallowedForEver(t *testing.T) {
	t.Parallel()
	s := start(t, append(quick, "retry.life_attempts_max=5")...)
	d := s.login("c2f", "phone")
	id := s.push("c2f", "m").str("message_id")
	copies := 0
	for copies < 3 {
		d.want(6 * time.Second)
		copies++
	}
	d.quiet(4 * time.Second)
	if st := s.states(id)["phone"]; st != "OFFLINE_BUFFERED" {
		t.Fatalf("state %s after the last live attempt", st)
	}
	crashes := 0
	for s.states(id)["phone"] != "DEAD_LETTER" {
		s.crash()
		crashes++
		d = s.login("c2f", "phone")
		for {
			if _, err := d.push(6 * time.Second); err != nil {
				break
			}
			copies++
		}
		if copies > 5+crashes {
			t.Fatalf("%d copies, limit 5 and %d crashes", copies, crashes)
		}
		eventually(t, 3*time.Second, "a resting state", func() bool {
			st := s.states(id)["phone"]
			return st == "DEAD_LETTER" || st == "OFFLINE_BUFFERED"
		})
	}
	d.logout()
	d = s.login("c2f", "phone")
	d.quiet(time.Second)
	s.crash()
	d = s.login("c2f", "phone")
	d.quiet(time.Second)
	if st := s.states(id)["phone"]; st != "DEAD_LETTER" {
		t.Fatalf("state %s after the restart", st)
	}
	s.checkLedger()
}

// TestC4OneMissingAckHoldsNothingUp: one message is never ACKed, a thousand others flow past it.
func TestC4OneMissingAckHoldsNothingUp(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	d := s.login("c4", "phone")
	stuck := s.push("c4", "stuck").str("message_id")
	var items []map[string]any
	for i := range 1000 {
		items = append(items, map[string]any{"user": "c4", "text": fmt.Sprint(i), "conversation": fmt.Sprint(i % 7)})
	}
	s.must("POST", "/v1/push", items)
	next := 0
	for next < 1000 {
		m := d.want(5 * time.Second)
		if m.ID == stuck {
			continue
		}
		if m.Text != fmt.Sprint(next) {
			t.Fatalf("message %q came where %d was due", m.Text, next)
		}
		next++
		d.ack(m)
	}
	eventually(t, 10*time.Second, "the stuck message rests", func() bool { return s.states(stuck)["phone"] == "OFFLINE_BUFFERED" })
	s.push("c4", "after")
	for {
		m := d.want(5 * time.Second)
		if m.ID != stuck {
			if m.Text != "after" {
				t.Fatalf("got %q", m.Text)
			}
			d.ack(m)
			break
		}
	}
	d.logout()
	d = s.login("c4", "phone")
	d.wantTexts(5*time.Second, "stuck")
	s.checkLedger()
}

// TestFurther3ClientThatAcksEachIDOnce: no id is seen more than twice by a client that never repeats an ACK.
func TestFurther3ClientThatAcksEachIDOnce(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	d := s.login("f3", "phone")
	s.pushAll(batch("f3", "", 200))
	seen := map[string]int{}
	for {
		m, err := d.push(2500 * time.Millisecond)
		if err != nil {
			break
		}
		if seen[m.ID]++; seen[m.ID] > 1 {
			t.Fatalf("%q came %d times though it was ACKed", m.Text, seen[m.ID])
		}
		d.ack(m)
	}
	if len(seen) != 200 {
		t.Fatalf("%d of 200 came", len(seen))
	}
}

// TestFurther4ForeignAcks: ACKs behind, doubled or of another session lose nothing; one ahead of what was sent is a defined error.
func TestFurther4ForeignAcks(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	d := s.login("f4", "phone")
	s.push("f4", "a")
	m := d.want(time.Second)
	d.ack(m)
	d.ack(m)
	d.ackUpTo(m.Number)
	d.ackID("never-existed")
	s.push("f4", "b")
	b := d.want(time.Second)
	d.write(codec.AppendAckOne(nil, b.Number+1000, codec.LevelReceived))
	_, err := d.push(2 * time.Second)
	if _, ok := err.(closedError); !ok {
		t.Fatalf("an ACK of a number that was never sent gave %v, want a CLOSE", err)
	}
	d = s.login("f4", "phone")
	d.wantTexts(2*time.Second, "b")
	d.quiet(300 * time.Millisecond)
	// Another user's ACK by message id changes nothing.
	id := s.push("f4", "c").str("message_id")
	other := s.login("f4-other", "phone")
	other.ackID(id)
	other.ping()
	if _, err := other.frame(time.Second); err != nil {
		t.Fatal(err)
	}
	c := d.want(time.Second)
	if st := s.states(id)["phone"]; st != "SENT" {
		t.Fatalf("state %s after another user's ACK", st)
	}
	d.ack(c)
	s.checkLedger()
}

// TestFurther12PoisonMessage: a message that crashes its client every time ends as a dead letter; its nine neighbours arrive.
func TestFurther12PoisonMessage(t *testing.T) {
	t.Parallel()
	s := start(t, append(quick, "retry.life_attempts_max=4", "login.device_burst=100")...)
	ids := map[string]string{}
	for i := range 10 {
		text := fmt.Sprint(i)
		if i == 4 {
			text = "poison"
		}
		ids[text] = s.push("f12", text).str("message_id")
	}
	got := map[string]bool{}
	for range 60 {
		d := s.login("f12", "phone")
		var unacked []message
		for {
			m, err := d.push(400 * time.Millisecond)
			if err != nil {
				break
			}
			if m.Text == "poison" {
				unacked = nil // the crash takes the ACKs that were not sent yet with it
				break
			}
			// ACKs leave late, as a client that aggregates sends them.
			if unacked = append(unacked, m); len(unacked) == 3 {
				break
			}
		}
		for _, m := range unacked {
			got[m.Text] = true
			d.ack(m)
		}
		d.logout()
		if s.states(ids["poison"])["phone"] == "DEAD_LETTER" && len(got) == 9 {
			break
		}
	}
	for text, id := range ids {
		want := "ACKED"
		if text == "poison" {
			want = "DEAD_LETTER"
		}
		eventually(t, 2*time.Second, text+" is "+want, func() bool {
			for _, st := range s.states(id) {
				return st == want
			}
			return false
		})
	}
	s.checkLedger()
}

// TestLateAcks: an ACK after the timeout, during back-off, or by message id on a later connection ends the message.
func TestLateAcks(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	d := s.login("late", "phone")
	id := s.push("late", "during back-off").str("message_id")
	m := d.want(time.Second)
	eventually(t, 3*time.Second, "it is retrying", func() bool { return s.states(id)["phone"] == "RETRYING" })
	d.ack(m)
	eventually(t, time.Second, "the late ACK counts", func() bool { return s.states(id)["phone"] == "ACKED" })
	id = s.push("late", "after a resend").str("message_id")
	m = d.want(time.Second)
	d.want(3 * time.Second)
	d.ack(m)
	eventually(t, time.Second, "the late ACK counts", func() bool { return s.states(id)["phone"] == "ACKED" })
	id = s.push("late", "on a later connection").str("message_id")
	d.want(time.Second)
	d.reset()
	d = s.login("late", "phone", func(c *codec.Connect) { c.WindowMsgs = 1 })
	d.ackID(id)
	eventually(t, time.Second, "the ACK by message id counts", func() bool { return s.states(id)["phone"] == "ACKED" })
	s.checkLedger()
}

// TestNackAndExtend: refused for now comes again after its delay, refused for good is a dead letter, more time delays the timeout.
func TestNackAndExtend(t *testing.T) {
	s := start(t, quick...)
	d := s.login("nack", "phone")
	s.push("nack", "later")
	m := d.want(time.Second)
	begun := time.Now()
	d.write(codec.AppendNack(nil, &codec.Nack{Number: m.Number, DelayMs: 700, Reason: []byte("busy")}))
	again := d.want(3 * time.Second)
	if took := time.Since(begun); took < 650*time.Millisecond || again.ID != m.ID {
		t.Errorf("came again after %v as %+v", took, again)
	}
	d.ack(again)
	id := s.push("nack", "never").str("message_id")
	m = d.want(time.Second)
	d.write(codec.AppendNack(nil, &codec.Nack{Number: m.Number, Never: true, Reason: []byte("unknown type")}))
	eventually(t, time.Second, "a dead letter", func() bool { return s.states(id)["phone"] == "DEAD_LETTER" })
	s.push("nack", "slow")
	m = d.want(time.Second)
	d.write(codec.AppendExtend(nil, &codec.Extend{Number: m.Number, MoreMs: 2500}))
	d.quiet(2300 * time.Millisecond)
	d.ack(m)
	s.checkLedger()
}
