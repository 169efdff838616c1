package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/codec"
)

// TestC1LongAbsence: as TestC1UnackedComesAgainAfterEveryKindOfClose, with the client away for many ACK timeouts and a kill -9
// in the middle of that time.
func TestC1LongAbsence(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	closes := map[string]func(*device){"fin": (*device).fin, "rst": (*device).reset, "logout": (*device).logout, "blackhole": func(*device) {}}
	ids := map[string][]string{}
	for user, closing := range closes {
		d := s.login(user, "phone")
		ids[user] = s.pushAll(batch(user, "", 10))
		for i := range 10 {
			if m := d.want(2 * time.Second); i < 5 {
				d.ack(m)
			}
		}
		for _, id := range ids[user][:5] {
			eventually(t, time.Second, id+" is acked", func() bool { return s.states(id)["phone"] == "ACKED" })
		}
		closing(d)
	}
	time.Sleep(3500 * time.Millisecond) // the case asks for time away
	s.crash()
	time.Sleep(3500 * time.Millisecond)
	for user := range closes {
		d := s.login(user, "phone")
		for i := 5; i < 10; i++ {
			m := d.want(2 * time.Second)
			if m.ID != ids[user][i] || m.Text != fmt.Sprint(i) || !m.FromBacklog {
				t.Errorf("%s: got %+v, want %d under id %s", user, m, i, ids[user][i])
			}
			d.ack(m)
		}
		d.quiet(200 * time.Millisecond)
	}
	s.checkLedger()
}

// TestC4OthersAreNotSlowed: while one message is never ACKed, those behind it in the same and in other conversations come at once;
// at its last attempt it ends in its stated state and the conversation is as free as before.
func TestC4OthersAreNotSlowed(t *testing.T) {
	t.Parallel()
	s := start(t, append(quick, "retry.after_last=dead")...)
	d := s.login("c4b", "phone")
	stuck := s.push("c4b", "stuck", map[string]any{"conversation": "one"}).str("message_id")
	sent := map[string]time.Time{}
	var took []time.Duration
	copies := 0
	var begun time.Time
	for n := 0; ; n++ {
		if n%20 == 0 && s.states(stuck)["phone"] == "DEAD_LETTER" {
			break
		}
		text := fmt.Sprint(n)
		begun = time.Now()
		sent[text] = begun
		s.push("c4b", text, map[string]any{"conversation": []string{"one", "two", "three"}[n%3]})
		for {
			m := d.want(2 * time.Second)
			if m.ID == stuck {
				copies++
				continue
			}
			if m.Text != text {
				t.Fatalf("%q came where %q was due", m.Text, text)
			}
			took = append(took, time.Since(sent[text]))
			d.ack(m)
			break
		}
		time.Sleep(time.Until(begun.Add(10 * time.Millisecond))) // the publisher's pace of the case
	}
	slices.Sort(took)
	t.Logf("%d messages flowed past; median %v, 99th percentile %v", len(took), percentile(took, 50), percentile(took, 99))
	if p := percentile(took, 99); p > 500*time.Millisecond {
		t.Errorf("messages behind the stuck one were held up: 99th percentile %v", p)
	}
	if copies != 3 {
		t.Errorf("%d copies of the stuck message, want 3", copies)
	}
	s.push("c4b", "after", map[string]any{"conversation": "one"})
	d.wantTexts(time.Second, "after")
	s.checkLedger()
}

// TestG1KillLoop: killed again and again in the middle of delivering: everything reaches its end state; copies keep their id; a
// message that was ACKed comes again only if that was within the last lazy batch (100 ms) before a kill.
func TestG1KillLoop(t *testing.T) {
	t.Parallel()
	const total, kills = 1500, 8
	const lazyMax = 600 * time.Millisecond // the lazy batch, its writing, and a busy machine
	s := start(t, append(quick, "login.device_burst=100")...)
	s.pushAll(batch("g1", "", total))
	ackedAt := map[string]time.Time{} // by message id
	byText := map[string]string{}
	killedAt := time.Now()
	copies, killed := 0, 0
	for len(byText) < total {
		d, err := s.tryLogin("g1", "phone") // with a window of 16
		if err != nil {
			t.Fatal(err)
		}
		for len(byText) < total {
			m, err := d.push(2 * time.Second)
			if err != nil {
				t.Fatalf("after %d: %v", len(byText), err)
			}
			copies++
			if at, again := ackedAt[m.ID]; again && killedAt.Sub(at) > lazyMax {
				t.Errorf("%q came again, ACKed %v before the kill", m.Text, killedAt.Sub(at))
			}
			if id := byText[m.Text]; id != "" && id != m.ID {
				t.Fatalf("%q came under two ids", m.Text)
			}
			byText[m.Text] = m.ID
			time.Sleep(2 * time.Millisecond) // the slow downstream of the case
			d.ack(m)
			ackedAt[m.ID] = time.Now()
			if killed < kills && len(byText) >= (killed+1)*total/(kills+1) {
				killed++
				killedAt = time.Now()
				s.crash()
				break
			}
		}
		d.fin()
	}
	t.Logf("%d second copies in %d kills", copies-total, killed)
	eventually(t, 5*time.Second, "all have ended", func() bool { return s.metric("holdfast_ledger_live") == 0 })
	s.checkLedger()
}

// TestG3FirstPushAfterIdleTime: nothing passes for longer than every idle limit (keepalive, the publisher's HTTP connection): the
// first push to each user arrives, in each round.
func TestG3FirstPushAfterIdleTime(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	p := s.publisher("backend")
	var users []*inbox
	for i := range 10 {
		users = append(users, s.listen(fmt.Sprint("g3-", i), "phone", func(o *client.Options) { o.Keepalive = time.Second }))
	}
	for round := range 2 {
		time.Sleep(4 * time.Second) // idle, as the case asks
		for i, b := range users {
			begun := time.Now()
			if i%2 == 0 {
				s.push(fmt.Sprint("g3-", i), fmt.Sprint(round))
			} else if r, err := p.Publish(context.Background(), client.Outgoing{User: fmt.Sprint("g3-", i), Payload: fmt.Append(nil, round)}); err != nil || r[0].Err != nil {
				t.Fatalf("publish: %v %v", err, r)
			}
			eventually(t, 2*time.Second, "the first push is there", func() bool { return len(b.all()) == round+1 })
			if took := time.Since(begun); took > time.Second {
				t.Errorf("round %d, user %d: the first push took %v", round, i, took)
			}
			if b.Stats().Disconnects != 0 {
				t.Errorf("user %d lost its connection while idle", i)
			}
		}
	}
	s.checkLedger()
}

// TestG4BackoffOverARestart: many messages in back-off when the gateway is killed: afterwards no burst, no copies of what was ACKed,
// attempt counts go on, others are not slowed, and the retries end when the clients acknowledge.
func TestG4BackoffOverARestart(t *testing.T) {
	t.Parallel()
	const users, each = 50, 20
	s := start(t, append(quick, "retry.budget_floor=50")...)
	login := func() (ds []*device) {
		for u := range users {
			ds = append(ds, s.login(fmt.Sprint("g4-", u), "phone"))
		}
		return ds
	}
	read := func(d *device, into map[string]uint64) {
		for {
			m, err := d.push(5 * time.Millisecond)
			if err != nil {
				return
			}
			into[m.ID] = max(into[m.ID], m.Attempt)
		}
	}
	ds := login()
	acked := map[string]bool{}
	for u := range users {
		name := fmt.Sprint("g4-", u)
		s.pushAll(batch(name, "", each))
		for i := range each {
			if m := ds[u].want(2 * time.Second); i%4 == 0 { // a quarter is ACKed
				ds[u].ack(m)
				acked[m.ID] = true
			}
		}
	}
	eventually(t, 2*time.Second, "the quarter is acked", func() bool { return s.metric("holdfast_ledger_acked") >= float64(len(acked)) })
	eventually(t, 8*time.Second, "retries are under way", func() bool { return s.metric("holdfast_messages_retries_total") >= 20 })
	before := map[string]uint64{}
	for _, d := range ds {
		read(d, before)
	}
	s.crash()
	stop := s.pulse("g4-live", 20*time.Millisecond)
	ds = login()
	begun := time.Now()
	after := map[string]uint64{}
	for time.Since(begun) < 3*time.Second {
		for _, d := range ds {
			read(d, after)
		}
	}
	if n := s.metric("holdfast_messages_retries_total"); n > 2*(3*50+50) {
		t.Errorf("%v retries in 3 s, the budget allows 50 a second", n)
	}
	if sent := s.metric("holdfast_messages_sent_total"); sent > 2*users*each {
		t.Errorf("%v copies after the restart", sent)
	}
	for id := range after {
		if acked[id] {
			t.Errorf("%s came again though it was ACKed", id)
		}
	}
	if p := percentile(stop(), 95); p > time.Second {
		t.Errorf("live traffic was held up: 95th percentile %v", p)
	}
	for _, d := range ds { // now all acknowledge
		d.fin()
	}
	for u := range users {
		d := s.login(fmt.Sprint("g4-", u), "phone")
		for s.userBacklog(fmt.Sprint("g4-", u)) > 0 {
			m, err := d.push(300 * time.Millisecond)
			if errors.Is(err, errQuiet) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			d.ack(m)
		}
	}
	retries := s.metric("holdfast_messages_retries_total")
	time.Sleep(1500 * time.Millisecond) // longer than the ACK timeout: nothing may fire
	if n := s.metric("holdfast_messages_retries_total"); n != retries {
		t.Errorf("%v retries after everything was ACKed", n-retries)
	}
	s.checkLedger()
}

// userBacklog is what a user's queues hold.
func (s *server) userBacklog(user string) int {
	s.t.Helper()
	a := s.must("GET", "/v1/users/"+user, nil)
	backlog, _ := a.Body["backlog"].(map[string]any)
	n, _ := backlog["messages"].(float64)
	return int(n)
}

// TestG5OneDeadLetterInTheEnd: a message that is never ACKed, over restarts and reconnects between its tries: bounded copies, then one
// dead letter with all that an operator needs, and no copy afterwards.
func TestG5OneDeadLetterInTheEnd(t *testing.T) {
	t.Parallel()
	s := start(t, append(quick, "retry.life_attempts_max=4", "login.device_burst=100")...)
	begun := time.Now()
	id := s.push("g5", "poison", map[string]any{"type": "notice"}).str("message_id")
	copies, crashes := 0, 0
	for round := 0; s.states(id)["phone"] != "DEAD_LETTER"; round++ {
		d := s.login("g5", "phone")
		for { // stay until the copy has timed out
			m, err := d.push(1500 * time.Millisecond)
			if err != nil {
				break
			}
			if m.ID != id {
				t.Fatalf("got %+v", m)
			}
			copies++
		}
		if round%2 == 0 {
			s.crash()
			crashes++
		} else {
			d.reset()
		}
		if round > 10 {
			t.Fatalf("%d copies in %d connections and no dead letter", copies, round)
		}
	}
	if copies > 4+crashes {
		t.Errorf("%d copies, limit 4 and %d crashes", copies, crashes)
	}
	check := func(when string) {
		t.Helper()
		list := s.deadLetters()
		if len(list) != 1 {
			t.Fatalf("%s: %d dead letters: %v", when, len(list), list)
		}
		l := list[0]
		attempts, _ := l["attempts"].(float64)
		at, _ := l["accepted_at"].(string)
		ended, _ := l["ended_at"].(string)
		accepted, err1 := time.Parse(time.RFC3339Nano, at)
		end, err2 := time.Parse(time.RFC3339Nano, ended)
		if l["message_id"] != id || l["user"] != "g5" || l["device"] != "phone" || l["reason"] != "attempts" || attempts != 4 || l["type"] != "notice" || payload(l) != "poison" {
			t.Errorf("%s: dead letter %v", when, l)
		}
		if err1 != nil || err2 != nil || accepted.Before(begun.Add(-time.Second)) || end.Before(accepted) || end.After(time.Now().Add(time.Second)) {
			t.Errorf("%s: times %s and %s", when, at, ended)
		}
	}
	check("at its end")
	s.login("g5", "phone").quiet(1500 * time.Millisecond)
	s.crash()
	check("after a restart")
	s.login("g5", "phone").quiet(300 * time.Millisecond)
	s.checkLedger()
}

// TestG7DeadLettersOnceOverKills: a hundred messages that are refused for good while the gateway is killed again and again: each is
// in the dead letters once, none is lost, none is pushed again, others go on.
func TestG7DeadLettersOnceOverKills(t *testing.T) {
	t.Parallel()
	s := start(t, append(quick, "login.device_burst=100")...)
	ids := s.pushAll(batch("g7", "", 100))
	for round := 0; len(s.deadLetters()) < 100; round++ {
		d, err := s.tryLogin("g7", "phone")
		if err != nil {
			t.Fatal(err)
		}
		for range 25 {
			m, err := d.push(300 * time.Millisecond)
			if err != nil {
				break
			}
			d.write(codec.AppendNack(nil, &codec.Nack{Number: m.Number, Never: true, Reason: []byte("unreadable")}))
		}
		s.push("g7-other", fmt.Sprint(round))
		other := s.login("g7-other", "phone")
		for m := other.want(time.Second); m.Text != fmt.Sprint(round); m = other.want(time.Second) {
			other.ack(m) // its ACK was in the last batch before the kill
		}
		if round < 5 {
			s.crash()
		}
		d.fin()
		if round > 20 {
			t.Fatalf("%d dead letters after %d rounds", len(s.deadLetters()), round)
		}
	}
	for _, when := range []string{"at the end", "after a kill"} {
		count := map[string]int{}
		for _, l := range s.deadLetters() {
			id, _ := l["message_id"].(string)
			count[id]++
			if l["reason"] != "refused" || l["user"] != "g7" {
				t.Errorf("dead letter %v", l)
			}
		}
		for _, id := range ids {
			if count[id] != 1 {
				t.Errorf("%s: %s is in the dead letters %d times", when, id, count[id])
			}
		}
		s.login("g7", "phone").quiet(300 * time.Millisecond)
		// Ends are written in lazy batches: the last may be repeated by a kill at once, none a moment later.
		eventually(t, 3*time.Second, "the log is written", func() bool { return s.metric("holdfast_store_pending_bytes") == 0 })
		s.crash()
	}
	s.checkLedger()
}

// TestG8FractionsOfTheWindow: the publisher's repeats at 0.5, 0.9, 1.1 and 3 windows; another body under a known id is no new message.
func TestG8FractionsOfTheWindow(t *testing.T) {
	t.Parallel()
	const window = 2 * time.Second
	s := start(t, append(quick, "store.dedup_window=2s")...)
	d := s.login("g8b", "phone")
	publish := func(text string) string {
		return s.push("g8b", text, map[string]any{"message_id": "fixed"}).str("status")
	}
	if st := publish("first"); st != "accepted" {
		t.Fatal(st)
	}
	d.wantTexts(time.Second, "first")
	eventually(t, time.Second, "acked", func() bool { return s.states("fixed")["phone"] == "ACKED" })
	ended := time.Now()
	for _, share := range []float64{0.5, 0.9} {
		time.Sleep(time.Until(ended.Add(time.Duration(share * float64(window))))) // the times of the case
		if st := publish("first"); st != "duplicate" && time.Since(ended) < window {
			t.Errorf("repeat at %v windows: %s", share, st)
		}
		if st := publish("another body"); st != "duplicate" && time.Since(ended) < window {
			t.Errorf("another body at %v windows: %s", share, st)
		}
	}
	d.quiet(50 * time.Millisecond)
	// Outside the window the id is new. The window is kept at least, and not for ever.
	for _, text := range []string{"second", "third"} {
		eventually(t, 3*window, "the window is over", func() bool { return publish(text) == "accepted" })
		d.wantTexts(time.Second, text)
	}
	s.checkLedger()
}

// TestFurther3AckAtTheTimeout: ACKs that leave just when the timeout fires: no message is seen more than twice, none is lost.
func TestFurther3AckAtTheTimeout(t *testing.T) {
	t.Parallel()
	s := start(t, "ack.timeout=500ms", "tcp.keepalive_min=1s")
	var group sync.WaitGroup
	for u := range 8 {
		d := s.login(fmt.Sprint("f3b-", u), "phone")
		group.Go(func() {
			seen := map[string]int{}
			for n := range 8 {
				a, err := s.call("POST", "/v1/push", map[string]any{"user": fmt.Sprint("f3b-", u), "text": fmt.Sprint(n)})
				if err != nil || a.Status != 200 {
					t.Errorf("push: %v %s", err, a.Raw)
					return
				}
				m, err := d.push(3 * time.Second)
				for err == nil && seen[m.ID] > 0 { // the second copy of the message before
					seen[m.ID]++
					m, err = d.push(3 * time.Second)
				}
				if err != nil {
					t.Errorf("message %d: %v", n, err)
					return
				}
				seen[m.ID]++
				time.Sleep(485*time.Millisecond + time.Duration(u*n)*time.Millisecond) // around the timeout, as the case asks
				d.ack(m)
			}
			for {
				m, err := d.push(1200 * time.Millisecond)
				if err != nil {
					break
				}
				seen[m.ID]++
			}
			if most := slices.Max(slices.Collect(maps.Values(seen))); most > 2 || len(seen) != 8 {
				t.Errorf("user %d: %d messages, one of them %d times", u, len(seen), most)
			}
		})
	}
	group.Wait()
	s.checkLedger()
}

// TestFurther5TimesInEveryUnit: a time means the same in each unit, and is kept; every time setting refuses what is negative, and zero
// where zero has no stated meaning.
func TestFurther5TimesInEveryUnit(t *testing.T) {
	t.Parallel()
	var group sync.WaitGroup
	for _, setting := range []string{"1200ms", "1.2s", "1200000us", "0.02m"} {
		s := start(t, "tcp.keepalive_min=1s", "ack.timeout="+setting)
		d := s.login("f5", "phone")
		if d.welcome.AckTimeoutMs != 1200 {
			t.Errorf("ack.timeout=%s is told as %d ms", setting, d.welcome.AckTimeoutMs)
		}
		group.Go(func() {
			begun := time.Now()
			if a, err := s.call("POST", "/v1/push", map[string]any{"user": "f5", "text": "m"}); err != nil || a.Status != 200 {
				t.Errorf("push: %v %s", err, a.Raw)
				return
			}
			_, err1 := d.push(2 * time.Second)
			_, err2 := d.push(4 * time.Second)
			if took := time.Since(begun); err1 != nil || err2 != nil || took < 1200*time.Millisecond || took > 2200*time.Millisecond {
				t.Errorf("ack.timeout=%s: second copy after %v (%v, %v)", setting, took, err1, err2)
			}
		})
	}
	ttls := start(t, quick...)
	for ttl, want := range map[string]time.Duration{"90s": 90 * time.Second, "1.5m": 90 * time.Second, "90000ms": 90 * time.Second, "1h30m": 90 * time.Minute, "24h": 24 * time.Hour, "90": 90 * time.Second} {
		begun := time.Now()
		at, err := time.Parse(time.RFC3339Nano, ttls.push("f5-ttl", "m", map[string]any{"ttl": ttl}).str("expires_at"))
		if lives := at.Sub(begun); err != nil || lives < want-time.Second || lives > want+5*time.Second {
			t.Errorf("ttl %s ends after %v (%v)", ttl, lives, err)
		}
	}
	for _, ttl := range []string{"0s", "-1s", "ten"} {
		if a := ttls.must("POST", "/v1/push", map[string]any{"user": "f5-ttl", "text": "m", "ttl": ttl}); a.Status != 400 || a.code() != "bad_ttl" {
			t.Errorf("ttl %s: HTTP %d %s", ttl, a.Status, a.Raw)
		}
	}
	group.Wait()
	out, _, code := cli(t, "", "config")
	if code != 0 {
		t.Fatal("holdfast config failed")
	}
	zeroIsStated := map[string]bool{"drain.window": true, "tcp.bundle_delay": true} // all at once; never wait
	for _, key := range timeSettings(out) {
		for _, bad := range []string{"-1s", "0s", "1ns", "10", "10 parsecs"} {
			_, stderr, code := cli(t, "", "config", "--set", key+"="+bad)
			if zeroIsStated[key] && (bad == "0s" || key == "drain.window" && bad == "1ns") {
				continue
			}
			if code == 0 || !strings.Contains(stderr, key) {
				t.Errorf("%s=%s: exit code %d, %s", key, bad, code, stderr)
			}
		}
	}
}

// timeSettings finds the keys whose default is a time in the output of holdfast config.
func timeSettings(yaml string) (keys []string) {
	section := ""
	for line := range strings.Lines(yaml) {
		text, _, _ := strings.Cut(line, " #")
		name, value, ok := strings.Cut(strings.TrimSpace(text), ":")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		value = strings.Trim(strings.TrimSpace(value), `"`)
		if !strings.HasPrefix(line, " ") {
			section = name
			continue
		}
		if n := len(value); n > 1 && value[0] >= '0' && value[0] <= '9' && strings.ContainsRune("smhd", rune(value[n-1])) {
			keys = append(keys, section+"."+name)
		}
	}
	return keys
}
