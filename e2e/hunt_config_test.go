package e2e

import (
	"strings"
	"testing"
)

// A node name that no WELCOME may carry (P-LIMIT-9, P-STR-2) is a start error that names the key, not a node that every client
// which checks what it decodes turns away from.
func TestNodeNameThatWelcomeCannotCarryIsAStartError(t *testing.T) {
	for _, name := range []string{strings.Repeat("n", 65), "a\nb"} {
		_, stderr, code := cli(t, "", "serve", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--http", "", "--set", "node.name="+name)
		if code != 2 || !strings.Contains(stderr, "node.name") {
			t.Errorf("node.name=%q: exit code %d, %s", name, code, stderr)
		}
	}
}
