package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"holdfast/client"
	"holdfast/codec"
)

// publishRun is one run of the command.
type publishRun struct {
	command *publishCommand
	client  *client.Client
	term    *terminal
	started time.Time
	totals  publishTotals
	pending sync.WaitGroup // batches without an answer

	// Guarded by totals.mu.
	again    []client.Outgoing // refused for now
	progress time.Time         // when a message was last accepted
	delay    time.Duration     // before the next repetition
}

const (
	repeatDelayMin = 100 * time.Millisecond
	repeatDelayMax = 2 * time.Second
)

func newPublishRun(p *publishCommand, c *client.Client, term *terminal) *publishRun {
	now := time.Now()
	return &publishRun{
		command: p, client: c, term: term, started: now, progress: now, delay: repeatDelayMin,
		totals: publishTotals{Reasons: map[string]int{}},
	}
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
			r.totals.mu.Lock()
			r.totals.Sent += len(batch)
			r.totals.mu.Unlock()
			if sendErr := r.sendBehindRepeats(ctx, batch); sendErr != nil {
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

// send hands one batch to the client; it blocks while the client's queue is full, which is what bounds our memory.
func (r *publishRun) send(ctx context.Context, batch []client.Outgoing) error {
	r.pending.Add(1)
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
		r.countOne(&batch[i], &result)
	}
}

// sendBehindRepeats sends a batch, first once more what was refused for now: while the gateway has no room it gets nothing new.
func (r *publishRun) sendBehindRepeats(ctx context.Context, batch []client.Outgoing) error {
	if _, err := r.repeat(ctx); err != nil {
		r.count(batch, nil, err)
		return err
	}
	return r.send(ctx, batch)
}

// repeat waits a little and sends again what was refused for now; false: there is nothing.
func (r *publishRun) repeat(ctx context.Context) (bool, error) {
	r.totals.mu.Lock()
	batch, delay := r.again, r.delay
	r.again = nil
	if len(batch) > 0 {
		r.delay = min(2*r.delay, repeatDelayMax)
		r.totals.Repeats += len(batch)
	}
	r.totals.mu.Unlock()
	if len(batch) == 0 {
		return false, nil
	}
	select {
	case <-ctx.Done():
		r.add(func(t *publishTotals) { t.Unanswered += len(batch) })
		return false, errors.New("interrupted while messages that were refused for now waited")
	case <-time.After(delay):
	}
	for len(batch) > 0 {
		n := min(len(batch), publishBatchMax)
		if err := r.send(ctx, batch[:n:n]); err != nil {
			r.add(func(t *publishTotals) { t.Unanswered += len(batch) - n })
			return false, err
		}
		batch = batch[n:]
	}
	return true, nil
}

// countOne books one result, or keeps the message for another try.
func (r *publishRun) countOne(msg *client.Outgoing, result *client.Result) {
	var refused *client.ResultError
	switch {
	case result.Err == nil && result.Code == codec.ResultDuplicate:
		r.add(func(t *publishTotals) { t.Duplicates++; r.progressed() })
	case result.Err == nil:
		r.add(func(t *publishTotals) { t.Accepted++; r.progressed() })
	case errors.As(result.Err, &refused):
		if refused.Retry() && r.keep(msg, result.MessageID) {
			return
		}
		reason := refused.Code.String()
		r.complain(fmt.Sprintf("message %s to %s was refused: %s", result.MessageID, msg.User, reason),
			func(t *publishTotals) { t.Refused++; t.Reasons[reason]++ })
	default:
		r.add(func(t *publishTotals) { t.Unanswered++ })
	}
}

// progressed notes that the gateway takes messages. Called under totals.mu.
func (r *publishRun) progressed() { r.progress, r.delay = time.Now(), repeatDelayMin }

// keep puts a message that was refused for now aside for another try under the same id; false: enough was tried.
func (r *publishRun) keep(msg *client.Outgoing, id string) bool {
	r.totals.mu.Lock()
	defer r.totals.mu.Unlock()
	if time.Since(r.progress) >= r.command.GiveUp {
		return false
	}
	repeated := *msg
	repeated.ID = id
	r.again = append(r.again, repeated)
	return true
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

// wait waits for the answers to everything that was sent, and repeats what was refused for now.
func (r *publishRun) wait(ctx context.Context) error {
	for {
		if err := r.answers(ctx); err != nil {
			return err
		}
		if more, err := r.repeat(ctx); err != nil || !more {
			return err
		}
	}
}

// answers waits for the answers to everything that was sent.
func (r *publishRun) answers(ctx context.Context) error {
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
	r.totals.mu.Lock()
	defer r.totals.mu.Unlock()
	r.totals.Unanswered += len(r.again)
	r.again = nil
	return reason
}

// showProgress keeps a line on the terminal up to date until the returned function is called.
func (r *publishRun) showProgress() (stop func()) {
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
	fmt.Fprintf(r.term.out, "%d sent: %d accepted, %d duplicates, %d refused, %d unanswered, %d bad lines, %d repeats in %.2f s (%.0f/s)\n",
		t.Sent, t.Accepted, t.Duplicates, t.Refused, t.Unanswered, t.BadLines, t.Repeats, t.Seconds, float64(t.Accepted+t.Duplicates)/t.Seconds)
	for _, reason := range slices.Sorted(maps.Keys(t.Reasons)) {
		fmt.Fprintf(r.term.out, "  refused %s: %d\n", reason, t.Reasons[reason])
	}
	return nil
}
