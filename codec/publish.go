package codec

import "encoding/binary"

// The publisher's frames. Names inside a PUBLISH item are not checked here: a bad user is that item's result, not the end of the
// connection. The structure is checked whole, before any item can take effect.

// PublishWriter builds a PUBLISH frame item by item. The zero value is ready after Reset; it keeps its memory over Reset. Not safe for concurrent use.
type PublishWriter struct {
	number uint64
	count  uint64
	list   []byte
}

// Reset starts a new frame. Numbers start at 1 and rise by one in a connection.
func (w *PublishWriter) Reset(number uint64) { w.number, w.count, w.list = number, 0, w.list[:0] }

// Add appends one item; it is copied.
func (w *PublishWriter) Add(x *PublishItem) {
	flags := uint8(x.Priority) << ItemPriorityShift
	if x.NoAck {
		flags |= ItemNoAck
	}
	if len(x.Conversation) > 0 {
		flags |= ItemHasConversation
	}
	if len(x.Device) > 0 {
		flags |= ItemHasDevice
	}
	b := w.list
	b = append(b, flags)
	b = appendBytes(b, x.User)
	if len(x.Device) > 0 {
		b = appendBytes(b, x.Device)
	}
	b = appendBytes(b, x.MessageID)
	b = binary.AppendUvarint(b, x.TTLMs)
	b = appendBytes(b, x.Type)
	if len(x.Conversation) > 0 {
		b = appendBytes(b, x.Conversation)
	}
	w.list = appendBytes(b, x.Payload)
	w.count++
}

// Fits reports whether the frame may take x as well: not over PublishItemsMax items and not over frameBytesMax.
func (w *PublishWriter) Fits(x *PublishItem, frameBytesMax int) bool {
	return w.count < PublishItemsMax && w.length(w.count+1)+itemBytes(x) <= frameBytesMax
}

// Count is how many items were added.
func (w *PublishWriter) Count() int { return int(w.count) }

// Len is how many bytes AppendTo would append.
func (w *PublishWriter) Len() int {
	n := w.length(w.count)
	return lengthBytes(n) + n
}

// length is the frame's length field for count items.
func (w *PublishWriter) length(count uint64) int {
	return 2 + uvarintBytes(w.number) + uvarintBytes(count) + len(w.list)
}

// AppendTo appends the frame.
func (w *PublishWriter) AppendTo(dst []byte) []byte {
	return appendPublish(dst, w.number, w.count, w.list)
}

// itemBytes is how many bytes an item takes.
func itemBytes(x *PublishItem) int {
	n := 1 + uvarintBytes(x.TTLMs)
	for _, b := range [...][]byte{x.User, x.MessageID, x.Type, x.Payload} {
		n += uvarintBytes(uint64(len(b))) + len(b)
	}
	for _, b := range [...][]byte{x.Device, x.Conversation} {
		if len(b) > 0 {
			n += uvarintBytes(uint64(len(b))) + len(b)
		}
	}
	return n
}

// AppendPublish appends a PUBLISH frame that was decoded, before the first Next; build a new one with PublishWriter.
//
//	| len | 0x30 | 0 | publish number | n | n x item |
//	item: | flags 1 B | user | [device] | message id | ttl ms | type | [conversation] | payload |
func AppendPublish(dst []byte, x *Publish) []byte {
	return appendPublish(dst, x.Number, x.Count, x.list)
}

func appendPublish(dst []byte, number, count uint64, list []byte) []byte {
	dst, s := begin(dst, TypePublish, 0, len(list)+4)
	dst = binary.AppendUvarint(dst, number)
	dst = binary.AppendUvarint(dst, count)
	return s.end(append(dst, list...))
}

// DecodePublish decodes a PUBLISH frame and checks the structure of every item, so that Next cannot fail afterwards. The names in
// the items are not checked. [P-PUBLISH-3]
func DecodePublish(f Frame, x *Publish) error {
	*x = Publish{}
	r := open(f, TypePublish, 0)
	x.Number = r.number()
	x.Count = r.uvarint()
	if r.err == nil && (x.Count == 0 || x.Count > PublishItemsMax) {
		r.fail(errItems)
	}
	list := r.b
	var it PublishItem
	for i := uint64(0); i < x.Count && r.err == nil; i++ {
		r.item(&it)
	}
	x.list = list[:len(list)-len(r.b)]
	return r.done()
}

func (r *reader) item(x *PublishItem) {
	flags := r.uint8()
	*x = PublishItem{NoAck: flags&ItemNoAck != 0, Priority: Priority(flags & ItemPriorityMask >> ItemPriorityShift)}
	if flags&^(ItemNoAck|ItemPriorityMask|ItemHasConversation|ItemHasDevice) != 0 || x.Priority > PriorityBulk {
		r.fail(errItemFlags)
	}
	x.User = r.bytes()
	if flags&ItemHasDevice != 0 {
		x.Device = r.announced(errDevice)
	}
	x.MessageID = r.bytes()
	x.TTLMs = r.uvarint()
	x.Type = r.bytes()
	if flags&ItemHasConversation != 0 {
		x.Conversation = r.announced(errConversation)
	}
	x.Payload = r.bytes()
}

// announced reads a byte string that a flag announced: it is not empty, or an item meant for one device would go to all. [P-STR-3]
func (r *reader) announced(bad *Error) []byte {
	b := r.bytes()
	if r.err == nil && len(b) == 0 {
		r.fail(bad)
	}
	return b
}

// Next reads the next item into it and moves on; ok is false behind the last one. The slices are borrowed from the frame.
func (x *Publish) Next(it *PublishItem) (ok bool, err error) {
	if len(x.list) == 0 {
		return false, nil
	}
	r := reader{b: x.list}
	r.item(it)
	x.list = r.b
	return r.err == nil, r.done()
}

// PublishedWriter builds a PUBLISHED frame that names each item's result. The zero value is ready after Reset; it keeps its memory
// over Reset. Not safe for concurrent use. When every item was accepted under the id it named, AppendPublished with AllAccepted is shorter.
type PublishedWriter struct {
	number uint64
	count  uint64
	list   []byte
}

// Reset starts the answer to the PUBLISH frame of that number.
func (w *PublishedWriter) Reset(number uint64) { w.number, w.count, w.list = number, 0, w.list[:0] }

// Add appends the next item's result; it is copied.
func (w *PublishedWriter) Add(x *ItemResult) {
	w.list = binary.AppendUvarint(w.list, uint64(x.Result))
	w.list = appendBytes(w.list, x.MessageID)
	w.count++
}

// AppendTo appends the frame.
func (w *PublishedWriter) AppendTo(dst []byte) []byte {
	return AppendPublished(dst, &Published{Number: w.number, Count: w.count, list: w.list})
}

// AppendPublished appends a PUBLISHED frame. Without AllAccepted it takes the results of a frame that was decoded, before the first Next; build new ones with PublishedWriter.
//
//	| len | 0x31 | flags | publish number | n | without PublishedAllAccepted: n x ( result | message id ) |
func AppendPublished(dst []byte, x *Published) []byte {
	flags := uint8(0)
	if x.AllAccepted {
		flags = PublishedAllAccepted
	}
	dst, s := begin(dst, TypePublished, flags, len(x.list)+4)
	dst = binary.AppendUvarint(dst, x.Number)
	dst = binary.AppendUvarint(dst, x.Count)
	if !x.AllAccepted {
		dst = append(dst, x.list...)
	}
	return s.end(dst)
}

// DecodePublished decodes a PUBLISHED frame and checks its results, so that Next cannot fail afterwards.
func DecodePublished(f Frame, x *Published) error {
	*x = Published{AllAccepted: f.Flags&PublishedAllAccepted != 0}
	r := open(f, TypePublished, PublishedAllAccepted)
	x.Number = r.number()
	x.Count = r.uvarint()
	if r.err == nil && (x.Count == 0 || x.Count > PublishItemsMax) {
		r.fail(errItems)
	}
	if x.AllAccepted {
		return r.done()
	}
	list := r.b
	var it ItemResult
	for i := uint64(0); i < x.Count && r.err == nil; i++ {
		r.itemResult(&it)
	}
	x.list = list[:len(list)-len(r.b)]
	return r.done()
}

func (r *reader) itemResult(x *ItemResult) {
	x.Result = Result(r.uint16())
	x.MessageID = r.text(MessageIDBytesMax, errMessageID)
}

// Next reads the next result into it and moves on; ok is false behind the last one, and at once with AllAccepted.
func (x *Published) Next(it *ItemResult) (ok bool, err error) {
	if len(x.list) == 0 {
		return false, nil
	}
	r := reader{b: x.list}
	r.itemResult(it)
	x.list = r.b
	return r.err == nil, r.done()
}
