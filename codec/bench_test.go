package codec

import "testing"

func BenchmarkDecodeAckOne(b *testing.B) {
	frame := AppendAckOne(nil, 70000, LevelProcessed)
	var x Ack
	for b.Loop() {
		f, _, _ := Parse(frame, FrameBytesDefault)
		if DecodeAck(f, &x) != nil {
			b.Fatal("refused")
		}
	}
}

func BenchmarkDecodeAckList(b *testing.B) {
	var ranges []Range
	for i := range uint64(32) {
		ranges = append(ranges, Range{1 + 3*i, 2})
	}
	frame := AppendAckList(nil, ranges, LevelProcessed)
	sum := uint64(0)
	for b.Loop() {
		var x Ack
		f, _, _ := Parse(frame, FrameBytesDefault)
		if DecodeAck(f, &x) != nil {
			b.Fatal("refused")
		}
		for r := range x.Ranges {
			sum += r.Count
		}
	}
	_ = sum
}

func benchmarkPush(payloadBytes int) *Push {
	return &Push{
		Number: 70000, Attempt: 1, ServerTimeMs: 1790000000000, MessageID: []byte("01J9Z3K5T7Q2W4E6R8Y0U1I3O5"), Type: []byte("chat"),
		Payload: make([]byte, payloadBytes),
	}
}

func BenchmarkEncodePush(b *testing.B) {
	x, dst := benchmarkPush(200), make([]byte, 0, 4096)
	for b.Loop() {
		AppendPush(dst, x)
	}
}

func BenchmarkDecodePush(b *testing.B) {
	frame := AppendPush(nil, benchmarkPush(200))
	var x Push
	for b.Loop() {
		f, _, _ := Parse(frame, FrameBytesDefault)
		if DecodePush(f, &x) != nil {
			b.Fatal("refused")
		}
	}
}

func BenchmarkPing(b *testing.B) {
	dst := make([]byte, 0, 16)
	for b.Loop() {
		f, _, _ := Parse(AppendPing(dst, nil), FrameBytesDefault)
		if _, err := DecodePing(f); err != nil {
			b.Fatal(err)
		}
	}
}

// One operation is one item of a frame of 100.
func BenchmarkPublishItem(b *testing.B) {
	it := PublishItem{User: []byte("user-123456"), MessageID: []byte("01J9Z3K5T7Q2W4E6R8Y0U1I3O5"), Payload: make([]byte, 200)}
	var w PublishWriter
	dst := make([]byte, 0, 64<<10)
	for i := 0; i < b.N; i += 100 {
		w.Reset(1)
		for range 100 {
			w.Add(&it)
		}
		f, _, _ := Parse(w.AppendTo(dst), FrameBytesDefault)
		var x Publish
		if DecodePublish(f, &x) != nil {
			b.Fatal("refused")
		}
		var item PublishItem
		for ok, _ := x.Next(&item); ok; ok, _ = x.Next(&item) {
		}
	}
}
