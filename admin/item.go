package admin

import (
	"bytes"
	"encoding/base64"
	"math"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"holdfast/codec"
)

// pushItem is one object of a push request as it was written. Its slices borrow from the scanner. What only the dispatcher can
// judge (lengths, forbidden characters, whether the device is known) is not checked here.
type pushItem struct {
	codec.PublishItem          // User is filled from users when the item is added to a batch
	users             [][]byte // one for "user", several for "users"; grown once, reused for the next item
	given             fieldSet
	wait              waitMode
	waitTimeout       time.Duration
}

// fieldSet remembers which fields an object had: a repeated one is a mistake that last-one-wins would hide.
type fieldSet uint16

const (
	fieldUser fieldSet = 1 << iota
	fieldUsers
	fieldDevice
	fieldMessageID
	fieldType
	fieldPayload
	fieldText
	fieldTTL
	fieldPriority
	fieldAck
	fieldConversation
	fieldWait
	fieldTimeout
)

// knownFields is what the message about an unknown field offers.
const knownFields = "user, users, device, message_id, type, payload, text, ttl, priority, ack, conversation, wait, timeout"

func fieldNamed(name []byte) fieldSet {
	switch string(name) { // no allocation: the compiler compares in place
	case "user":
		return fieldUser
	case "users":
		return fieldUsers
	case "device":
		return fieldDevice
	case "message_id":
		return fieldMessageID
	case "type":
		return fieldType
	case "payload":
		return fieldPayload
	case "text":
		return fieldText
	case "ttl":
		return fieldTTL
	case "priority":
		return fieldPriority
	case "ack":
		return fieldAck
	case "conversation":
		return fieldConversation
	case "wait":
		return fieldWait
	case "timeout":
		return fieldTimeout
	}
	return 0
}

func (it *pushItem) reset() {
	*it = pushItem{users: it.users[:0]}
}

// decode reads one object. ok false: either s has a fault (the text is no JSON: nothing behind it can be trusted), or the
// returned problem says what is wrong with a field, and s stands somewhere inside the object.
func (it *pushItem) decode(s *scanner) (p problem, ok bool) {
	it.reset()
	if s.peek() != '{' {
		return problem{code: codeBadJSON, text: "a push is a JSON object, an array of them, or a stream of lines with one each"}, false
	}
	s.i++
	if s.take('}') {
		return it.check()
	}
	for {
		name, ok := s.text()
		if !ok || !s.expect(':', "after a field name") {
			return problem{}, false
		}
		f := fieldNamed(name)
		if f == 0 {
			return problem{code: codeUnknownField, field: string(clip(name)), text: "unknown field; there are " + knownFields}, false
		}
		if it.given&f != 0 {
			return problem{code: codec.ResultBadField.String(), field: string(name), text: "the field is given twice"}, false
		}
		if s.peek() != 'n' || !s.literal("null") { // null means not given
			it.given |= f
			if p, ok = it.field(s, f); !ok {
				return p, false
			}
		}
		if s.take('}') {
			return it.check()
		}
		if !s.expect(',', "or '}' after a field") {
			return problem{}, false
		}
	}
}

// field reads the value of one field.
func (it *pushItem) field(s *scanner, f fieldSet) (p problem, ok bool) {
	switch f {
	case fieldUser:
		return it.text(s, "user", codec.ResultBadUser, func(v []byte) { it.users = append(it.users[:0], v) })
	case fieldUsers:
		return it.userList(s)
	case fieldDevice:
		return it.text(s, "device", codec.ResultBadDevice, func(v []byte) { it.Device = v })
	case fieldMessageID:
		return it.text(s, "message_id", codec.ResultBadMessageID, func(v []byte) { it.MessageID = v })
	case fieldType:
		return it.text(s, "type", codec.ResultBadField, func(v []byte) { it.Type = v })
	case fieldConversation:
		return it.text(s, "conversation", codec.ResultBadField, func(v []byte) { it.Conversation = v })
	case fieldText:
		return it.text(s, "text", codec.ResultBadField, func(v []byte) { it.Payload = v })
	case fieldPayload:
		return it.payload(s)
	case fieldTTL:
		return it.ttl(s)
	case fieldPriority:
		return it.priority(s)
	case fieldAck:
		return it.ack(s)
	case fieldWait:
		return it.waitField(s)
	default:
		return it.timeoutField(s)
	}
}

// text reads a string field. set does not escape, so the closure costs no allocation.
func (it *pushItem) text(s *scanner, name string, r codec.Result, set func([]byte)) (problem, bool) {
	if s.peek() != '"' {
		return wrongType(s, name, r, "must be a string")
	}
	v, ok := s.text()
	if ok {
		set(v)
	}
	return problem{}, ok
}

func (it *pushItem) userList(s *scanner) (problem, bool) {
	if s.peek() != '[' {
		return wrongType(s, "users", codec.ResultBadUser, "must be an array of strings")
	}
	s.i++
	it.users = it.users[:0]
	if s.take(']') {
		return refuse(codec.ResultBadUser, "users", "names nobody: leave the message out, or name at least one user")
	}
	for {
		if s.peek() != '"' {
			return wrongType(s, "users", codec.ResultBadUser, "must be an array of strings")
		}
		v, ok := s.text()
		if !ok {
			return problem{}, false
		}
		it.users = append(it.users, v)
		if s.take(']') {
			return problem{}, true
		}
		if !s.expect(',', "or ']' between users") {
			return problem{}, false
		}
	}
}

// payload decodes base64 in place of a copy: the decoded bytes go to the scanner's scratch.
func (it *pushItem) payload(s *scanner) (problem, bool) {
	if s.peek() != '"' {
		return wrongType(s, "payload", codec.ResultBadField, "must be a string of base64; use text for plain text")
	}
	v, ok := s.text()
	if !ok {
		return problem{}, false
	}
	enc := base64.StdEncoding
	if bytes.IndexByte(v, '=') < 0 {
		enc = base64.RawStdEncoding // padding is optional
	}
	from := len(s.scratch)
	out, err := enc.AppendDecode(s.scratch, v)
	if err != nil {
		return refuse(codec.ResultBadField, "payload", "is no base64 ("+err.Error()+"); use text for plain text")
	}
	s.scratch = out
	it.Payload = out[from:len(out):len(out)]
	return problem{}, true
}

func (it *pushItem) ttl(s *scanner) (problem, bool) {
	d, p, ok := duration(s, "ttl", codec.ResultBadTTL)
	if !ok {
		return p, false
	}
	if d <= 0 {
		return refuse(codec.ResultBadTTL, "ttl", "must be above 0; leave it out for the server's retention")
	}
	it.TTLMs = uint64(d / time.Millisecond)
	if d%time.Millisecond != 0 {
		it.TTLMs++ // never rounded down to "no ttl"
	}
	return problem{}, true
}

func (it *pushItem) priority(s *scanner) (problem, bool) {
	const hint = `must be "urgent", "normal" or "bulk"`
	if s.peek() != '"' {
		return wrongType(s, "priority", codec.ResultBadField, hint)
	}
	v, ok := s.text()
	if !ok {
		return problem{}, false
	}
	if it.Priority, ok = codec.ParsePriority(borrow(v)); !ok {
		return refuse(codec.ResultBadField, "priority", hint)
	}
	return problem{}, true
}

func (it *pushItem) ack(s *scanner) (problem, bool) {
	switch {
	case s.literal("true"):
	case s.literal("false"):
		it.NoAck = true
	default:
		return wrongType(s, "ack", codec.ResultBadField, "must be true (confirmed, the default) or false (fire and forget)")
	}
	return problem{}, true
}

func (it *pushItem) waitField(s *scanner) (problem, bool) {
	if s.peek() != '"' {
		return wrongType(s, "wait", codec.ResultBadField, waitHint)
	}
	v, ok := s.text()
	if !ok {
		return problem{}, false
	}
	if it.wait, ok = parseWaitMode(string(v)); !ok {
		return refuse(codec.ResultBadField, "wait", waitHint)
	}
	return problem{}, true
}

func (it *pushItem) timeoutField(s *scanner) (p problem, ok bool) {
	if it.waitTimeout, p, ok = duration(s, "timeout", codec.ResultBadField); !ok {
		return p, false
	}
	if it.waitTimeout <= 0 {
		return refuse(codec.ResultBadField, "timeout", timeoutHint)
	}
	return problem{}, true
}

// check is what concerns several fields.
func (it *pushItem) check() (problem, bool) {
	switch {
	case it.given&(fieldUser|fieldUsers) == 0:
		return refuse(codec.ResultBadUser, "user", "is missing: name a user, or several in users")
	case it.given&fieldUser != 0 && it.given&fieldUsers != 0:
		return refuse(codec.ResultBadField, "users", "user and users are both given: use one of them")
	case it.given&fieldPayload != 0 && it.given&fieldText != 0:
		return refuse(codec.ResultBadField, "text", "payload and text are both given: use one of them")
	case it.given&fieldMessageID != 0 && len(it.MessageID) == 0:
		return refuse(codec.ResultBadMessageID, "message_id", "is empty; leave it out and the server makes one")
	case it.given&fieldDevice != 0 && len(it.Device) == 0:
		return refuse(codec.ResultBadDevice, "device", "is empty; leave it out to reach every device of the user")
	case it.NoAck && it.wait == waitDelivered:
		return refuse(codec.ResultBadField, "wait", noAckWaitHint)
	}
	return problem{}, true
}

// duration reads a length of time: a string as Go writes them ("90s", "10m", "1h30m") or a number of seconds.
func duration(s *scanner, name string, r codec.Result) (time.Duration, problem, bool) {
	if s.peek() == '"' {
		v, ok := s.text()
		if !ok {
			return 0, problem{}, false
		}
		d, ok := parseDuration(v)
		if !ok {
			p, _ := refuse(r, name, durationHint)
			return 0, p, false
		}
		return d, problem{}, true
	}
	if c := s.peek(); c != '-' && (c < '0' || c > '9') {
		p, _ := wrongType(s, name, r, durationHint)
		return 0, p, false
	}
	v, ok := s.number()
	if !ok {
		return 0, problem{}, false
	}
	d, ok := parseSeconds(v)
	if !ok {
		p, _ := refuse(r, name, "is out of range")
		return 0, p, false
	}
	return d, problem{}, true
}

const durationHint = `must be a duration such as "90s", "10m", "1h30m" or "7d", or a number of seconds`

// parseDuration reads a duration in Go's notation, whole days ("7d", as the settings write them), or bare seconds: a query
// parameter has no types.
func parseDuration(v []byte) (time.Duration, bool) {
	if len(v) == 0 || len(v) > 64 {
		return 0, false
	}
	if c := v[len(v)-1]; c >= '0' && c <= '9' {
		return parseSeconds(v)
	}
	if days, ok := strings.CutSuffix(borrow(v), "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err == nil
	}
	d, err := time.ParseDuration(borrow(v))
	return d, err == nil
}

func parseSeconds(v []byte) (time.Duration, bool) {
	f, err := strconv.ParseFloat(borrow(v), 64)
	if ns := f * float64(time.Second); err != nil || math.IsNaN(ns) || math.Abs(ns) >= math.MaxInt64 {
		return 0, false
	}
	return time.Duration(f * float64(time.Second)), true
}

// borrow is v as a string without a copy, for calls that do not keep it. strconv and time copy what goes into their errors, and
// those are dropped here.
func borrow(v []byte) string { return unsafe.String(unsafe.SliceData(v), len(v)) }

// wrongType is the problem of a value of another JSON type, or the fault of a text that has no value there at all.
func wrongType(s *scanner, name string, r codec.Result, text string) (problem, bool) {
	if at := s.i; !s.value(depthMax) {
		s.i = max(at, s.i)
		return problem{}, false
	}
	return refuse(r, name, text)
}

// refuse is the problem of one field; the ok that goes with it is always false.
func refuse(r codec.Result, field, text string) (problem, bool) {
	return problem{code: r.String(), field: field, text: text}, false
}

// depthMax bounds the nesting of values that are only passed over.
const depthMax = 64

// clip keeps what a stranger sent short enough to be repeated in an error.
func clip(b []byte) []byte { return b[:min(len(b), 64)] }
