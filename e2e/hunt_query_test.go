package e2e

import "testing"

// Under /v1 an unknown query parameter is an error on every path, as the API document says: a cancel that somebody meant for one
// user must not take the message back from all.
func TestUnknownQueryParametersAreErrors(t *testing.T) {
	s := start(t)
	s.push("alice", "hello", map[string]any{"message_id": "m1"})
	for _, c := range [][2]string{
		{"POST", "/v1/push?user=alice"}, {"GET", "/v1/messages/m1?user=alice"}, {"DELETE", "/v1/messages/m1?user=alice"},
		{"GET", "/v1/users/alice?device=phone"}, {"GET", "/v1/dead-letters?user=alice"}, {"DELETE", "/v1/dead-letters/1?user=alice"},
	} {
		if a := s.must(c[0], c[1], nil); a.Status != 400 || a.code() != "bad_query" {
			t.Errorf("%s %s: HTTP %d %s", c[0], c[1], a.Status, a.Raw)
		}
	}
	if state := s.states("m1")[""]; state != "OFFLINE_BUFFERED" {
		t.Errorf("the message is %s", state)
	}
}
