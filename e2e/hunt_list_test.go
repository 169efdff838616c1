package e2e

import (
	"testing"
	"time"

	"holdfast/codec"
)

// A frame is checked whole before any of it takes effect (P-STATE-2): a list whose last range was never sent confirms nothing.
func TestListWithANumberNeverSentConfirmsNothing(t *testing.T) {
	s := start(t)
	d := s.login("alice", "phone")
	s.push("alice", "one", map[string]any{"message_id": "m1"})
	m := d.want(2 * time.Second)
	d.write(codec.AppendAckList(nil, []codec.Range{{From: m.Number, Count: 1}, {From: m.Number + 2, Count: 1}}, codec.LevelProcessed))
	d.wantClose(2*time.Second, codec.CodeBadField)
	again := s.login("alice", "phone").want(2 * time.Second)
	if again.ID != "m1" {
		t.Fatalf("message %q came instead of the one that was not acknowledged", again.ID)
	}
	s.checkLedger()
}
