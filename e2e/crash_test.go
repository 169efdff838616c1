package e2e

import (
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

	"holdfast/codec"
)

// kills and crashSeed steer TestCrash: `make crash-long` asks for 50 and more, CI runs the short default.
var (
	kills     = flag.Int("kills", 6, "how often TestCrash kills the gateway with -9")
	crashSeed = flag.Uint64("crash-seed", uint64(time.Now().UnixNano()), "random seed of TestCrash")
)

// receiver is one user of the crash test: it logs in, reads, acknowledges (or not), goes away, comes back.
type receiver struct {
	name  string
	s     *server
	rng   *rand.Rand
	flaps bool // goes away at random, sometimes without acknowledging

	mu    sync.Mutex
	first []int          // number of each message in order of first receipt
	seen  map[string]int // message id -> copies
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
	d, err := r.s.tryLogin(r.name, "phone")
	if err != nil {
		pause(stop, time.Duration(10+r.rng.IntN(40))*time.Millisecond)
		return
	}
	defer d.fin()
	left := 1 << 30
	if r.flaps {
		left = 1 + r.rng.IntN(30)
	}
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

// note books a received copy. The text is "user number".
func (r *receiver) note(m message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	user, number, _ := strings.Cut(m.Text, " ")
	n, err := strconv.Atoi(number)
	switch {
	case err != nil || user != r.name:
		r.blame(fmt.Sprintf("%s got %q", r.name, m.Text))
	case r.texts[m.ID] != "" && r.texts[m.ID] != m.Text:
		r.blame(fmt.Sprintf("id %s came with two texts, %q and %q", m.ID, r.texts[m.ID], m.Text))
	}
	if r.seen[m.ID]++; r.seen[m.ID] == 1 {
		r.texts[m.ID] = m.Text
		r.first = append(r.first, n)
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
	s        *server
	user     string
	accepted atomic.Int64 // numbers 1..accepted have been accepted
	errors   atomic.Int64
}

func (p *publisher) run(stop <-chan struct{}) {
	for n := p.accepted.Load() + 1; ; n++ {
		body := map[string]any{"user": p.user, "text": fmt.Sprintf("%s %d", p.user, n), "message_id": fmt.Sprintf("%s-%d", p.user, n)}
		for {
			a, err := p.s.call("POST", "/v1/push", body)
			if err == nil && a.Status == 200 {
				p.accepted.Store(n)
				break
			}
			p.errors.Add(1)
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

// TestCrash kills the gateway at random moments under load: nothing accepted is lost, nobody gets another's message, copies
// carry the same id, first receipts keep the order of their publisher.
func TestCrash(t *testing.T) {
	t.Logf("repeat with -kills=%d -crash-seed=%d", *kills, *crashSeed)
	rng := rand.New(rand.NewPCG(*crashSeed, 1))
	s := start(t, "ack.timeout=1s", "login.device_burst=1000", "login.device_per_minute=100000")
	stopPublishing, stopReceiving := make(chan struct{}), make(chan struct{})
	var publishing, receiving sync.WaitGroup
	var receivers []*receiver
	var publishers []*publisher
	for i, kind := range []string{"online", "online", "flapping", "flapping", "offline", "offline"} {
		name := fmt.Sprintf("%s%d", kind, i)
		r := &receiver{name: name, s: s, flaps: kind == "flapping", seen: map[string]int{}, texts: map[string]string{},
			rng: rand.New(rand.NewPCG(*crashSeed, uint64(i+2)))}
		receivers = append(receivers, r)
		if kind != "offline" {
			receiving.Go(func() { r.run(stopReceiving) })
		}
		p := &publisher{s: s, user: name}
		publishers = append(publishers, p)
		publishing.Go(func() { p.run(stopPublishing) })
	}
	for range *kills {
		time.Sleep(time.Duration(50+rng.IntN(700)) * time.Millisecond)
		s.crash()
	}
	close(stopPublishing)
	publishing.Wait()
	for _, r := range receivers {
		if strings.HasPrefix(r.name, "offline") {
			receiving.Go(func() { r.run(stopReceiving) })
		}
	}
	eventually(t, 60*time.Second, "everything accepted has arrived", func() bool {
		for i, r := range receivers {
			if r.missing(publishers[i].accepted.Load()) != "" {
				return false
			}
		}
		return true
	})
	close(stopReceiving)
	receiving.Wait()
	for i, r := range receivers {
		r.judge(t, publishers[i])
	}
	s.checkLedger()
}

// missing names an accepted message that has not come, or is empty.
func (r *receiver) missing(accepted int64) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := int64(1); n <= accepted; n++ {
		if id := fmt.Sprintf("%s-%d", r.name, n); r.seen[id] == 0 {
			return id
		}
	}
	return ""
}

func (r *receiver) judge(t *testing.T, p *publisher) {
	t.Helper()
	if id := r.missing(p.accepted.Load()); id != "" {
		t.Errorf("%s was accepted and is lost", id)
	}
	if r.fault != "" {
		t.Error(r.fault)
	}
	for i := 1; i < len(r.first); i++ {
		if r.first[i] < r.first[i-1] {
			t.Errorf("%s: first receipts out of order: %d after %d", r.name, r.first[i], r.first[i-1])
			break
		}
	}
	copies := 0
	for _, c := range r.seen {
		copies += c
	}
	t.Logf("%s: %d accepted, %d distinct received in %d copies, %d refused or failed publishes", r.name, p.accepted.Load(), len(r.seen), copies, p.errors.Load())
}
