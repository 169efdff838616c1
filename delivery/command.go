package delivery

import (
	"encoding/binary"
	"errors"
	"fmt"

	"holdfast/codec"
)

// Command is one accepted message as the store keeps it and a PUSH frame carries it. The byte slices borrow: from a Batch on
// the way in, from the stored bytes on the way out.
type Command struct {
	MessageID    []byte
	User         []byte
	Device       []byte // as the publisher named it; empty: every device of the user
	Type         []byte
	Conversation []byte
	Payload      []byte
	AcceptedMs   int64 // Unix
	ExpireAtMs   int64 // Unix, never 0
	OwnTTL       bool  // the publisher set the time to live; without, its end is the server's retention
	NoAck        bool  // fire and forget: never stored, so never encoded
	Priority     codec.Priority
}

// The encoding, version 1. It lives on disk for as long as messages are kept, so a field is only ever added behind the payload.
//
//	| version 1 B | flags 1 B | accepted ms varint | expire-at ms varint |
//	| message id | user | device | type | conversation | payload |           each: length varint, bytes
const (
	commandVersion         = 1
	commandOwnTTL    uint8 = 1 << 0
	commandPriority  uint8 = 3 << 1
	commandPrioShift       = 1
)

var errCommandShort = errors.New("stored command ends early")

// AppendCommand appends the encoding of c to dst.
func AppendCommand(dst []byte, c *Command) []byte {
	flags := uint8(c.Priority) << commandPrioShift
	if c.OwnTTL {
		flags |= commandOwnTTL
	}
	dst = append(dst, commandVersion, flags)
	dst = binary.AppendUvarint(dst, uint64(c.AcceptedMs))
	dst = binary.AppendUvarint(dst, uint64(c.ExpireAtMs))
	for _, field := range [...][]byte{c.MessageID, c.User, c.Device, c.Type, c.Conversation, c.Payload} {
		dst = binary.AppendUvarint(dst, uint64(len(field)))
		dst = append(dst, field...)
	}
	return dst
}

// DecodeCommand overwrites c with what b holds; c borrows from b. Bytes behind the last known field are skipped: a later
// version may have added some.
func DecodeCommand(b []byte, c *Command) error {
	if len(b) < 2 {
		return errCommandShort
	}
	if b[0] != commandVersion {
		return fmt.Errorf("stored command has encoding version %d, known is %d", b[0], commandVersion)
	}
	flags := b[1]
	*c = Command{OwnTTL: flags&commandOwnTTL != 0, Priority: codec.Priority(flags & commandPriority >> commandPrioShift)}
	if c.Priority > codec.PriorityBulk {
		return fmt.Errorf("stored command has priority %d", c.Priority)
	}
	b = b[2:]
	for _, field := range [...]*int64{&c.AcceptedMs, &c.ExpireAtMs} {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return errCommandShort
		}
		*field = int64(v)
		b = b[n:]
	}
	for _, field := range [...]*[]byte{&c.MessageID, &c.User, &c.Device, &c.Type, &c.Conversation, &c.Payload} {
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return errCommandShort
		}
		end := n + int(size)
		*field = b[n:end:end]
		b = b[end:]
	}
	return nil
}

// push is the PUSH frame of c but for what depends on the delivery: number, attempt and marks.
func (c *Command) push() codec.Push {
	p := codec.Push{
		ServerTimeMs: uint64(c.AcceptedMs),
		MessageID:    c.MessageID,
		Type:         c.Type,
		Conversation: c.Conversation,
		Payload:      c.Payload,
		Priority:     c.Priority,
	}
	if c.OwnTTL {
		p.ExpireAtMs = uint64(c.ExpireAtMs)
	}
	return p
}

// frameOverheadMax is more than what a PUSH frame adds to its names and payload: header, eight varints, lengths.
const frameOverheadMax = 96

// size is an upper bound of the bytes of c in a frame.
func (c *Command) size() int {
	return frameOverheadMax + len(c.MessageID) + len(c.Type) + len(c.Conversation) + len(c.Payload)
}
