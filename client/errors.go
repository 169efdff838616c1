package client

import (
	"errors"
	"fmt"
	"time"

	"holdfast/codec"
)

var (
	// ErrClosed is the end of a Client that its program closed.
	ErrClosed = errors.New("client closed")
	// ErrUnanswered marks a published message whose outcome is not known: the context or the client ended first. It is
	// safe to publish it again with the same id.
	ErrUnanswered = errors.New("no answer from the server")
)

// CloseError is the end of one connection, or of the client, as a close code of the protocol. Code.Reconnect tells
// whether the client comes back by itself.
type CloseError struct {
	Code       codec.Code
	Reason     string        // the server's words, may be empty
	RetryAfter time.Duration // not before; 0: not said
	Local      bool          // this side found the reason (a dead peer, a malformed frame) and closed
}

// Error names the code, the side and the reason.
func (e *CloseError) Error() string {
	by := "server"
	if e.Local {
		by = "client"
	}
	if e.Reason == "" {
		return fmt.Sprintf("closed by %s: %s", by, e.Code)
	}
	return fmt.Sprintf("closed by %s: %s: %s", by, e.Code, e.Reason)
}

// ResultError is a refusal of one published message.
type ResultError struct {
	Code codec.Result
}

// Error names the result.
func (e *ResultError) Error() string { return "publish refused: " + e.Code.String() }

// Retry reports whether the same message, with the same id, may be published again later.
func (e *ResultError) Retry() bool { return e.Code.Retry() }

// Refusal is the error a Handler returns for a message that it will never take: the message becomes a dead letter.
type Refusal struct {
	Reason string // for operators; cut at 256 bytes
}

// Error gives the reason.
func (e *Refusal) Error() string { return "refused: " + e.Reason }

// localClose is what this side says when it ends a connection because of what it saw.
func localClose(code codec.Code, reason string) *CloseError {
	return &CloseError{Code: code, Reason: reason, Local: true}
}

// protocolError turns a decoder's error into the close that answers it.
func protocolError(err error) error {
	if bad, ok := errors.AsType[*codec.Error](err); ok {
		return localClose(bad.Code, bad.Error())
	}
	return localClose(codec.CodeMalformed, err.Error())
}
