package codec

// decodeAny decodes a frame into a fresh value of its own type.
func decodeAny(f Frame) (any, error) {
	switch f.Type {
	case TypeConnect:
		x := new(Connect)
		return x, DecodeConnect(f, x)
	case TypeWelcome:
		x := new(Welcome)
		return x, DecodeWelcome(f, x)
	case TypeClose:
		x := new(Close)
		return x, DecodeClose(f, x)
	case TypePing, TypePong:
		data, err := DecodePing(f)
		return echo{f.Type, string(data)}, err
	case TypeGoAway:
		x := new(GoAway)
		return x, DecodeGoAway(f, x)
	case TypePush:
		x := new(Push)
		return x, DecodePush(f, x)
	case TypeAck:
		x := new(Ack)
		return x, DecodeAck(f, x)
	case TypeNack:
		x := new(Nack)
		return x, DecodeNack(f, x)
	case TypeExtend:
		x := new(Extend)
		return x, DecodeExtend(f, x)
	}
	return decodeAnyMore(f)
}

func decodeAnyMore(f Frame) (any, error) {
	switch f.Type {
	case TypeSend:
		x := new(Send)
		return x, DecodeSend(f, x)
	case TypeSent:
		x := new(Sent)
		return x, DecodeSent(f, x)
	case TypeSync:
		x := new(Sync)
		return x, DecodeSync(f, x)
	case TypeSynced:
		x := new(Synced)
		return x, DecodeSynced(f, x)
	case TypeHeads:
		x := new(Heads)
		return x, DecodeHeads(f, x)
	case TypeRead:
		x := new(Read)
		return x, DecodeRead(f, x)
	case TypeReceipt:
		x := new(Receipt)
		return x, DecodeReceipt(f, x)
	case TypePublish:
		x := new(Publish)
		return x, DecodePublish(f, x)
	case TypePublished:
		x := new(Published)
		return x, DecodePublished(f, x)
	}
	panic("a frame type that Parse lets through has no decoder: " + f.Type.String())
}

// echo stands for a PING or PONG, which have no type of their own.
type echo struct {
	t    Type
	data string
}

// appendAny encodes what decodeAny returned.
func appendAny(dst []byte, x any) []byte {
	switch x := x.(type) {
	case *Connect:
		return AppendConnect(dst, x)
	case *Welcome:
		return AppendWelcome(dst, x)
	case *Close:
		return AppendClose(dst, x)
	case echo:
		if x.t == TypePing {
			return AppendPing(dst, []byte(x.data))
		}
		return AppendPong(dst, []byte(x.data))
	case *GoAway:
		return AppendGoAway(dst, x)
	case *Push:
		return AppendPush(dst, x)
	case *Ack:
		return AppendAck(dst, x)
	case *Nack:
		return AppendNack(dst, x)
	case *Extend:
		return AppendExtend(dst, x)
	case *Send:
		return AppendSend(dst, x)
	case *Sent:
		return AppendSent(dst, x)
	case *Sync:
		return AppendSync(dst, x)
	case *Synced:
		return AppendSynced(dst, x)
	case *Heads:
		return AppendHeads(dst, x)
	case *Read:
		return AppendRead(dst, x)
	case *Receipt:
		return AppendReceipt(dst, x)
	case *Publish:
		return AppendPublish(dst, x)
	case *Published:
		return AppendPublished(dst, x)
	}
	panic("no encoder")
}

// samplePublish, sampleHeads and the like fill the frames whose lists are private.
func samplePublish() []byte {
	var w PublishWriter
	w.Reset(7)
	w.Add(&PublishItem{User: []byte("alice"), MessageID: []byte("m1"), Payload: []byte("hello")})
	w.Add(&PublishItem{
		NoAck: true, Priority: PriorityBulk, User: []byte("bob"), Device: []byte("phone"), TTLMs: 60000,
		Type: []byte("chat"), Conversation: []byte("c1"), Payload: make([]byte, 200),
	})
	return w.AppendTo(nil)
}

func samplePublished() []byte {
	var w PublishedWriter
	w.Reset(7)
	w.Add(&ItemResult{Result: ResultAccepted, MessageID: []byte("m1")})
	w.Add(&ItemResult{Result: ResultBadUser})
	return w.AppendTo(nil)
}

func sampleHeads() []byte {
	var w HeadsWriter
	w.Reset(1790000000000)
	w.Add(&Head{Conversation: []byte("c1"), HeadSequence: 12, ReadSequence: 9})
	w.Add(&Head{Conversation: []byte("c2"), HeadSequence: 1})
	return w.AppendTo(nil)
}

// samples is at least one encoded frame of every type.
func samples() [][]byte {
	values := []any{
		&Connect{Version: Version, KeepaliveS: 60, WindowMsgs: 64, WindowBytes: 256 << 10, User: []byte("alice"), Device: []byte("phone"), Token: []byte("t.o.k"), ClientName: []byte("acme-ios/4.2")},
		&Connect{Version: Version, Capabilities: CapPublisher, HasResume: true, ResumeSession: 0x0102030405060708, ResumeNumberSeen: 300},
		&Welcome{SessionID: 1 << 63, RequestIDBase: 1 << 40, KeepaliveS: 60, AckTimeoutMs: 10000, WindowMsgs: 64, WindowBytes: 256 << 10, PublishWindow: 16, FrameBytesMax: FrameBytesDefault, ServerTimeMs: 1790000000000, Backlog: 3, Node: []byte("n1"), User: []byte("alice"), Device: []byte("phone")},
		&Close{Code: CodeGoingAway, RetryAfterMs: 1500, Reason: []byte("draining"), Servers: []byte("a:7700,b:7700")},
		echo{TypePing, ""}, echo{TypePing, "12345678"}, echo{TypePong, "\x00\x01"},
		&GoAway{ReconnectAfterMs: 700, DeadlineMs: 30000, Servers: []byte("b:7700")},
		&Push{Number: 1, Attempt: 1, ServerTimeMs: 1790000000000, MessageID: []byte("m1"), Payload: []byte("hello")},
		&Push{Number: 200, Attempt: 2, ServerTimeMs: 1, MessageID: []byte("m2"), Type: []byte("chat"), Conversation: []byte("c1"), Sequence: 5, ExpireAtMs: 9, Payload: make([]byte, 300), Redelivered: true, FromBacklog: true, Priority: PriorityUrgent},
		&Push{Attempt: 1, MessageID: []byte("m3"), Payload: []byte{}, NoAck: true, Priority: PriorityBulk},
		&Ack{Kind: AckOne, From: 1, Count: 1},
		&Ack{Kind: AckRange, Level: LevelProcessed, From: 5, Count: 60},
		&Ack{Kind: AckUpTo, Level: LevelRead, From: 1 << 30, ClientTimeMs: 1790000000000},
		&Ack{Kind: AckMessageID, MessageID: []byte("m1"), ClientTimeMs: 1},
		&Nack{Number: 3, DelayMs: 5000, Reason: []byte("busy")},
		&Nack{Number: 4, Never: true, Reason: []byte{}},
		&Extend{Number: 9, MoreMs: 30000},
		&Send{ClientMessageID: []byte("x"), Conversation: []byte("c1"), Type: []byte("t"), Payload: []byte("hi")},
		&Sent{ClientMessageID: []byte("x"), Result: ResultUnavailable, MessageID: []byte{}},
		&Sync{Conversation: []byte("c1"), AfterSequence: 10, Limit: 50},
		&Synced{Conversation: []byte("c1"), FromSequence: 11, ToSequence: 12, HeadSequence: 12},
		&Heads{SinceMs: 1790000000000, Limit: 100},
		&Read{Conversation: []byte("c1"), Sequence: 12},
		&Receipt{Conversation: []byte("c1"), User: []byte("bob"), DeliveredSequence: 12, ReadSequence: 11},
		&Published{Number: 8, Count: 100, AllAccepted: true},
	}
	frames := [][]byte{
		samplePublish(), samplePublished(), sampleHeads(),
		AppendAckList(nil, []Range{{1, 1}, {3, 4}, {7, 1}, {1000, 50}}, LevelReceived),
	}
	for _, v := range values {
		frames = append(frames, appendAny(nil, v))
	}
	return frames
}
