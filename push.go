package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Exit codes of push beside the common ones.
const (
	exitWaiting     = 3 // accepted and still in flight when the time was over
	exitUndelivered = 4 // accepted, then ended without an ACK: expired, cancelled or dead-lettered
	exitUnreachable = 5 // nobody answered: whether it was accepted is unknown
)

// pushCommand pushes one message and waits for what becomes of it.
type pushCommand struct {
	apiFlags     `embed:""`
	Message      string        `arg:"" optional:"" help:"Payload as text. Without it, --text and --payload-file: standard input."`
	Text         *string       `placeholder:"TEXT" help:"Payload as text; --text=-x also when it starts with a dash."`
	PayloadFile  string        `placeholder:"FILE" help:"Payload from a file (- for standard input)."`
	User         []string      `required:"" help:"User to push to; may be repeated."`
	Device       string        `help:"Only this device of the user; default every device."`
	ID           string        `name:"id" placeholder:"ID" help:"Message id, 1 to 64 bytes; the same id again is answered duplicate. Default random."`
	Type         string        `help:"Type of the message, for the client."`
	Conversation string        `help:"Conversation it belongs to."`
	TTL          string        `name:"ttl" help:"Time to live, for example 10m; default and most: the gateway's retention."`
	Priority     string        `enum:"normal,urgent,bulk" default:"normal" help:"normal, urgent or bulk."`
	NoAck        bool          `help:"Fire and forget: neither stored nor retried, and no outcome to wait for."`
	NoWait       bool          `help:"Return as soon as the gateway has accepted it."`
	Timeout      time.Duration `default:"10s" help:"How long to wait for the outcome."`
	JSON         bool          `name:"json" help:"Print the outcome as JSON."`
}

// Help is the long help of the command.
func (pushCommand) Help() string {
	return `Prints the message id and its outcome, for example "acked by alice/phone in 1.8 ms" or "stored: bob is not connected; it is
delivered at his next login".

Examples:
  holdfast push --user alice 'hello'
  holdfast push --user alice --user bob --type alert --ttl 10m --priority urgent 'the house is on fire'
  date | holdfast push --user alice --id daily-2026-12-01
  holdfast push --user alice --payload-file picture.bin --json

Exit codes: 0 acknowledged by every device, or stored for those that are not connected; 1 refused; 2 usage; 3 accepted, no outcome
within --timeout; 4 ended without an ACK (expired, cancelled, dead-lettered); 5 no gateway answered, so use the same --id again.`
}

// pushBody is the body of POST /v1/push.
type pushBody struct {
	Users        []string `json:"users"`
	Device       string   `json:"device,omitempty"`
	MessageID    string   `json:"message_id"`
	Type         string   `json:"type,omitempty"`
	Conversation string   `json:"conversation,omitempty"`
	Payload      []byte   `json:"payload"`
	TTL          string   `json:"ttl,omitempty"`
	Priority     string   `json:"priority,omitempty"`
	Ack          *bool    `json:"ack,omitempty"`
	Wait         string   `json:"wait"`
	Timeout      string   `json:"timeout,omitempty"`
}

// Run pushes and reports.
func (p *pushCommand) Run(ctx context.Context, term *terminal) error {
	body, err := p.body(term)
	if err != nil {
		return err
	}
	if p.NoAck || p.NoWait {
		var reply json.RawMessage
		if err := p.call(ctx, http.MethodPost, "/v1/push", body, &reply); err != nil {
			return pushError(body.MessageID, err)
		}
		if p.JSON {
			return writeJSON(term, reply)
		}
		fmt.Fprintf(term.out, "%s\naccepted\n", body.MessageID)
		return nil
	}
	reply, message, took, err := p.outcome(ctx, body)
	if err != nil {
		return pushError(body.MessageID, err)
	}
	return p.tell(term, reply, message, took)
}

// body makes the request.
func (p *pushCommand) body(term *terminal) (*pushBody, error) {
	payload, err := p.payload(term)
	if err != nil {
		return nil, err
	}
	if p.TTL != "" {
		if _, err := parseDuration(p.TTL); err != nil {
			return nil, &exitCode{exitUsage, fmt.Errorf("--ttl: %w", err)}
		}
	}
	b := &pushBody{
		Users: p.User, Device: p.Device, MessageID: p.ID, Type: p.Type, Conversation: p.Conversation,
		Payload: payload, TTL: p.TTL, Priority: p.Priority, Wait: "accepted",
	}
	if b.MessageID == "" {
		// The id is made here and not by the gateway, so that a push whose answer was lost can be repeated and traced.
		b.MessageID = strings.ToLower(rand.Text())[:20]
	}
	switch {
	case p.NoAck:
		no := false
		b.Ack = &no
	case !p.NoWait:
		b.Wait, b.Timeout = "delivered", min(firstLook, p.Timeout).String()
	}
	return b, nil
}

// payload finds the payload in the one place it was given.
func (p *pushCommand) payload(term *terminal) ([]byte, error) {
	given := 0
	for _, on := range []bool{p.Message != "", p.Text != nil, p.PayloadFile != ""} {
		if on {
			given++
		}
	}
	switch {
	case given > 1:
		return nil, &exitCode{exitUsage, errors.New("give the payload once: as an argument, with --text or with --payload-file")}
	case p.Message != "":
		return []byte(p.Message), nil
	case p.Text != nil:
		return []byte(*p.Text), nil
	case p.PayloadFile != "":
		return readInput(term, p.PayloadFile)
	case term.inTTY:
		return nil, &exitCode{exitUsage, errors.New("no payload: give it as an argument, with --text, with --payload-file or on standard input")}
	default:
		return readInput(term, "-")
	}
}

// pushError is an error of the push with the exit code it ends the command with.
func pushError(id string, err error) error {
	if _, ok := errors.AsType[*unreachableError](err); ok || errors.Is(err, context.Canceled) {
		return &exitCode{exitUnreachable, fmt.Errorf("%w\nwhether message %s was accepted is unknown: push it again with --id %s, it will not be delivered twice", err, id, id)}
	}
	return err
}

const (
	stateAcked   = "ACKED"
	stateOffline = "OFFLINE_BUFFERED"
)

// firstLook is how long the push itself waits for its outcome: a healthy device has answered by then, and when nobody is there
// a person still finds the answer quick. Later answers are waited for by lookMax, between which we see who has gone away.
const (
	firstLook = 250 * time.Millisecond
	lookMax   = time.Second
)

// outcome pushes, and returns how the message stands when every delivery has ended, when only deliveries to absent devices are
// left, or when the time is over. took is how long it took when the push itself brought the outcome along, else 0.
func (p *pushCommand) outcome(ctx context.Context, body *pushBody) (reply *pushReply, m *messageReply, took time.Duration, err error) {
	started := time.Now()
	reply = &pushReply{}
	if err := p.call(ctx, http.MethodPost, "/v1/push", body, reply); err != nil {
		return nil, nil, 0, err
	}
	if reply.Complete && reply.Status != "duplicate" {
		took = time.Duration(reply.WaitedMs * float64(time.Millisecond)) // finer than the times of the message
	}
	wait := time.Duration(0)
	for {
		if m, err = p.message(ctx, body.MessageID, wait); err != nil {
			if ctx.Err() != nil {
				err = &exitCode{exitWaiting, fmt.Errorf("interrupted; holdfast trace %s tells what becomes of it", body.MessageID)}
			}
			return nil, nil, 0, fmt.Errorf("message %s was accepted, its outcome could not be asked for: %w", body.MessageID, err)
		}
		left := p.Timeout - time.Since(started)
		if m.settled() || left <= 0 {
			return reply, m, took, nil
		}
		took, wait = 0, min(left, lookMax)
	}
}

// message asks how a message stands; with wait it answers when every delivery has ended, or after that time.
func (f *apiFlags) message(ctx context.Context, id string, wait time.Duration) (*messageReply, error) {
	path := "/v1/messages/" + url.PathEscape(id)
	if wait > 0 {
		path += "?wait=ended&timeout=" + wait.Round(time.Millisecond).String()
	}
	var m messageReply
	if err := f.call(ctx, http.MethodGet, path, nil, &m); err != nil {
		return nil, err
	}
	return &m, nil
}

// pushReply is the part of the answer of POST /v1/push that the message itself does not tell.
type pushReply struct {
	Status     string  `json:"status"`    // accepted, duplicate, partial
	Complete   bool    `json:"complete"`  // every delivery has ended
	WaitedMs   float64 `json:"waited_ms"` // how long that took
	Deliveries []struct {
		User           string    `json:"user"`
		Error          *apiError `json:"error"`
		RefusedBy      string    `json:"refused_by"`
		RefusedDevices []string  `json:"refused_devices"`
	} `json:"deliveries"`
}

// refusals lists what was refused while the rest was accepted.
func (r *pushReply) refusals() []string {
	var lines []string
	for _, d := range r.Deliveries {
		if d.Error != nil {
			lines = append(lines, fmt.Sprintf("refused for %s: %v", d.User, d.Error))
		}
		for _, device := range d.RefusedDevices {
			lines = append(lines, fmt.Sprintf("refused for %s/%s: %s", d.User, device, d.RefusedBy))
		}
	}
	return lines
}

// tell prints the outcome and returns the exit code for it.
func (p *pushCommand) tell(term *terminal, reply *pushReply, m *messageReply, took time.Duration) error {
	refused := reply.refusals()
	if p.JSON {
		if err := writeJSON(term, m.raw); err != nil {
			return err
		}
	} else {
		fmt.Fprintln(term.out, m.MessageID)
		if reply.Status == "duplicate" {
			fmt.Fprintln(term.out, "duplicate: this id was accepted before; nothing is sent again")
		}
		for i := range m.Deliveries {
			fmt.Fprintln(term.out, m.Deliveries[i].outcome(took))
		}
	}
	for _, line := range refused {
		fmt.Fprintln(term.err, line)
	}
	code := m.exitCode()
	if len(refused) > 0 {
		code = exitError
	}
	if code != exitOK {
		return &exitCode{code: code}
	}
	return nil
}

// exitCode is what a push with this outcome ends with.
func (m *messageReply) exitCode() int {
	code := exitOK
	for i := range m.Deliveries {
		switch d := &m.Deliveries[i]; {
		case d.State == stateAcked || d.waitsForLogin():
		case d.ended():
			return exitUndelivered
		default:
			code = exitWaiting
		}
	}
	return code
}

// settled reports that nothing more happens until somebody logs in, if anything.
func (m *messageReply) settled() bool {
	return !slices.ContainsFunc(m.Deliveries, func(d deliveryReply) bool { return !d.ended() && !d.waitsForLogin() })
}

// outcome is one line about one delivery. took is how long the push waited for it; 0: the times of the delivery are used.
func (d *deliveryReply) outcome(took time.Duration) string {
	switch {
	case d.State == stateAcked:
		if took == 0 && d.Accepted != nil && d.Ended != nil {
			took = d.Ended.Sub(*d.Accepted)
		}
		return fmt.Sprintf("acked by %s in %s", d.name(), shortTime(took))
	case d.waitsForLogin() && d.Device == "":
		return fmt.Sprintf("stored: %s is not connected; it is delivered at the next login", d.User)
	case d.waitsForLogin():
		return fmt.Sprintf("stored: %s is not connected; it is delivered at its next login", d.name())
	case d.ended():
		return fmt.Sprintf("not delivered to %s: %s%s", d.name(), d.State, d.because())
	default:
		return fmt.Sprintf("no ACK from %s yet: %s after %d %s; holdfast trace tells more", d.name(), d.State, d.Attempts, plural(d.Attempts, "attempt", "attempts"))
	}
}

// shortTime writes a duration with two or three digits. Zero is the difference of two times in whole milliseconds.
func shortTime(d time.Duration) string {
	switch {
	case d <= 0:
		return "less than 1 ms"
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	default:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
}
