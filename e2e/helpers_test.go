package e2e

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/client"
)

// inbox is a client of the library that notes what its handler gets.
type inbox struct {
	*client.Client
	mu    sync.Mutex
	texts []string
	ids   map[string]int
}

// listen logs a library client in; change may alter its options. It is closed with the test.
func (s *server) listen(user, dev string, change ...func(*client.Options)) *inbox {
	s.t.Helper()
	b := &inbox{ids: map[string]int{}}
	o := client.Options{Addrs: []string{s.tcp}, User: user, Device: dev, BackoffBase: 20 * time.Millisecond, BackoffMax: 200 * time.Millisecond,
		Handler: func(_ context.Context, m *client.Message) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.texts = append(b.texts, string(m.Payload))
			b.ids[m.ID]++
			return nil
		}}
	for _, f := range change {
		f(&o)
	}
	c, err := client.Dial(context.Background(), o)
	if err != nil {
		s.t.Fatalf("login of %s/%s: %v", user, dev, err)
	}
	b.Client = c
	s.t.Cleanup(func() { _ = c.Close() })
	return b
}

// all is a copy of what came.
func (b *inbox) all() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.texts)
}

// publisher is a library client that publishes only.
func (s *server) publisher(user string) *client.Client {
	s.t.Helper()
	return s.listen(user, "", func(o *client.Options) { o.Publisher, o.Handler = true, nil }).Client
}

// batch makes n pushes to one user with texts prefix0, prefix1 …; extra are more fields of each.
func batch(user, prefix string, n int, extra ...map[string]any) []map[string]any {
	items := make([]map[string]any, 0, n)
	for i := range n {
		m := map[string]any{"user": user, "text": fmt.Sprint(prefix, i)}
		for _, e := range extra {
			maps.Copy(m, e)
		}
		items = append(items, m)
	}
	return items
}

// pushAll sends items in bodies of at most 500 and fails the test unless all were accepted. It returns the message ids.
func (s *server) pushAll(items []map[string]any) (ids []string) {
	s.t.Helper()
	for part := range slices.Chunk(items, 500) {
		a := s.must("POST", "/v1/push", part)
		results, _ := a.Body["results"].([]any)
		if a.Status != 200 || len(results) != len(part) {
			s.t.Fatalf("push of %d: HTTP %d %.300s", len(part), a.Status, a.Raw)
		}
		for _, r := range results {
			m, _ := r.(map[string]any)
			if m["status"] != "accepted" {
				s.t.Fatalf("an item was not accepted: %v", m)
			}
			id, _ := m["message_id"].(string)
			ids = append(ids, id)
		}
	}
	return ids
}

// pulse pushes to a connected user of its own at a steady pace. stop ends it and returns the time from publish to receipt of
// each message, in rising order; a message that did not come fails the test.
func (s *server) pulse(user string, every time.Duration) (stop func() []time.Duration) {
	s.t.Helper()
	d := s.login(user, "pulse")
	ending, ended := make(chan struct{}), make(chan struct{})
	var took []time.Duration
	go func() {
		defer close(ended)
		for n := 0; ; n++ {
			select {
			case <-ending:
				return
			case <-time.After(every):
			}
			begun := time.Now()
			text := fmt.Sprint("pulse ", n)
			if a, err := s.call("POST", "/v1/push", map[string]any{"user": user, "text": text}); err != nil || a.Status != 200 {
				s.t.Errorf("a push to %s failed: %v %s", user, err, a.Raw)
				return
			}
			m, err := d.push(5 * time.Second)
			if err != nil || m.Text != text {
				s.t.Errorf("%s got %q, %v where %q was due", user, m.Text, err, text)
				return
			}
			took = append(took, time.Since(begun))
			d.ack(m)
		}
	}()
	return func() []time.Duration {
		close(ending)
		<-ended
		slices.Sort(took)
		return took
	}
}

// percentile of sorted durations; 0 if there are none.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)*p/100, len(sorted)-1)]
}

// deadLetters returns every dead letter.
func (s *server) deadLetters() (list []map[string]any) {
	s.t.Helper()
	for after := ""; ; {
		path := "/v1/dead-letters?limit=1000"
		if after != "" {
			path += "&after=" + after
		}
		a := s.must("GET", path, nil)
		if a.Status != 200 {
			s.t.Fatalf("dead letters: HTTP %d %s", a.Status, a.Raw)
		}
		page, _ := a.Body["dead_letters"].([]any)
		for _, d := range page {
			m, _ := d.(map[string]any)
			list = append(list, m)
		}
		if after = a.str("next"); after == "" || len(page) == 0 {
			return list
		}
	}
}

// payload of a dead letter.
func payload(letter map[string]any) string {
	text, _ := letter["payload"].(string)
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return "not base64: " + text
	}
	return string(raw)
}

// cpu is the processor time the gateway has used.
func (s *server) cpu() time.Duration {
	s.t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	fields := strings.Fields(rest)
	var ticks int
	for _, f := range fields[11:13] { // utime and stime, in hundredths of a second
		n, err := strconv.Atoi(f)
		if err != nil {
			s.t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// closeWaits counts the gateway's sockets whose peer has closed and which it has not.
func (s *server) closeWaits() int {
	s.t.Helper()
	raw, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		s.t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(s.tcp)
	if err != nil {
		s.t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		s.t.Fatal(err)
	}
	local := fmt.Sprintf(":%04X", n)
	count := 0
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1], local) && f[3] == "08" {
			count++
		}
	}
	return count
}

// proxy stands between clients and the gateway and can go deaf: both TCP connections stay open and nothing passes.
type proxy struct {
	addr string
	mu   sync.Mutex
	gate chan struct{} // closed: bytes pass
	idle time.Duration // a flow silent for this long is forgotten: nothing passes on it any more. 0: never
	took int           // connections accepted
}

// through starts a proxy in front of the gateway.
func (s *server) through() *proxy {
	s.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	p := &proxy{addr: listener.Addr().String(), gate: make(chan struct{})}
	close(p.gate)
	upstreamAddr := s.tcp
	over := make(chan struct{})
	s.t.Cleanup(func() { close(over); _ = listener.Close() })
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", upstreamAddr)
			if err != nil {
				_ = near.Close()
				continue
			}
			p.mu.Lock()
			p.took++
			p.mu.Unlock()
			flow := &flow{last: time.Now()}
			go p.carry(near, far, flow, over)
			go p.carry(far, near, flow, over)
		}
	}()
	return p
}

// flow is one proxied connection.
type flow struct {
	mu        sync.Mutex
	last      time.Time
	forgotten bool
}

// carry copies one direction until an end closes. Bytes of a deaf proxy wait; bytes of a forgotten flow vanish.
func (p *proxy) carry(from, to net.Conn, f *flow, over <-chan struct{}) {
	defer func() { _ = to.Close() }()
	chunk := make([]byte, 16<<10)
	for {
		n, err := from.Read(chunk)
		if err != nil {
			return
		}
		p.mu.Lock()
		gate, idle := p.gate, p.idle
		p.mu.Unlock()
		select {
		case <-gate:
		case <-over:
			_ = from.Close()
			return
		}
		f.mu.Lock()
		if idle > 0 && time.Since(f.last) > idle {
			f.forgotten = true
		}
		f.last = time.Now()
		lost := f.forgotten
		f.mu.Unlock()
		if lost {
			continue
		}
		if _, err := to.Write(chunk[:n]); err != nil {
			_, _ = io.Copy(io.Discard, from)
			return
		}
	}
}

// deafen stops everything that passes; the function it returns lets it go on.
func (p *proxy) deafen() (undo func()) {
	gate := make(chan struct{})
	p.mu.Lock()
	p.gate = gate
	p.mu.Unlock()
	return func() { close(gate) }
}

// connections is how many the proxy has carried.
func (p *proxy) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.took
}

// texts is prefix0 … prefix(n-1).
func texts(prefix string, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprint(prefix, i)
	}
	return list
}

// same fails the test at the first difference of two lists.
func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("%s: number %d is %q, want %q", what, i, got[i], want[i])
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%s: %d, want %d", what, len(got), len(want))
	}
}
