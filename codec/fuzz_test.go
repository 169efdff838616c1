package codec

import (
	"bytes"
	"reflect"
	"slices"
	"testing"
)

// seed gives a fuzz target every sample of its type as (flags, body).
func seed(f *testing.F, types ...Type) {
	f.Helper()
	for _, b := range samples() {
		x, _, err := Parse(b, FrameBytesMax)
		if err != nil {
			f.Fatal(err)
		}
		for _, t := range types {
			if x.Type == t {
				f.Add(x.Flags, x.Body)
			}
		}
	}
}

// fuzzDecoder checks one decoder with any flags and body: it does not panic, and what it accepts survives encoding and decoding.
func fuzzDecoder(f *testing.F, t Type) {
	seed(f, t)
	f.Fuzz(func(test *testing.T, flags uint8, body []byte) {
		x, err := decodeAny(Frame{Type: t, Flags: flags, Body: body})
		if err != nil {
			if e, ok := err.(*Error); !ok || e == nil || e.Code.Reconnect() {
				test.Fatalf("error %#v is no refusal", err)
			}
			return
		}
		encoded := appendAny(nil, x)
		again, n, err := Parse(encoded, 1<<28-1)
		if err != nil || n != len(encoded) || again.Type != t {
			test.Fatalf("encoded % x parses as %v, %d bytes, %v", encoded, again.Type, n, err)
		}
		y, err := decodeAny(again)
		if err != nil || !equalButEmpty(x, y) {
			test.Fatalf("decoded %+v, after encoding %+v, %v", x, y, err)
		}
		if twice := appendAny(nil, y); !bytes.Equal(twice, encoded) {
			test.Fatalf("encoded % x, then % x", encoded, twice)
		}
		walk(test, x)
	})
}

// equalButEmpty compares two decoded frames, taking nil and empty slices for equal.
func equalButEmpty(x, y any) bool {
	if reflect.DeepEqual(x, y) {
		return true
	}
	v, w := reflect.ValueOf(x).Elem(), reflect.ValueOf(y).Elem()
	for i := range v.NumField() {
		a, b := v.Field(i), w.Field(i)
		if a.Kind() == reflect.Slice {
			if !bytes.Equal(a.Bytes(), b.Bytes()) {
				return false
			}
		} else if !a.Equal(b) {
			return false
		}
	}
	return true
}

// walk reads every list of an accepted frame to its end: as many entries as announced, none of them an error.
func walk(t *testing.T, x any) {
	n, want := uint64(0), uint64(0)
	count := func(ok bool, err error) bool {
		if err != nil {
			t.Fatalf("an entry of an accepted frame fails: %v", err)
		}
		if ok {
			n++
		}
		return ok
	}
	switch x := x.(type) {
	case *Publish:
		want = x.Count
		for it := (PublishItem{}); count(x.Next(&it)); {
		}
	case *Published:
		if !x.AllAccepted {
			want = x.Count
		}
		for it := (ItemResult{}); count(x.Next(&it)); {
		}
	case *Heads:
		want = x.Count
		for h := (Head{}); count(x.Next(&h)); {
		}
	case *Ack:
		end := uint64(0)
		for r := range x.Ranges {
			if r.From < end || r.From == 0 || r.Count == 0 || r.Count > AckCountMax {
				t.Fatalf("range %v behind %d", r, end)
			}
			end = r.From + r.Count
			n++
		}
		if x.Kind == AckUpTo || x.Kind == AckMessageID {
			want = 0
		} else if x.Kind == AckList {
			want = x.Count
		} else {
			want = 1
		}
	}
	if n != want {
		t.Fatalf("%d entries, %d announced", n, want)
	}
}

func FuzzConnect(f *testing.F)   { fuzzDecoder(f, TypeConnect) }
func FuzzWelcome(f *testing.F)   { fuzzDecoder(f, TypeWelcome) }
func FuzzClose(f *testing.F)     { fuzzDecoder(f, TypeClose) }
func FuzzPing(f *testing.F)      { fuzzDecoder(f, TypePing) }
func FuzzPong(f *testing.F)      { fuzzDecoder(f, TypePong) }
func FuzzGoAway(f *testing.F)    { fuzzDecoder(f, TypeGoAway) }
func FuzzPush(f *testing.F)      { fuzzDecoder(f, TypePush) }
func FuzzAck(f *testing.F)       { fuzzDecoder(f, TypeAck) }
func FuzzNack(f *testing.F)      { fuzzDecoder(f, TypeNack) }
func FuzzExtend(f *testing.F)    { fuzzDecoder(f, TypeExtend) }
func FuzzSend(f *testing.F)      { fuzzDecoder(f, TypeSend) }
func FuzzSent(f *testing.F)      { fuzzDecoder(f, TypeSent) }
func FuzzSync(f *testing.F)      { fuzzDecoder(f, TypeSync) }
func FuzzSynced(f *testing.F)    { fuzzDecoder(f, TypeSynced) }
func FuzzHeads(f *testing.F)     { fuzzDecoder(f, TypeHeads) }
func FuzzRead(f *testing.F)      { fuzzDecoder(f, TypeRead) }
func FuzzReceipt(f *testing.F)   { fuzzDecoder(f, TypeReceipt) }
func FuzzPublish(f *testing.F)   { fuzzDecoder(f, TypePublish) }
func FuzzPublished(f *testing.F) { fuzzDecoder(f, TypePublished) }

// FuzzSplit cuts a stream at places taken from cuts: the frames and the error must be those of the whole stream (CASES I1).
func FuzzSplit(f *testing.F) {
	var all []byte
	for _, b := range samples() {
		f.Add(b, []byte{1})
		all = append(all, b...)
	}
	f.Add(all, []byte{3, 1, 200, 7})
	f.Add(append(slices.Clip(all), 0x80, 0x80, 0x80, 0x80), []byte{0})
	f.Fuzz(func(t *testing.T, stream, cuts []byte) { checkSplit(t, stream, cuts) })
}

func checkSplit(t *testing.T, stream, cuts []byte) {
	t.Helper()
	const frameBytesMax = 4096
	want, wantRest, wantErr := split(stream, frameBytesMax)
	var got [][]byte
	var held []byte
	var err error
	left := stream
	for i := 0; len(left) > 0 && err == nil; i++ {
		n := len(left)
		if len(cuts) > 0 {
			n = min(n, int(cuts[i%len(cuts)])+1)
		}
		held = append(held, left[:n]...)
		left = left[n:]
		var frames [][]byte
		frames, held, err = split(held, frameBytesMax)
		for _, f := range frames {
			got = append(got, bytes.Clone(f))
		}
	}
	if err != wantErr {
		t.Fatalf("whole: %v, cut: %v", wantErr, err)
	}
	if !reflect.DeepEqual(got, want) || err == nil && !bytes.Equal(held, wantRest) {
		t.Fatalf("whole: %d frames and % x, cut: %d frames and % x", len(want), wantRest, len(got), held)
	}
}

// TestI1EveryCutGivesTheSameFrames is the frame half of CASES I1: one byte at a time, all at once, and every single cut.
func TestI1EveryCutGivesTheSameFrames(t *testing.T) {
	var stream []byte
	for _, b := range samples() {
		stream = append(stream, b...)
	}
	checkSplit(t, stream, []byte{0})
	want, _, err := split(stream, FrameBytesMax)
	if err != nil || len(want) != len(samples()) {
		t.Fatalf("%d frames, %v", len(want), err)
	}
	for cut := range stream {
		first, rest, err := split(stream[:cut], FrameBytesMax)
		if err != nil {
			t.Fatal(err)
		}
		second, rest, err := split(append(bytes.Clone(rest), stream[cut:]...), FrameBytesMax)
		if err != nil || len(rest) != 0 || len(first)+len(second) != len(want) {
			t.Fatalf("cut at %d: %d + %d frames, want %d, rest %d, %v", cut, len(first), len(second), len(want), len(rest), err)
		}
	}
}

// TestI3OverlongFrameIsRefusedAtItsHeader is the frame half of CASES I3.
func TestI3OverlongFrameIsRefusedAtItsHeader(t *testing.T) {
	exact := AppendSend(nil, &Send{ClientMessageID: []byte("x"), Conversation: []byte("c"), Payload: make([]byte, FrameBytesDefault-7)})
	if f, n, err := Parse(exact, FrameBytesDefault); err != nil || n != len(exact) || len(f.Body) != FrameBytesDefault-2 {
		t.Errorf("a frame of exactly the maximum: %d of %d bytes, %v", n, len(exact), err)
	}
	for _, length := range []uint64{FrameBytesDefault + 1, 1 << 20, 1<<28 - 1, 1 << 28, 1<<31 - 1, 1<<32 - 1} {
		var header []byte
		for v := length; ; v >>= 7 {
			if v < 0x80 {
				header = append(header, byte(v))
				break
			}
			header = append(header, byte(v)|0x80)
		}
		header = header[:min(len(header), 4)]
		if _, _, err := Parse(header, FrameBytesDefault); err != ErrFrameTooLarge {
			t.Errorf("length %d: %v", length, err)
		}
	}
}
