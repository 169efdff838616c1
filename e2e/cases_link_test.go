package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast/codec"
)

// TestA2Takeover: two connections of one (user, device) at the same instant, many rounds: one survives, the other is told
// "replaced"; the next message reaches the survivor only, and a late close of the old one changes nothing.
func TestA2Takeover(t *testing.T) {
	t.Parallel()
	rounds := 100
	if testing.Short() {
		rounds = 20
	}
	s := start(t, append(quick, "login.device_per_minute=100000", "login.device_burst=10000")...)
	for round := range rounds {
		first := make(chan *device, 2)
		for range 2 {
			go func() {
				d, err := s.tryLogin("a2", "phone")
				if err != nil {
					d = nil
				}
				first <- d
			}()
		}
		a, b := <-first, <-first
		text := fmt.Sprint(round)
		s.push("a2", text)
		survivors := 0
		for _, d := range []*device{a, b} {
			if d == nil {
				continue // closed before its WELCOME: replaced that early
			}
			m, err := d.push(2 * time.Second)
			var closed closedError
			switch {
			case err == nil && m.Text == text:
				d.ack(m)
				d.logout()
				survivors++
			case errors.As(err, &closed) && closed.Code == codec.CodeReplaced:
				d.fin()
			default:
				t.Fatalf("round %d: got %+v, %v", round, m, err)
			}
		}
		if survivors != 1 {
			t.Fatalf("round %d: %d survivors", round, survivors)
		}
	}
	old := s.login("late", "phone")
	current := s.login("late", "phone")
	old.wantClose(time.Second, codec.CodeReplaced)
	old.fin()
	s.push("late", "to the new one")
	current.wantTexts(time.Second, "to the new one")
	s.checkLedger()
}

// TestFurther1KickWar: two bad clients with one id are slowed down, others feel nothing.
func TestFurther1KickWar(t *testing.T) {
	s := start(t, append(quick, "login.device_burst=5")...)
	refused := 0
	var last closedError
	for range 20 {
		d := s.dial()
		var c closedError
		if err := d.connect("war", "phone"); errors.As(err, &c) && c.Code == codec.CodeOverloaded {
			refused++
			last = c
		}
	}
	if refused < 10 || last.RetryAfterMs == 0 {
		t.Fatalf("%d of 20 logins refused, retry after %d ms", refused, last.RetryAfterMs)
	}
	s.push("peace", "m")
	s.login("peace", "phone").wantTexts(time.Second, "m")
}

// TestE3KeepaliveBorders: heartbeats just inside the allowed silence are never cut; silence is, between 1.5 and 1.5 x + 5 s. Any
// complete frame is life; bytes are not (I3).
func TestE3KeepaliveBorders(t *testing.T) {
	s := start(t, quick...)
	keepalive := func(c *codec.Connect) { c.KeepaliveS = 1 }
	healthy, silent, dribbler := s.login("e3a", "phone", keepalive), s.login("e3b", "phone", keepalive), s.login("e3c", "phone", keepalive)
	begun := time.Now()
	endOf := func(d *device) chan time.Duration {
		ended := make(chan time.Duration, 1)
		go func() {
			for {
				if _, err := d.frame(20 * time.Second); err != nil {
					ended <- time.Since(begun)
					return
				}
			}
		}()
		return ended
	}
	silentEnd, dribblerEnd, healthyEnd := endOf(silent), endOf(dribbler), endOf(healthy)
	go func() {
		for range 8 {
			time.Sleep(950 * time.Millisecond) // 0.95 periods, as the case asks
			healthy.ping()
		}
	}()
	go func() {
		for _, b := range codec.AppendAckMessageID(nil, []byte(strings.Repeat("x", 60)), codec.LevelReceived)[:30] {
			dribbler.write([]byte{b})
			time.Sleep(250 * time.Millisecond) // bytes without a complete frame
		}
	}()
	for name, ended := range map[string]chan time.Duration{"silent": silentEnd, "dribbling": dribblerEnd} {
		if took := <-ended; took < 1500*time.Millisecond || took > 6500*time.Millisecond {
			t.Errorf("the %s link was cut after %v", name, took)
		}
	}
	select {
	case took := <-healthyEnd:
		if took < 7*time.Second {
			t.Errorf("the healthy link was cut after %v", took)
		}
	case <-time.After(time.Until(begun.Add(7 * time.Second))):
	}
}

// TestE6SlowReader: a burst to a reader at a fraction of its rate: everything arrives, in order, by push or by compensation; others
// are not slowed.
func TestE6SlowReader(t *testing.T) {
	t.Parallel()
	s := start(t, append(quick, "ack.timeout=5s", "store.queue_messages_max=20000")...)
	d := s.login("e6", "phone")
	other := s.login("e6-other", "phone")
	const total = 5000
	for i := 0; i < total; i += 500 {
		var items []map[string]any
		for j := range 500 {
			items = append(items, map[string]any{"user": "e6", "text": fmt.Sprint(i + j)})
		}
		if a := s.must("POST", "/v1/push", items); a.Status != 200 || strings.Contains(a.Raw, "error") {
			t.Fatalf("%.300s", a.Raw)
		}
	}
	s.push("e6-other", "m")
	other.wantTexts(time.Second, "m")
	for i := range total {
		m := d.want(5 * time.Second)
		if m.Text != fmt.Sprint(i) {
			t.Fatalf("%q came where %d was due", m.Text, i)
		}
		d.ack(m)
		if i < 100 {
			time.Sleep(5 * time.Millisecond) // the slow reader of the case
		}
	}
	d.quiet(300 * time.Millisecond)
	s.checkLedger()
}

// TestFurther9RepliesUnderAFlood: a reader behind a flood of pushes still gets its PONG in time, or its link is closed.
func TestFurther9RepliesUnderAFlood(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	d := s.login("f9", "phone", func(c *codec.Connect) { c.WindowMsgs = 64 })
	pad := strings.Repeat("x", 10<<10)
	for range 50 {
		s.push("f9", pad, map[string]any{"ack": false})
		s.push("f9", pad)
	}
	d.ping()
	for {
		f, err := d.frame(5 * time.Second)
		var c closedError
		if errors.As(err, &c) || f.Type == codec.TypePong {
			return
		}
		if err != nil {
			t.Fatalf("neither PONG nor CLOSE: %v", err)
		}
	}
}

// TestI1AnyCut: login, ACKs and PINGs in one write, byte by byte, and cut anywhere give the same result; frames behind a refused
// login have none.
func TestI1AnyCut(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	stream := func(user string) []byte {
		b := codec.AppendConnect(nil, &codec.Connect{Version: codec.Version, User: []byte(user), Device: []byte("phone")})
		for i := range 50 {
			b = codec.AppendAckMessageID(b, fmt.Appendf(nil, "%s-%d", user, i), codec.LevelProcessed)
		}
		return codec.AppendPing(b, []byte("end"))
	}
	write := map[string]func(d *device, b []byte){
		"one write": func(d *device, b []byte) { d.write(b) },
		"bytes": func(d *device, b []byte) {
			for i := range b {
				d.write(b[i : i+1])
			}
		},
		"odd pieces": func(d *device, b []byte) {
			for n := 1; len(b) > 0; n = n*7%13 + 1 {
				k := min(n, len(b))
				d.write(b[:k])
				b = b[k:]
			}
		},
	}
	n := 0
	for name, how := range write {
		user := fmt.Sprintf("i1-%d", n)
		n++
		for i := range 50 {
			s.push(user, "m", map[string]any{"message_id": fmt.Sprintf("%s-%d", user, i)})
		}
		d := s.dial()
		how(d, stream(user))
		for {
			f, err := d.frame(10 * time.Second)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if f.Type == codec.TypePong {
				break
			}
		}
		for i := range 50 {
			id := fmt.Sprintf("%s-%d", user, i)
			eventually(t, 2*time.Second, name+": "+id+" is acked", func() bool { return s.states(id)["phone"] == "ACKED" })
		}
	}
	// A refused login: wrong version.
	s.push("i1-refused", "m", map[string]any{"message_id": "i1-refused-0"})
	d := s.dial()
	b := codec.AppendConnect(nil, &codec.Connect{Version: 99, User: []byte("i1-refused"), Device: []byte("phone")})
	d.write(codec.AppendAckMessageID(b, []byte("i1-refused-0"), codec.LevelProcessed))
	d.wantClose(2*time.Second, codec.CodeVersion)
	s.login("i1-refused", "phone").wantTexts(time.Second, "m")
	s.checkLedger()
}

// TestI3HugeAnnouncements: a length over the maximum is refused at the header; one of exactly the maximum works; strangers who
// trickle are closed at the login limit; memory stays.
func TestI3HugeAnnouncements(t *testing.T) {
	s := start(t, append(quick, "tcp.login_timeout=2s")...)
	for _, announced := range [][]byte{{0x80, 0x80, 0x80, 0x7f}, {0xff, 0xff, 0xff, 0x7f}, {0xff, 0xff, 0xff, 0xff, 0x7f}} {
		d := s.dial()
		d.write(announced)
		if _, err := d.frame(time.Second); err == nil || errors.Is(err, errQuiet) {
			t.Errorf("announcing %x: %v", announced, err)
		}
	}
	before := s.rssKB()
	var trickling []*device
	for range 300 {
		d := s.dial()
		d.write([]byte{0xff, 0xff, 0x03}) // 64 KiB - 1: allowed, but nothing follows
		trickling = append(trickling, d)
	}
	begun := time.Now()
	for _, d := range trickling {
		d.write([]byte{1})
	}
	d := s.login("i3", "phone") // healthy logins go on
	if grown := s.rssKB() - before; grown > 300*16 {
		t.Errorf("300 announced frames cost %d KB, limit 16 KB each", grown)
	}
	for _, d := range trickling {
		_, err := d.frame(time.Until(begun.Add(4 * time.Second)))
		if errors.Is(err, errQuiet) {
			t.Fatal("a stranger was not closed at the login limit")
		}
	}
	s.push("i3", "still here")
	d.wantTexts(time.Second, "still here")
}

// rssKB is the resident memory of the gateway.
func (s *server) rssKB() int {
	s.t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				s.t.Fatal(err)
			}
			return kb
		}
	}
	s.t.Fatal("no VmRSS")
	return 0
}

// fds is the number of open descriptors of the gateway.
func (s *server) fds() int {
	s.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	return len(entries)
}

// TestI5HalfClose: 50 ACKs and then FIN of the write side: all take effect, then the server closes and the route is cleared.
func TestI5HalfClose(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	d := s.login("i5", "phone")
	for i := range 50 {
		s.push("i5", fmt.Sprint(i), map[string]any{"message_id": fmt.Sprintf("i5-%d", i)})
	}
	var acks []byte
	for range 50 {
		acks = codec.AppendAckOne(acks, d.want(time.Second).Number, codec.LevelProcessed)
	}
	d.write(acks)
	type halfCloser interface{ CloseWrite() error }
	if h, ok := d.conn.(halfCloser); ok {
		_ = h.CloseWrite()
	}
	for {
		if _, err := d.frame(5 * time.Second); err != nil {
			if errors.Is(err, errQuiet) {
				t.Fatal("the server did not close after the half-close")
			}
			break
		}
	}
	for i := range 50 {
		if st := s.states(fmt.Sprintf("i5-%d", i))["phone"]; st != "ACKED" {
			t.Fatalf("ACK %d before the FIN had no effect: %s", i, st)
		}
	}
	eventually(t, 5*time.Second, "offline", func() bool { return s.metric("holdfast_online") == 0 })
	s.push("i5", "later")
	s.login("i5", "phone").wantTexts(time.Second, "later")
	s.checkLedger()
}

// TestJ1Drain: SIGTERM announces with GOAWAY, takes ACKs in flight, closes, exits 0 within its limit even if clients do not react;
// what was not ACKed is there after the restart.
func TestJ1Drain(t *testing.T) {
	t.Parallel()
	s := start(t, append(quick, "drain.window=1s", "drain.timeout=4s", "ack.timeout=10s")...)
	d, deaf := s.login("j1", "phone"), s.login("j1-deaf", "phone")
	s.push("j1", "in flight")
	s.push("j1-deaf", "not acked")
	m := d.want(time.Second)
	deaf.want(time.Second)
	exit := make(chan int, 1)
	go func() { exit <- s.terminate(10 * time.Second) }()
	f, err := d.frame(3 * time.Second)
	if err != nil || f.Type != codec.TypeGoAway {
		t.Fatalf("GOAWAY: %v %v", f.Type, err)
	}
	d.ack(m)
	if code := <-exit; code != 0 {
		t.Fatalf("exit code %d", code)
	}
	s.run()
	if st := s.states(m.ID)["phone"]; st != "ACKED" {
		t.Errorf("the ACK during the drain was lost: %s", st)
	}
	s.login("j1-deaf", "phone").wantTexts(time.Second, "not acked")
	s.login("j1", "phone").quiet(300 * time.Millisecond)
	s.checkLedger()
}

// TestJ5DescriptorLimit: more clients than descriptors: the connected ones go on, the rest is told to come later, and gets in when
// others leave.
func TestJ5DescriptorLimit(t *testing.T) {
	if _, err := exec.LookPath("prlimit"); err != nil {
		t.Fatal("prlimit (util-linux) is needed to lower the descriptor limit")
	}
	s := start(t, quick...)
	s.kill()
	wrapped := binary
	t.Cleanup(func() { binary = wrapped })
	script := s.dir + "/limited.sh"
	if err := os.WriteFile(script, []byte("#!/bin/sh\nulimit -n 400\nexec "+wrapped+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	binary = script
	s.run()
	binary = wrapped
	var in []*device
	refused := 0
	for i := range 600 {
		d, err := s.tryLogin(fmt.Sprintf("j5-%d", i), "phone")
		if err != nil {
			refused++
			continue
		}
		in = append(in, d)
	}
	if refused == 0 || len(in) < 100 {
		t.Fatalf("%d in, %d refused", len(in), refused)
	}
	s.push("j5-0", "m")
	in[0].wantTexts(2*time.Second, "m")
	for _, d := range in[1:51] {
		d.logout()
	}
	eventually(t, 5*time.Second, "there is room again", func() bool {
		d, err := s.tryLogin("j5-later", "phone")
		if err == nil {
			d.logout()
		}
		return err == nil
	})
}

// TestK1NoLeaks: connects without a byte, refused logins, kicked sessions and ACKed messages leave no descriptor and no entry.
func TestK1NoLeaks(t *testing.T) {
	t.Parallel()
	s := start(t, append(quick, "login.device_burst=1000")...)
	s.login("k1", "phone").logout()
	eventually(t, 2*time.Second, "settled", func() bool { return s.metric("holdfast_online") == 0 })
	fds := s.fds()
	goroutines := s.metric("go_goroutines")
	for i := range 300 {
		s.dial().fin()
		d := s.dial()
		_ = d.connect("", "", func(c *codec.Connect) { c.Version = 99 })
		d.fin()
		d = s.login("k1", "phone")
		s.push("k1", fmt.Sprint(i))
		d.ack(d.want(time.Second))
		if i%2 == 0 {
			d.reset()
		} else {
			d.logout()
		}
	}
	eventually(t, 10*time.Second, "descriptors and goroutines are back", func() bool {
		return s.fds() <= fds+3 && s.metric("go_goroutines") <= goroutines+5 && s.metric("holdfast_inflight") == 0 && s.metric("holdfast_online") == 0
	})
	s.checkLedger()
}
