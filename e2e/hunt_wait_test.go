package e2e

import (
	"testing"
	"time"
)

// A message id is unique for one user, not for all: who waits for the delivery to one user does not wait for what others were
// sent under the same id.
func TestWaitDeliveredIsAboutTheUsersNamed(t *testing.T) {
	s := start(t)
	d := s.login("alice", "phone")
	s.push("bob", "hello", map[string]any{"message_id": "notice"}) // bob is away: his stays open
	s.push("alice", "hello", map[string]any{"message_id": "notice"})
	d.ack(d.want(2 * time.Second))
	eventually(t, 2*time.Second, "alice's is acknowledged", func() bool { return s.states("notice")["phone"] == "ACKED" })
	a := s.must("POST", "/v1/push?wait=delivered&timeout=20s", map[string]any{"user": "alice", "text": "hello", "message_id": "notice"})
	if a.Body["complete"] != true {
		t.Errorf("not complete though alice's delivery has ended: %s", a.Raw)
	}
	a = s.must("POST", "/v1/push?wait=delivered&timeout=50ms", map[string]any{"users": []string{"alice", "bob"}, "text": "hello", "message_id": "notice"})
	if a.Body["complete"] != false {
		t.Errorf("complete though bob's delivery is open: %s", a.Raw)
	}
}
