package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/codec"
)

// TestJ1SpreadOverTheWindow: SIGTERM with many clients: no login from then on, each gets GOAWAY with its own moment before its close,
// no part of the window holds more than twice the mean, and the process is gone in time though a hundred do not react.
func TestJ1SpreadOverTheWindow(t *testing.T) {
	const clients, deaf = 500, 100
	const window, timeout = 2 * time.Second, 6 * time.Second
	s := start(t, "ack.timeout=1s", "drain.window=2s", "drain.timeout=6s")
	var ds []*device
	for i := range clients {
		ds = append(ds, s.login(fmt.Sprint("j1-", i), "phone"))
	}
	s.push("j1-0", "in flight")
	ds[0].want(time.Second) // and never acknowledged
	begun := time.Now()
	exit := make(chan int, 1)
	go func() { exit <- s.terminate(timeout + 2*time.Second) }()
	var buckets [4]atomic.Int64
	var reading sync.WaitGroup
	for i, d := range ds {
		reading.Go(func() {
			f, err := d.frame(timeout)
			if err != nil || f.Type != codec.TypeGoAway {
				t.Errorf("client %d: %#x %v where GOAWAY was due", i, f.Type, err)
				return
			}
			var g codec.GoAway
			if err := codec.DecodeGoAway(f, &g); err != nil || g.ReconnectAfterMs > uint64(window.Milliseconds()) {
				t.Errorf("client %d: reconnect after %d ms, %v", i, g.ReconnectAfterMs, err)
			}
			if i >= deaf { // leaves when told
				time.Sleep(time.Until(begun.Add(time.Duration(g.ReconnectAfterMs) * time.Millisecond)))
				buckets[min(int(g.ReconnectAfterMs)*len(buckets)/int(window.Milliseconds()), len(buckets)-1)].Add(1)
				d.logout()
				return
			}
			for err == nil {
				_, err = d.frame(timeout)
			}
			var c closedError
			if errors.As(err, &c) && c.Code != codec.CodeGoingAway {
				t.Errorf("client %d, who did not react, was closed with %s", i, c.Code)
			}
		})
	}
	eventually(t, time.Second, "no login any more", func() bool {
		d, err := s.tryLogin("j1-late", "phone")
		if err == nil {
			d.logout()
		}
		return err != nil
	})
	reading.Wait()
	if code := <-exit; code != 0 {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(begun); took > timeout+time.Second {
		t.Errorf("gone after %v", took)
	}
	mean := int64(clients-deaf) / int64(len(buckets))
	for i := range buckets {
		if n := buckets[i].Load(); n > 2*mean {
			t.Errorf("part %d of the window holds %d closes, the mean is %d", i, n, mean)
		}
	}
	s.run()
	s.login("j1-0", "phone").wantTexts(2*time.Second, "in flight")
	s.checkLedger()
}

// TestJ2RollingUnderLoad: the gateway is rolled five times under load: nothing is lost, ACKs during the drain count, no dead letter
// comes of it, less than one message in a hundred comes twice.
func TestJ2RollingUnderLoad(t *testing.T) {
	t.Parallel()
	s := start(t, "ack.timeout=5s", "drain.window=300ms", "drain.timeout=3s", "login.device_burst=1000", "login.device_per_minute=100000")
	total, copies := s.rolling(5, func(round int) {
		if code := s.terminate(8 * time.Second); code != 0 {
			t.Errorf("roll %d: exit code %d", round, code)
		}
	})
	if copies*100 > total && copies > 5 {
		t.Errorf("%d second copies of %d", copies, total)
	}
}

// TestJ2ImpatientRolling: as TestJ2RollingUnderLoad with a drain time that is too short and a second SIGTERM: more copies, no loss.
func TestJ2ImpatientRolling(t *testing.T) {
	t.Parallel()
	s := start(t, "ack.timeout=5s", "drain.window=900ms", "drain.timeout=1s", "login.device_burst=1000", "login.device_per_minute=100000")
	s.rolling(4, func(round int) {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		if round%2 == 0 {
			time.Sleep(50 * time.Millisecond) // the impatient operator
			_ = s.cmd.Process.Signal(syscall.SIGTERM)
		}
		select {
		case <-s.done:
		case <-time.After(5 * time.Second):
			t.Errorf("roll %d: still there after 5 s", round)
			s.kill()
		}
	})
}

// rolling stops (by stop) and starts the gateway under load and checks that nothing is lost. It returns how many messages were
// accepted and how many second copies came.
func (s *server) rolling(rounds int, stop func(round int)) (total, copies int) {
	const users, publishers = 50, 4
	t := s.t
	var boxes []*inbox
	for u := range users {
		rng := rand.New(rand.NewPCG(uint64(u), 7))
		boxes = append(boxes, s.listen(fmt.Sprint("j2-", u), "phone", func(o *client.Options) {
			inner := o.Handler
			o.DedupSize = -1 // each copy is handed over: they are counted here
			o.Handler = func(ctx context.Context, m *client.Message) error {
				select {
				case <-time.After(time.Duration(rng.IntN(8)) * time.Millisecond): // the random ACK delay of the case
				case <-ctx.Done():
				}
				return inner(ctx, m)
			}
		}))
	}
	ending := make(chan struct{})
	var publishing sync.WaitGroup
	var accepted [users]atomic.Int64
	for p := range publishers {
		publishing.Go(func() {
			for n := 0; ; n++ {
				for u := p; u < users; u += publishers {
					if !s.publishUntilAccepted(ending, fmt.Sprint("j2-", u), n) {
						return
					}
					accepted[u].Add(1)
				}
			}
		})
	}
	for round := range rounds {
		time.Sleep(500 * time.Millisecond) // load between the rolls
		stop(round)
		s.run()
	}
	close(ending)
	publishing.Wait()
	for u, b := range boxes {
		want := int(accepted[u].Load())
		total += want
		eventually(t, 10*time.Second, fmt.Sprintf("user %d has all %d", u, want), func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return len(b.ids) >= want
		})
		b.mu.Lock()
		for _, n := range b.ids {
			copies += n - 1
		}
		b.mu.Unlock()
	}
	t.Logf("%d messages over %d rolls, %d second copies", total, rounds, copies)
	if n := len(s.deadLetters()); n != 0 {
		t.Errorf("%d dead letters came of the rolls", n)
	}
	s.checkLedger()
	return total, copies
}

// publishUntilAccepted pushes number n to a user, again and again while the node is away; false: ending was closed first.
func (s *server) publishUntilAccepted(ending <-chan struct{}, user string, n int) bool {
	body := map[string]any{"user": user, "text": fmt.Sprint(n), "message_id": fmt.Sprint(user, "-", n)}
	wait := time.Millisecond
	for {
		select {
		case <-ending:
			return false
		case <-time.After(wait):
		}
		if a, err := s.call("POST", "/v1/push", body); err == nil && a.Status == 200 {
			return true
		}
		wait = 10 * time.Millisecond
	}
}

// TestJ3LimitsAfterARoll: the connection limit at 110 % of the use: after a roll, after a crash and after all links were cut at once
// every client gets in again, and nobody is refused for a limit that is not reached.
func TestJ3LimitsAfterARoll(t *testing.T) {
	t.Parallel()
	const clients = 100
	s := start(t, "ack.timeout=1s", "tcp.connections_max=110", "drain.window=200ms", "drain.timeout=2s", "login.device_burst=100")
	all := func() (ds []*device) {
		t.Helper()
		for i := range clients {
			d, err := s.tryLogin(fmt.Sprint("j3-", i), "phone")
			if err != nil {
				t.Fatalf("client %d was refused: %v", i, err)
			}
			ds = append(ds, d)
		}
		return ds
	}
	all()
	s.terminate(5 * time.Second)
	s.run()
	ds := all()
	s.crash()
	ds = append(ds, all()...)
	for _, d := range ds { // all links cut at once
		d.reset()
	}
	eventually(t, 2*time.Second, "the cut links are off the count", func() bool { return s.metric("holdfast_conn_connections") <= 10 })
	for i, old := range all() { // a takeover holds two connections until the replaced client has read its CLOSE
		d, err := s.tryLogin(fmt.Sprint("j3-", i), "phone")
		if err != nil {
			t.Fatalf("takeover %d was refused: %v", i, err)
		}
		old.wantClose(time.Second, codec.CodeReplaced)
		old.fin()
		d.ping()
		if f, err := d.frame(time.Second); err != nil || f.Type != codec.TypePong {
			t.Fatal(err)
		}
	}
	if n := s.metric("holdfast_conn_connections_refused_total"); n != 0 {
		t.Errorf("%v connections were refused", n)
	}
	s.checkLedger()
}

// TestJ4MassReturn: every link is cut at once and every client comes back at once, with no delay and no jitter, each to a backlog: all
// are back in time, those who stayed keep their latency, live pushes are not starved by the compensation, memory stays bounded.
func TestJ4MassReturn(t *testing.T) {
	const clients, each = 400, 25
	s := start(t, "ack.timeout=5s", "tcp.keepalive_min=1s")
	var items []map[string]any
	for i := range clients {
		items = append(items, batch(fmt.Sprint("j4-", i), "", each)...)
	}
	ds := make([]*device, clients)
	for i := range ds {
		ds[i] = s.login(fmt.Sprint("j4-", i), "phone")
	}
	for _, d := range ds {
		d.reset()
	}
	eventually(t, 3*time.Second, "all are gone", func() bool { return s.metric("holdfast_online") == 0 })
	s.pushAll(items)
	before := s.rssKB()
	stop := s.pulse("j4-live", 10*time.Millisecond)
	begun := time.Now()
	var returning sync.WaitGroup
	for i := range clients {
		returning.Go(func() {
			var d *device
			for d == nil { // a bad client: no delay
				if time.Since(begun) > 10*time.Second {
					t.Errorf("client %d is not back", i)
					return
				}
				d, _ = s.tryLogin(fmt.Sprint("j4-", i), "phone")
			}
			defer d.fin()
			for n := range each {
				m, err := d.push(8 * time.Second)
				if err != nil || m.Text != fmt.Sprint(n) {
					t.Errorf("client %d: %q %v where %d was due", i, m.Text, err, n)
					return
				}
				d.ack(m)
			}
		})
	}
	returning.Wait()
	took := time.Since(begun)
	latency := stop()
	t.Logf("%d clients with %d messages each were back after %v; live 95th percentile %v of %d; memory %d KB more", clients, each, took, percentile(latency, 95), len(latency), s.rssKB()-before)
	if took > 10*time.Second {
		t.Errorf("all were back after %v", took)
	}
	if p := percentile(latency, 95); p > time.Second {
		t.Errorf("live pushes waited: 95th percentile %v", p)
	}
	if grown := s.rssKB() - before; grown > 64<<10 {
		t.Errorf("the return cost %d KB", grown)
	}
	s.checkLedger()
}

// TestJ5RefusedLinksLeaveNothing: thousands of links beyond the limit: the connected ones keep getting messages, the refusals are in a
// metric and in the log, the processor is idle when nothing comes, the descriptors are those of before.
func TestJ5RefusedLinksLeaveNothing(t *testing.T) {
	s := start(t, "ack.timeout=1s", "tcp.connections_max=50")
	var ds []*device
	for i := range 50 {
		ds = append(ds, s.login(fmt.Sprint("j5b-", i), "phone"))
	}
	fds := s.fds()
	refused := 0
	for range 3000 {
		conn, err := net.Dial("tcp", s.tcp)
		if err != nil {
			refused++
			continue
		}
		_ = conn.SetReadDeadline(time.Now().Add(2 * time.Second))
		var b [64]byte
		for err == nil { // until the gateway has closed it
			_, err = conn.Read(b[:])
		}
		if errors.Is(err, context.DeadlineExceeded) {
			t.Fatal("a link beyond the limit stays open")
		}
		_ = conn.Close()
		refused++
	}
	s.push("j5b-7", "m")
	ds[7].wantTexts(time.Second, "m")
	eventually(t, 3*time.Second, "descriptors are back", func() bool { return s.fds() <= fds+3 }) // the HTTP connections of this test
	if n := s.metric("holdfast_conn_connections_refused_total"); n != 3000 {
		t.Errorf("%v refusals counted, want 3000", n)
	}
	if !s.logged("connections") {
		t.Error("no log line tells of the limit")
	}
	used := s.cpu()
	time.Sleep(time.Second) // nothing comes, nothing may spin
	if used = s.cpu() - used; used > 300*time.Millisecond {
		t.Errorf("an idle gateway at its limit used %v of processor time in a second", used)
	}
	for _, d := range ds[:20] {
		d.logout()
	}
	eventually(t, 2*time.Second, "there is room for others", func() bool {
		d, err := s.tryLogin("j5b-new", "phone")
		if err == nil {
			d.logout()
		}
		return err == nil
	})
	s.checkLedger()
}

// TestFurther14ClientThatIgnoresGoAway is cut at the end of the window, its next login on the old address fails fast, and no message is
// lost.
func TestFurther14ClientThatIgnoresGoAway(t *testing.T) {
	t.Parallel()
	s := start(t, "ack.timeout=5s", "drain.window=1s", "drain.timeout=4s")
	d := s.login("f14", "phone")
	other := s.login("f14-other", "phone") // holds the drain up with something in flight
	s.push("f14-other", "unacknowledged")
	other.want(time.Second)
	s.push("f14", "before")
	d.wantTexts(time.Second, "before")
	begun := time.Now()
	exit := make(chan int, 1)
	go func() { exit <- s.terminate(8 * time.Second) }()
	d.wantClose(3*time.Second, codec.CodeGoingAway)
	if took := time.Since(begun); took > 2*time.Second {
		t.Errorf("cut after %v, the window is 1 s", took)
	}
	begun = time.Now()
	if again, err := s.tryLogin("f14", "phone"); err == nil {
		again.fin()
		t.Error("the old address took a login during the drain")
	}
	if took := time.Since(begun); took > time.Second {
		t.Errorf("the login on the old address failed after %v", took)
	}
	if code := <-exit; code != 0 {
		t.Errorf("exit code %d", code)
	}
	s.run()
	s.push("f14", "after")
	s.login("f14", "phone").wantTexts(2*time.Second, "after")
	s.login("f14-other", "phone").wantTexts(2*time.Second, "unacknowledged")
	s.checkLedger()
}
