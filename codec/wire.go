package codec

import (
	"encoding/binary"
	"unicode/utf8"
)

// frameHeaderBytesMax is the longest length field; a fifth byte would announce 256 MiB or more.
const frameHeaderBytesMax = 4

// Parse takes the first frame off buf. frameBytesMax is the largest length the receiver has announced. f borrows from buf; n is how many
// bytes the frame took. n == 0 with a nil error means that more bytes are needed. An error is an *Error, was reached as soon as
// the bytes allowed, and is fatal: there is no way to find the next frame. [P-FRAME-1] to [P-FRAME-4]
func Parse(buf []byte, frameBytesMax int) (f Frame, n int, err error) {
	length, head := 0, 0
	for {
		if head == frameHeaderBytesMax {
			return Frame{}, 0, ErrFrameTooLarge
		}
		if head == len(buf) {
			return Frame{}, 0, nil
		}
		b := buf[head]
		length |= int(b&0x7f) << (7 * head)
		head++
		if b < 0x80 {
			if b == 0 && head > 1 {
				return Frame{}, 0, errVarint
			}
			break
		}
	}
	if length > frameBytesMax {
		return Frame{}, 0, ErrFrameTooLarge
	}
	if length < 2 {
		return Frame{}, 0, errLength
	}
	if len(buf) > head && !Type(buf[head]).known() {
		return Frame{}, 0, errType
	}
	n = head + length
	if len(buf) < n {
		return Frame{}, 0, nil
	}
	return Frame{Type: Type(buf[head]), Flags: buf[head+1], Body: buf[head+2 : n : n]}, n, nil
}

// known reports whether this version defines the type. [P-FRAME-4]
func (t Type) known() bool {
	switch t {
	case TypeConnect, TypeWelcome, TypeClose, TypePing, TypePong, TypeGoAway,
		TypePush, TypeAck, TypeNack, TypeExtend,
		TypeSend, TypeSent, TypeSync, TypeSynced, TypeHeads, TypeRead, TypeReceipt,
		TypePublish, TypePublished:
		return true
	}
	return false
}

// start remembers where a frame begins in the slice it is appended to, and how many bytes were left free for its length.
type start struct{ at, reserved int }

// begin appends the header of a frame. The length must be in its shortest form but is known only at the end, so room is left for a
// body of about guess bytes; a wrong guess costs end one move of the body and nothing else.
func begin(dst []byte, t Type, flags uint8, guess int) ([]byte, start) {
	s := start{at: len(dst), reserved: lengthBytes(guess + 2)}
	free := [frameHeaderBytesMax]byte{}
	dst = append(dst, free[:s.reserved]...)
	return append(dst, byte(t), flags), s
}

// end fills in the length of the frame that dst ends with.
func (s start) end(dst []byte) []byte {
	length := len(dst) - s.at - s.reserved
	need := lengthBytes(length)
	if need != s.reserved {
		body := s.at + s.reserved
		if grow := need - s.reserved; grow > 0 {
			free := [frameHeaderBytesMax]byte{}
			dst = append(dst, free[:grow]...)
		}
		copy(dst[s.at+need:], dst[body:body+length])
		dst = dst[:s.at+need+length]
	}
	binary.AppendUvarint(dst[:s.at], uint64(length)) // in place: exactly need bytes were left free
	return dst
}

// lengthBytes is how many bytes the length field takes for a length.
func lengthBytes(length int) int {
	switch {
	case length < 1<<7:
		return 1
	case length < 1<<14:
		return 2
	case length < 1<<21:
		return 3
	case length < 1<<28:
		return 4
	}
	panic("codec: a frame of 256 MiB or more cannot be encoded")
}

// uvarintBytes is how many bytes an integer takes.
func uvarintBytes(v uint64) int {
	n := 1
	for v >= 0x80 {
		v >>= 7
		n++
	}
	return n
}

// appendBytes appends a byte string: its length and its bytes.
func appendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// appendReason appends a reason cut to what the other side accepts: reasons are often made from error texts, and a CLOSE refused
// for its reason would hide its code.
func appendReason(dst, b []byte) []byte {
	if len(b) > ReasonBytesMax {
		b = b[:ReasonBytesMax]
		for len(b) > 0 && !utf8.Valid(b) && ReasonBytesMax-len(b) < utf8.UTFMax {
			b = b[:len(b)-1]
		}
	}
	return appendBytes(dst, b)
}

// reader takes fields off a body. The first error sticks and leaves nothing to read, so that decoders check once, at the end.
type reader struct {
	b   []byte
	err *Error
}

// open starts reading a frame's body after checking its type and flags. [P-STATE-1] [P-FRAME-5]
func open(f Frame, t Type, flagsKnown uint8) reader {
	r := reader{b: f.Body}
	if f.Type != t {
		r.fail(errOtherFrame)
	} else if f.Flags&^flagsKnown != 0 {
		r.fail(errFlags)
	}
	return r
}

func (r *reader) fail(e *Error) {
	if r.err == nil {
		r.err = e
	}
	r.b = nil
}

// done turns the sticky error into an error that is nil when there is none.
func (r *reader) done() error {
	if r.err != nil {
		return r.err
	}
	return nil
}

// uvarint reads an integer. [P-INT-1]
func (r *reader) uvarint() uint64 {
	if len(r.b) > 0 && r.b[0] < 0x80 {
		v := r.b[0]
		r.b = r.b[1:]
		return uint64(v)
	}
	return r.uvarintLong()
}

func (r *reader) uvarintLong() uint64 {
	v, n := binary.Uvarint(r.b)
	switch {
	case n == 0:
		r.fail(errTruncated)
		return 0
	case n < 0 || r.b[n-1] == 0:
		r.fail(errVarint)
		return 0
	}
	r.b = r.b[n:]
	return v
}

// uint16 reads a code or result.
func (r *reader) uint16() uint16 {
	v := r.uvarint()
	if v > 0xffff {
		r.fail(errCode)
		return 0
	}
	return uint16(v)
}

// uint8 reads one plain byte.
func (r *reader) uint8() uint8 {
	if len(r.b) == 0 {
		r.fail(errTruncated)
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

// fixed64 reads 8 bytes, most significant first. [P-INT-2]
func (r *reader) fixed64() uint64 {
	if len(r.b) < 8 {
		r.fail(errTruncated)
		return 0
	}
	v := binary.BigEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

// number reads a request number. [P-NUM-1]
func (r *reader) number() uint64 {
	v := r.uvarint()
	if v == 0 {
		r.fail(errNumber)
	}
	return v
}

// bytes reads a byte string of any length; the frame bounds it. [P-STR-1]
func (r *reader) bytes() []byte {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.fail(errTruncated)
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

// text reads a string that may be empty.
func (r *reader) text(bytesMax int, bad *Error) []byte {
	b := r.bytes()
	if r.err == nil && !validText(b, bytesMax) {
		r.fail(bad)
	}
	return b
}

// name reads a string that may not be empty.
func (r *reader) name(bytesMax int, bad *Error) []byte {
	b := r.text(bytesMax, bad)
	if r.err == nil && len(b) == 0 {
		r.fail(bad)
	}
	return b
}
