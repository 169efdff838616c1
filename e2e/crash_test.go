package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/codec"
)

// kills and crashSeed steer the crash tests: `make crash-long` asks for 50 and more, CI runs the short default.
var (
	kills     = flag.Int("kills", 6, "how often the crash tests kill the gateway with -9")
	crashSeed = flag.Uint64("crash-seed", uint64(time.Now().UnixNano()), "random seed of the crash tests")
)

// crashDevices are the devices of every user of the crash tests. Each gets its own copy of everything.
var crashDevices = [...]string{"phone", "tablet"}

// receiver is one device of the crash test: it logs in, reads, acknowledges (or not), goes away, comes back.
type receiver struct {
	user, device string
	s            *server
	rng          *rand.Rand
	flaps        bool // goes away at random, sometimes without acknowledging

	mu    sync.Mutex
	first map[string][]int // publisher -> its numbers in order of first receipt
	seen  map[string]int   // message id -> copies
	texts map[string]string
	fault string // first broken promise
}

// run receives until stop is closed.
func (r *receiver) run(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		r.session(stop)
	}
}

// session is one connection; a refused or broken one is tried again after a short random pause.
func (r *receiver) session(stop <-chan struct{}) {
	d, err := r.s.tryLogin(r.user, r.device)
	if err != nil {
		pause(stop, time.Duration(10+r.rng.IntN(40))*time.Millisecond)
		return
	}
	leave := d.fin
	left := 1 << 30
	if r.flaps {
		left = 1 + r.rng.IntN(60)
		leave = []func(){d.fin, d.reset, d.logout}[r.rng.IntN(3)]
	}
	defer func() { leave() }()
	for ; left > 0; left-- {
		m, err := d.push(100 * time.Millisecond)
		select {
		case <-stop:
			return
		default:
		}
		if errors.Is(err, errQuiet) {
			continue
		}
		if err != nil {
			return
		}
		r.note(m)
		if r.flaps && r.rng.IntN(8) == 0 {
			continue // a lost ACK
		}
		d.ack(m)
	}
	pause(stop, time.Duration(r.rng.IntN(200))*time.Millisecond)
}

func pause(stop <-chan struct{}, d time.Duration) {
	select {
	case <-stop:
	case <-time.After(d):
	}
}

// note books a received copy. The text is "user publisher number", the id the same with dashes.
func (r *receiver) note(m message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	parts := strings.Fields(m.Text)
	if len(parts) != 3 || parts[0] != r.user || strings.Join(parts, "-") != m.ID {
		r.blame(fmt.Sprintf("%s/%s got %q under id %s", r.user, r.device, m.Text, m.ID))
		return
	}
	n, err := strconv.Atoi(parts[2])
	if err != nil {
		r.blame(fmt.Sprintf("%s/%s got %q", r.user, r.device, m.Text))
		return
	}
	if r.texts[m.Text] != "" && r.texts[m.Text] != m.ID {
		r.blame(fmt.Sprintf("%q came under two ids, %s and %s", m.Text, r.texts[m.Text], m.ID))
	}
	if r.seen[m.ID]++; r.seen[m.ID] == 1 {
		r.texts[m.Text] = m.ID
		r.first[parts[1]] = append(r.first[parts[1]], n)
	}
}

func (r *receiver) blame(fault string) {
	if r.fault == "" {
		r.fault = fault
	}
}

// tryLogin is login without a verdict: the server may be dead just now.
func (s *server) tryLogin(user, dev string) (*device, error) {
	conn, err := dialTimeout(s.tcp)
	if err != nil {
		return nil, err
	}
	d := &device{t: s.t, conn: conn}
	if err := d.connect(user, dev, func(c *codec.Connect) { c.WindowMsgs = 16 }); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return d, nil
}

// publisher pushes numbered messages to one user, each until it is accepted, always under the same id.
type publisher struct {
	s          *server
	user, name string
	rng        *rand.Rand
	accepted   atomic.Int64 // numbers 1..accepted have been accepted
	failed     atomic.Int64 // publishes that had to be repeated
	refused    atomic.Int64 // items refused by name; the order of what is sent again is not promised
}

func (p *publisher) id(n int64) string   { return fmt.Sprintf("%s-%s-%d", p.user, p.name, n) }
func (p *publisher) text(n int64) string { return fmt.Sprintf("%s %s %d", p.user, p.name, n) }

// overHTTP publishes one at a time.
func (p *publisher) overHTTP(stop <-chan struct{}) {
	for n := p.accepted.Load() + 1; ; n++ {
		body := map[string]any{"user": p.user, "text": p.text(n), "message_id": p.id(n)}
		for {
			a, err := p.s.call("POST", "/v1/push", body)
			if err == nil && a.Status == 200 {
				p.accepted.Store(n)
				break
			}
			p.failed.Add(1)
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
		select {
		case <-stop:
			return
		default:
		}
	}
}

// overFrames publishes batches with the client library, which reconnects and repeats what was not answered by itself.
func (p *publisher) overFrames(stop <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { <-stop; cancel() }()
	c, err := client.Dial(ctx, client.Options{Addrs: []string{p.s.tcp}, User: "backend-" + p.user, Publisher: true, DialAttempts: -1,
		BackoffBase: 10 * time.Millisecond, BackoffMax: 100 * time.Millisecond})
	if err != nil {
		return // stopped before there was a server to reach
	}
	defer func() { _ = c.Close() }()
	for ctx.Err() == nil {
		var batch []client.Outgoing
		n := p.accepted.Load()
		for range 1 + p.rng.IntN(8) {
			n++
			batch = append(batch, client.Outgoing{ID: p.id(n), User: p.user, Payload: []byte(p.text(n))})
		}
		results, err := c.Publish(ctx, batch...)
		for _, r := range results {
			if _, refused := errors.AsType[*client.ResultError](r.Err); refused {
				p.refused.Add(1)
			}
			if r.Err != nil {
				err = r.Err
			}
		}
		if err != nil {
			p.failed.Add(1) // the whole batch again, under the same ids
			pause(stop, 10*time.Millisecond)
			continue
		}
		p.accepted.Store(n)
		pause(stop, time.Duration(p.rng.IntN(10))*time.Millisecond)
	}
}

// TestCrash kills the gateway at random moments under load: nothing accepted is lost, nobody gets another's message, copies
// carry the same id, first receipts keep the order of their publisher.
func TestCrash(t *testing.T) { crashUnderLoad(t) }

// TestCrashWithIntervalSync: a killed process loses nothing with sync=interval either; only a dead machine may.
func TestCrashWithIntervalSync(t *testing.T) {
	crashUnderLoad(t, "store.sync=interval", "store.sync_interval=1m")
}

func crashUnderLoad(t *testing.T, settings ...string) {
	t.Parallel()
	t.Logf("repeat with -kills=%d -crash-seed=%d", *kills, *crashSeed)
	rng := rand.New(rand.NewPCG(*crashSeed, 1))
	streams := uint64(1)
	random := func() *rand.Rand {
		streams++
		return rand.New(rand.NewPCG(*crashSeed, streams))
	}
	s := start(t, append(settings, "ack.timeout=1s", "login.device_burst=1000", "login.device_per_minute=100000",
		"store.queue_messages_max=1000000", "store.queue_bytes_max=1GiB", "store.segment_bytes=1MiB")...)
	stopPublishing, stopReceiving := make(chan struct{}), make(chan struct{})
	var publishing, receiving sync.WaitGroup
	var offline, all []*receiver
	publishers := map[string][]*publisher{}
	for i, kind := range []string{"online", "online", "flapping", "flapping", "offline", "offline"} {
		user := fmt.Sprintf("%s%d", kind, i)
		for _, dev := range crashDevices {
			s.login(user, dev).logout() // the gateway knows a device from its first login on
			r := &receiver{user: user, device: dev, s: s, flaps: kind == "flapping", seen: map[string]int{}, texts: map[string]string{}, first: map[string][]int{}, rng: random()}
			all = append(all, r)
			if kind == "offline" {
				offline = append(offline, r)
			} else {
				receiving.Go(func() { r.run(stopReceiving) })
			}
		}
		h := &publisher{s: s, user: user, name: "http", rng: random()}
		f := &publisher{s: s, user: user, name: "frames", rng: random()}
		publishers[user] = []*publisher{h, f}
		publishing.Go(func() { h.overHTTP(stopPublishing) })
		publishing.Go(func() { f.overFrames(stopPublishing) })
	}
	for range *kills {
		time.Sleep(time.Duration(50+rng.IntN(700)) * time.Millisecond) // the random moment of the kill
		s.kill()
		if rng.IntN(3) == 0 {
			s.stillborn(time.Duration(rng.IntN(60)) * time.Millisecond)
		}
		s.run()
	}
	close(stopPublishing)
	publishing.Wait()
	for _, r := range offline {
		receiving.Go(func() { r.run(stopReceiving) })
	}
	arrived := func() bool {
		for _, r := range all {
			if r.missing(publishers[r.user]) != "" {
				return false
			}
		}
		return true
	}
	for end := time.Now().Add(60 * time.Second); !arrived() && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
	close(stopReceiving)
	receiving.Wait()
	for _, r := range all {
		r.judge(t, publishers[r.user])
	}
	s.checkLedger()
}

// missing names an accepted message that has not come, or is empty.
func (r *receiver) missing(from []*publisher) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range from {
		for n := int64(1); n <= p.accepted.Load(); n++ {
			if id := p.id(n); r.seen[id] == 0 {
				return id
			}
		}
	}
	return ""
}

func (r *receiver) judge(t *testing.T, from []*publisher) {
	t.Helper()
	if id := r.missing(from); id != "" {
		t.Errorf("%s was accepted and is lost to %s", id, r.device)
	}
	if r.fault != "" {
		t.Error(r.fault)
	}
	var said []string
	for _, p := range from {
		first := r.first[p.name]
		for i := 1; i < len(first) && p.refused.Load() == 0; i++ {
			if first[i] < first[i-1] {
				t.Errorf("%s/%s: first receipts from %s out of order: %d after %d", r.user, r.device, p.name, first[i], first[i-1])
				break
			}
		}
		said = append(said, fmt.Sprintf("%s %d accepted, %d repeated, %d refused", p.name, p.accepted.Load(), p.failed.Load(), p.refused.Load()))
	}
	copies := 0
	for _, c := range r.seen {
		copies += c
	}
	t.Logf("%s/%s: %s; %d distinct received in %d copies", r.user, r.device, strings.Join(said, "; "), len(r.seen), copies)
}
