package e2e

import (
	"testing"
	"time"

	"holdfast/codec"
)

// States move only forward (R4), also over kill -9: what the publisher was told is cancelled, or the operator dropped, stays so.
func TestCancelledAndDroppedSurviveACrash(t *testing.T) {
	s := start(t)
	s.push("alice", "taken back", map[string]any{"message_id": "cancelled"})
	s.push("bob", "refused", map[string]any{"message_id": "refused"})
	d := s.login("bob", "phone")
	m := d.want(2 * time.Second)
	d.write(codec.AppendNack(nil, &codec.Nack{Number: m.Number, Never: true}))
	var seq string
	eventually(t, 2*time.Second, "the refused message is a dead letter", func() bool {
		list, _ := s.must("GET", "/v1/dead-letters", nil).Body["dead_letters"].([]any)
		if len(list) == 1 {
			letter, _ := list[0].(map[string]any)
			seq, _ = letter["seq"].(string)
		}
		return seq != ""
	})
	if a := s.must("DELETE", "/v1/dead-letters/"+seq, nil); a.Status != 200 {
		t.Fatalf("drop: HTTP %d %s", a.Status, a.Raw)
	}
	s.crash()
	if list, _ := s.must("GET", "/v1/dead-letters", nil).Body["dead_letters"].([]any); len(list) != 0 {
		t.Errorf("the dropped dead letter is back: %v", list)
	}
	if a := s.must("DELETE", "/v1/messages/cancelled", nil); a.Status != 200 {
		t.Fatalf("cancel: HTTP %d %s", a.Status, a.Raw)
	}
	s.crash()
	s.login("alice", "phone").quiet(300 * time.Millisecond)
}
