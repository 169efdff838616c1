package codec

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

func TestEveryFrameDecodesToWhatWasEncoded(t *testing.T) {
	seen := map[Type]bool{}
	for _, want := range samples() {
		f, n, err := Parse(want, FrameBytesMax)
		if err != nil || n != len(want) {
			t.Fatalf("parse % x: n=%d err=%v", want, n, err)
		}
		seen[f.Type] = true
		x, err := decodeAny(f)
		if err != nil {
			t.Fatalf("decode %v % x: %v", f.Type, want, err)
		}
		if got := appendAny([]byte("before"), x); string(got) != "before"+string(want) {
			t.Errorf("%v encoded again:\n got % x\nwant % x", f.Type, got[6:], want)
		}
		again, err := decodeAny(f)
		if err != nil || !reflect.DeepEqual(x, again) {
			t.Errorf("%v decoded twice differs: %+v, %+v", f.Type, x, again)
		}
	}
	for i := range 256 {
		if Type(i).known() && !seen[Type(i)] {
			t.Errorf("no sample of %v", Type(i))
		}
		if Type(i).known() != (Type(i).String() != "UNKNOWN") {
			t.Errorf("type %#x: known and its name disagree", i)
		}
	}
}

func TestFieldsSurviveTheWire(t *testing.T) {
	want := Push{
		Number: 1 << 40, Attempt: 3, ServerTimeMs: 1790000000000, MessageID: []byte("m"), Type: []byte("chat"), Conversation: []byte("c"),
		Sequence: 8, ExpireAtMs: 1790000009999, Payload: []byte("body"), Redelivered: true, Priority: PriorityUrgent,
	}
	f, _, err := Parse(AppendPush(nil, &want), FrameBytesDefault)
	if err != nil {
		t.Fatal(err)
	}
	var got Push
	if err := DecodePush(f, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, %v; want %+v", got, err, want)
	}
	wantConnect := Connect{
		Version: 1, KeepaliveS: 2, WindowMsgs: 3, WindowBytes: 4, Capabilities: 5, User: []byte("u"), Device: []byte("d"),
		Token: []byte("t"), ClientName: []byte("n"), HasResume: true, ResumeSession: 6, ResumeNumberSeen: 7,
	}
	f, _, _ = Parse(AppendConnect(nil, &wantConnect), FrameBytesDefault)
	var gotConnect Connect
	if err := DecodeConnect(f, &gotConnect); err != nil || !reflect.DeepEqual(gotConnect, wantConnect) {
		t.Fatalf("got %+v, %v; want %+v", gotConnect, err, wantConnect)
	}
}

func TestAckRanges(t *testing.T) {
	list := []Range{{2, 3}, {5, 1}, {100, AckCountMax}}
	cases := []struct {
		name  string
		frame []byte
		want  []Range
	}{
		{"one", AppendAckOne(nil, 9, LevelReceived), []Range{{9, 1}}},
		{"range", AppendAckRange(nil, 9, 4, LevelReceived), []Range{{9, 4}}},
		{"list", AppendAckList(nil, list, LevelRead), list},
		{"up to", AppendAckUpTo(nil, 9, LevelReceived), nil},
		{"message id", AppendAckMessageID(nil, []byte("m"), LevelReceived), nil},
	}
	for _, c := range cases {
		f, _, err := Parse(c.frame, FrameBytesDefault)
		if err != nil {
			t.Fatal(c.name, err)
		}
		var x Ack
		if err := DecodeAck(f, &x); err != nil {
			t.Fatal(c.name, err)
		}
		for range 2 {
			var got []Range
			for r := range x.Ranges {
				got = append(got, r)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s: got %v, want %v", c.name, got, c.want)
			}
		}
		for range x.Ranges {
			break // stopping early must be fine
		}
	}
}

func TestOneNumberAckTakesAtMostSixBytes(t *testing.T) {
	for number, want := range map[uint64]int{1: 4, 127: 4, 128: 5, 1<<14 - 1: 5, 1 << 14: 6, 1<<21 - 1: 6, 1 << 21: 7} {
		if got := len(AppendAckOne(nil, number, LevelProcessed)); got != want {
			t.Errorf("ACK of %d takes %d bytes, want %d", number, got, want)
		}
		if got := len(AppendAckUpTo(nil, number, LevelProcessed)); got != want {
			t.Errorf("ACK up to %d takes %d bytes, want %d", number, got, want)
		}
	}
}

func TestPublishItemsComeBackInOrder(t *testing.T) {
	want := []PublishItem{
		{User: []byte("alice"), MessageID: []byte{}, Type: []byte{}, Payload: []byte("x")},
		{User: []byte("bob"), Device: []byte("phone"), MessageID: []byte("m2"), TTLMs: 5, Type: []byte("t"), Conversation: []byte("c"), Payload: []byte{}, NoAck: true, Priority: PriorityUrgent},
	}
	var w PublishWriter
	w.Reset(3)
	for i := range want {
		if !w.Fits(&want[i], FrameBytesDefault) {
			t.Fatal("does not fit")
		}
		before := w.Len()
		w.Add(&want[i])
		if w.Len() != before+itemBytes(&want[i]) {
			t.Fatalf("item takes %d bytes, foretold %d", w.Len()-before, itemBytes(&want[i]))
		}
	}
	frame := w.AppendTo(nil)
	if len(frame) != w.Len() || w.Count() != 2 {
		t.Fatalf("Len %d, frame %d, count %d", w.Len(), len(frame), w.Count())
	}
	f, _, err := Parse(frame, FrameBytesDefault)
	if err != nil {
		t.Fatal(err)
	}
	var x Publish
	if err := DecodePublish(f, &x); err != nil || x.Number != 3 || x.Count != 2 {
		t.Fatal(x, err)
	}
	for i := range want {
		var it PublishItem
		if ok, err := x.Next(&it); !ok || err != nil || !reflect.DeepEqual(it, want[i]) {
			t.Errorf("item %d: %+v %v %v", i, it, ok, err)
		}
	}
	if ok, err := x.Next(&PublishItem{}); ok || err != nil {
		t.Error("an item behind the last one")
	}
}

func TestPublishWriterFillsAFrameExactly(t *testing.T) {
	it := PublishItem{User: []byte("alice"), Payload: make([]byte, 1000)}
	for _, frameBytesMax := range []int{1100, 5000, 1<<14 + 1, FrameBytesDefault} {
		var w PublishWriter
		w.Reset(1)
		for w.Fits(&it, frameBytesMax) {
			w.Add(&it)
		}
		frame := w.AppendTo(nil)
		if _, n, err := Parse(frame, frameBytesMax); n != len(frame) || err != nil {
			t.Errorf("%d: %d items do not fit: %v", frameBytesMax, w.Count(), err)
		}
		w.Add(&it)
		if _, _, err := Parse(w.AppendTo(nil), frameBytesMax); err != ErrFrameTooLarge {
			t.Errorf("%d: one more item would have fitted", frameBytesMax)
		}
	}
}

func TestLongReasonIsCutAtACharacter(t *testing.T) {
	for pad := range 4 {
		reason := strings.Repeat("x", pad) + strings.Repeat("日", 200)
		f, _, err := Parse(AppendClose(nil, &Close{Code: CodeInternal, Reason: []byte(reason)}), FrameBytesDefault)
		if err != nil {
			t.Fatal(err)
		}
		var x Close
		if err := DecodeClose(f, &x); err != nil {
			t.Fatal(err)
		}
		if n := len(x.Reason); n > ReasonBytesMax || n < ReasonBytesMax-2 || !bytes.HasPrefix([]byte(reason), x.Reason) {
			t.Errorf("reason of %d bytes", n)
		}
	}
}
