package e2e

import (
	"bytes"
	"testing"
	"time"

	"holdfast/codec"
)

// Every frame is checked as it is described, also those that need no answer or only a short one (P-FRAME-5, P-FRAME-7, P-LIMIT-15).
func TestEveryFrameIsChecked(t *testing.T) {
	s := start(t, "login.device_burst=100")
	long := bytes.Repeat([]byte{'c'}, codec.ConversationBytesMax+1)
	for _, c := range []struct {
		name  string
		frame []byte
		code  codec.Code
	}{
		{"ping with a flag", []byte{2, byte(codec.TypePing), 1}, codec.CodeMalformed},
		{"pong with a flag", []byte{2, byte(codec.TypePong), 0x80}, codec.CodeMalformed},
		{"long pong", append([]byte{11, byte(codec.TypePong), 0}, "123456789"...), codec.CodeBadField},
		{"read without a body", []byte{2, byte(codec.TypeRead), 0}, codec.CodeMalformed},
		{"read of a long conversation", codec.AppendRead(nil, &codec.Read{Conversation: long, Sequence: 1}), codec.CodeBadField},
		{"heads without a body", []byte{2, byte(codec.TypeHeads), 0}, codec.CodeMalformed},
		{"the reply to heads", codec.AppendHeads(nil, &codec.Heads{Reply: true, ServerTimeMs: 1}), codec.CodeUnexpectedFrame},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := s.login("alice", "phone")
			d.t = t
			d.write(c.frame)
			d.wantClose(2*time.Second, c.code)
		})
	}
}

// A PUBLISH item may name an id that is no string of this protocol; that is the result of the item (P-PUBLISH-3), and the answer
// must be a frame that a client can take (P-STR-2, P-LIMIT-3).
func TestRefusedIDsAreNotEchoed(t *testing.T) {
	s := start(t)
	d := s.login("back end", "", func(c *codec.Connect) { c.Capabilities = codec.CapPublisher })
	results := d.publish(1,
		codec.PublishItem{User: []byte("alice"), MessageID: []byte("\xff"), Payload: []byte("x")},
		codec.PublishItem{User: []byte("alice"), MessageID: bytes.Repeat([]byte{'m'}, codec.MessageIDBytesMax+1), Payload: []byte("x")},
		codec.PublishItem{User: []byte("alice"), MessageID: []byte("fine"), Payload: []byte("x")})
	want := []codec.Result{codec.ResultBadMessageID, codec.ResultBadMessageID, codec.ResultAccepted}
	for i, r := range results {
		if r.Result != want[i] {
			t.Errorf("item %d: %s instead of %s", i, r.Result, want[i])
		}
	}
	if len(results) != len(want) || string(results[2].MessageID) != "fine" {
		t.Errorf("results %v", results)
	}
}
