package delivery

import (
	"github.com/cespare/xxhash/v2"

	"holdfast/codec"
)

// admit checks message i and fills in what the server decides; random makes its id when it has none. A refusal says which limit
// it is.
func (b *Batch) admit(c *core, i int, now Now, random func() uint64) codec.Result {
	it := &b.items[i]
	cmd := &it.cmd
	switch {
	case !codec.ValidUser(cmd.User):
		return codec.ResultBadUser
	case len(cmd.Device) > 0 && !codec.ValidDevice(cmd.Device):
		return codec.ResultBadDevice
	case len(cmd.MessageID) > 0 && !codec.ValidMessageID(cmd.MessageID):
		return codec.ResultBadMessageID
	case !codec.ValidType(cmd.Type) || !codec.ValidConversation(cmd.Conversation) || cmd.Priority > codec.PriorityBulk:
		return codec.ResultBadField
	case len(cmd.Payload) > c.config.PayloadBytesMax || cmd.size() > c.config.FrameBytesMax:
		return codec.ResultTooLarge
	case it.ttlMs > uint64(c.retentionMs):
		return codec.ResultBadTTL
	}
	if len(cmd.MessageID) == 0 {
		id := formatMessageID(random(), random())
		cmd.MessageID = b.copy(id[:])
	}
	cmd.OwnTTL = it.ttlMs > 0
	cmd.AcceptedMs = now.WallMs
	cmd.ExpireAtMs = now.WallMs + c.retentionMs
	if cmd.OwnTTL {
		cmd.ExpireAtMs = now.WallMs + int64(it.ttlMs)
	}
	it.userHash = xxhash.Sum64(cmd.User)
	return codec.ResultAccepted
}

// messageIDBytes is the length of the ids the server makes: 100 random bits. No clock is in them, so none can step back.
const messageIDBytes = 20

// formatMessageID writes 100 of the 128 bits given, 5 a character.
func formatMessageID(high, low uint64) (id [messageIDBytes]byte) {
	const digits = "0123456789abcdefghijklmnopqrstuv"
	for i := range id {
		bits := high
		if i >= messageIDBytes/2 {
			bits = low
		}
		id[i] = digits[bits>>(5*(i%(messageIDBytes/2)))&31]
	}
	return id
}
