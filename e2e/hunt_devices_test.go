package e2e

import (
	"testing"
	"time"

	"holdfast/codec"
)

// A device over the limit is told so: "the store does not answer" would send it round for ever. Devices that are known go on.
func TestDeviceOverTheLimitIsForbidden(t *testing.T) {
	s := start(t, "store.devices_per_user_max=2")
	s.login("alice", "one").fin()
	s.login("alice", "two").fin()
	d := s.dial()
	d.write(codec.AppendConnect(nil, &codec.Connect{Version: codec.Version, User: []byte("alice"), Device: []byte("three")}))
	d.wantClose(2*time.Second, codec.CodeForbidden)
	s.login("alice", "one")
	s.login("bob", "three")
}
