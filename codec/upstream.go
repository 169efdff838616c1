package codec

import "encoding/binary"

// The frames of clients' own messages and of conversations.

// AppendSend appends a SEND frame.
//
//	| len | 0x20 | 0 | client message id | conversation | type | payload: the rest |
func AppendSend(dst []byte, x *Send) []byte {
	dst, s := begin(dst, TypeSend, 0, len(x.ClientMessageID)+len(x.Conversation)+len(x.Type)+len(x.Payload)+3)
	dst = appendBytes(dst, x.ClientMessageID)
	dst = appendBytes(dst, x.Conversation)
	dst = appendBytes(dst, x.Type)
	return s.end(append(dst, x.Payload...))
}

// DecodeSend decodes a SEND frame.
func DecodeSend(f Frame, x *Send) error {
	*x = Send{}
	r := open(f, TypeSend, 0)
	x.ClientMessageID = r.name(MessageIDBytesMax, errMessageID)
	x.Conversation = r.name(ConversationBytesMax, errConversation)
	x.Type = r.text(TypeBytesMax, errMessageType)
	x.Payload = r.b
	return r.done()
}

// AppendSent appends a SENT frame.
//
//	| len | 0x21 | 0 | client message id | result | message id | sequence | server time ms |
func AppendSent(dst []byte, x *Sent) []byte {
	dst, s := begin(dst, TypeSent, 0, len(x.ClientMessageID)+len(x.MessageID)+16)
	dst = appendBytes(dst, x.ClientMessageID)
	dst = binary.AppendUvarint(dst, uint64(x.Result))
	dst = appendBytes(dst, x.MessageID)
	dst = binary.AppendUvarint(dst, x.Sequence)
	dst = binary.AppendUvarint(dst, x.ServerTimeMs)
	return s.end(dst)
}

// DecodeSent decodes a SENT frame. MessageID is empty where nothing was stored.
func DecodeSent(f Frame, x *Sent) error {
	*x = Sent{}
	r := open(f, TypeSent, 0)
	x.ClientMessageID = r.name(MessageIDBytesMax, errMessageID)
	x.Result = Result(r.uint16())
	x.MessageID = r.text(MessageIDBytesMax, errMessageID)
	x.Sequence = r.uvarint()
	x.ServerTimeMs = r.uvarint()
	return r.done()
}

// AppendSync appends a SYNC frame.
//
//	| len | 0x22 | 0 | conversation | after sequence | limit |
func AppendSync(dst []byte, x *Sync) []byte {
	dst, s := begin(dst, TypeSync, 0, len(x.Conversation)+8)
	dst = appendBytes(dst, x.Conversation)
	dst = binary.AppendUvarint(dst, x.AfterSequence)
	dst = binary.AppendUvarint(dst, x.Limit)
	return s.end(dst)
}

// DecodeSync decodes a SYNC frame. Limit 0 leaves it to the server.
func DecodeSync(f Frame, x *Sync) error {
	*x = Sync{}
	r := open(f, TypeSync, 0)
	x.Conversation = r.name(ConversationBytesMax, errConversation)
	x.AfterSequence = r.uvarint()
	x.Limit = r.uvarint()
	return r.done()
}

// AppendSynced appends a SYNCED frame.
//
//	| len | 0x23 | 0 | conversation | from sequence | to sequence | head sequence | result |
func AppendSynced(dst []byte, x *Synced) []byte {
	dst, s := begin(dst, TypeSynced, 0, len(x.Conversation)+16)
	dst = appendBytes(dst, x.Conversation)
	dst = binary.AppendUvarint(dst, x.FromSequence)
	dst = binary.AppendUvarint(dst, x.ToSequence)
	dst = binary.AppendUvarint(dst, x.HeadSequence)
	dst = binary.AppendUvarint(dst, uint64(x.Result))
	return s.end(dst)
}

// DecodeSynced decodes a SYNCED frame.
func DecodeSynced(f Frame, x *Synced) error {
	*x = Synced{}
	r := open(f, TypeSynced, 0)
	x.Conversation = r.name(ConversationBytesMax, errConversation)
	x.FromSequence = r.uvarint()
	x.ToSequence = r.uvarint()
	x.HeadSequence = r.uvarint()
	x.Result = Result(r.uint16())
	return r.done()
}

// AppendHeads appends a HEADS frame. The entries of a reply can only be appended from a Heads that was decoded, before the first Next; build one with HeadsWriter.
//
//	| len | 0x24 | 0 | since ms | limit |
//	| len | 0x24 | 1 | server time ms | n | n x ( conversation | head sequence | read sequence ) |
func AppendHeads(dst []byte, x *Heads) []byte {
	if x.Reply {
		return appendHeadsReply(dst, x.ServerTimeMs, x.Count, x.list)
	}
	dst, s := begin(dst, TypeHeads, 0, 16)
	dst = binary.AppendUvarint(dst, x.SinceMs)
	dst = binary.AppendUvarint(dst, x.Limit)
	return s.end(dst)
}

func appendHeadsReply(dst []byte, serverTimeMs, count uint64, list []byte) []byte {
	dst, s := begin(dst, TypeHeads, HeadsReply, len(list)+8)
	dst = binary.AppendUvarint(dst, serverTimeMs)
	dst = binary.AppendUvarint(dst, count)
	return s.end(append(dst, list...))
}

// DecodeHeads decodes a HEADS frame and checks the entries of a reply, so that Next cannot fail afterwards.
func DecodeHeads(f Frame, x *Heads) error {
	*x = Heads{Reply: f.Flags&HeadsReply != 0}
	r := open(f, TypeHeads, HeadsReply)
	if !x.Reply {
		x.SinceMs = r.uvarint()
		x.Limit = r.uvarint()
		return r.done()
	}
	x.ServerTimeMs = r.uvarint()
	x.Count = r.uvarint()
	if x.Count > HeadsMax {
		r.fail(errHeads)
	}
	list := r.b
	var h Head
	for i := uint64(0); i < x.Count && r.err == nil; i++ {
		r.head(&h)
	}
	x.list = list[:len(list)-len(r.b)]
	return r.done()
}

func (r *reader) head(h *Head) {
	h.Conversation = r.name(ConversationBytesMax, errConversation)
	h.HeadSequence = r.uvarint()
	h.ReadSequence = r.uvarint()
}

// Next reads the next entry of a reply into h and moves on; ok is false behind the last one.
func (x *Heads) Next(h *Head) (ok bool, err error) {
	if len(x.list) == 0 {
		return false, nil
	}
	r := reader{b: x.list}
	r.head(h)
	x.list = r.b
	return r.err == nil, r.done()
}

// HeadsWriter builds a HEADS reply. The zero value is ready; it keeps its memory over Reset. Not safe for concurrent use.
type HeadsWriter struct {
	serverTimeMs uint64
	count        uint64
	list         []byte
}

// Reset starts a new reply.
func (w *HeadsWriter) Reset(serverTimeMs uint64) {
	w.serverTimeMs, w.count, w.list = serverTimeMs, 0, w.list[:0]
}

// Add appends one entry; at most HeadsMax.
func (w *HeadsWriter) Add(h *Head) {
	w.list = appendBytes(w.list, h.Conversation)
	w.list = binary.AppendUvarint(w.list, h.HeadSequence)
	w.list = binary.AppendUvarint(w.list, h.ReadSequence)
	w.count++
}

// AppendTo appends the frame.
func (w *HeadsWriter) AppendTo(dst []byte) []byte {
	return appendHeadsReply(dst, w.serverTimeMs, w.count, w.list)
}

// AppendRead appends a READ frame.
//
//	| len | 0x25 | 0 | conversation | sequence |
func AppendRead(dst []byte, x *Read) []byte {
	dst, s := begin(dst, TypeRead, 0, len(x.Conversation)+8)
	dst = appendBytes(dst, x.Conversation)
	dst = binary.AppendUvarint(dst, x.Sequence)
	return s.end(dst)
}

// DecodeRead decodes a READ frame.
func DecodeRead(f Frame, x *Read) error {
	*x = Read{}
	r := open(f, TypeRead, 0)
	x.Conversation = r.name(ConversationBytesMax, errConversation)
	x.Sequence = r.uvarint()
	return r.done()
}

// AppendReceipt appends a RECEIPT frame.
//
//	| len | 0x26 | 0 | conversation | user | delivered sequence | read sequence |
func AppendReceipt(dst []byte, x *Receipt) []byte {
	dst, s := begin(dst, TypeReceipt, 0, len(x.Conversation)+len(x.User)+8)
	dst = appendBytes(dst, x.Conversation)
	dst = appendBytes(dst, x.User)
	dst = binary.AppendUvarint(dst, x.DeliveredSequence)
	dst = binary.AppendUvarint(dst, x.ReadSequence)
	return s.end(dst)
}

// DecodeReceipt decodes a RECEIPT frame.
func DecodeReceipt(f Frame, x *Receipt) error {
	*x = Receipt{}
	r := open(f, TypeReceipt, 0)
	x.Conversation = r.name(ConversationBytesMax, errConversation)
	x.User = r.name(UserBytesMax, errUser)
	x.DeliveredSequence = r.uvarint()
	x.ReadSequence = r.uvarint()
	return r.done()
}
