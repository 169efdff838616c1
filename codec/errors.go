package codec

// Error is why bytes were refused. Every one is fatal for the connection they came from: the side that finds it sends CLOSE with
// Code and closes. Errors are shared values and are never allocated while decoding.
type Error struct {
	Code   Code
	Clause string // clause of docs/protocol.md that was broken, e.g. "P-FRAME-3"
	Text   string // for logs and the reason field of CLOSE; starts in lower case
}

// Error returns the text with the clause behind it.
func (e *Error) Error() string { return e.Text + " [" + e.Clause + "]" }

// ErrFrameTooLarge is returned by Parse as soon as the announced length is known, before any of the body has to be held.
var ErrFrameTooLarge = &Error{CodeFrameTooLarge, "P-FRAME-3", "frame over the announced maximum"}

// ErrVersion is returned by DecodeConnect for a version other than Version; nothing behind the version was looked at.
var ErrVersion = &Error{CodeVersion, "P-CONNECT-2", "protocol version not spoken here"}

// Structure: the bytes are no frame of this version.
var (
	errLength     = &Error{CodeMalformed, "P-FRAME-2", "length below 2"}
	errType       = &Error{CodeMalformed, "P-FRAME-4", "unknown frame type"}
	errFlags      = &Error{CodeMalformed, "P-FRAME-5", "unknown flags"}
	errTruncated  = &Error{CodeMalformed, "P-FRAME-7", "body ends inside a field"}
	errVarint     = &Error{CodeMalformed, "P-INT-1", "integer over 64 bits or not in its shortest form"}
	errItemFlags  = &Error{CodeMalformed, "P-PUBLISH-3", "unknown flags of a publish item"}
	errOtherFrame = &Error{CodeUnexpectedFrame, "P-STATE-1", "frame of another type"}
)

// Fields: a value that its field may not have.
var (
	errUser         = &Error{CodeBadField, "P-LIMIT-1", "bad user"}
	errDevice       = &Error{CodeBadField, "P-LIMIT-2", "bad device"}
	errMessageID    = &Error{CodeBadField, "P-LIMIT-3", "bad message id"}
	errConversation = &Error{CodeBadField, "P-LIMIT-4", "bad conversation id"}
	errMessageType  = &Error{CodeBadField, "P-LIMIT-5", "bad message type"}
	errReason       = &Error{CodeBadField, "P-LIMIT-6", "bad reason"}
	errToken        = &Error{CodeBadField, "P-LIMIT-7", "token too long"}
	errClientName   = &Error{CodeBadField, "P-LIMIT-8", "bad client name"}
	errNode         = &Error{CodeBadField, "P-LIMIT-9", "bad node name"}
	errServers      = &Error{CodeBadField, "P-LIMIT-10", "bad server list"}
	errAckCount     = &Error{CodeBadField, "P-LIMIT-11", "an ACK range covers no number or too many"}
	errAckRanges    = &Error{CodeBadField, "P-LIMIT-12", "an ACK lists no range or too many"}
	errItems        = &Error{CodeBadField, "P-LIMIT-13", "no publish item or too many"}
	errHeads        = &Error{CodeBadField, "P-LIMIT-14", "too many heads"}
	errPingBytes    = &Error{CodeBadField, "P-LIMIT-15", "too many bytes in a ping"}
	errCode         = &Error{CodeBadField, "P-LIMIT-16", "code or result over 65535"}
	errNumber       = &Error{CodeBadField, "P-NUM-1", "request numbers start at 1"}
	errNoAckNumber  = &Error{CodeBadField, "P-PUSH-3", "fire and forget has request number 0"}
)
