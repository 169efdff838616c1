package main

import (
	"bufio"
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

A message is counted as accepted when the gateway holds it safely. Lines that carry a message_id can be published again after
a failure: what was accepted before is answered duplicate and not delivered twice.
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
	run := &publishRun{command: p, client: c, term: term, totals: publishTotals{Reasons: map[string]int{}}, started: time.Now()}
	stopProgress := run.progress()
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

// publishRun is one run of the command.
type publishRun struct {
	command *publishCommand
	client  *client.Client
	term    *terminal
	started time.Time
	totals  publishTotals
	pending sync.WaitGroup // batches without an answer
}

// feed reads the input and hands it to the client in batches. Lines that arrive slowly (a person, a tail -f) are sent at once:
// a batch is cut when the reader has nothing more buffered.
func (r *publishRun) feed(ctx context.Context, in io.Reader) error {
	reader := bufio.NewReaderSize(in, 64<<10)
	var batch []client.Outgoing
	for number := 1; ; number++ {
		line, err := readLine(reader)
		if len(line) > 0 {
			msgs, bad := r.command.parse(line)
			if bad != nil {
				r.complain(fmt.Sprintf("line %d: %v", number, bad), func(t *publishTotals) { t.BadLines++ })
			}
			batch = append(batch, msgs...)
		}
		if len(batch) > 0 && (len(batch) >= publishBatchMax || reader.Buffered() == 0 || err != nil) {
			if sendErr := r.send(ctx, batch); sendErr != nil {
				return sendErr
			}
			batch = nil // the client owns the old one until it is answered
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("line %d: %w", number, err)
		}
	}
}

// readLine returns the next line without its end; err may come together with a last line.
func readLine(reader *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := reader.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > publishLineBytesMax {
			return nil, fmt.Errorf("the line is longer than %s", Size(publishLineBytesMax))
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		for len(line) > 0 && (line[len(line)-1] == '\n' || line[len(line)-1] == '\r') {
			line = line[:len(line)-1]
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return line, fmt.Errorf("reading the input: %w", err)
		}
		return line, err
	}
}

// parse turns one line into messages, one for each user.
func (p *publishCommand) parse(line []byte) ([]client.Outgoing, error) {
	in := publishLine{Users: p.User}
	if len(p.User) > 0 {
		text := string(line)
		in.Text = &text
	} else if err := json.Unmarshal(line, &in); err != nil {
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

// send hands one batch to the client; it blocks while the client's queue is full, which is what bounds our memory.
func (r *publishRun) send(ctx context.Context, batch []client.Outgoing) error {
	r.pending.Add(1)
	r.totals.mu.Lock()
	r.totals.Sent += len(batch)
	r.totals.mu.Unlock()
	err := r.client.PublishAsync(ctx, batch, func(results []client.Result, err error) {
		defer r.pending.Done()
		r.count(batch, results, err)
	})
	if err != nil {
		r.pending.Done()
		r.count(batch, nil, err)
		return fmt.Errorf("publishing: %w", err)
	}
	return nil
}

// count books the results of one batch.
func (r *publishRun) count(batch []client.Outgoing, results []client.Result, err error) {
	for i := range batch {
		result := client.Result{Err: err}
		if i < len(results) {
			result = results[i]
		}
		r.countOne(batch[i].User, &result)
	}
}

// countOne books one result.
func (r *publishRun) countOne(user string, result *client.Result) {
	var refused *client.ResultError
	switch {
	case result.Err == nil && result.Code == codec.ResultDuplicate:
		r.add(func(t *publishTotals) { t.Duplicates++ })
	case result.Err == nil:
		r.add(func(t *publishTotals) { t.Accepted++ })
	case errors.As(result.Err, &refused):
		reason := refused.Code.String()
		r.complain(fmt.Sprintf("message %s to %s was refused: %s", result.MessageID, user, reason),
			func(t *publishTotals) { t.Refused++; t.Reasons[reason]++ })
	default:
		r.add(func(t *publishTotals) { t.Unanswered++ })
	}
}

// add changes the totals.
func (r *publishRun) add(change func(*publishTotals)) {
	r.totals.mu.Lock()
	defer r.totals.mu.Unlock()
	change(&r.totals)
}

// complain changes the totals and prints the first few complaints.
func (r *publishRun) complain(text string, change func(*publishTotals)) {
	r.totals.mu.Lock()
	defer r.totals.mu.Unlock()
	change(&r.totals)
	switch n := r.totals.Refused + r.totals.BadLines; {
	case n <= complaintsMax:
		fmt.Fprintln(r.term.err, r.clear()+text)
	case n == complaintsMax+1:
		fmt.Fprintln(r.term.err, r.clear()+"(further complaints are only counted)")
	}
}

// clear wipes the progress line, where there is one.
func (r *publishRun) clear() string {
	if r.term.errTTY {
		return "\r\x1b[K"
	}
	return ""
}

// wait waits for the answers to everything that was sent.
func (r *publishRun) wait(ctx context.Context) error {
	answered := make(chan struct{})
	go func() { r.pending.Wait(); close(answered) }()
	limit := time.NewTimer(r.command.Timeout)
	defer limit.Stop()
	var reason error
	select {
	case <-answered:
		return nil
	case <-ctx.Done():
		reason = errors.New("interrupted before every message was answered")
	case <-limit.C:
		reason = fmt.Errorf("not every message was answered within %s", r.command.Timeout)
	}
	// Closing the client answers the rest as unanswered, so that the totals add up.
	_ = r.client.Close()
	<-answered
	return reason
}

// progress keeps a line on the terminal up to date until the returned function is called.
func (r *publishRun) progress() (stop func()) {
	if !r.term.errTTY {
		return func() {}
	}
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(200 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-quit:
				fmt.Fprint(r.term.err, r.clear())
				return
			case <-ticker.C:
				r.totals.mu.Lock()
				done := r.totals.Accepted + r.totals.Duplicates
				fmt.Fprintf(r.term.err, "%s%d of %d accepted, %d refused, %.0f/s", r.clear(), done, r.totals.Sent,
					r.totals.Refused, float64(done)/time.Since(r.started).Seconds())
				r.totals.mu.Unlock()
			}
		}
	}()
	return func() { close(quit); <-ended }
}

// report prints the totals.
func (r *publishRun) report() error {
	r.totals.mu.Lock()
	defer r.totals.mu.Unlock()
	t := &r.totals
	t.Seconds = time.Since(r.started).Seconds()
	if r.command.JSON {
		return writeJSON(r.term, t)
	}
	fmt.Fprintf(r.term.out, "%d sent: %d accepted, %d duplicates, %d refused, %d unanswered, %d bad lines in %.2f s (%.0f/s)\n",
		t.Sent, t.Accepted, t.Duplicates, t.Refused, t.Unanswered, t.BadLines, t.Seconds, float64(t.Accepted+t.Duplicates)/t.Seconds)
	for reason, n := range t.Reasons {
		fmt.Fprintf(r.term.out, "  refused %s: %d\n", reason, n)
	}
	return nil
}
