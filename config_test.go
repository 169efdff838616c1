package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// writeConfig puts a file into a fresh directory.
func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "holdfast.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// mustLoad loads and fails the test on an error.
func mustLoad(t *testing.T, src configSources) *Config {
	t.Helper()
	c, err := loadConfig(src)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestDefaultsAreValidAndSaySo(t *testing.T) {
	c := mustLoad(t, configSources{})
	if c.Ack.Timeout != 10*time.Second || c.Message.TTLMax != 7*24*time.Hour || c.TCP.FrameMax != 64<<10 {
		t.Errorf("defaults are %v, %v, %v", c.Ack.Timeout, c.Message.TTLMax, c.TCP.FrameMax)
	}
	if c.TCP.Listen != "127.0.0.1:7700" {
		t.Errorf("tcp.listen without auth is %s", c.TCP.Listen)
	}
	for _, key := range c.keys() {
		if !strings.HasPrefix(c.origin(key), originDefault) {
			t.Errorf("%s comes from %q", key, c.origin(key))
		}
	}
}

func TestLaterSourceWins(t *testing.T) {
	file := writeConfig(t, "ack:\n  timeout: 5s\n  window_messages: 10\nretry:\n  after_last: dead\nlog:\n  level: warn\n")
	c := mustLoad(t, configSources{
		file:    file,
		environ: []string{"HOME=/", "HOLDFAST_ACK_TIMEOUT=6s", "HOLDFAST_LOG_LEVEL=error"},
		flags:   []flagValue{{"log.level", "debug", "--log-level"}},
	})
	for _, want := range []struct{ key, value, origin string }{
		{"ack.timeout", "6s", "environment HOLDFAST_ACK_TIMEOUT"},
		{"ack.window_messages", "10", "file " + file + ":3"},
		{"retry.after_last", "dead", "file " + file + ":5"},
		{"log.level", "debug", "flag --log-level"},
		{"ack.window_bytes", "256KiB", "default"},
	} {
		s := c.byKey[want.key]
		if got := formatValue(s.target); got != want.value || s.origin != want.origin {
			t.Errorf("%s = %s (%s), want %s (%s)", want.key, got, s.origin, want.value, want.origin)
		}
	}
}

func TestMistakesNameTheKeyAndThePlace(t *testing.T) {
	for _, test := range []struct{ name, file, want string }{
		{"unknown key", "ack:\n  timeout: 5s\n  timout: 5s\n", `holdfast.yaml:3: unknown setting "ack.timout", did you mean "ack.timeout"?`},
		{"unknown section", "akc:\n  timeout: 5s\n", `holdfast.yaml:1: unknown section "akc", did you mean "ack"?`},
		{"key of another section", "ack:\n  live_attempts_max: 5\n", `did you mean "retry.live_attempts_max"?`},
		{"set twice", "ack:\n  timeout: 5s\n  timeout: 6s\n", "timeout"},
		{"no value", "ack:\n  timeout:\n", "holdfast.yaml:2: ack.timeout: has no value"},
		{"no unit", "ack:\n  timeout: 5\n", `holdfast.yaml:2: ack.timeout: "5" is not a duration`},
		{"bad size", "tcp:\n  frame_max: 64kb\n", `tcp.frame_max: "64kb" is not a size`},
		{"negative", "store:\n  dedup_window: -1h\n", `store.dedup_window: "-1h" is negative`},
		{"bad word", "store:\n  sync: never\n", `store.sync: "never" is not one of always, interval`},
		{"bad number", "ack:\n  window_messages: many\n", `ack.window_messages: "many" is not a whole number`},
		{"a list for a section", "ack: [1]\n", "holdfast.yaml:1: section ack must be a mapping"},
		{"a mapping for a value", "ack:\n  timeout:\n    seconds: 5\n", "holdfast.yaml:2: ack.timeout: unknown key \"seconds\""},
		{"no mapping at all", "- ack\n", "the file must be a mapping of sections"},
		{"broken yaml", "ack:\n\t- {\n", "holdfast.yaml:"},
		{"unknown algorithm", "auth:\n  keys:\n    - {alg: none, file: x}\n", `auth.keys: key algorithm "none" is not one of`},
		{"key without file", "auth:\n  keys:\n    - {alg: EdDSA}\n", "auth.keys: a key needs a file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := loadConfig(configSources{file: writeConfig(t, test.file)})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want it to contain %s", err, test.want)
			}
		})
	}
}

func TestAllMistakesAreReportedAtOnce(t *testing.T) {
	_, err := loadConfig(configSources{
		file:    writeConfig(t, "ack:\n  timout: 5s\nnode:\n  nam: x\n"),
		environ: []string{"HOLDFAST_NODE_NAM=x"},
		flags:   []flagValue{{"log.levle", "info", "--set"}},
	})
	for _, want := range []string{"ack.timout", "node.nam", "HOLDFAST_NODE_NAM", "log.levle"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
}

func TestImpossibleRelationsNameTheirKeys(t *testing.T) {
	for _, test := range []struct{ set, want string }{
		{"ack.timeout=0s", "ack.timeout is 0s"},
		{"ack.timeout=1ms", "ack.timeout is 1ms"},
		{"ack.window_messages=0", "ack.window_messages is 0"},
		{"ack.window_messages=201", "ack.user_unacked_max (200)"},
		{"ack.window_bytes=4KiB", "message.payload_max (60KiB)"},
		{"retry.live_attempts_max=21", "retry.life_attempts_max (20)"},
		{"retry.budget_share=2", "retry.budget_share is 2"},
		{"retry.budget_floor=0", "retry.budget_floor is 0"},
		{"backlog.user_rate=0.5", "backlog.user_rate is 0.5"},
		{"backlog.user_rate=600000", "backlog.node_rate (500000)"},
		{"message.payload_max=64KiB", "tcp.frame_max (64KiB)"},
		{"message.payload_max=0", "message.payload_max is 0"},
		{"message.ttl_max=10s", "must be above ack.timeout (10s)"},
		{"message.extend_max=1s", "message.extend_max (1s)"},
		{"message.nack_delay_max=30d", "message.nack_delay_max is 30d"},
		{"store.dir=", "store.dir is empty"},
		{"store.segment_bytes=8GiB", "store.segment_bytes is 8GiB"},
		{"store.bytes_max=128MiB", "4 times store.segment_bytes (64MiB)"},
		{"store.queue_bytes_max=1KiB", "store.queue_bytes_max (1KiB)"},
		{"tcp.keepalive=1s", "tcp.keepalive_min (15s)"},
		{"tcp.keepalive_max=30s", "tcp.keepalive_max (30s)"},
		{"tcp.keepalive_min=1500ms", "whole seconds"},
		{"tcp.frame_max=2MiB", "tcp.frame_max is 2MiB"},
		{"tcp.frame_max=8KiB", "tcp.frame_max is 8KiB"},
		{"tcp.outbox_low=256KiB", "tcp.outbox_high (256KiB)"},
		{"tcp.outbox_hard=256KiB", "tcp.outbox_hard (256KiB)"},
		{"tcp.listen=7700", "tcp.listen is \"7700\"; it must be host:port"},
		{"tcp.listen=127.0.0.1:7780", "both name port 7780"},
		{"drain.window=1m", "drain.timeout (15s)"},
		{"node.name=" + strings.Repeat("n", 65), "node.name is"},
		{"node.name=a\nb", "node.name is"},
		{"http.token=short", "http.token has 5 characters"},
		{"http.body_max=64KiB", "http.body_max (64KiB)"},
		{"auth.mode=jwt", "auth.keys is empty"},
		{"login.device_burst=0", "login.device_burst is 0"},
		{"delivery.lanes=65", "delivery.lanes is 65"},
	} {
		key, value, _ := strings.Cut(test.set, "=")
		t.Run(test.set, func(t *testing.T) {
			_, err := loadConfig(configSources{flags: []flagValue{{key, value, "--set"}}})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want it to contain %s", err, test.want)
			}
		})
	}
}

func TestOpenPortsNeedAuthenticationOrAnExplicitWord(t *testing.T) {
	keys := flagValue{"auth.keys", "EdDSA:token.pub.pem", "--jwt-key"}
	insecure := flagValue{"auth.insecure_no_auth", "true", "--insecure-no-auth"}
	token := flagValue{"http.token", "0123456789abcdef", "--set"}
	listen := func(a string) flagValue { return flagValue{"tcp.listen", a, "--listen"} }
	web := func(a string) flagValue { return flagValue{"http.listen", a, "--http"} }
	for _, test := range []struct {
		name  string
		flags []flagValue
		want  string // part of the error; empty: it starts
	}{
		{"open beyond loopback", []flagValue{listen(":7700")}, "auth.mode is none"},
		{"open on one outside address", []flagValue{listen("192.0.2.1:7700")}, "auth.mode is none"},
		{"a name may resolve to anything", []flagValue{listen("gateway.internal:7700")}, "auth.mode is none"},
		{"open on purpose", []flagValue{listen(":7700"), insecure}, ""},
		{"loopback 4", []flagValue{listen("127.0.0.9:7700")}, ""},
		{"loopback 6", []flagValue{listen("[::1]:7700")}, ""},
		{"localhost", []flagValue{listen("localhost:7700")}, ""},
		{"tokens", []flagValue{listen(":7700"), keys}, ""},
		{"keys that would not be used", []flagValue{{"auth.mode", "none", "--auth"}, keys}, "auth.mode is none and auth.keys names keys"},
		{"http beyond loopback", []flagValue{web(":7780")}, "http.token is empty"},
		{"http with a token", []flagValue{web(":7780"), token}, ""},
		{"http open on purpose", []flagValue{web(":7780"), insecure}, ""},
		{"no http", []flagValue{web("")}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := loadConfig(configSources{flags: test.flags})
			if test.want == "" && err != nil {
				t.Errorf("does not start: %v", err)
			}
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("error is %v, want it to contain %s", err, test.want)
			}
		})
	}
}

func TestKeysMeanTokensAndAnOpenPort(t *testing.T) {
	c := mustLoad(t, configSources{flags: []flagValue{{"auth.keys", "EdDSA:a.pem,HS256:kid1:b.key", "--jwt-key"}}})
	if c.Auth.Mode != "jwt" || c.TCP.Listen != ":7700" {
		t.Errorf("mode %s, listen %s", c.Auth.Mode, c.TCP.Listen)
	}
	want := []Key{{Alg: "EdDSA", File: "a.pem"}, {Alg: "HS256", ID: "kid1", File: "b.key"}}
	if len(c.Auth.Keys) != 2 || c.Auth.Keys[0] != want[0] || c.Auth.Keys[1] != want[1] {
		t.Errorf("keys are %v", c.Auth.Keys)
	}
}

func TestKeysInTheFileAreMappings(t *testing.T) {
	c := mustLoad(t, configSources{file: writeConfig(t,
		"auth:\n  keys:\n    - alg: EdDSA\n      id: main\n      file: /etc/a.pem\n    - {alg: RS256, file: b.pem}\n")})
	if got := formatKeys(c.Auth.Keys); got != "EdDSA:main:/etc/a.pem,RS256:b.pem" {
		t.Errorf("keys are %s", got)
	}
}

func TestKubernetesServiceVariablesAreNoMistake(t *testing.T) {
	mustLoad(t, configSources{environ: []string{
		"HOLDFAST_SERVICE_HOST=10.0.0.1", "HOLDFAST_SERVICE_PORT_TCP=7700", "HOLDFAST_PORT=tcp://10.0.0.1:7700",
		"HOLDFAST_PORT_7700_TCP_ADDR=10.0.0.1", "HOLDFAST_SERVER=x:1", "HOLDFAST_TOKEN=t", "HOLDFAST_API=http://x", "HOLDFAST_API_TOKEN=t",
	}})
}

func TestConfigFileFromTheEnvironment(t *testing.T) {
	file := writeConfig(t, "# all comments\nack:\n  # nothing here\n")
	mustLoad(t, configSources{environ: []string{"HOLDFAST_CONFIG=" + file}})
	if _, err := loadConfig(configSources{environ: []string{"HOLDFAST_CONFIG=" + file + ".missing"}}); err == nil {
		t.Error("a missing file is no error")
	}
}

func TestPrintedConfigurationReadsBack(t *testing.T) {
	c := mustLoad(t, configSources{flags: []flagValue{
		{"ack.timeout", "1m30s", "--set"}, {"tcp.frame_max", "70000", "--set"}, {"retry.budget_share", "0.25", "--set"},
		{"node.name", `a "quoted" # name`, "--set"}, {"auth.keys", "EdDSA:k:/a.pem,HS256:/b", "--jwt-key"},
	}})
	var printed bytes.Buffer
	if err := c.writeYAML(&printed, true); err != nil {
		t.Fatal(err)
	}
	again := mustLoad(t, configSources{file: writeConfig(t, printed.String())})
	for _, key := range c.keys() {
		if a, b := formatValue(c.byKey[key].target), formatValue(again.byKey[key].target); a != b {
			t.Errorf("%s was %q and reads back as %q", key, a, b)
		}
	}
	if !strings.Contains(printed.String(), `timeout: "1m30s" # flag --set`) {
		t.Error("the origin is not printed")
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	c := mustLoad(t, configSources{environ: []string{"HOLDFAST_HTTP_TOKEN=very-secret-token-1"}})
	var printed bytes.Buffer
	if err := c.writeYAML(&printed, true); err != nil {
		t.Fatal(err)
	}
	mustLoad(t, configSources{file: writeConfig(t, printed.String())})
	for _, s := range c.list() {
		printed.WriteString(s.Value)
	}
	if strings.Contains(printed.String(), "very-secret") {
		t.Error("the token is printed")
	}
}

func TestDurationsAndSizesAreWrittenShort(t *testing.T) {
	for text, want := range map[string]string{"168h": "7d", "90s": "1m30s", "60m": "1h", "0s": "0s", "1500ms": "1.5s", "36h": "36h", "25h30m": "25h30m"} {
		d, err := parseDuration(text)
		if err != nil || formatDuration(d) != want {
			t.Errorf("%s is written %s (%v), want %s", text, formatDuration(d), err, want)
		}
	}
	for text, want := range map[string]string{"65536": "64KiB", "1025": "1025", "0": "0", "2048KiB": "2MiB", "3 GiB": "3GiB", "1TiB": "1TiB"} {
		s, err := parseSize(text)
		if err != nil || s.String() != want {
			t.Errorf("%s is written %s (%v), want %s", text, s, err, want)
		}
	}
	for _, text := range []string{"", "KiB", "9999999999TiB", "-1", "1.5KiB"} {
		if s, err := parseSize(text); err == nil {
			t.Errorf("size %q is %d", text, s)
		}
	}
	for _, text := range []string{"", "5", "d", "-1d", "99999999d", "1w"} {
		if d, err := parseDuration(text); err == nil {
			t.Errorf("duration %q is %s", text, d)
		}
	}
}

// TestEverySettingIsDocumentedInEveryPlace: what is printed and what the page shows come from the same text.
func TestEverySettingIsDocumentedInEveryPlace(t *testing.T) {
	c := newConfig()
	for _, s := range c.sections {
		for _, set := range s.settings {
			if len(set.help) < 30 || !strings.HasSuffix(strings.TrimSpace(set.help), ".") {
				t.Errorf("%s: the help %q is no sentence", set.key, set.help)
			}
		}
	}
}

// configMarkdown is the tables of docs/configuration.md.
func configMarkdown(c *Config) string {
	b := &strings.Builder{}
	for _, s := range c.sections {
		fmt.Fprintf(b, "### %s\n\n%s\n\n| key | default | meaning |\n|---|---|---|\n", s.name, s.help)
		for _, set := range s.settings {
			preset := "empty"
			if set.preset != "" {
				preset = "`" + set.preset + "`"
			}
			fmt.Fprintf(b, "| `%s` | %s | %s |\n", set.key, preset, strings.ReplaceAll(set.help, "|", "\\|"))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// TestConfigurationPageIsCurrent keeps docs/configuration.md equal to the code. UPDATE_DOCS=1 writes it.
func TestConfigurationPageIsCurrent(t *testing.T) {
	const path, begin = "docs/configuration.md", "<!-- settings: written by go test -->\n"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, tail, ok := strings.Cut(string(page), begin)
	if !ok {
		t.Fatalf("%s has no line %q", path, begin)
	}
	want := configMarkdown(newConfig())
	if tail == want {
		return
	}
	if os.Getenv("UPDATE_DOCS") == "" {
		t.Fatalf("%s is not what the code says; UPDATE_DOCS=1 go test -run %s . writes it", path, t.Name())
	}
	if err := os.WriteFile(path, []byte(head+begin+want), 0o644); err != nil {
		t.Fatal(err)
	}
}
