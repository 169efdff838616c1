package codec

// String returns the frame's name as the protocol document writes it.
func (t Type) String() string {
	switch t {
	case TypeConnect:
		return "CONNECT"
	case TypeWelcome:
		return "WELCOME"
	case TypeClose:
		return "CLOSE"
	case TypePing:
		return "PING"
	case TypePong:
		return "PONG"
	case TypeGoAway:
		return "GOAWAY"
	case TypePush:
		return "PUSH"
	case TypeAck:
		return "ACK"
	case TypeNack:
		return "NACK"
	case TypeExtend:
		return "EXTEND"
	case TypeSend:
		return "SEND"
	case TypeSent:
		return "SENT"
	case TypeSync:
		return "SYNC"
	case TypeSynced:
		return "SYNCED"
	case TypeHeads:
		return "HEADS"
	case TypeRead:
		return "READ"
	case TypeReceipt:
		return "RECEIPT"
	case TypePublish:
		return "PUBLISH"
	case TypePublished:
		return "PUBLISHED"
	}
	return "UNKNOWN"
}

// String returns the stable name of the code, for logs and metric labels; "unknown" for one this version does not define.
func (c Code) String() string {
	switch c {
	case CodeNone:
		return "none"
	case CodeGoingAway:
		return "going_away"
	case CodeOverloaded:
		return "overloaded"
	case CodeKeepaliveTimeout:
		return "keepalive_timeout"
	case CodeSlowConsumer:
		return "slow_consumer"
	case CodeInternal:
		return "internal"
	case CodeLoginTimeout:
		return "login_timeout"
	case CodeUnavailable:
		return "unavailable"
	case CodeReplaced:
		return "replaced"
	case CodeUnauthorized:
		return "unauthorized"
	case CodeTokenExpired:
		return "token_expired"
	case CodeForbidden:
		return "forbidden"
	case CodeVersion:
		return "version"
	case CodeMalformed:
		return "malformed"
	case CodeFrameTooLarge:
		return "frame_too_large"
	case CodeUnexpectedFrame:
		return "unexpected_frame"
	case CodeBadField:
		return "bad_field"
	case CodeRevoked:
		return "revoked"
	case CodeNormal:
		return "normal"
	}
	return unknownName
}

// String returns the stable name of the result, for JSON and metric labels; "unknown" for one this version does not define.
func (r Result) String() string {
	switch r {
	case ResultAccepted:
		return "accepted"
	case ResultDuplicate:
		return "duplicate"
	case ResultOverloaded:
		return "overloaded"
	case ResultQueueFull:
		return "queue_full"
	case ResultStorageFull:
		return "storage_full"
	case ResultUnavailable:
		return "unavailable"
	case ResultRateLimited:
		return "rate_limited"
	case ResultDraining:
		return "draining"
	case ResultBadUser:
		return "bad_user"
	case ResultBadDevice:
		return "bad_device"
	case ResultBadMessageID:
		return "bad_message_id"
	case ResultTooLarge:
		return "too_large"
	case ResultBadTTL:
		return "bad_ttl"
	case ResultBadField:
		return "bad_field"
	case ResultUnknownDevice:
		return "unknown_device"
	case ResultConflict:
		return "conflict"
	case ResultForbidden:
		return "forbidden"
	case ResultNotMember:
		return "not_member"
	case ResultUnknownConv:
		return "unknown_conversation"
	}
	return unknownName
}

// String returns the stable name of the class; "unknown" for a value that does not travel.
func (p Priority) String() string {
	switch p {
	case PriorityNormal:
		return "normal"
	case PriorityUrgent:
		return "urgent"
	case PriorityBulk:
		return "bulk"
	}
	return unknownName
}

// String returns the stable name of the level; "unknown" for a value that does not travel.
func (l AckLevel) String() string {
	switch l {
	case LevelReceived:
		return "received"
	case LevelProcessed:
		return "processed"
	case LevelRead:
		return "read"
	}
	return unknownName
}

// unknownName is what String says of a value this version does not define; the Parse functions never accept it.
const unknownName = "unknown"

// ParseCode is the inverse of Code.String.
func ParseCode(name string) (Code, bool) {
	for c := CodeNone; c <= CodeNormal; c++ {
		if name != unknownName && c.String() == name {
			return c, true
		}
	}
	return 0, false
}

// ParseResult is the inverse of Result.String.
func ParseResult(name string) (Result, bool) {
	for r := ResultAccepted; r <= ResultUnknownConv; r++ {
		if name != unknownName && r.String() == name {
			return r, true
		}
	}
	return 0, false
}

// ParsePriority is the inverse of Priority.String.
func ParsePriority(name string) (Priority, bool) {
	for p := PriorityNormal; p <= PriorityBulk; p++ {
		if p.String() == name {
			return p, true
		}
	}
	return 0, false
}

// ParseLevel is the inverse of AckLevel.String.
func ParseLevel(name string) (AckLevel, bool) {
	for l := LevelReceived; l <= LevelRead; l++ {
		if l.String() == name {
			return l, true
		}
	}
	return 0, false
}
