package admin

import (
	"net/http"
	"strconv"

	"holdfast/codec"
)

// The codes of this package. With the names of codec.Result they are every error code the API has; openapi.yaml lists them.
const (
	codeBadJSON          = "bad_json"
	codeBadQuery         = "bad_query"
	codeUnknownField     = "unknown_field"
	codeNotFound         = "not_found"
	codeMethodNotAllowed = "method_not_allowed"
	codeBodyTooLarge     = "body_too_large"
	codeTooManyItems     = "too_many_items"
	codeUnsupportedMedia = "unsupported_media_type"
	codeUnauthorized     = "unauthorized"
	codeCrossOrigin      = "cross_origin"
	codeBodyTimeout      = "body_timeout"
	codeTimeout          = "timeout"
	codeAlreadyEnded     = "already_ended"
)

// errorCodes is every code there is.
func errorCodes() []string {
	codes := []string{codeBadJSON, codeBadQuery, codeUnknownField, codeNotFound, codeMethodNotAllowed, codeBodyTooLarge, codeTooManyItems,
		codeUnsupportedMedia, codeUnauthorized, codeCrossOrigin, codeBodyTimeout, codeTimeout, codeAlreadyEnded}
	for r := codec.ResultOverloaded; r <= codec.ResultUnknownConv; r++ {
		if known, ok := codec.ParseResult(r.String()); ok && known == r {
			codes = append(codes, r.String())
		}
	}
	return codes
}

// problem is what an error reply carries. The zero problem is none.
type problem struct {
	code  string
	field string // the field or parameter that is wrong; empty: none in particular
	text  string // what is wrong and what to do about it; read behind "field: "
}

// problemOf explains a result that is no success.
func problemOf(r codec.Result) problem {
	field, text := explain(r)
	return problem{code: r.String(), field: field, text: text}
}

// explain says, for each refusal, which field it is about and what the publisher does next.
func explain(r codec.Result) (field, text string) {
	switch r {
	case codec.ResultOverloaded:
		return "", "the node sheds load, bulk first: send the same message again after Retry-After"
	case codec.ResultQueueFull:
		return "", "the user's queue is at its limit: send the same message again when the user has read, or give messages a ttl"
	case codec.ResultStorageFull:
		return "", "the server's storage is at its limit: nothing is accepted until messages end or the limit is raised"
	case codec.ResultUnavailable:
		return "", "the store does not answer: send the same message again after Retry-After, with the same message_id"
	case codec.ResultRateLimited:
		return "", "too many messages for this rate limit: slow down and send again after Retry-After"
	case codec.ResultDraining:
		return "", "the node is stopping: send the same message to another node, or again after Retry-After"
	case codec.ResultBadUser:
		return "user", "is 1 to " + strconv.Itoa(codec.UserBytesMax) + " bytes of UTF-8 without control characters"
	case codec.ResultBadDevice:
		return "device", "is 1 to " + strconv.Itoa(codec.DeviceBytesMax) + " bytes of UTF-8 without control characters"
	case codec.ResultBadMessageID:
		return "message_id", "is 1 to " + strconv.Itoa(codec.MessageIDBytesMax) + " bytes of UTF-8 without control characters"
	case codec.ResultTooLarge:
		return "payload", "the message is over the largest payload or frame the server takes: send a reference to it instead"
	case codec.ResultBadTTL:
		return "ttl", "is above 0 and at most the server's retention"
	case codec.ResultBadField:
		return "", "type is at most " + strconv.Itoa(codec.TypeBytesMax) + " and conversation at most " +
			strconv.Itoa(codec.ConversationBytesMax) + " bytes of UTF-8 without control characters"
	case codec.ResultUnknownDevice:
		return "device", "this user has no such device: leave device out to reach whatever the user logs in with"
	case codec.ResultConflict:
		return "message_id", "the same id was used for another message: use a new one"
	case codec.ResultForbidden:
		return "", "this may not be done with these credentials"
	default:
		return "", "the message was refused"
	}
}

// status is the HTTP status of an error reply with this code. 4xx: the request has to change, except 429 and 408; 5xx and 429:
// the same request later, or elsewhere.
func (p problem) status() int {
	switch p.code {
	case codec.ResultTooLarge.String(), codeBodyTooLarge, codeTooManyItems:
		return http.StatusRequestEntityTooLarge
	case codec.ResultUnknownDevice.String(), codeNotFound:
		return http.StatusNotFound
	case codec.ResultConflict.String(), codeAlreadyEnded:
		return http.StatusConflict
	case codec.ResultQueueFull.String(), codec.ResultRateLimited.String(), codec.ResultOverloaded.String():
		return http.StatusTooManyRequests
	case codec.ResultUnavailable.String(), codec.ResultDraining.String():
		return http.StatusServiceUnavailable
	case codec.ResultStorageFull.String():
		return http.StatusInsufficientStorage
	case codec.ResultForbidden.String(), codeCrossOrigin:
		return http.StatusForbidden
	case codeMethodNotAllowed:
		return http.StatusMethodNotAllowed
	case codeUnsupportedMedia:
		return http.StatusUnsupportedMediaType
	case codeUnauthorized:
		return http.StatusUnauthorized
	case codeBodyTimeout:
		return http.StatusRequestTimeout
	case codeTimeout:
		return http.StatusGatewayTimeout
	}
	return http.StatusBadRequest
}

// retryAfterS is the Retry-After of an error reply in seconds; 0: none. The values are how long the condition usually lasts, so
// that clients that honour them do not come back into the same refusal.
func (p problem) retryAfterS() int {
	switch p.code {
	case codec.ResultOverloaded.String(), codec.ResultRateLimited.String(), codeTimeout:
		return 1
	case codec.ResultUnavailable.String():
		return 2
	case codec.ResultQueueFull.String(), codec.ResultDraining.String():
		return 5
	case codec.ResultStorageFull.String():
		return 30
	}
	return 0
}

// appendProblem appends {"code":…,"message":…,"field":…,"retry_after_s":…}.
func appendProblem(dst []byte, p problem) []byte {
	dst = append(dst, `{"code":`...)
	dst = appendString(dst, p.code)
	dst = append(dst, `,"message":`...)
	if p.field == "" {
		dst = appendString(dst, p.text)
	} else { // a message that is shown alone has to make sense
		dst = appendString(dst, p.field+": "+p.text)
		dst = append(dst, `,"field":`...)
		dst = appendString(dst, p.field)
	}
	if s := p.retryAfterS(); s > 0 {
		dst = append(dst, `,"retry_after_s":`...)
		dst = strconv.AppendInt(dst, int64(s), 10)
	}
	return append(dst, '}')
}

// writeProblem answers a request with an error. extra is appended to the object as it is: empty, or `,"name":value`.
func writeProblem(w http.ResponseWriter, p problem, extra string) {
	if r, ok := w.(*recorder); ok {
		r.code = p.code
	}
	if s := p.retryAfterS(); s > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(s))
	}
	body := appendProblem(append(make([]byte, 0, 256), `{"error":`...), p)
	body = append(body, extra...)
	writeBody(w, p.status(), append(body, '}', '\n'))
}

// writeBody answers with one JSON document.
func writeBody(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that is gone is not told
}
