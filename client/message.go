package client

import (
	"strings"
	"time"
	"unsafe"

	"holdfast/codec"
)

// Message is one message for this client. Its fields belong to the program. Its methods may be called from any
// goroutine, at any time, also after the connection it came on has ended: an ACK and a refusal for good are then said on
// the next one, and without them the message comes again there. They do not wait for the server. The first of Ack, Nack and Refuse settles the message; a later one changes nothing,
// except an AckLevel that is higher. On a NoAck message they do nothing.
type Message struct {
	ID           string // for ever the same for this message, over all copies
	Type         string // empty: none
	Conversation string // empty: none
	Sequence     uint64 // in the conversation; 0: none
	Payload      []byte
	RequestID    uint64    // what the server calls this delivery in its trace; 0 with NoAck
	Attempt      int       // 1 for the first time
	ServerTime   time.Time // when the server accepted it
	ExpireAt     time.Time // zero: never
	Priority     codec.Priority
	Redelivered  bool // the program may have seen it before (the dedup memory says otherwise, or it would not be here)
	FromBacklog  bool // it waited in the server's store
	NoAck        bool // fire and forget

	client *Client
	key    dedupKey
	// Guarded by client.mu: a copy on a later connection moves the delivery there.
	epoch  uint64 // of the session it came on
	number uint64 // its request number there
	state  messageState
	level  codec.AckLevel
}

type messageState uint8

const (
	messageOpen messageState = iota
	messageAcked
	messageRefused // again later, or never
)

// newMessage copies a push out of the read buffer, with one allocation for all its bytes. The strings share that
// memory, which nothing writes: Payload is cut off behind them and ends at its own capacity.
func newMessage(c *Client, s *session, p *codec.Push) *Message {
	data := make([]byte, 0, len(p.MessageID)+len(p.Type)+len(p.Conversation)+len(p.Payload))
	data = append(append(append(append(data, p.MessageID...), p.Type...), p.Conversation...), p.Payload...)
	take := func(n int) string {
		b := data[:n]
		data = data[n:]
		return unsafe.String(unsafe.SliceData(b), n)
	}
	m := &Message{
		ID:          take(len(p.MessageID)),
		Type:        take(len(p.Type)),
		Sequence:    p.Sequence,
		Attempt:     int(p.Attempt),
		ServerTime:  time.UnixMilli(int64(p.ServerTimeMs)),
		Priority:    p.Priority,
		Redelivered: p.Redelivered,
		FromBacklog: p.FromBacklog,
		NoAck:       p.NoAck,
		client:      c,
		epoch:       s.epoch,
		number:      p.Number,
	}
	m.Conversation = take(len(p.Conversation))
	m.Payload = data
	if !p.NoAck {
		m.RequestID = s.requestIDBase + p.Number
	}
	if p.ExpireAtMs != 0 {
		m.ExpireAt = time.UnixMilli(int64(p.ExpireAtMs))
	}
	return m
}

// Ack confirms the message as processed. The server forgets it, and later copies are not handed over.
func (m *Message) Ack() { m.AckLevel(codec.LevelProcessed) }

// AckLevel confirms the message as received, processed or read. Any level ends the server's responsibility; a higher
// one may follow and is told as well.
func (m *Message) AckLevel(level codec.AckLevel) {
	if !m.NoAck && level <= codec.LevelRead {
		m.client.ack(m, level)
	}
}

// Nack refuses the message for now: the server sends it again after delay (milliseconds count; the server bounds it).
// reason is for operators and is cut at 256 bytes. If the connection is gone, it comes again at the next login.
func (m *Message) Nack(delay time.Duration, reason string) {
	if !m.NoAck {
		m.client.nack(m, max(delay, 0), reason)
	}
}

// Refuse refuses the message for good: it becomes a dead letter with this reason (cut at 256 bytes).
func (m *Message) Refuse(reason string) {
	if !m.NoAck {
		m.client.refuse(m, reason)
	}
}

// Extend asks for d more time before the server counts the message as timed out and sends it again; 0 asks for
// another ACK timeout. The server bounds the sum.
func (m *Message) Extend(d time.Duration) {
	if !m.NoAck {
		m.client.extend(m, max(d, 0))
	}
}

// cleanReason makes any text fit for a reason field: a control character or broken UTF-8 in an error's text must not
// cost the connection.
func cleanReason(s string) []byte {
	s = strings.ToValidUTF8(s[:min(len(s), codec.ReasonBytesMax)], "") // the cut may go through a character
	return []byte(strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f {
			return ' '
		}
		return r
	}, s))
}

// borrow gives a string's bytes to an encoder, which only reads them.
func borrow(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
