package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"holdfast/client"
	"holdfast/codec"
)

// publishCommand pushes many messages over the TCP port.
type publishCommand struct {
	connectFlags `embed:""`
	Input        string        `arg:"" optional:"" default:"-" help:"File of messages; - or nothing: standard input."`
	User         []string      `placeholder:"USER" help:"Every line is a payload for this user; may be repeated, lines then go to all of them."`
	Type         string        `help:"Type of messages that name none."`
	TTL          string        `name:"ttl" help:"Time to live of messages that name none, for example 10m."`
	Priority     string        `enum:"normal,urgent,bulk" default:"normal" help:"Priority of messages that name none: normal, urgent or bulk."`
	NoAck        bool          `help:"Fire and forget: messages are not stored and not retried."`
	Timeout      time.Duration `default:"60s" help:"How long to wait for answers after the last line."`
	GiveUp       time.Duration `default:"30s" help:"Messages that are refused for now (queue_full, overloaded …) are tried again until nothing was accepted for this long. 0: never again."`
	JSON         bool          `name:"json" help:"Print the totals as JSON."`
}

// Help is the long help of the command.
func (publishCommand) Help() string {
	return `Without --user every line is a JSON object with the fields of POST /v1/push: user or users, text or payload (base64), and
optionally device, message_id, type, conversation, ttl, priority, ack.

Examples:
  seq 1 100000 | holdfast publish --user alice
  echo '{"user":"bob","text":"hello","ttl":"10m"}' | holdfast publish
  holdfast publish messages.ndjson

A message is counted as accepted when the gateway holds it safely. What is refused for now is tried again, under the same id and
behind the others; --give-up ends that. Lines that carry a message_id can be published again after a failure: what was
accepted before is answered duplicate and not delivered twice.
Exit code: 0 all accepted, 1 one or more refused or unanswered, 2 usage.`
}

// publishLine is one line of NDJSON input: the fields of POST /v1/push.
type publishLine struct {
	User         string   `json:"user"`
	Users        []string `json:"users"`
	Device       string   `json:"device"`
	MessageID    string   `json:"message_id"`
	Type         string   `json:"type"`
	Conversation string   `json:"conversation"`
	Payload      []byte   `json:"payload"`
	Text         *string  `json:"text"`
	TTL          string   `json:"ttl"`
	Priority     string   `json:"priority"`
	Ack          *bool    `json:"ack"`
}

// publishTotals counts what became of the messages; its mutex also keeps the lines on standard error whole.
type publishTotals struct {
	mu         sync.Mutex
	Sent       int            `json:"sent"`
	Accepted   int            `json:"accepted"`
	Duplicates int            `json:"duplicates"`
	Refused    int            `json:"refused"`
	Unanswered int            `json:"unanswered"`
	Repeats    int            `json:"repeats"` // times a message was tried again
	BadLines   int            `json:"bad_lines"`
	Reasons    map[string]int `json:"reasons,omitempty"`
	Seconds    float64        `json:"seconds"`
}

const (
	publishBatchMax     = 256     // messages handed to the client at a time
	publishLineBytesMax = 2 << 20 // longest input line: a frame's worth of base64
	complaintsMax       = 10      // single complaints that are printed; the totals say the rest
)

// Run publishes everything and prints the totals.
func (p *publishCommand) Run(ctx context.Context, term *terminal) error {
	in, err := p.open(term)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	o := p.options()
	o.Publisher = true
	if p.Token == "" {
		o.User = "publisher" // a name for the operator; where tokens are used, the token names it
	}
	c, err := client.Dial(ctx, o)
	if err != nil {
		return p.dialError(err)
	}
	defer func() { _ = c.Close() }()
	run := newPublishRun(p, c, term)
	stopProgress := run.showProgress()
	readErr := run.feed(ctx, in)
	waitErr := run.wait(ctx)
	stopProgress()
	if err := run.report(); err != nil {
		return err
	}
	if err := errors.Join(readErr, waitErr); err != nil {
		return err
	}
	if t := &run.totals; t.Refused+t.Unanswered+t.BadLines > 0 {
		return &exitCode{code: exitError}
	}
	return nil
}

// open opens the input.
func (p *publishCommand) open(term *terminal) (io.ReadCloser, error) {
	if p.Input == "-" {
		if term.inTTY {
			fmt.Fprintln(term.err, "reading messages from the terminal, one a line; end with Ctrl-D")
		}
		return io.NopCloser(term.in), nil
	}
	f, err := os.Open(p.Input)
	if err != nil {
		return nil, fmt.Errorf("opening the input: %w", err)
	}
	return f, nil
}

// parse turns one line into messages, one for each user.
func (p *publishCommand) parse(line []byte) ([]client.Outgoing, error) {
	in := publishLine{Users: p.User}
	if len(p.User) > 0 {
		text := string(line)
		in.Text = &text
	} else if err := unmarshalStrict(line, &in); err != nil {
		return nil, fmt.Errorf("not a JSON object of a message (use --user for plain lines): %w", err)
	}
	if in.User != "" {
		in.Users = append(in.Users, in.User)
	}
	if len(in.Users) == 0 {
		return nil, errors.New("no user named")
	}
	msg, err := p.message(&in)
	if err != nil {
		return nil, err
	}
	msgs := make([]client.Outgoing, len(in.Users))
	for i, user := range in.Users {
		msgs[i] = msg
		msgs[i].User = user
	}
	return msgs, nil
}

// unmarshalStrict is json.Unmarshal with unknown fields as errors, as POST /v1/push has them: a misspelled ttl must not be
// a silent default.
func unmarshalStrict(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the object")
	}
	return nil
}

// message fills in what a line leaves to the flags.
func (p *publishCommand) message(in *publishLine) (client.Outgoing, error) {
	msg := client.Outgoing{
		ID: in.MessageID, Device: in.Device, Type: in.Type, Conversation: in.Conversation, Payload: in.Payload,
		NoAck: p.NoAck || (in.Ack != nil && !*in.Ack),
	}
	if in.Text != nil {
		if in.Payload != nil {
			return msg, errors.New("give text or payload, not both")
		}
		msg.Payload = []byte(*in.Text)
	}
	if msg.Type == "" {
		msg.Type = p.Type
	}
	ttl := in.TTL
	if ttl == "" {
		ttl = p.TTL
	}
	if ttl != "" {
		d, err := parseDuration(ttl)
		if err != nil {
			return msg, fmt.Errorf("ttl: %w", err)
		}
		msg.TTL = d
	}
	priority := in.Priority
	if priority == "" {
		priority = p.Priority
	}
	var ok bool
	if msg.Priority, ok = codec.ParsePriority(priority); !ok {
		return msg, fmt.Errorf("priority %q is not one of normal, urgent, bulk", priority)
	}
	return msg, nil
}
