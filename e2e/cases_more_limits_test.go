package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/codec"
)

// TestA4NothingOfTheDeadStays: a thousand ids that log in once and never come back, half of them without a word, then kill -9 of the
// gateway: a login is as fast as ever, what was sent in between arrives, no session is left of them.
func TestA4NothingOfTheDeadStays(t *testing.T) {
	t.Parallel()
	const ids = 1000
	s := start(t, quick...)
	s.login("a4", "phone")
	for i := range ids {
		d := s.login(fmt.Sprint("a4-", i), "phone", func(c *codec.Connect) { c.KeepaliveS = 1 })
		if i%2 == 0 {
			d.reset()
		}
	}
	eventually(t, 9*time.Second, "the silent ones are cut", func() bool { return s.metric("holdfast_online") <= 1 })
	s.push("a4", "before the kill")
	s.crash()
	s.push("a4", "after the kill")
	begun := time.Now()
	s.login("a4", "phone").wantTexts(time.Second, "before the kill", "after the kill")
	if took := time.Since(begun); took > time.Second {
		t.Errorf("the first login took %v", took)
	}
	if n := s.metric("holdfast_online"); n != 1 {
		t.Errorf("%v sessions", n)
	}
	if n := s.metric("holdfast_conn_connections"); n != 1 {
		t.Errorf("%v connections", n)
	}
	s.checkLedger()
}

// TestE7SlowAndAbsentUsers: a lot for absent users and for connected ones that do not read: memory reaches a plateau far below what is
// stored, online users keep their latency, and after all have acknowledged the store and the memory fall back.
func TestE7SlowAndAbsentUsers(t *testing.T) {
	const users, each, size = 40, 40, 16 << 10 // 2 x 25 MiB
	s := start(t, "ack.timeout=2s", "store.segment_bytes=4MiB")
	var slow []*device
	for u := range users {
		slow = append(slow, s.login(fmt.Sprint("e7-slow-", u), "phone"))
	}
	s.push("e7-warm", "m")
	before := s.rssKB()
	stop := s.pulse("e7-live", 20*time.Millisecond)
	p := s.publisher("backend")
	pad := strings.Repeat("x", size)
	plateau := 0
	for n := range each {
		var out []client.Outgoing
		for u := range users {
			for _, kind := range []string{"slow", "absent"} {
				out = append(out, client.Outgoing{User: fmt.Sprintf("e7-%s-%d", kind, u), Payload: fmt.Append(nil, n, " ", pad)})
			}
		}
		if _, err := p.Publish(context.Background(), out...); err != nil {
			t.Fatal(err)
		}
		if n == each/2 {
			plateau = s.rssKB() - before
		}
	}
	grown := s.rssKB() - before
	latency := stop()
	t.Logf("memory %d KB more at half of %d MB, %d KB at the end; live 95th percentile %v", plateau, 2*users*each*size>>20, grown, percentile(latency, 95))
	if grown > 40<<10 || grown-plateau > 12<<10 {
		t.Errorf("memory grew by %d KB at half and %d KB at the end", plateau, grown)
	}
	if p := percentile(latency, 95); p > time.Second {
		t.Errorf("online users waited: 95th percentile %v", p)
	}
	var reading sync.WaitGroup
	read := func(d *device) {
		defer reading.Done()
		for range each {
			m, err := d.push(8 * time.Second)
			if err != nil {
				t.Error(err)
				return
			}
			d.ack(m)
		}
	}
	for u, d := range slow {
		reading.Add(2)
		d.fin() // what lay in its socket is not of interest any more
		go read(s.login(fmt.Sprint("e7-slow-", u), "phone"))
		go read(s.login(fmt.Sprint("e7-absent-", u), "phone"))
	}
	reading.Wait()
	eventually(t, 5*time.Second, "the store is empty again", func() bool {
		return s.metric("holdfast_ledger_live") <= 1 && s.metric("holdfast_store_bytes") < 12<<20
	})
	if left := s.rssKB() - before; left > 48<<10 {
		t.Errorf("%d KB stay after everything was acknowledged", left)
	}
	s.checkLedger()
}

// TestH3TheWholeStoreFull: publishing goes on at the size limit of the store: from there on refusals and no success; what was accepted
// is exactly what arrives; with room the success comes back.
func TestH3TheWholeStoreFull(t *testing.T) {
	t.Parallel()
	s := start(t, "ack.timeout=2s", "store.segment_bytes=1MiB", "store.bytes_max=8MiB", "store.queue_bytes_max=8MiB", "login.device_burst=100")
	p := s.publisher("backend")
	pad := strings.Repeat("x", 4<<10)
	accepted := map[string]bool{}
	refused := 0
	for n := range 30 {
		var out []client.Outgoing
		for i := range 100 {
			id := fmt.Sprintf("h3b-%d-%d", n, i)
			out = append(out, client.Outgoing{ID: id, User: fmt.Sprint("h3b-", i%5), Payload: []byte(id + " " + pad)})
		}
		results, err := p.Publish(context.Background(), out...)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			switch {
			case r.Err == nil:
				accepted[r.MessageID] = true
			case r.Code == codec.ResultStorageFull:
				refused++
			default:
				t.Fatalf("%s: %v", r.MessageID, r.Err)
			}
		}
	}
	if refused == 0 || s.metric("holdfast_store_bytes") > 8<<20 {
		t.Errorf("%d refused, %v bytes in the store", refused, s.metric("holdfast_store_bytes"))
	}
	if n := s.metric("holdfast_messages_refused_total", "storage_full"); n != float64(refused) {
		t.Errorf("%v refusals counted, the publisher saw %d", n, refused)
	}
	s.crash()
	held := len(accepted)
	for u := range 5 {
		d := s.login(fmt.Sprint("h3b-", u), "phone")
		for s.userBacklog(fmt.Sprint("h3b-", u)) > 0 {
			m, err := d.push(200 * time.Millisecond)
			if errors.Is(err, errQuiet) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if !accepted[m.ID] {
				t.Fatalf("%s came though it was refused, or twice", m.ID)
			}
			delete(accepted, m.ID)
			d.ack(m)
		}
	}
	if len(accepted) != 0 {
		t.Errorf("%d of %d accepted did not come", len(accepted), held)
	}
	eventually(t, 5*time.Second, "there is room again", func() bool {
		a := s.must("POST", "/v1/push", map[string]any{"user": "h3b-0", "text": pad})
		return a.Status == 200
	})
	s.checkLedger()
}

// TestH5TwoNodesWithOneName: ids that two gateways of the same name make at the same time never meet.
func TestH5TwoNodesWithOneName(t *testing.T) {
	t.Parallel()
	nodes := []*server{start(t, "node.name=same"), start(t, "node.name=same")}
	seen := map[string]bool{}
	for range 3 {
		for _, s := range nodes {
			for _, id := range s.pushAll(batch("h5b", "", 500)) {
				if id == "" || seen[id] {
					t.Fatalf("id %q twice or empty", id)
				}
				seen[id] = true
			}
		}
	}
}

// TestK1EveryWayToLeave: wrong tokens, links without a byte, kicks by a second login, clients that die in the middle of a frame, pushes
// to users who leave in that instant, many ACKed messages, users that never come back: descriptors, goroutines, entries and sockets are
// those of before, and no timer fires for what was acknowledged.
func TestK1EveryWayToLeave(t *testing.T) {
	s := start(t, append(quick, "login.device_burst=10000", "login.device_per_minute=100000")...)
	s.push("k1b", "warm")
	s.login("k1b", "phone").wantTexts(time.Second, "warm")
	s.login("k1b", "phone").logout()
	eventually(t, 2*time.Second, "settled", func() bool { return s.metric("holdfast_online") == 0 })
	fds, goroutines, memory := s.fds(), s.metric("go_goroutines"), s.rssKB()
	half := codec.AppendAckMessageID(nil, []byte(strings.Repeat("x", 50)), codec.LevelProcessed)[:20]
	var group sync.WaitGroup
	for w := range 4 {
		group.Go(func() {
			for i := range 250 {
				conn, err := dialTimeout(s.tcp)
				if err != nil {
					t.Error(err)
					return
				}
				_ = conn.Close()
				d := &device{t: t}
				if d.conn, err = dialTimeout(s.tcp); err != nil {
					t.Error(err)
					return
				}
				_ = d.connect("k1b", "phone", func(c *codec.Connect) { c.Version = 77 })
				d.fin()
				user := fmt.Sprint("k1b-", w)
				d, err = s.tryLogin(user, "phone") // and is kicked by the next round
				if err != nil {
					t.Error(err)
					return
				}
				if i%3 == 0 {
					d.write(half)
					d.reset()
				}
				go func() { _, _ = s.call("POST", "/v1/push", map[string]any{"user": user, "text": "m", "ttl": "5s"}) }()
				if i%3 == 1 {
					d.reset()
				}
				if i%3 == 2 {
					defer d.fin()
				}
			}
		})
	}
	group.Wait()
	for i := range 200 { // never come back
		d, err := s.tryLogin(fmt.Sprint("k1b-gone-", i), "phone")
		if err != nil {
			t.Fatal(err)
		}
		d.reset()
	}
	var out []client.Outgoing
	for i := range 20000 {
		out = append(out, client.Outgoing{User: "k1b-many", Payload: fmt.Append(nil, i)})
	}
	many := s.listen("k1b-many", "phone")
	p := s.publisher("backend")
	accepted := 0
	for part := 0; part < len(out); part += 2000 {
		results, err := p.Publish(context.Background(), out[part:part+2000]...)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			if r.Err == nil { // the queue may be full for a moment
				accepted++
			}
		}
	}
	eventually(t, 10*time.Second, "all have come", func() bool { return len(many.all()) >= accepted })
	_ = many.Close()
	_ = p.Close()
	eventually(t, 10*time.Second, "everything is back", func() bool {
		return s.fds() <= fds+6 && s.metric("go_goroutines") <= goroutines+6 && s.metric("holdfast_inflight") == 0 &&
			s.metric("holdfast_online") == 0 && s.metric("holdfast_parked") == 0 && s.closeWaits() == 0
	})
	retries := s.metric("holdfast_messages_retries_total")
	time.Sleep(1500 * time.Millisecond) // longer than the ACK timeout: nothing may fire
	if n := s.metric("holdfast_messages_retries_total"); n != retries {
		t.Errorf("%v retries with nobody connected", n-retries)
	}
	t.Logf("descriptors %d -> %d, goroutines %v -> %v, memory %d -> %d KB", fds, s.fds(), goroutines, s.metric("go_goroutines"), memory, s.rssKB())
	if grown := s.rssKB() - memory; grown > 48<<10 {
		t.Errorf("%d KB stay", grown)
	}
	s.checkLedger()
}

// TestFurther1ReferenceClients: of two library clients with one id the replaced one is told so and does not come back by itself.
func TestFurther1ReferenceClients(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	first := s.listen("f1", "phone")
	second := s.listen("f1", "phone")
	select {
	case <-first.Done():
	case <-time.After(3 * time.Second):
		t.Fatal("the replaced client goes on")
	}
	var closed *client.CloseError
	if err := first.Err(); !errors.As(err, &closed) || closed.Code != codec.CodeReplaced {
		t.Errorf("the replaced client ended with %v", first.Err())
	}
	s.push("f1", "m")
	eventually(t, 2*time.Second, "the survivor has it", func() bool { return len(second.all()) == 1 })
	if n := s.metric("holdfast_takeovers_total"); n != 1 || second.Stats().Disconnects != 0 {
		t.Errorf("%v takeovers, %d disconnects of the survivor", n, second.Stats().Disconnects)
	}
}

// TestFurther13MemoryOfABurst: logins as fast as they go leave no more memory behind than the same logins one after the other.
func TestFurther13MemoryOfABurst(t *testing.T) {
	const clients = 2000
	s := start(t, quick...)
	round := func(parallel int) int {
		var group sync.WaitGroup
		ds := make([]*device, clients)
		next := make(chan int)
		for range parallel {
			group.Go(func() {
				for i := range next {
					d, err := s.tryLogin(fmt.Sprint("f13-", i), "phone")
					if err != nil {
						t.Error(err)
						return
					}
					ds[i] = d
				}
			})
		}
		for i := range clients {
			next <- i
		}
		close(next)
		group.Wait()
		for _, d := range ds {
			if d != nil {
				d.logout()
			}
		}
		eventually(t, 5*time.Second, "all have left", func() bool { return s.metric("holdfast_online") == 0 && s.metric("holdfast_conn_connections") == 0 })
		return s.rssKB()
	}
	round(1) // warms up: the queues of these users stay
	slow := round(1)
	fast := round(64)
	t.Logf("memory after slow logins %d KB, after fast ones %d KB", slow, fast)
	if fast > slow+slow/10+4<<10 {
		t.Errorf("a burst leaves %d KB, slow logins %d KB", fast, slow)
	}
}
