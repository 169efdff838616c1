package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/bench"
)

func TestEveryScenarioHasHelpWithExamples(t *testing.T) {
	help := command(t, "", "bench", "--help")
	for _, name := range []string{"fanout", "publish", "idle", "storm", "slow", "ackstorm", "verify"} {
		help.want(t, 0, "\n  bench "+name)
		command(t, "", "bench", name, "--help").want(t, 0, "Examples:", "holdfast bench "+name, "Exit codes: 0 pass")
	}
}

func TestBenchUsageErrorsSayWhatToDo(t *testing.T) {
	for _, test := range []struct {
		args []string
		text string
	}{
		{[]string{"fanout", "--payload", "3"}, "payload"},
		{[]string{"fanout", "--ack", "never"}, "each"},
		{[]string{"fanout", "--duration", "0s"}, "above zero"},
		{[]string{"fanout", "--token-key", "none:x"}, "HS256"},
		{[]string{"publish", "--mode", "mail"}, "http-batch"},
		{[]string{"publish", "--ttl", "5"}, "--ttl"},
		{[]string{"idle", "--sizes", "5,3"}, "rising"},
		{[]string{"verify", "--rate", "0"}, "rate"},
		{[]string{"verify", "--lost-acks", "2"}, "ACKs"},
		{[]string{"fanout", "--set", "ack.timeout=1s"}, "--start"},
		{[]string{"storm", "--users", "0"}, "users"},
		{[]string{"slow", "--share", "1"}, "share"},
		{[]string{"ackstorm", "--during", "0s"}, "during"},
		{[]string{"fanout", "--target", "amqp://127.0.0.1:5672"}, "mqtt://"},
		{[]string{"fanout", "--target", "mqtt://"}, "mqtt://[user:password@]host"},
		{[]string{"fanout", "--target", "holdfast://127.0.0.1"}, "holdfast://host:port"},
		{[]string{"fanout", "--target", "mqtt://127.0.0.1:1", "--start"}, "--start"},
		{[]string{"fanout", "--target", "mqtt://127.0.0.1:1", "--api", "http://127.0.0.1:1"}, "--api"},
		{[]string{"fanout", "--target", "mqtt://127.0.0.1:1", "--ack", "each"}, "--ack"},
		{[]string{"storm", "--target", "mqtt://127.0.0.1:1", "--window", "5"}, "--window"},
		{[]string{"publish", "--target", "mqtt://127.0.0.1:1"}, "holdfast gateway only"},
		{[]string{"verify", "--target", "mqtt://127.0.0.1:1"}, "holdfast gateway only"},
		{[]string{"idle", "--sizes", "100000000"}, "at most"},
		{[]string{"fanout", "--processes", "1000"}, "at most"},
		{[]string{"fanout", "--pid=-4"}, "--pid"},
		{[]string{"slow", "--library"}, "--library"},
		{[]string{"nothing"}, "nothing"},
	} {
		command(t, "", append([]string{"bench"}, test.args...)...).want(t, exitUsage, test.text)
	}
}

func TestBenchNamesAGatewayThatDoesNotAnswer(t *testing.T) {
	command(t, "", "bench", "fanout", "--server", "127.0.0.1:1", "--connect-max", "200ms").want(t, exitError, "bench fanout: connect: ")
}

func TestBenchWritesItsReportWhereItWasAskedTo(t *testing.T) {
	dir := t.TempDir()
	f := benchFlags{Out: filepath.Join(dir, "out.jsonl"), HTML: filepath.Join(dir, "page.html"), JSON: true}
	var out strings.Builder
	for range 2 {
		if err := f.write(&terminal{out: &out}, &bench.Report{Scenario: "fanout", Verdict: bench.Verdict{Pass: true}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{out.String(), readFile(t, f.Out)} {
		lines := strings.Split(strings.TrimSpace(text), "\n")
		if len(lines) != 2 || !json.Valid([]byte(lines[0])) || !strings.Contains(lines[1], `"pass":true`) {
			t.Errorf("want two JSON lines: %q", text)
		}
	}
	if page := readFile(t, f.HTML); strings.Count(page, "<!doctype html>") != 1 {
		t.Errorf("want one page: %q", page)
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestBenchVerifyKillsAGatewayOnlyWithStart(t *testing.T) {
	no := time.Duration(0)
	for _, test := range []struct {
		b     benchVerify
		every time.Duration
	}{
		{benchVerify{}, 0}, {benchVerify{benchFlags: benchFlags{Start: true}}, crashEveryDefault},
		{benchVerify{benchFlags: benchFlags{Start: true}, CrashEvery: &no}, 0},
	} {
		if got := test.b.crashEvery(); got != test.every {
			t.Errorf("%+v: every %v, want %v", test.b, got, test.every)
		}
	}
}
