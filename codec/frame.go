// Package codec turns bytes into holdfast protocol 1 frames and frames into bytes. It does no I/O, reads no clock and
// allocates nothing: decoders borrow from the bytes they are given, encoders append to the slice they are given.
// docs/protocol.md is the contract; the tags in brackets name its clauses.
//
//	frame = | length varint 1-4 B | type 1 B | flags 1 B | body length-2 B |
//
// length counts what follows it. Integers in bodies are unsigned varints (LEB128, as encoding/binary) unless noted;
// strings and byte strings are a varint length and that many bytes.
package codec

// Version is the protocol version this package speaks.
const Version = 1

// Type names a frame. The layouts are in the comments; [x] is present only when a flag says so.
type Type uint8

// Login:   client CONNECT -> server WELCOME (or CLOSE).
// Steady:  PUSH -> ACK | NACK | EXTEND; PUBLISH -> PUBLISHED; SEND -> SENT; SYNC -> SYNCED; HEADS -> HEADS; READ; RECEIPT; PING -> PONG.
// End:     GOAWAY announces, CLOSE ends; both directions may send CLOSE.
const (
	TypeConnect   Type = 0x01 // c>s  version, keepalive s, receive window msgs, receive window bytes, capabilities, user, device, token, client name, [resume: session id u64 fixed, highest request number]
	TypeWelcome   Type = 0x02 // s>c  session id u64 fixed, request-id base u64 fixed, keepalive s, ack timeout ms, window msgs, window bytes, publish window, max frame, server time ms, backlog count, node, user, device
	TypeClose     Type = 0x03 // both code, retry after ms, reason, server list
	TypePing      Type = 0x04 // both (empty or up to 8 opaque bytes, echoed)
	TypePong      Type = 0x05 // both the bytes of the PING
	TypeGoAway    Type = 0x06 // s>c  reconnect after ms, deadline ms, server list
	TypePush      Type = 0x10 // s>c  request number, attempt, server time ms, message id, type, [conversation id, sequence], [expires at ms], payload (rest of the frame)
	TypeAck       Type = 0x11 // c>s  by kind in flags: number | from, count | up-to number | n, n x (gap, count) | message id; then [client time ms]
	TypeNack      Type = 0x12 // c>s  request number, [delay ms], reason
	TypeExtend    Type = 0x13 // c>s  request number, more ms (0: another ACK timeout)
	TypeSend      Type = 0x20 // c>s  client message id, conversation id, type, payload (rest of the frame)
	TypeSent      Type = 0x21 // s>c  client message id, result, message id, sequence, server time ms
	TypeSync      Type = 0x22 // c>s  conversation id, after sequence, limit
	TypeSynced    Type = 0x23 // s>c  conversation id, from sequence, to sequence, head sequence, result; the messages came before it as PUSH frames with no-ack
	TypeHeads     Type = 0x24 // both c>s: changed since ms, limit; s>c (flag reply): server time ms, n, n x (conversation id, head sequence, read sequence)
	TypeRead      Type = 0x25 // c>s  conversation id, sequence
	TypeReceipt   Type = 0x26 // s>c  conversation id, user, delivered sequence, read sequence
	TypePublish   Type = 0x30 // c>s  publish number, n, n x item (see PublishItem)
	TypePublished Type = 0x31 // s>c  publish number, n, [n x (result, message id)] (absent when flag all-accepted)
)

// Flags of PUSH.
const (
	PushRedelivered     uint8 = 1 << 0 // the client may have seen this message before
	PushFromBacklog     uint8 = 1 << 1 // it waited in the store
	PushNoAck           uint8 = 1 << 2 // fire and forget: request number is 0, never ACKed, never resent
	PushHasConversation uint8 = 1 << 3
	PushHasExpiry       uint8 = 1 << 4
	PushPriorityShift         = 5 // 2 bits: Priority
	PushPriorityMask    uint8 = 3 << PushPriorityShift
)

// Flags of ACK: kind in bits 0-2, level in bits 3-4, client time in bit 5.
const (
	AckLevelShift          = 3
	AckKindMask      uint8 = 7
	AckLevelMask     uint8 = 3 << AckLevelShift
	AckHasClientTime uint8 = 1 << 5
)

// Flags of the other frames.
const (
	ConnectHasResume     uint8 = 1 << 0
	NackNever            uint8 = 1 << 0 // refused for good: dead letter; no delay field
	HeadsReply           uint8 = 1 << 0
	PublishedAllAccepted uint8 = 1 << 0 // every item accepted (or duplicate) under the id it named
)

// Capabilities of CONNECT.
const (
	CapPublisher uint64 = 1 << 0 // publishes only: no queue, no pushes (with tokens the role claim must agree)
)

// Priority is a class of traffic. Order is kept per (user, device, priority).
type Priority uint8

// The three classes, as they travel.
const (
	PriorityNormal Priority = 0
	PriorityUrgent Priority = 1
	PriorityBulk   Priority = 2
)

// AckKind says how an ACK names its messages.
type AckKind uint8

// The kinds, as they travel.
const (
	AckOne       AckKind = 0 // one request number
	AckRange     AckKind = 1 // from, count
	AckUpTo      AckKind = 2 // every request number of this session up to and including it
	AckList      AckKind = 3 // several ranges, rising
	AckMessageID AckKind = 4 // by message id: for a message of an earlier session
)

// AckLevel says how far the client got.
type AckLevel uint8

// The levels, as they travel.
const (
	LevelReceived  AckLevel = 0 // taken and stored by the device
	LevelProcessed AckLevel = 1
	LevelRead      AckLevel = 2
)

// Hard limits of protocol 1; settings may be lower.
const (
	FrameBytesDefault    = 64 << 10
	FrameBytesMax        = 1 << 20
	UserBytesMax         = 128
	DeviceBytesMax       = 64
	MessageIDBytesMax    = 64
	ConversationBytesMax = 128
	TypeBytesMax         = 64
	ReasonBytesMax       = 256
	TokenBytesMax        = 8 << 10
	ClientNameBytesMax   = 128
	NodeBytesMax         = 64
	ServersBytesMax      = 1024
	AckRangesMax         = 256
	AckCountMax          = 1 << 16 // request numbers in one range; AckUpTo has no such limit
	PublishItemsMax      = 1024
	HeadsMax             = 1024 // conversations in one HEADS reply
	PingBytesMax         = 8
)

// Frame is one frame with its body still encoded.
type Frame struct {
	Type  Type
	Flags uint8
	Body  []byte // borrowed from the bytes given to Parse
}
