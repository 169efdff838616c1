package e2e

import (
	"bytes"
	"context"
	bits "encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/codec"
)

// TestE2BlackHole: both TCP connections stay open and nothing passes: the gateway closes by missing keepalives, keeps what comes
// meanwhile, charges no attempts that could not arrive; the reference client notices by itself and gets all when the way is open again.
func TestE2BlackHole(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	p := s.through()
	b := s.listen("e2b", "phone", func(o *client.Options) { o.Addrs, o.Keepalive = []string{p.addr}, time.Second })
	s.push("e2b", "before")
	eventually(t, 2*time.Second, "the first is there", func() bool { return len(b.all()) == 1 })
	open := p.deafen()
	begun := time.Now()
	s.push("e2b", "into the hole")
	eventually(t, 8*time.Second, "the session is gone", func() bool { return s.metric("holdfast_online") == 0 })
	if took := time.Since(begun); took < time.Second || took > 7*time.Second {
		t.Errorf("the gateway closed after %v; 1.5 s to 6.5 s of silence are allowed", took)
	}
	s.push("e2b", "while away")
	open()
	eventually(t, 8*time.Second, "the client is back and has all", func() bool { return len(b.all()) == 3 })
	same(t, "received", b.all(), []string{"before", "into the hole", "while away"})
	eventually(t, 2*time.Second, "nothing is left", func() bool { return s.metric("holdfast_ledger_live") == 0 })
	s.checkLedger()
}

// TestE2IdleFlowsAreKeptAlive: a proxy that silently forgets flows idle for 1.6 s: the reference client's heartbeats (1 s) keep its flow,
// and the first message after a long idle time arrives on the same connection.
func TestE2IdleFlowsAreKeptAlive(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	p := s.through()
	p.idle = 1600 * time.Millisecond
	b := s.listen("e2c", "phone", func(o *client.Options) { o.Addrs, o.Keepalive = []string{p.addr}, time.Second })
	time.Sleep(6 * time.Second) // idle, as the case asks
	s.push("e2c", "after the idle time")
	eventually(t, time.Second, "the message is there", func() bool { return len(b.all()) == 1 })
	if p.connections() != 1 || b.Stats().Disconnects != 0 {
		t.Errorf("%d connections, %d disconnects", p.connections(), b.Stats().Disconnects)
	}
}

// TestE3EveryPaceInsideTheBorder: many links at 0.95, 1.0 and 1.4 keepalives between frames, some of them sending only ACKs: none is cut
// over hundreds of periods. When they fall silent, each is cut, not before 1.5 keepalives and within 5 s of it.
func TestE3EveryPaceInsideTheBorder(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	paces := []time.Duration{950 * time.Millisecond, time.Second, 1400 * time.Millisecond}
	var links sync.WaitGroup
	var late atomic.Int64 // links whose own frames were late: this machine was busy, the gateway is right to cut
	for i := range 90 {
		d := s.login(fmt.Sprint("e3-", i), "phone", func(c *codec.Connect) { c.KeepaliveS = 1 })
		links.Go(func() {
			life, pace := d.ping, paces[i%3]
			if i%2 == 0 { // any frame is life
				life = func() { d.ackID("nothing") }
			}
			if i%5 == 0 { // PONG as well
				life = func() { d.write(codec.AppendPong(nil, nil)) }
			}
			last, gap := time.Now(), time.Duration(0)
			for begun := time.Now(); time.Since(begun) < 6*time.Second; {
				time.Sleep(time.Until(last.Add(pace))) // the pace is the case
				life()
				gap, last = max(gap, time.Since(last)), time.Now()
			}
			for {
				_, err := d.frame(10 * time.Second)
				if err == nil {
					continue
				}
				var c closedError
				took := time.Since(last)
				if gap > 1480*time.Millisecond {
					late.Add(1)
					return
				}
				if !errors.As(err, &c) || c.Code != codec.CodeKeepaliveTimeout {
					t.Errorf("link %d at %v ended with %v", i, pace, err)
				} else if took < 1500*time.Millisecond || took > 6600*time.Millisecond {
					t.Errorf("link %d was cut after %v of silence", i, took)
				}
				return
			}
		})
	}
	links.Wait()
	if n := late.Load(); n > 30 {
		t.Errorf("%d of 90 links could not keep their pace here: the rest says too little", n)
	}
}

// TestI1TenThousandFrames: one stream of PINGs, ACKs and PUBLISH frames in one write, byte by byte, and in random pieces: each frame is
// handled once and in order, which the PONGs and the received messages tell.
func TestI1TenThousandFrames(t *testing.T) {
	t.Parallel()
	const frames = 10000
	s := start(t, "ack.timeout=5s", "tcp.publish_window=1024", "login.device_burst=100")
	cuts := map[string]func(n int) int{
		"one write": func(n int) int { return n },
		"pieces":    func(int) int { return 1 + rand.IntN(40) },
		"bytes":     func(int) int { return 1 },
	}
	for name, cut := range cuts {
		t.Run(name, func(t *testing.T) {
			user := "i1b-" + strings.ReplaceAll(name, " ", "-")
			reader := s.listen(user, "phone")
			d := s.login("backend-"+user, "1", func(c *codec.Connect) { c.Capabilities = codec.CapPublisher })
			total := frames
			if name == "bytes" {
				total = frames / 5 // one system call a byte
			}
			var stream []byte
			published := 0
			for i := range total {
				if i%50 != 0 {
					stream = codec.AppendPing(stream, bits.BigEndian.AppendUint64(nil, uint64(i)))
					continue
				}
				var w codec.PublishWriter
				w.Reset(uint64(published + 1))
				w.Add(&codec.PublishItem{User: []byte(user), Payload: fmt.Append(nil, published)})
				stream = w.AppendTo(stream)
				published++
			}
			go func() {
				for rest := stream; len(rest) > 0; {
					n := min(cut(len(rest)), len(rest))
					d.write(rest[:n])
					rest = rest[n:]
				}
			}()
			answered := map[uint64]bool{}
			for i, next := 0, uint64(0); i < total; i++ {
				f, err := d.frame(5 * time.Second)
				if err != nil {
					t.Fatalf("after %d answers: %v", i, err)
				}
				if f.Type == codec.TypePublished {
					var p codec.Published
					if err := codec.DecodePublished(f, &p); err != nil || answered[p.Number] || p.Number == 0 || p.Number > uint64(published) {
						t.Fatalf("PUBLISHED %d: %v", p.Number, err)
					}
					answered[p.Number] = true
					continue
				}
				for next%50 == 0 {
					next++
				}
				if f.Type != codec.TypePong || !bytes.HasSuffix(f.Body, bits.BigEndian.AppendUint64(nil, next)) {
					t.Fatalf("frame %#x %x where PONG %d was due", f.Type, f.Body, next)
				}
				next++
			}
			eventually(t, 5*time.Second, "all published arrived", func() bool { return len(reader.all()) >= published })
			same(t, "messages", reader.all(), texts("", published))
		})
	}
	s.checkLedger()
}

// TestI3AnnouncementsByTheThousand: strangers that announce every size and trickle: over the limit is closed at the header, the rest at
// the login limit though bytes come; none costs 16 KB; a frame of exactly the limit works and one byte more does not.
func TestI3AnnouncementsByTheThousand(t *testing.T) {
	const each = 400
	s := start(t, "ack.timeout=1s", "tcp.login_timeout=2s")
	s.login("warm", "up").logout()
	before := s.rssKB()
	fds := s.fds()
	sizes := map[string][]byte{"limit": {0x80, 0x80, 0x04}, "limit+1": {0x81, 0x80, 0x04}, "2^28-1": {0xff, 0xff, 0xff, 0x7f}, "2^31-1": {0xff, 0xff, 0xff, 0xff, 0x07}, "2^32-1": {0xff, 0xff, 0xff, 0xff, 0x0f}}
	var strangers []*device
	var fits []*device
	begun := time.Now()
	for name, header := range sizes {
		for range each {
			d := s.dial()
			d.write(header)
			if name == "limit" {
				fits = append(fits, d)
			} else {
				strangers = append(strangers, d)
			}
		}
	}
	for _, d := range strangers {
		if _, err := d.frame(2 * time.Second); err == nil || errors.Is(err, errQuiet) {
			t.Fatalf("a header over the limit was not refused: %v", err)
		}
	}
	for time.Since(begun) < 1500*time.Millisecond {
		for _, d := range fits {
			d.write([]byte{1})
		}
		time.Sleep(200 * time.Millisecond) // the trickle
	}
	if grown := s.rssKB() - before; grown > each*16+8<<10 {
		t.Errorf("%d announced frames cost %d KB", each, grown)
	}
	for _, d := range fits {
		if _, err := d.frame(time.Until(begun.Add(4 * time.Second))); err == nil || errors.Is(err, errQuiet) {
			t.Fatalf("a trickling stranger was not closed at the login limit: %v", err)
		}
	}
	for _, d := range append(strangers, fits...) {
		d.fin()
	}
	eventually(t, 3*time.Second, "descriptors are back", func() bool { return s.fds() <= fds+2 })
	for extra, works := range map[int]bool{0: true, 1: false} {
		d := s.login("i3b", "phone")
		d.write(exactFrame(64<<10 + extra))
		d.ping()
		f, err := d.frame(2 * time.Second)
		if ok := err == nil && f.Type == codec.TypePong; ok != works {
			t.Errorf("a frame of the limit and %d bytes: %#x %v", extra, f.Type, err)
		}
		d.fin()
	}
}

// exactFrame is an ACK by message id whose length field says n: what is behind the known fields is skipped by rule.
func exactFrame(n int) []byte {
	small := codec.AppendAckMessageID(nil, []byte("x"), codec.LevelProcessed)
	body := small[1:] // its one-byte length is replaced
	out := bits.AppendUvarint(nil, uint64(n))
	out = append(out, body...)
	return append(out, make([]byte, n-len(body))...)
}

// TestI5HalfCloseOfAPublisher: twenty PUBLISH frames and FIN of the write side: all take effect, their answers still come, then the
// server closes and no socket stays half open.
func TestI5HalfCloseOfAPublisher(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	d := s.login("backend", "1", func(c *codec.Connect) { c.Capabilities = codec.CapPublisher })
	var stream []byte
	for i := range 20 {
		var w codec.PublishWriter
		w.Reset(uint64(i + 1))
		w.Add(&codec.PublishItem{User: []byte("i5b"), Payload: fmt.Append(nil, i)})
		stream = w.AppendTo(stream)
	}
	d.write(stream)
	if h, ok := d.conn.(interface{ CloseWrite() error }); !ok || h.CloseWrite() != nil {
		t.Fatal("no half-close")
	}
	answers := 0
	for {
		f, err := d.frame(5 * time.Second)
		if errors.Is(err, errQuiet) {
			t.Fatal("the server did not close after the half-close")
		}
		if err != nil {
			break
		}
		if f.Type == codec.TypePublished {
			answers++
		}
	}
	t.Logf("%d of 20 answers came behind the half-close", answers)
	s.login("i5b", "phone").wantTexts(2*time.Second, texts("", 20)...)
	eventually(t, 5*time.Second, "no CLOSE_WAIT", func() bool { return s.closeWaits() == 0 && s.metric("holdfast_publishers_online") == 0 })
	s.checkLedger()
}

// TestFurther6IdleClientDropsAndComesBack: a client that never got anything and one that was idle for many keepalives both drop without
// a word; the messages of the gap arrive.
func TestFurther6IdleClientDropsAndComesBack(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	fresh := s.login("f6b-fresh", "phone")
	idle := s.listen("f6b-idle", "phone", func(o *client.Options) { o.Keepalive = time.Second })
	time.Sleep(4 * time.Second) // idle, as the case asks
	fresh.reset()
	_ = idle.Close()
	for _, user := range []string{"f6b-fresh", "f6b-idle"} {
		s.pushAll(batch(user, "gap ", 3))
		s.login(user, "phone").wantTexts(2*time.Second, texts("gap ", 3)...)
	}
	s.checkLedger()
}

// TestFurther7OneLoginSuffices: whatever cursor a client brings (from before a data reset, from the future, garbage, none), its first
// login works, stays, and delivers, also with the library over a reset of all data.
func TestFurther7OneLoginSuffices(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	b := s.listen("f7", "phone")
	s.pushAll(batch("f7", "old ", 5))
	eventually(t, 2*time.Second, "the old ones are there", func() bool { return len(b.all()) == 5 })
	s.kill()
	s.dir = t.TempDir() // the data reset
	s.run()
	eventually(t, 5*time.Second, "the client is back", func() bool { return s.metric("holdfast_online") == 1 })
	s.push("f7", "new")
	eventually(t, 2*time.Second, "the new one is there", func() bool { return len(b.all()) == 6 })
	if st := b.Stats(); st.Logins != 2 {
		t.Errorf("%d logins, want the first and one after the reset", st.Logins)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := b.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	for i, resume := range [][2]uint64{{1, 1}, {^uint64(0), ^uint64(0)}, {0xdead, 1 << 62}, {0, 0}} {
		user := fmt.Sprint("f7-", i)
		s.push(user, "due")
		d := s.login(user, "phone", func(c *codec.Connect) { c.HasResume, c.ResumeSession, c.ResumeNumberSeen = true, resume[0], resume[1] })
		d.wantTexts(2*time.Second, "due")
		d.quiet(200 * time.Millisecond)
	}
	s.checkLedger()
}
