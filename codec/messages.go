package codec

// The decoded frames. Byte slices are borrowed from the Frame they were decoded from: valid as long as its bytes are.
// A request number n stands for the request id base+n (base from WELCOME); numbers start at 1 and rise by one.

// Connect is a client's login. Flags: ConnectHasResume.
type Connect struct {
	Version          uint64
	KeepaliveS       uint64 // wished; the server answers with what holds
	WindowMsgs       uint64 // receive window; 0: the server's default
	WindowBytes      uint64
	Capabilities     uint64
	User             []byte // may be empty where a token names the user
	Device           []byte
	Token            []byte
	ClientName       []byte // free text for operators, e.g. "acme-ios/4.2"
	HasResume        bool
	ResumeSession    uint64
	ResumeNumberSeen uint64 // highest request number received in that session
}

// Welcome answers a good login.
type Welcome struct {
	SessionID     uint64
	RequestIDBase uint64
	KeepaliveS    uint64
	AckTimeoutMs  uint64
	WindowMsgs    uint64
	WindowBytes   uint64
	PublishWindow uint64 // PUBLISH frames a publisher may have unanswered
	FrameBytesMax uint64
	ServerTimeMs  uint64 // Unix
	Backlog       uint64 // messages stored for this device at login
	Node          []byte
	User          []byte // as authenticated
	Device        []byte
}

// Close ends a connection; Code says what the other side does next.
type Close struct {
	Code         Code
	RetryAfterMs uint64
	Reason       []byte
	Servers      []byte // comma-separated host:port, may be empty
}

// GoAway asks a client to reconnect after ReconnectAfterMs; at DeadlineMs from now the server closes.
type GoAway struct {
	ReconnectAfterMs uint64
	DeadlineMs       uint64
	Servers          []byte
}

// Push is one message to a client.
type Push struct {
	Number       uint64 // request number; 0 with NoAck
	Attempt      uint64 // 1 for the first time
	ServerTimeMs uint64 // when the message was accepted, Unix
	MessageID    []byte
	Type         []byte
	Conversation []byte // empty: none
	Sequence     uint64 // 0: none
	ExpireAtMs   uint64 // Unix; 0: none
	Payload      []byte
	Redelivered  bool
	FromBacklog  bool
	NoAck        bool
	Priority     Priority
}

// Range is Count consecutive request numbers from From.
type Range struct{ From, Count uint64 }

// Ack confirms messages. Its ranges are read with Ranges (no allocation); MessageID is set for AckMessageID only.
type Ack struct {
	Kind         AckKind
	Level        AckLevel
	ClientTimeMs uint64 // 0: not said
	From         uint64 // AckOne, AckRange: the (first) number. AckUpTo: the last number
	Count        uint64 // AckOne: 1. AckRange: how many. AckList: how many ranges
	MessageID    []byte
	list         []byte // encoded ranges of AckList
}

// Nack refuses a message: again after DelayMs, or never.
type Nack struct {
	Number  uint64
	Never   bool
	DelayMs uint64
	Reason  []byte
}

// Extend asks for more time before the message counts as timed out.
type Extend struct {
	Number uint64
	MoreMs uint64 // 0: another ACK timeout
}

// Send is a client's own message.
type Send struct {
	ClientMessageID []byte
	Conversation    []byte
	Type            []byte
	Payload         []byte
}

// Sent answers Send.
type Sent struct {
	ClientMessageID []byte
	Result          Result
	MessageID       []byte
	Sequence        uint64
	ServerTimeMs    uint64
}

// Sync asks for the messages of a conversation after a sequence number.
type Sync struct {
	Conversation  []byte
	AfterSequence uint64
	Limit         uint64
}

// Synced ends the answer to a Sync.
type Synced struct {
	Conversation []byte
	FromSequence uint64
	ToSequence   uint64
	HeadSequence uint64
	Result       Result
}

// Head is the state of one conversation for one user.
type Head struct {
	Conversation []byte
	HeadSequence uint64
	ReadSequence uint64
}

// Heads asks (Reply false) or tells (Reply true) which conversations changed. Entries are read with Next (no allocation).
type Heads struct {
	Reply        bool
	SinceMs      uint64
	Limit        uint64
	ServerTimeMs uint64
	Count        uint64
	list         []byte
}

// Read moves the user's read watermark of a conversation.
type Read struct {
	Conversation []byte
	Sequence     uint64
}

// Receipt tells a sender how far another user got.
type Receipt struct {
	Conversation      []byte
	User              []byte
	DeliveredSequence uint64
	ReadSequence      uint64
}

// Flags of one PublishItem, as they travel in its first byte: bit 0 no-ack, bits 1-2 priority, bit 3 conversation, bit 4 device.
const (
	ItemNoAck           uint8 = 1 << 0
	ItemPriorityShift         = 1
	ItemPriorityMask    uint8 = 3 << ItemPriorityShift
	ItemHasConversation uint8 = 1 << 3
	ItemHasDevice       uint8 = 1 << 4
)

// PublishItem is one message of a PUBLISH frame: flags u8, user, [device], message id (empty: the server makes one), ttl ms
// (0: the server's retention), type, [conversation], payload (length-prefixed).
type PublishItem struct {
	NoAck        bool
	Priority     Priority
	User         []byte
	Device       []byte // empty: every known device of the user
	MessageID    []byte
	TTLMs        uint64
	Type         []byte
	Conversation []byte
	Payload      []byte
}

// Publish is a batch of messages from a back end. Items are read with Next (no allocation). Numbers start at 1 and rise by one.
type Publish struct {
	Number uint64
	Count  uint64
	list   []byte
}

// ItemResult answers one PublishItem.
type ItemResult struct {
	Result    Result
	MessageID []byte
}

// Published answers a Publish. Results are read with Next (no allocation); with AllAccepted there are none to read.
type Published struct {
	Number      uint64
	Count       uint64
	AllAccepted bool
	list        []byte
}
