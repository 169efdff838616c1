package codec

import "encoding/binary"

// AppendPush appends a PUSH frame. A sequence without a conversation is not sent. x is only read.
//
//	| len | 0x10 | flags | number | attempt | server time ms | message id | type |
//	with PushHasConversation: | conversation | sequence |   with PushHasExpiry: | expires at ms |   | payload: the rest |
func AppendPush(dst []byte, x *Push) []byte {
	flags := uint8(x.Priority) << PushPriorityShift
	if x.Redelivered {
		flags |= PushRedelivered
	}
	if x.FromBacklog {
		flags |= PushFromBacklog
	}
	if x.NoAck {
		flags |= PushNoAck
	}
	if len(x.Conversation) > 0 {
		flags |= PushHasConversation
	}
	if x.ExpireAtMs != 0 {
		flags |= PushHasExpiry
	}
	dst, s := begin(dst, TypePush, flags, len(x.MessageID)+len(x.Type)+len(x.Conversation)+len(x.Payload)+16)
	dst = binary.AppendUvarint(dst, x.Number)
	dst = binary.AppendUvarint(dst, x.Attempt)
	dst = binary.AppendUvarint(dst, x.ServerTimeMs)
	dst = appendBytes(dst, x.MessageID)
	dst = appendBytes(dst, x.Type)
	if len(x.Conversation) > 0 {
		dst = appendBytes(dst, x.Conversation)
		dst = binary.AppendUvarint(dst, x.Sequence)
	}
	if x.ExpireAtMs != 0 {
		dst = binary.AppendUvarint(dst, x.ExpireAtMs)
	}
	return s.end(append(dst, x.Payload...))
}

// DecodePush decodes a PUSH frame. [P-PUSH-1] to [P-PUSH-3]
func DecodePush(f Frame, x *Push) error {
	*x = Push{
		Redelivered: f.Flags&PushRedelivered != 0,
		FromBacklog: f.Flags&PushFromBacklog != 0,
		NoAck:       f.Flags&PushNoAck != 0,
		Priority:    Priority(f.Flags & PushPriorityMask >> PushPriorityShift),
	}
	r := open(f, TypePush, PushRedelivered|PushFromBacklog|PushNoAck|PushHasConversation|PushHasExpiry|PushPriorityMask)
	if x.Priority > PriorityBulk {
		r.fail(errFlags)
	}
	x.Number = r.uvarint()
	if r.err == nil && (x.Number == 0) != x.NoAck {
		if x.NoAck {
			r.fail(errNoAckNumber)
		} else {
			r.fail(errNumber)
		}
	}
	x.Attempt = r.uvarint()
	x.ServerTimeMs = r.uvarint()
	x.MessageID = r.name(MessageIDBytesMax, errMessageID)
	x.Type = r.text(TypeBytesMax, errMessageType)
	if f.Flags&PushHasConversation != 0 {
		x.Conversation = r.name(ConversationBytesMax, errConversation)
		x.Sequence = r.uvarint()
	}
	if f.Flags&PushHasExpiry != 0 {
		x.ExpireAtMs = r.uvarint()
	}
	x.Payload = r.b
	return r.done()
}

// AppendNack appends a NACK frame; a reason over ReasonBytesMax is cut.
//
//	| len | 0x12 | flags | number | without NackNever: delay ms | reason |
func AppendNack(dst []byte, x *Nack) []byte {
	flags := uint8(0)
	if x.Never {
		flags = NackNever
	}
	dst, s := begin(dst, TypeNack, flags, len(x.Reason)+8)
	dst = binary.AppendUvarint(dst, x.Number)
	if !x.Never {
		dst = binary.AppendUvarint(dst, x.DelayMs)
	}
	return s.end(appendReason(dst, x.Reason))
}

// DecodeNack decodes a NACK frame. [P-NACK-1] [P-NACK-2]
func DecodeNack(f Frame, x *Nack) error {
	*x = Nack{Never: f.Flags&NackNever != 0}
	r := open(f, TypeNack, NackNever)
	x.Number = r.number()
	if !x.Never {
		x.DelayMs = r.uvarint()
	}
	x.Reason = r.text(ReasonBytesMax, errReason)
	return r.done()
}

// AppendExtend appends an EXTEND frame.
//
//	| len | 0x13 | 0 | number | more ms |
func AppendExtend(dst []byte, x *Extend) []byte {
	dst, s := begin(dst, TypeExtend, 0, 8)
	dst = binary.AppendUvarint(dst, x.Number)
	dst = binary.AppendUvarint(dst, x.MoreMs)
	return s.end(dst)
}

// DecodeExtend decodes an EXTEND frame. [P-EXTEND-1]
func DecodeExtend(f Frame, x *Extend) error {
	*x = Extend{}
	r := open(f, TypeExtend, 0)
	x.Number = r.number()
	x.MoreMs = r.uvarint()
	return r.done()
}
