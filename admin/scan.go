package admin

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner reads JSON (RFC 8259) from front to back. It is strict where a general parser guesses: control characters,
// invalid UTF-8, lone surrogates and bad escapes are errors, because a payload that was silently repaired on its way in is a
// message the publisher did not send.
//
// Why not a tree (fastjson, encoding/json): a push has twelve known fields, so each one can go straight to its place, an
// unknown one is an error where it stands, and what is wrong can be told by byte offset.
type scanner struct {
	b       []byte
	i       int
	scratch []byte // unescaped strings of the current item; grown, never shrunk by the scanner
	fault   string // the first thing that was wrong; empty: nothing yet
}

// reset starts on b, which is borrowed until the next reset.
func (s *scanner) reset(b []byte) {
	s.b, s.i, s.fault, s.scratch = b, 0, "", s.scratch[:0]
}

// fail notes what is wrong, once: what follows the first fault is noise. It always reports false.
func (s *scanner) fail(what string) bool {
	if s.fault == "" {
		s.fault = what
	}
	return false
}

// message is the fault and where it is.
func (s *scanner) message() string {
	return s.fault + " at byte " + strconv.Itoa(min(s.i, len(s.b)))
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\n', '\r', '\t':
			s.i++
		default:
			return
		}
	}
}

// peek is the next byte that is no white space, 0 at the end. (A NUL byte in the text reads the same and is refused by
// whoever expected something else.)
func (s *scanner) peek() byte {
	s.space()
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

// take consumes c if it comes next.
func (s *scanner) take(c byte) bool {
	if s.peek() != c || s.i >= len(s.b) {
		return false
	}
	s.i++
	return true
}

// expect is take, and a fault when it is not there.
func (s *scanner) expect(c byte, where string) bool {
	if s.take(c) {
		return true
	}
	if s.i >= len(s.b) {
		return s.fail("the text ends early, expected '" + string(rune(c)) + "' " + where)
	}
	return s.fail("expected '" + string(rune(c)) + "' " + where)
}

// end reports whether nothing but white space is left.
func (s *scanner) end() bool {
	s.space()
	if s.i < len(s.b) {
		return s.fail("something follows the end of the JSON value")
	}
	return true
}

// literal consumes a word such as null. What follows it is checked by whoever reads on.
func (s *scanner) literal(word string) bool {
	s.space()
	if !bytes.HasPrefix(s.b[s.i:], []byte(word)) {
		return false
	}
	s.i += len(word)
	return true
}

// text reads a string. The result borrows from the text or from scratch and is valid until the next reset.
func (s *scanner) text() ([]byte, bool) {
	if s.peek() != '"' {
		return nil, s.fail("expected a string")
	}
	s.i++
	start, ascii := s.i, true
	for s.plain(); s.i < len(s.b); s.plain() {
		c := s.b[s.i]
		switch {
		case c == '"':
			raw := s.b[start:s.i]
			if !ascii && !utf8.Valid(raw) {
				return nil, s.fail("a string that is not UTF-8 ends")
			}
			s.i++
			return raw, true
		case c == '\\':
			return s.escaped(start)
		case c < 0x20:
			return nil, s.fail("control character in a string")
		case c >= utf8.RuneSelf:
			ascii = false
		}
		s.i++
	}
	return nil, s.fail("a string does not end")
}

// plain passes over bytes of a string that mean themselves, eight at a time: most of a request is long strings of base64. It may
// stop before such a byte, never behind another one.
func (s *scanner) plain() {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	for len(s.b)-s.i >= 8 {
		x := binary.LittleEndian.Uint64(s.b[s.i:])
		quote, backslash := x^(ones*'"'), x^(ones*'\\')
		// A byte below n borrows in x - n, which leaves its high bit set; ^x keeps those that had it before out of it.
		stops := (quote-ones)&^quote | (backslash-ones)&^backslash | (x-ones*0x20)&^x | x
		if stops &= highs; stops != 0 {
			s.i += bits.TrailingZeros64(stops) / 8 // borrows only run upwards: the lowest stop is a true one
			return
		}
		s.i += 8
	}
}

// escaped goes on with a string that has escapes, from the first backslash.
func (s *scanner) escaped(start int) ([]byte, bool) {
	from := len(s.scratch)
	s.scratch = append(s.scratch, s.b[start:s.i]...)
	for s.i < len(s.b) {
		c := s.b[s.i]
		switch {
		case c == '"':
			s.i++
			out := s.scratch[from:len(s.scratch):len(s.scratch)]
			if !utf8.Valid(out) {
				return nil, s.fail("a string that is not UTF-8 ends")
			}
			return out, true
		case c < 0x20:
			return nil, s.fail("control character in a string")
		case c != '\\':
			s.scratch = append(s.scratch, c)
			s.i++
		case !s.escape():
			return nil, false
		}
	}
	return nil, s.fail("a string does not end")
}

// escape reads one escape sequence into scratch.
func (s *scanner) escape() bool {
	if s.i+1 >= len(s.b) {
		return s.fail("a string does not end")
	}
	c := s.b[s.i+1]
	switch c {
	case '"', '\\', '/':
	case 'b':
		c = '\b'
	case 'f':
		c = '\f'
	case 'n':
		c = '\n'
	case 'r':
		c = '\r'
	case 't':
		c = '\t'
	case 'u':
		return s.unicode()
	default:
		return s.fail("unknown escape in a string")
	}
	s.scratch = append(s.scratch, c)
	s.i += 2
	return true
}

// unicode reads \uXXXX, and the second half of a pair.
func (s *scanner) unicode() bool {
	r, ok := s.hex4(s.i + 2)
	if !ok {
		return s.fail("\\u needs four hexadecimal digits")
	}
	s.i += 6
	if utf16.IsSurrogate(r) {
		if s.i+1 >= len(s.b) || s.b[s.i] != '\\' || s.b[s.i+1] != 'u' {
			return s.fail("half a surrogate pair")
		}
		low, ok := s.hex4(s.i + 2)
		if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
			return s.fail("half a surrogate pair")
		}
		s.i += 6
	}
	s.scratch = utf8.AppendRune(s.scratch, r)
	return true
}

func (s *scanner) hex4(at int) (rune, bool) {
	if at+4 > len(s.b) {
		return 0, false
	}
	var r rune
	for _, c := range s.b[at : at+4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// number reads a number as it is written.
func (s *scanner) number() ([]byte, bool) {
	s.space()
	start := s.i
	if s.i < len(s.b) && s.b[s.i] == '-' {
		s.i++
	}
	whole := s.digits()
	if whole == 0 || (whole > 1 && s.b[s.i-whole] == '0') {
		return nil, s.fail("a number is malformed")
	}
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		if s.digits() == 0 {
			return nil, s.fail("a number is malformed")
		}
	}
	if s.i < len(s.b) && (s.b[s.i] == 'e' || s.b[s.i] == 'E') {
		s.i++
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		if s.digits() == 0 {
			return nil, s.fail("a number is malformed")
		}
	}
	return s.b[start:s.i], true
}

func (s *scanner) digits() int {
	start := s.i
	for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i - start
}

// value passes over any JSON value, nested at most depth deep. It is how the reader gets past an item with a fault in a field to
// the next item of an array.
func (s *scanner) value(depth int) bool {
	switch c := s.peek(); {
	case c == '"':
		_, ok := s.text()
		return ok
	case c == '{' || c == '[':
		if depth == 0 {
			return s.fail("nested too deeply")
		}
		return s.container(c, depth-1)
	case c == '-' || (c >= '0' && c <= '9'):
		_, ok := s.number()
		return ok
	case s.literal("null") || s.literal("true") || s.literal("false"):
		return true
	case s.i >= len(s.b):
		return s.fail("the text ends early")
	default:
		return s.fail("expected a JSON value")
	}
}

func (s *scanner) container(open byte, depth int) bool {
	closing := open + 2 // '[' and ']', '{' and '}' are two apart
	s.i++
	if s.take(closing) {
		return true
	}
	for {
		if open == '{' {
			if _, ok := s.text(); !ok || !s.expect(':', "after a field name") {
				return false
			}
		}
		if !s.value(depth) {
			return false
		}
		if s.take(closing) {
			return true
		}
		if !s.expect(',', "between values") {
			return false
		}
	}
}
