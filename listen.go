package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"holdfast/client"
	"holdfast/codec"
)

// connectFlags are the flags of the commands that log in over the TCP port.
type connectFlags struct {
	Server string `env:"HOLDFAST_SERVER" default:"127.0.0.1:7700" placeholder:"HOST:PORT" help:"TCP port of the gateway (${default}; also HOLDFAST_SERVER)."`
	Token  string `env:"HOLDFAST_TOKEN" placeholder:"JWT" help:"Login token (also HOLDFAST_TOKEN); see holdfast token."`
}

// options are the client's options these flags stand for.
func (f *connectFlags) options() client.Options {
	o := client.Options{Addrs: strings.Split(f.Server, ","), ClientName: "holdfast/" + version}
	if f.Token != "" {
		o.Token = func(context.Context) (string, error) { return f.Token, nil }
	}
	return o
}

// dialError says what to do about a failed login.
func (f *connectFlags) dialError(err error) error {
	var closed *client.CloseError
	switch {
	case errors.As(err, &closed) && closed.Code == codec.CodeUnauthorized:
		return fmt.Errorf("%w; this gateway wants a token: --token or HOLDFAST_TOKEN (holdfast token makes one for tests)", err)
	case errors.As(err, &closed), errors.Is(err, context.Canceled):
		return err
	default:
		return fmt.Errorf("no gateway answers at %s: start one (holdfast serve) or name its address with --server or HOLDFAST_SERVER: %w", f.Server, err)
	}
}

// listenCommand is a device in the terminal.
type listenCommand struct {
	connectFlags `embed:""`
	User         string        `required:"" help:"User to log in as."`
	Device       string        `default:"terminal" help:"Device to log in as; a second login of the same user and device replaces the first."`
	Level        string        `enum:"received,processed,read" default:"processed" help:"Level to acknowledge with: received, processed or read."`
	NoAck        bool          `xor:"answer" help:"Acknowledge nothing: watch timeouts and retries."`
	Nack         time.Duration `xor:"answer" placeholder:"DELAY" help:"Refuse each message for now, to come again after DELAY."`
	Refuse       bool          `xor:"answer" help:"Refuse each message for good: it becomes a dead letter."`
	Count        int           `help:"Exit after this many messages. 0: go on until interrupted."`
	JSON         bool          `name:"json" help:"Print one JSON object a message."`
}

// Help is the long help of the command.
func (listenCommand) Help() string {
	return `Messages go to standard output, one a line: id, type, payload (text, or base64:…), then attempt and flags if there is
something to say. What happens to the connection goes to standard error. It reconnects by itself.

Examples:
  holdfast listen --user alice
  holdfast listen --user alice --device phone --json | jq -r .text
  holdfast listen --user alice --no-ack            # see the copies come
  holdfast listen --user alice --count 1           # wait for one message`
}

// printer writes messages, one at a time.
type printer struct {
	mu      sync.Mutex
	term    *terminal
	json    bool
	left    int // messages until done; 0 at the start: endless
	endless bool
	done    chan struct{} // closed when left has come to zero
}

// Run listens until the context ends, the count is reached, or the server ends the session for good.
func (l *listenCommand) Run(ctx context.Context, term *terminal) error {
	p := &printer{term: term, json: l.JSON, left: l.Count, endless: l.Count <= 0, done: make(chan struct{})}
	o := l.options()
	o.User, o.Device = l.User, l.Device
	o.AckMode = client.AckManual
	if l.NoAck {
		o.DedupSize = -1 // the copies are what one wants to see
	}
	o.Handler = func(_ context.Context, m *client.Message) error { return p.handle(m, l.answer) }
	o.Events = client.Events{Connected: p.connected, Disconnected: p.disconnected, Reconnecting: p.reconnecting}
	c, err := client.Dial(ctx, o)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return l.dialError(err)
	}
	select {
	case <-ctx.Done():
	case <-p.done:
	case <-c.Done():
		return fmt.Errorf("the session ended: %w", c.Err())
	}
	// Messages that are already here are answered before we leave; a silent server must not hold us.
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := c.Shutdown(flush); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("ending the session: %w", err)
	}
	return nil
}

// answer does with a message what the flags say.
func (l *listenCommand) answer(m *client.Message) {
	switch {
	case l.NoAck:
	case l.Refuse:
		m.Refuse("refused by holdfast listen --refuse")
	case l.Nack > 0:
		m.Nack(l.Nack, "refused for now by holdfast listen --nack")
	case l.Level == "received":
		m.AckLevel(codec.LevelReceived)
	case l.Level == "read":
		m.AckLevel(codec.LevelRead)
	default:
		m.Ack()
	}
}

// handle prints a message and only then answers it: what was not shown must come again.
func (p *printer) handle(m *client.Message, answer func(*client.Message)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.endless && p.left == 0 {
		return nil // not answered at all: it waits for the next login without an attempt counted
	}
	if err := p.print(m); err != nil {
		return err
	}
	answer(m)
	if p.left--; !p.endless && p.left == 0 {
		close(p.done)
	}
	return nil
}

// receivedJSON is one message in the JSON output.
type receivedJSON struct {
	MessageID    string    `json:"message_id"`
	RequestID    uint64    `json:"request_id,omitempty"`
	Type         string    `json:"type,omitempty"`
	Conversation string    `json:"conversation,omitempty"`
	Sequence     uint64    `json:"sequence,omitempty"`
	Text         *string   `json:"text,omitempty"`
	Payload      []byte    `json:"payload"` // base64
	Attempt      int       `json:"attempt"`
	Accepted     time.Time `json:"accepted"`
	Priority     string    `json:"priority"`
	Redelivered  bool      `json:"redelivered"`
	FromBacklog  bool      `json:"from_backlog"`
	NoAck        bool      `json:"no_ack"`
}

// print writes one message.
func (p *printer) print(m *client.Message) error {
	var line []byte
	if p.json {
		out := receivedJSON{
			MessageID: m.ID, RequestID: m.RequestID, Type: m.Type, Conversation: m.Conversation, Sequence: m.Sequence,
			Payload: m.Payload, Attempt: m.Attempt, Accepted: m.ServerTime.UTC(), Priority: m.Priority.String(),
			Redelivered: m.Redelivered, FromBacklog: m.FromBacklog, NoAck: m.NoAck,
		}
		if utf8.Valid(m.Payload) {
			text := string(m.Payload)
			out.Text = &text
		}
		var err error
		if line, err = json.Marshal(out); err != nil {
			return fmt.Errorf("printing a message: %w", err)
		}
	} else {
		line = []byte(messageLine(m))
	}
	if _, err := p.term.out.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("printing a message: %w", err)
	}
	return nil
}

// messageLine is a message for people.
func messageLine(m *client.Message) string {
	parts := []string{m.ID}
	if m.Type != "" {
		parts = append(parts, m.Type)
	}
	parts = append(parts, payloadText(m.Payload))
	var notes []string
	if m.Attempt > 1 {
		notes = append(notes, fmt.Sprintf("attempt %d", m.Attempt))
	}
	for _, n := range []struct {
		on   bool
		text string
	}{{m.Redelivered, "redelivered"}, {m.FromBacklog, "from backlog"}, {m.NoAck, "no ack wanted"}, {m.Priority != codec.PriorityNormal, m.Priority.String()}} {
		if n.on {
			notes = append(notes, n.text)
		}
	}
	if len(notes) > 0 {
		parts = append(parts, "("+strings.Join(notes, ", ")+")")
	}
	return strings.Join(parts, "  ")
}

// payloadText shows a payload on one line: as text when it is printable, else in base64. Control characters never reach the
// terminal, where a message could otherwise move the cursor or worse.
func payloadText(payload []byte) string {
	if !utf8.Valid(payload) {
		return "base64:" + base64.StdEncoding.EncodeToString(payload)
	}
	b := &strings.Builder{}
	for _, r := range string(payload) {
		switch {
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			return "base64:" + base64.StdEncoding.EncodeToString(payload)
		}
	}
	return b.String()
}

// connected tells about a login.
func (p *printer) connected(s client.SessionInfo) {
	waiting := ""
	if s.Backlog > 0 {
		waiting = fmt.Sprintf(", %d stored %s coming", s.Backlog, plural(int(min(s.Backlog, 2)), "message is", "messages are"))
	}
	fmt.Fprintf(p.term.err, "connected to %s as %s/%s%s\n", s.Addr, s.User, s.Device, waiting)
}

// disconnected tells about a lost connection; the final one is reported by Run.
func (p *printer) disconnected(err error, final bool) {
	if !final {
		fmt.Fprintf(p.term.err, "disconnected: %v\n", err)
	}
}

// reconnecting tells about the next try.
func (p *printer) reconnecting(attempt int, in time.Duration, addr string) {
	fmt.Fprintf(p.term.err, "reconnecting to %s in %s (try %d)\n", addr, in.Round(10*time.Millisecond), attempt)
}
