package e2e

import (
	"testing"
	"time"
)

// J1 (CASES): the process is gone within drain.timeout even if a client neither acknowledges nor closes.
func TestJ1GoneWithinTheDrainTimeout(t *testing.T) {
	const timeout = 3 * time.Second
	s := start(t, "drain.window=500ms", "drain.timeout=3s")
	deaf := s.login("deaf", "phone")
	s.push("deaf", "not acknowledged")
	deaf.want(2 * time.Second)
	begun := time.Now()
	if code := s.terminate(10 * time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(begun); took > timeout {
		t.Errorf("gone after %v, drain.timeout is %v", took, timeout)
	}
	s.run()
	s.login("deaf", "phone").wantTexts(2*time.Second, "not acknowledged")
	s.checkLedger()
}
