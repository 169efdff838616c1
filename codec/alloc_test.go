package codec

import "testing"

// allocs fails when one call of f allocates.
func allocs(t *testing.T, name string, f func()) {
	t.Helper()
	if n := testing.AllocsPerRun(200, f); n != 0 {
		t.Errorf("%s: %v allocations", name, n)
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// frameOf parses one sample.
func frameOf(b []byte) Frame {
	f, n, err := Parse(b, FrameBytesMax)
	must(err)
	if n == 0 {
		panic("half a frame")
	}
	return f
}

// decodeInto returns a function that decodes f into memory of its own and one that encodes it again.
func decodeInto(f Frame, dst []byte) (decode, encode func()) {
	switch f.Type {
	case TypeConnect:
		x := new(Connect)
		return func() { must(DecodeConnect(f, x)) }, func() { AppendConnect(dst, x) }
	case TypeWelcome:
		x := new(Welcome)
		return func() { must(DecodeWelcome(f, x)) }, func() { AppendWelcome(dst, x) }
	case TypeClose:
		x := new(Close)
		return func() { must(DecodeClose(f, x)) }, func() { AppendClose(dst, x) }
	case TypePing:
		var data []byte
		return func() { data, _ = DecodePing(f) }, func() { AppendPing(dst, data) }
	case TypePong:
		var data []byte
		return func() { data, _ = DecodePing(f) }, func() { AppendPong(dst, data) }
	case TypeGoAway:
		x := new(GoAway)
		return func() { must(DecodeGoAway(f, x)) }, func() { AppendGoAway(dst, x) }
	case TypePush:
		x := new(Push)
		return func() { must(DecodePush(f, x)) }, func() { AppendPush(dst, x) }
	case TypeAck:
		x := new(Ack)
		return func() { must(DecodeAck(f, x)) }, func() { AppendAck(dst, x) }
	case TypeNack:
		x := new(Nack)
		return func() { must(DecodeNack(f, x)) }, func() { AppendNack(dst, x) }
	case TypeExtend:
		x := new(Extend)
		return func() { must(DecodeExtend(f, x)) }, func() { AppendExtend(dst, x) }
	}
	return decodeIntoMore(f, dst)
}

func decodeIntoMore(f Frame, dst []byte) (decode, encode func()) {
	switch f.Type {
	case TypeSend:
		x := new(Send)
		return func() { must(DecodeSend(f, x)) }, func() { AppendSend(dst, x) }
	case TypeSent:
		x := new(Sent)
		return func() { must(DecodeSent(f, x)) }, func() { AppendSent(dst, x) }
	case TypeSync:
		x := new(Sync)
		return func() { must(DecodeSync(f, x)) }, func() { AppendSync(dst, x) }
	case TypeSynced:
		x := new(Synced)
		return func() { must(DecodeSynced(f, x)) }, func() { AppendSynced(dst, x) }
	case TypeHeads:
		x := new(Heads)
		return func() { must(DecodeHeads(f, x)) }, func() { AppendHeads(dst, x) }
	case TypeRead:
		x := new(Read)
		return func() { must(DecodeRead(f, x)) }, func() { AppendRead(dst, x) }
	case TypeReceipt:
		x := new(Receipt)
		return func() { must(DecodeReceipt(f, x)) }, func() { AppendReceipt(dst, x) }
	case TypePublish:
		x := new(Publish)
		return func() { must(DecodePublish(f, x)) }, func() { AppendPublish(dst, x) }
	case TypePublished:
		x := new(Published)
		return func() { must(DecodePublished(f, x)) }, func() { AppendPublished(dst, x) }
	}
	panic("no decoder")
}

func TestNoDecoderOrEncoderAllocates(t *testing.T) {
	dst := make([]byte, 0, 4096)
	for _, b := range samples() {
		f := frameOf(b)
		decode, encode := decodeInto(f, dst)
		allocs(t, "Parse "+f.Type.String(), func() { frameOf(b) })
		allocs(t, "decode "+f.Type.String(), decode)
		allocs(t, "encode "+f.Type.String(), encode)
	}
}

func TestNoListAllocates(t *testing.T) {
	dst := make([]byte, 0, 4096)
	ranges := []Range{{1, 2}, {9, 3}}
	sum := uint64(0)
	ackFrame := frameOf(AppendAckList(nil, ranges, LevelReceived))
	allocs(t, "ack list", func() {
		AppendAckList(dst, ranges, LevelReceived)
		AppendAckOne(dst, 5, LevelReceived)
		AppendAckRange(dst, 5, 2, LevelReceived)
		AppendAckUpTo(dst, 5, LevelReceived)
		var x Ack
		must(DecodeAck(ackFrame, &x))
		for r := range x.Ranges {
			sum += r.Count
		}
	})
	var w PublishWriter
	var answer PublishedWriter
	it := PublishItem{User: []byte("alice"), Payload: []byte("hello")}
	allocs(t, "publish", func() {
		w.Reset(1)
		for range 10 {
			if w.Fits(&it, FrameBytesDefault) {
				w.Add(&it)
			}
		}
		var x Publish
		must(DecodePublish(frameOf(w.AppendTo(dst)), &x))
		answer.Reset(x.Number)
		var item PublishItem
		for ok, err := x.Next(&item); ok; ok, err = x.Next(&item) {
			must(err)
			answer.Add(&ItemResult{Result: ResultAccepted, MessageID: item.MessageID})
		}
		var y Published
		must(DecodePublished(frameOf(answer.AppendTo(dst)), &y))
	})
	var heads HeadsWriter
	allocs(t, "heads", func() {
		heads.Reset(1)
		heads.Add(&Head{Conversation: []byte("c"), HeadSequence: 1})
		heads.AppendTo(dst)
	})
	bad := Frame{Type: TypeAck, Flags: 0x80}
	allocs(t, "refusal", func() {
		var x Ack
		if DecodeAck(bad, &x) == nil {
			panic("accepted")
		}
	})
	_ = sum
}
