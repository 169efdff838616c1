package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/codec"
)

// fakeNode speaks the server's side of the protocol for one connection at a time.
type fakeNode struct {
	net.Listener
	pushes [][]byte                              // encoded PUSH frames sent after WELCOME
	result func(*codec.PublishItem) codec.Result // answer for each published item; nil: no answers
	refuse codec.Code                            // answer of a login; CodeNone: WELCOME

	mu      sync.Mutex
	connect []codec.Connect // logins seen (names copied into users, tokens)
	users   []string
	tokens  []string
	acks    []codec.Ack
	nacks   []codec.Nack
	items   []string // user=payload of what was published
}

func newFakeNode(t *testing.T) *fakeNode {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &fakeNode{Listener: l}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.serve(t, c)
			_ = c.Close()
		}
	})
	t.Cleanup(func() { _ = l.Close(); conns.Wait() })
	return n
}

// serve handles frames until the client goes away.
func (n *fakeNode) serve(t *testing.T, c net.Conn) {
	var buf []byte
	chunk := make([]byte, 64<<10)
	for {
		f, used, err := codec.Parse(buf, codec.FrameBytesDefault)
		if err != nil {
			t.Errorf("the client sent no frame: %v", err)
			return
		}
		if used == 0 {
			k, err := c.Read(chunk)
			if err != nil {
				return
			}
			buf = append(buf, chunk[:k]...)
			continue
		}
		reply, end := n.frame(t, f)
		buf = buf[used:]
		if _, err := c.Write(reply); err != nil || end {
			return
		}
	}
}

// frame answers one frame.
func (n *fakeNode) frame(t *testing.T, f codec.Frame) (reply []byte, end bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var err error
	switch f.Type {
	case codec.TypeConnect:
		var c codec.Connect
		err = codec.DecodeConnect(f, &c)
		n.connect = append(n.connect, c)
		n.users, n.tokens = append(n.users, string(c.User)+"/"+string(c.Device)), append(n.tokens, string(c.Token))
		if n.refuse != codec.CodeNone {
			return codec.AppendClose(nil, &codec.Close{Code: n.refuse, Reason: []byte("as the test wants")}), true
		}
		reply = codec.AppendWelcome(nil, &codec.Welcome{
			SessionID: 1, RequestIDBase: 1000, KeepaliveS: 60, AckTimeoutMs: 10000, WindowMsgs: 64, WindowBytes: 1 << 18,
			PublishWindow: 4, FrameBytesMax: codec.FrameBytesDefault, ServerTimeMs: uint64(time.Now().UnixMilli()),
			Backlog: uint64(len(n.pushes)), Node: []byte("fake"), User: c.User, Device: c.Device,
		})
		for _, p := range n.pushes {
			reply = append(reply, p...)
		}
	case codec.TypeAck:
		var a codec.Ack
		err = codec.DecodeAck(f, &a)
		n.acks = append(n.acks, a)
	case codec.TypeNack:
		var x codec.Nack
		err = codec.DecodeNack(f, &x)
		n.nacks = append(n.nacks, x)
	case codec.TypePing:
		reply = codec.AppendPong(nil, f.Body)
	case codec.TypePublish:
		reply, err = n.publish(f)
	case codec.TypeClose:
		return nil, true
	}
	if err != nil {
		t.Errorf("frame %s: %v", f.Type, err)
	}
	return reply, false
}

// publish answers one PUBLISH frame.
func (n *fakeNode) publish(f codec.Frame) ([]byte, error) {
	var p codec.Publish
	if err := codec.DecodePublish(f, &p); err != nil {
		return nil, err
	}
	var w codec.PublishedWriter
	w.Reset(p.Number)
	for {
		var it codec.PublishItem
		ok, err := p.Next(&it)
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		n.items = append(n.items, string(it.User)+"="+string(it.Payload))
		if n.result != nil {
			w.Add(&codec.ItemResult{Result: n.result(&it), MessageID: it.MessageID})
		}
	}
	if n.result == nil {
		return nil, nil
	}
	return w.AppendTo(nil), nil
}

// push encodes a PUSH.
func push(number uint64, id, payload string) []byte {
	return codec.AppendPush(nil, &codec.Push{Number: number, Attempt: 1, ServerTimeMs: 1, MessageID: []byte(id), Type: []byte("text"), Payload: []byte(payload)})
}

func TestListenPrintsThenAcknowledges(t *testing.T) {
	n := newFakeNode(t)
	n.pushes = [][]byte{push(1, "m1", "hello"), push(2, "m2", "two\nlines"), push(3, "m3", "\xff\x00")}
	r := command(t, "", "listen", "--server", n.Addr().String(), "--user", "alice", "--token", "tok", "--count", "3")
	r.want(t, 0, "m1  text  hello\n", `m2  text  two\nlines`, "m3  text  base64:/wA=", "as alice/terminal, 3 stored messages are coming")
	n.mu.Lock()
	defer n.mu.Unlock()
	confirmed := uint64(0)
	for _, a := range n.acks {
		if a.Level != codec.LevelProcessed {
			t.Errorf("level %s", a.Level)
		}
		a.Ranges(func(r codec.Range) bool { confirmed += r.Count; return true })
		if a.Kind == codec.AckUpTo {
			confirmed = max(confirmed, a.From)
		}
	}
	if confirmed != 3 || n.users[0] != "alice/terminal" || n.tokens[0] != "tok" {
		t.Errorf("%d confirmed, logins %v with %v", confirmed, n.users, n.tokens)
	}
}

func TestListenAnswersAsAsked(t *testing.T) {
	for _, test := range []struct {
		flag  string
		check func(*fakeNode) bool
	}{
		{"--no-ack", func(n *fakeNode) bool { return len(n.acks) == 0 && len(n.nacks) == 0 }},
		{"--nack=5s", func(n *fakeNode) bool { return len(n.nacks) == 1 && n.nacks[0].DelayMs == 5000 && !n.nacks[0].Never }},
		{"--refuse", func(n *fakeNode) bool { return len(n.nacks) == 1 && n.nacks[0].Never }},
		{"--level=received", func(n *fakeNode) bool { return len(n.acks) == 1 && n.acks[0].Level == codec.LevelReceived }},
		{"--level=read", func(n *fakeNode) bool { return len(n.acks) == 1 && n.acks[0].Level == codec.LevelRead }},
	} {
		t.Run(test.flag, func(t *testing.T) {
			n := newFakeNode(t)
			n.pushes = [][]byte{push(1, "m1", "hello")}
			command(t, "", "listen", "--server", n.Addr().String(), "--user", "alice", "--count", "1", test.flag).want(t, 0, "m1  text  hello")
			n.mu.Lock()
			defer n.mu.Unlock()
			if !test.check(n) {
				t.Errorf("acks %v, nacks %v", n.acks, n.nacks)
			}
		})
	}
}

// What is beyond the count was not refused: a NACK would use up an attempt of its life at each run.
func TestListenLeavesWhatIsBeyondItsCount(t *testing.T) {
	n := newFakeNode(t)
	n.pushes = [][]byte{push(1, "m1", "hello"), push(2, "m2", "later"), push(3, "m3", "later")}
	r := command(t, "", "listen", "--server", n.Addr().String(), "--user", "alice", "--count", "1")
	r.want(t, 0, "m1  text  hello")
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.acks) != 1 || len(n.nacks) != 0 || strings.Contains(r.out, "later") {
		t.Errorf("acks %v, nacks %v, out %s", n.acks, n.nacks, r.out)
	}
}

func TestListenPrintsJSON(t *testing.T) {
	n := newFakeNode(t)
	n.pushes = [][]byte{push(1, "m1", "hello")}
	r := command(t, "", "listen", "--server", n.Addr().String(), "--user", "alice", "--count", "1", "--json")
	var m receivedJSON
	if err := json.Unmarshal([]byte(r.out), &m); err != nil {
		t.Fatalf("%v: %s", err, r.out)
	}
	if m.MessageID != "m1" || m.RequestID != 1001 || m.Text == nil || *m.Text != "hello" || string(m.Payload) != "hello" || m.Priority != "normal" {
		t.Errorf("message %+v", m)
	}
}

func TestListenSaysWhyItCannotLogIn(t *testing.T) {
	n := newFakeNode(t)
	n.refuse = codec.CodeUnauthorized
	command(t, "", "listen", "--server", n.Addr().String(), "--user", "alice").want(t, exitError, "HOLDFAST_TOKEN")
	gone := newFakeNode(t)
	_ = gone.Close()
	command(t, "", "listen", "--server", gone.Addr().String(), "--user", "alice").want(t, exitError, "holdfast serve", gone.Addr().String())
}

func TestPublishPlainLines(t *testing.T) {
	n := newFakeNode(t)
	n.result = func(*codec.PublishItem) codec.Result { return codec.ResultAccepted }
	r := command(t, "one\ntwo\r\n\nthree", "publish", "--server", n.Addr().String(), "--user", "alice", "--user", "bob")
	r.want(t, 0, "6 sent: 6 accepted")
	n.mu.Lock()
	defer n.mu.Unlock()
	if got := strings.Join(n.items, " "); got != "alice=one bob=one alice=two bob=two alice=three bob=three" {
		t.Errorf("published %s", got)
	}
	if n.connect[0].Capabilities&codec.CapPublisher == 0 {
		t.Error("not logged in as a publisher")
	}
}

func TestPublishCountsRefusals(t *testing.T) {
	n := newFakeNode(t)
	n.result = func(it *codec.PublishItem) codec.Result {
		switch string(it.User) {
		case "full":
			return codec.ResultQueueFull
		case "again":
			return codec.ResultDuplicate
		}
		return codec.ResultAccepted
	}
	lines := `{"user":"alice","text":"a","ttl":"10m","priority":"bulk","ack":false}
{"users":["again","full"],"payload":"aGk=","message_id":"m1"}
{"user":"alice"
{"text":"nobody"}
{"user":"alice","text":"x","priority":"high"}
{"user":"alice","text":"x","priorty":"urgent"}
{"user":"alice","text":"x"} {"user":"bob"}
`
	file := filepath.Join(t.TempDir(), "in.ndjson")
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	r := command(t, "", "publish", "--server", n.Addr().String(), "--json", "--give-up", "0s", file)
	r.want(t, exitError, "line 3: not a JSON object", "line 4: no user named", `line 5: priority "high"`, `line 6: not a JSON object of a message (use --user for plain lines): json: unknown field "priorty"`, "line 7: ", "message m1 to full was refused: queue_full")
	var totals publishTotals
	if err := json.Unmarshal([]byte(r.out), &totals); err != nil {
		t.Fatalf("%v: %s", err, r.out)
	}
	if totals.Sent != 3 || totals.Accepted != 1 || totals.Duplicates != 1 || totals.Refused != 1 || totals.BadLines != 5 || totals.Reasons["queue_full"] != 1 {
		t.Errorf("totals %+v", &totals)
	}
}

func TestPublishRepeatsWhatIsRefusedForNow(t *testing.T) {
	n := newFakeNode(t)
	tries := map[string]int{} // by message id; on the node's goroutine
	n.result = func(it *codec.PublishItem) codec.Result {
		if tries[string(it.MessageID)]++; string(it.Payload) == "two" && tries[string(it.MessageID)] < 3 {
			return codec.ResultQueueFull
		}
		return codec.ResultAccepted
	}
	command(t, "one\ntwo\nthree\n", "publish", "--server", n.Addr().String(), "--user", "alice").
		want(t, 0, "3 sent: 3 accepted, 0 duplicates, 0 refused, 0 unanswered, 0 bad lines, 2 repeats")
}

func TestPublishGivesUpOnAFullQueue(t *testing.T) {
	n := newFakeNode(t)
	n.result = func(*codec.PublishItem) codec.Result { return codec.ResultQueueFull }
	command(t, "one\n", "publish", "--server", n.Addr().String(), "--user", "alice", "--give-up", "150ms").
		want(t, exitError, "1 sent: 0 accepted", "refused queue_full: 1")
}

func TestPublishCountsWhatIsNotAnswered(t *testing.T) {
	n := newFakeNode(t)
	r := command(t, "one\n", "publish", "--server", n.Addr().String(), "--user", "alice", "--timeout", "200ms")
	r.want(t, exitError, "1 unanswered", "not every message was answered within 200ms")
}

func TestReadLineBoundsALine(t *testing.T) {
	p := newPublishRun(&publishCommand{}, nil, &terminal{err: io.Discard})
	err := p.feed(context.Background(), strings.NewReader(strings.Repeat("x", publishLineBytesMax+1)))
	if err == nil || !strings.Contains(err.Error(), "longer than 2MiB") {
		t.Errorf("error is %v", err)
	}
}

func TestDialErrorsOfAnInterruptedCommandStayQuiet(t *testing.T) {
	f := &connectFlags{Server: "x:1"}
	if err := f.dialError(context.Canceled); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "holdfast serve") {
		t.Errorf("error is %v", err)
	}
	closed := &client.CloseError{Code: codec.CodeOverloaded}
	if err := f.dialError(closed); !errors.Is(err, closed) {
		t.Errorf("error is %v", err)
	}
}
