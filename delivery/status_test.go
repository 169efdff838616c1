package delivery

import (
	"strings"
	"testing"
)

// R4: every pair of states, by name. A row lists what a state may move to; whatever is not listed is forbidden.
func TestR4StatusMovesOnlyAlongTheTable(t *testing.T) {
	allowed := map[Status]string{
		StatusCreated:   "ROUTED OFFLINE_BUFFERED EXPIRED CANCELLED DEAD_LETTER",
		StatusRouted:    "SENT OFFLINE_BUFFERED EXPIRED CANCELLED DEAD_LETTER",
		StatusSent:      "TIMEOUT RETRYING OFFLINE_BUFFERED ACKED EXPIRED CANCELLED DEAD_LETTER",
		StatusTimeout:   "RETRYING OFFLINE_BUFFERED ACKED EXPIRED CANCELLED DEAD_LETTER",
		StatusRetrying:  "SENT OFFLINE_BUFFERED ACKED EXPIRED CANCELLED DEAD_LETTER",
		StatusOffline:   "RESEND_ON_LOGIN ACKED EXPIRED CANCELLED DEAD_LETTER",
		StatusResend:    "SENT OFFLINE_BUFFERED ACKED EXPIRED CANCELLED DEAD_LETTER",
		StatusAcked:     "",
		StatusExpired:   "",
		StatusCancelled: "",
		StatusDead:      "",
	}
	if len(allowed) != int(statusCount) {
		t.Fatalf("%d states in the table, %d exist", len(allowed), statusCount)
	}
	for from := range statusCount {
		want := make(map[Status]bool)
		for name := range strings.FieldsSeq(allowed[from]) {
			to, ok := ParseStatus(name)
			if !ok {
				t.Fatalf("no state %q", name)
			}
			want[to] = true
		}
		for to := range statusCount + 2 { // and two that do not exist
			if got := from.Next(to); got != want[to] {
				t.Errorf("%s to %s: %v, want %v", from, to, got, want[to])
			}
		}
	}
}

func TestStatusAndReasonNamesAreUniqueAndComeBack(t *testing.T) {
	for s := range statusCount {
		if back, ok := ParseStatus(s.String()); !ok || back != s {
			t.Errorf("%d is %q is %d", s, s, back)
		}
	}
	for r := range reasonCount {
		if back, ok := ParseReason(r.String()); !ok || back != r {
			t.Errorf("%d is %q is %d", r, r, back)
		}
	}
	if _, ok := ParseStatus("UNKNOWN"); ok {
		t.Error("a state without a name is parsed")
	}
	if _, ok := ParseReason("unknown"); ok {
		t.Error("a reason without a name is parsed")
	}
}

func TestForbiddenMovePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Fatal("an acknowledged delivery was sent again")
		}
	}()
	move(uint8(StatusAcked), StatusSent)
}
