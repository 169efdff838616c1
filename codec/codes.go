package codec

// Code says why a connection ends. 1-99: reconnect (with back-off, not before retry-after). 100-199: stop; reconnecting
// without changing something will fail again.
type Code uint16

// The close codes, as they travel.
const (
	CodeNone             Code = 0
	CodeGoingAway        Code = 1   // reconnect: the node is draining; use the server list
	CodeOverloaded       Code = 2   // reconnect: not before retry-after
	CodeKeepaliveTimeout Code = 3   // reconnect: nothing complete arrived for 1.5 x keepalive
	CodeSlowConsumer     Code = 4   // reconnect: unread bytes over the hard limit, or no progress for too long
	CodeInternal         Code = 5   // reconnect: our fault
	CodeLoginTimeout     Code = 6   // reconnect: no complete login in time
	CodeUnavailable      Code = 7   // reconnect: the store or route store does not answer
	CodeReplaced         Code = 100 // stop: the same user and device logged in elsewhere
	CodeUnauthorized     Code = 101 // stop: token missing, malformed or not signed by us
	CodeTokenExpired     Code = 102 // stop: fetch a new token, then reconnect
	CodeForbidden        Code = 103 // stop: the token's role may not do this
	CodeVersion          Code = 104 // stop: protocol version not spoken here
	CodeMalformed        Code = 105 // stop: bytes that are no valid frame
	CodeFrameTooLarge    Code = 106 // stop: a frame over the announced maximum
	CodeUnexpectedFrame  Code = 107 // stop: a frame not allowed in this state
	CodeBadField         Code = 108 // stop: a field over its limit or with forbidden characters
	CodeRevoked          Code = 109 // stop: user or token revoked
	CodeNormal           Code = 110 // stop: the other side is done (logout)
)

// Reconnect reports whether a client comes back by itself after this code.
func (c Code) Reconnect() bool { return c < 100 }

// Result answers one published or sent message. 0-19 success, 20-39 refused now (try again later, same id), 40-59 refused for good.
type Result uint16

// The results, as they travel. String gives the stable name used in JSON and metric labels.
const (
	ResultAccepted      Result = 0
	ResultDuplicate     Result = 1  // success: this message id was accepted before
	ResultOverloaded    Result = 20 // load shed; bulk first
	ResultQueueFull     Result = 21 // the user's queue is at its limit
	ResultStorageFull   Result = 22 // the disk or the configured size is used up
	ResultUnavailable   Result = 23 // the store does not answer
	ResultRateLimited   Result = 24
	ResultDraining      Result = 25 // the node is stopping
	ResultBadUser       Result = 40
	ResultBadDevice     Result = 41
	ResultBadMessageID  Result = 42
	ResultTooLarge      Result = 43
	ResultBadTTL        Result = 44
	ResultBadField      Result = 45
	ResultUnknownDevice Result = 46
	ResultConflict      Result = 47 // the same id was used for another message
	ResultForbidden     Result = 48
	ResultNotMember     Result = 49
	ResultUnknownConv   Result = 50
)

// OK reports success (accepted, now or before).
func (r Result) OK() bool { return r < 20 }

// Retry reports whether the same message may be tried again later.
func (r Result) Retry() bool { return r >= 20 && r < 40 }
