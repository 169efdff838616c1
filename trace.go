package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// traceCommand tells what became of a message.
type traceCommand struct {
	apiFlags  `embed:""`
	MessageID string `arg:"" help:"Id of the message, as push printed it."`
	JSON      bool   `name:"json" help:"Print what the gateway answers, as JSON."`
}

// Help is the long help of the command.
func (traceCommand) Help() string {
	return `Each delivery (one message to one device) is told on its own: where it stands, how often it was sent, what happens next.

Examples:
  holdfast trace q3v7k2m0x5a8c1d4f6h9
  holdfast trace q3v7k2m0x5a8c1d4f6h9 --json | jq '.deliveries[].state'`
}

// Run asks and tells.
func (t *traceCommand) Run(ctx context.Context, term *terminal) error {
	m, err := t.message(ctx, t.MessageID, 0)
	if err != nil {
		return err
	}
	if t.JSON {
		return writeJSON(term, m.raw)
	}
	return m.story(term.out)
}

// messageReply is the answer of GET /v1/messages/{id}.
type messageReply struct {
	MessageID  string          `json:"message_id"`
	Deliveries []deliveryReply `json:"deliveries"`

	raw json.RawMessage // all of it, for --json
}

// UnmarshalJSON keeps the raw answer beside the fields.
func (m *messageReply) UnmarshalJSON(raw []byte) error {
	type plain messageReply
	if err := json.Unmarshal(raw, (*plain)(m)); err != nil {
		return err
	}
	m.raw = append(json.RawMessage(nil), raw...)
	return nil
}

// deliveryReply is one message to one device.
type deliveryReply struct {
	User     string     `json:"user"`
	Device   string     `json:"device"` // empty: no device of the user has ever logged in
	State    string     `json:"state"`
	Reason   string     `json:"reason"`
	Level    string     `json:"level"`
	Online   bool       `json:"online"`
	Attempts int        `json:"attempts"`
	Number   uint64     `json:"request_number"` // of the copy in flight
	Priority string     `json:"priority"`
	Bytes    int        `json:"bytes"`
	Accepted *time.Time `json:"accepted_at"`
	Expires  *time.Time `json:"expires_at"`
	Ended    *time.Time `json:"ended_at"`
	Due      *time.Time `json:"due_at"`
}

// name is "user/device", or the user alone before any device is known.
func (d *deliveryReply) name() string {
	if d.Device == "" {
		return d.User
	}
	return d.User + "/" + d.Device
}

// ended reports one of the end states.
func (d *deliveryReply) ended() bool {
	switch d.State {
	case stateAcked, "EXPIRED", "CANCELLED", "DEAD_LETTER":
		return true
	}
	return false
}

// waitsForLogin reports that the device is not there.
func (d *deliveryReply) waitsForLogin() bool { return d.State == stateOffline && !d.Online }

// because is the reason in brackets, if there is one.
func (d *deliveryReply) because() string {
	if d.Reason == "" {
		return ""
	}
	return " (" + d.Reason + ")"
}

// story writes what happened, for people.
func (m *messageReply) story(w io.Writer) error {
	b := &strings.Builder{}
	fmt.Fprintf(b, "message %s, %d %s\n", m.MessageID, len(m.Deliveries), plural(len(m.Deliveries), "delivery", "deliveries"))
	for i := range m.Deliveries {
		m.Deliveries[i].story(b)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("printing the trace: %w", err)
	}
	return nil
}

// story writes one delivery.
func (d *deliveryReply) story(b *strings.Builder) {
	fmt.Fprintf(b, "\n%s: %s%s\n", d.name(), d.State, d.because())
	line := func(at *time.Time, text string) {
		if at != nil {
			fmt.Fprintf(b, "  %s  %s\n", at.Local().Format("2006-01-02 15:04:05.000"), text)
		}
	}
	accepted := "accepted"
	if d.Bytes > 0 {
		accepted = fmt.Sprintf("accepted, %d bytes in the store, priority %s", d.Bytes, d.Priority)
	}
	line(d.Accepted, accepted)
	fmt.Fprintf(b, "  %-23s  %s\n", "", d.attempts())
	if d.ended() {
		line(d.Ended, d.end())
		return
	}
	line(d.Due, "due: "+d.next())
	if d.Due == nil {
		fmt.Fprintf(b, "  %-23s  next: %s\n", "", d.next())
	}
	line(d.Expires, "expires, if nothing else has ended it by then")
}

// attempts says how often it went out.
func (d *deliveryReply) attempts() string {
	switch {
	case d.Number > 0 && d.Attempts > 0:
		return fmt.Sprintf("sent %d %s, in flight as request %d of the session", d.Attempts, plural(d.Attempts, "time", "times"), d.Number)
	case d.Attempts > 0:
		return fmt.Sprintf("sent %d %s", d.Attempts, plural(d.Attempts, "time", "times"))
	case d.Number > 0:
		return fmt.Sprintf("in flight as request %d of the session", d.Number)
	case d.State == stateAcked:
		return "acknowledged at the first attempt"
	default:
		return "no attempt counted"
	}
}

// end says how it ended.
func (d *deliveryReply) end() string {
	switch d.State {
	case stateAcked:
		text := "acknowledged"
		if d.Level != "" {
			text += " (" + d.Level + ")"
		}
		if d.Accepted != nil && d.Ended != nil {
			text += " after " + shortTime(d.Ended.Sub(*d.Accepted))
		}
		return text
	case "EXPIRED":
		return "expired before it was acknowledged"
	case "CANCELLED":
		return "taken back by its publisher"
	default:
		return "dead letter: " + deadText(d.Reason)
	}
}

// deadText explains the reason of a dead letter.
func deadText(reason string) string {
	switch reason {
	case "attempts":
		return "sent as often as retry.life_attempts_max allows, never acknowledged"
	case "live_limit":
		return "sent as often as retry.live_attempts_max allows, and retry.after_last is dead"
	case "refused":
		return "the client refused it for good"
	case "retention":
		return "kept for message.ttl_max, never acknowledged"
	case "undecodable":
		return "the stored message could not be read"
	case "device_gone":
		return "the device was not seen for store.device_retention"
	default:
		return reason
	}
}

// next says what happens to a delivery that has not ended.
func (d *deliveryReply) next() string {
	switch {
	case d.State == "SENT":
		return "the ACK, or the ACK timeout"
	case d.State == "TIMEOUT", d.State == "RETRYING":
		return "another copy; an ACK still ends it"
	case d.State == stateOffline && d.Online:
		return "the device is connected: it follows when the ones before it are acknowledged, or at the next login"
	case d.State == stateOffline:
		return "the device is not connected: it is delivered at the next login"
	default:
		return "it is about to be sent"
	}
}

// plural picks a word by number.
func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
