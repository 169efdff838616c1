package bench

import (
	"fmt"
	"time"

	"holdfast/codec"
)

// leanHoldfast is a lean connection's side of holdfast's protocol.
type leanHoldfast struct {
	name      func(user int) string
	keepalive time.Duration // asked for; 0: the server's
	window    int           // likewise
	token     func(user string, publisher bool) (string, error)
}

// hello implements leanSpeech: a CONNECT frame.
func (h leanHoldfast) hello(user int) ([]byte, error) {
	name := h.name(user)
	x := codec.Connect{
		Version: codec.Version, KeepaliveS: uint64(h.keepalive / time.Second), WindowMsgs: uint64(h.window),
		User: []byte(name), Device: []byte("bench"), ClientName: []byte("holdfast-bench"),
	}
	if h.token != nil {
		token, err := h.token(name, false)
		if err != nil {
			return nil, fmt.Errorf("token of %s: %w", name, err)
		}
		x.Token = []byte(token)
	}
	return codec.AppendConnect(nil, &x), nil
}

// ping implements leanSpeech.
func (leanHoldfast) ping() []byte { return codec.AppendPing(nil, nil) }

// heard implements leanSpeech. A message nobody asked for is not confirmed; PONG and all else say only that the server lives.
func (leanHoldfast) heard(b []byte) (n int, in bool, err error) {
	f, n, err := codec.Parse(b, codec.FrameBytesMax)
	if err != nil || n == 0 {
		return 0, false, err
	}
	switch f.Type {
	case codec.TypeWelcome:
		var x codec.Welcome
		if err := codec.DecodeWelcome(f, &x); err != nil {
			return 0, false, fmt.Errorf("the WELCOME: %w", err)
		}
		return n, true, nil
	case codec.TypeClose:
		var x codec.Close
		if err := codec.DecodeClose(f, &x); err != nil {
			return 0, false, fmt.Errorf("the CLOSE: %w", err)
		}
		return 0, false, &leanRefusal{
			text:  fmt.Sprintf("the server closed: %v: %s", x.Code, x.Reason),
			after: time.Duration(x.RetryAfterMs) * time.Millisecond,
		}
	default:
		return n, false, nil
	}
}
