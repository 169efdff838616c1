package codec

import "encoding/binary"

// The frames that open, keep and end a connection. Encoders append to dst and return it; they write what they are given and leave
// the limits to the caller (Valid…), but for reasons, which are cut.

// AppendConnect appends a CONNECT frame.
//
//	| len | 0x01 | flags | version | keepalive s | window msgs | window bytes | capabilities | user | device | token | client name |
//	with ConnectHasResume: | session id 8 B | highest request number |
func AppendConnect(dst []byte, x *Connect) []byte {
	flags := uint8(0)
	if x.HasResume {
		flags = ConnectHasResume
	}
	dst, s := begin(dst, TypeConnect, flags, len(x.Token)+len(x.User)+len(x.Device)+len(x.ClientName)+16)
	dst = binary.AppendUvarint(dst, x.Version)
	dst = binary.AppendUvarint(dst, x.KeepaliveS)
	dst = binary.AppendUvarint(dst, x.WindowMsgs)
	dst = binary.AppendUvarint(dst, x.WindowBytes)
	dst = binary.AppendUvarint(dst, x.Capabilities)
	dst = appendBytes(dst, x.User)
	dst = appendBytes(dst, x.Device)
	dst = appendBytes(dst, x.Token)
	dst = appendBytes(dst, x.ClientName)
	if x.HasResume {
		dst = binary.BigEndian.AppendUint64(dst, x.ResumeSession)
		dst = binary.AppendUvarint(dst, x.ResumeNumberSeen)
	}
	return s.end(dst)
}

// DecodeConnect decodes a CONNECT frame. The version comes first and is checked first: what another version puts into the flags and
// behind the version is not known here. User and device may be empty. [P-CONNECT-2] [P-CONNECT-6]
func DecodeConnect(f Frame, x *Connect) error {
	*x = Connect{}
	r := open(f, TypeConnect, 0xff)
	x.Version = r.uvarint()
	if r.err == nil && x.Version != Version {
		return ErrVersion
	}
	if f.Flags&^ConnectHasResume != 0 {
		r.fail(errFlags)
	}
	x.KeepaliveS = r.uvarint()
	x.WindowMsgs = r.uvarint()
	x.WindowBytes = r.uvarint()
	x.Capabilities = r.uvarint()
	x.User = r.text(UserBytesMax, errUser)
	x.Device = r.text(DeviceBytesMax, errDevice)
	x.Token = r.bytes()
	if len(x.Token) > TokenBytesMax {
		r.fail(errToken)
	}
	x.ClientName = r.text(ClientNameBytesMax, errClientName)
	if f.Flags&ConnectHasResume != 0 {
		x.HasResume = true
		x.ResumeSession = r.fixed64()
		x.ResumeNumberSeen = r.uvarint()
	}
	return r.done()
}

// AppendWelcome appends a WELCOME frame.
//
//	| len | 0x02 | 0 | session id 8 B | request id base 8 B | keepalive s | ack timeout ms | window msgs | window bytes |
//	| publish window | max frame | server time ms | backlog | node | user | device |
func AppendWelcome(dst []byte, x *Welcome) []byte {
	dst, s := begin(dst, TypeWelcome, 0, len(x.Node)+len(x.User)+len(x.Device)+40)
	dst = binary.BigEndian.AppendUint64(dst, x.SessionID)
	dst = binary.BigEndian.AppendUint64(dst, x.RequestIDBase)
	dst = binary.AppendUvarint(dst, x.KeepaliveS)
	dst = binary.AppendUvarint(dst, x.AckTimeoutMs)
	dst = binary.AppendUvarint(dst, x.WindowMsgs)
	dst = binary.AppendUvarint(dst, x.WindowBytes)
	dst = binary.AppendUvarint(dst, x.PublishWindow)
	dst = binary.AppendUvarint(dst, x.FrameBytesMax)
	dst = binary.AppendUvarint(dst, x.ServerTimeMs)
	dst = binary.AppendUvarint(dst, x.Backlog)
	dst = appendBytes(dst, x.Node)
	dst = appendBytes(dst, x.User)
	dst = appendBytes(dst, x.Device)
	return s.end(dst)
}

// DecodeWelcome decodes a WELCOME frame. User and device may be empty (a publisher has neither queue nor device).
func DecodeWelcome(f Frame, x *Welcome) error {
	*x = Welcome{}
	r := open(f, TypeWelcome, 0)
	x.SessionID = r.fixed64()
	x.RequestIDBase = r.fixed64()
	x.KeepaliveS = r.uvarint()
	x.AckTimeoutMs = r.uvarint()
	x.WindowMsgs = r.uvarint()
	x.WindowBytes = r.uvarint()
	x.PublishWindow = r.uvarint()
	x.FrameBytesMax = r.uvarint()
	x.ServerTimeMs = r.uvarint()
	x.Backlog = r.uvarint()
	x.Node = r.text(NodeBytesMax, errNode)
	x.User = r.text(UserBytesMax, errUser)
	x.Device = r.text(DeviceBytesMax, errDevice)
	return r.done()
}

// AppendClose appends a CLOSE frame; a reason over ReasonBytesMax is cut.
//
//	| len | 0x03 | 0 | code | retry after ms | reason | servers |
func AppendClose(dst []byte, x *Close) []byte {
	dst, s := begin(dst, TypeClose, 0, len(x.Reason)+len(x.Servers)+8)
	dst = binary.AppendUvarint(dst, uint64(x.Code))
	dst = binary.AppendUvarint(dst, x.RetryAfterMs)
	dst = appendReason(dst, x.Reason)
	dst = appendBytes(dst, x.Servers)
	return s.end(dst)
}

// DecodeClose decodes a CLOSE frame. A code this version does not define is kept: its range says what to do. [P-CODE-1]
func DecodeClose(f Frame, x *Close) error {
	*x = Close{}
	r := open(f, TypeClose, 0)
	x.Code = Code(r.uint16())
	x.RetryAfterMs = r.uvarint()
	x.Reason = r.text(ReasonBytesMax, errReason)
	x.Servers = r.text(ServersBytesMax, errServers)
	return r.done()
}

// AppendGoAway appends a GOAWAY frame.
//
//	| len | 0x06 | 0 | reconnect after ms | deadline ms | servers |
func AppendGoAway(dst []byte, x *GoAway) []byte {
	dst, s := begin(dst, TypeGoAway, 0, len(x.Servers)+8)
	dst = binary.AppendUvarint(dst, x.ReconnectAfterMs)
	dst = binary.AppendUvarint(dst, x.DeadlineMs)
	dst = appendBytes(dst, x.Servers)
	return s.end(dst)
}

// DecodeGoAway decodes a GOAWAY frame.
func DecodeGoAway(f Frame, x *GoAway) error {
	*x = GoAway{}
	r := open(f, TypeGoAway, 0)
	x.ReconnectAfterMs = r.uvarint()
	x.DeadlineMs = r.uvarint()
	x.Servers = r.text(ServersBytesMax, errServers)
	return r.done()
}

// AppendPing appends a PING frame with up to PingBytesMax bytes that the other side sends back.
//
//	| len | 0x04 | 0 | 0-8 bytes |
func AppendPing(dst, data []byte) []byte { return appendEcho(dst, TypePing, data) }

// AppendPong appends the answer to a PING with the bytes of that PING.
//
//	| len | 0x05 | 0 | 0-8 bytes |
func AppendPong(dst, data []byte) []byte { return appendEcho(dst, TypePong, data) }

func appendEcho(dst []byte, t Type, data []byte) []byte {
	dst, s := begin(dst, t, 0, len(data))
	return s.end(append(dst, data...))
}

// DecodePing returns the bytes of a PING or PONG, borrowed from the frame.
func DecodePing(f Frame) (data []byte, err error) {
	t := TypePing
	if f.Type == TypePong {
		t = TypePong
	}
	r := open(f, t, 0)
	if len(r.b) > PingBytesMax {
		r.fail(errPingBytes)
	}
	return r.b, r.done()
}
