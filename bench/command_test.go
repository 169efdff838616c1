package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// benchRun is "holdfast bench" with these arguments, which is killed if it takes longer than any of these tests should.
func benchRun(t *testing.T, args ...string) (cmd *exec.Cmd, out, errOut *bytes.Buffer) {
	t.Helper()
	cmd = exec.CommandContext(ctxFor(t, time.Minute), gatewayBinary, append([]string{"bench"}, args...)...)
	cmd.WaitDelay = 10 * time.Second
	out, errOut = &bytes.Buffer{}, &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, errOut
	return cmd, out, errOut
}

// shortFanout are the arguments of a run of about a second and a half on a gateway of its own below dir.
func shortFanout(dir string) []string {
	return []string{"fanout", "--start", "--start-dir", dir, "--users", "10", "--rate", "200", "--warm-up", "200ms", "--duration", "1300ms"}
}

// nothingIn fails if a run has left anything in its directory.
func nothingIn(t *testing.T, dir string) {
	t.Helper()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestTheBinaryPrintsOneJSONLineIntoAPipe(t *testing.T) {
	dir := t.TempDir()
	cmd, out, errOut := benchRun(t, append(shortFanout(dir), "--json")...)
	err := cmd.Run()
	if exitOf(err) != 0 || !json.Valid(out.Bytes()) || strings.Count(out.String(), "\n") != 1 || !strings.HasSuffix(out.String(), "\n") {
		t.Errorf("exit status %d, output %q", exitOf(err), out)
	}
	if errOut.Len() > 0 { // no progress line, for nobody watches
		t.Errorf("standard error %q", errOut)
	}
	nothingIn(t, dir)
}

func TestTheBinaryShowsItsProgressOnATerminal(t *testing.T) {
	ours, theirs := terminalPair(t)
	cmd, out, _ := benchRun(t, append(shortFanout(t.TempDir()), "--json")...)
	cmd.Stderr = theirs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close() // the command has its own
	var shown bytes.Buffer
	_, _ = io.Copy(&shown, ours) // it ends with an error when the other side is closed
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, shown.String())
	}
	text := shown.String()
	if !strings.Contains(text, "\r") || !strings.Contains(text, "acked/s") || !strings.Contains(text, "server ") || strings.Contains(text, "\n") {
		t.Errorf("progress %q", text)
	}
	if !strings.HasSuffix(text, "\r\x1b[K") {
		t.Errorf("the line is left behind: %q", text)
	}
	if !json.Valid(out.Bytes()) {
		t.Errorf("output %q", out)
	}
}

// terminalPair opens a pseudo terminal: what is written to theirs is read from ours.
func terminalPair(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close() })
	fd := int(ours.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { theirs.Close() })
	return ours, theirs
}

// TestTheBinaryRefusesInTime: what cannot work is said before anything is started, and what did not come to a verdict is no verdict.
func TestTheBinaryRefusesInTime(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		exit int
		text string
		args []string
	}{
		{2, "payload", []string{"--payload", "23"}},
		{2, "processes", []string{"--processes", "-1"}},
		{2, "--set", []string{"--set", "ack.timeout=1s"}},
		{1, "connect", []string{"--server", "127.0.0.1:1", "--connect-max", "200ms"}},
		{1, "connect", []string{"--target", "mqtt://127.0.0.1:1", "--connect-max", "200ms"}},
		{1, "writing the report", append(shortFanout(dir), "--html", filepath.Join(file, "page.html"))},
		{1, "writing the report", append(shortFanout(dir), "--out", dir)},
		{1, "data directory", append(shortFanout(dir), "--start-dir", filepath.Join(dir, "none"), "--html", filepath.Join(dir, "page.html"))},
		{1, "connect", []string{"--server", "127.0.0.1:1", "--connect-max", "200ms", "--out", file}},
	} {
		args := test.args
		if !strings.HasPrefix(args[0], "fanout") {
			args = append([]string{"fanout", "--users", "10"}, args...)
		}
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			cmd, out, errOut := benchRun(t, args...)
			began := time.Now()
			err := cmd.Run()
			if exitOf(err) != test.exit || !strings.Contains(errOut.String(), test.text) || out.Len() > 0 {
				t.Errorf("exit status %d, output %q, error %q", exitOf(err), out, errOut)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("it took %v", took)
			}
			nothingIn(t, dir)
		})
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "mine\n" {
		t.Errorf("the file of a run without a report is now %q, %v", text, err)
	}
}

// TestTheBinaryIsInterruptedInEachPhase: Ctrl-C ends a run within moments, with exit status 1 and nothing left behind.
func TestTheBinaryIsInterruptedInEachPhase(t *testing.T) {
	mute := leanGateway(t, func(int64, net.Conn) {})
	for _, processes := range []string{"1", "2"} {
		for _, test := range []struct {
			phase, line, says string // line: of the progress that shows the phase
			args              []string
		}{
			{"connect", "connect", "interrupted before the load", []string{"--server", mute}},
			{"load", "measure", "interrupted in the phase load", []string{"--start", "--duration", "1m"}},
			{"settle", "settle", "interrupted in the phase settle", []string{"--server", startLiar(t, "lost").ln.Addr().String(), "--warm-up", "0s", "--duration", "500ms"}},
		} {
			t.Run(test.phase+" with "+processes, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				cmd, out, errOut := benchRun(t, append([]string{
					"fanout", "--api", "127.0.0.1:1", "--start-dir", dir, "--users", "10", "--rate", "200", "--processes", processes,
				}, test.args...)...)
				ours, theirs := terminalPair(t)
				cmd.Stderr = theirs
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				_ = theirs.Close() // the command has its own
				interrupted := watchFor(ours, errOut, test.line, func() { _ = cmd.Process.Signal(os.Interrupt) })
				err := cmd.Wait()
				took := time.Since(<-interrupted)
				if exitOf(err) != 1 || !strings.Contains(out.String()+errOut.String(), test.says) {
					t.Errorf("exit status %d, output %q, error %q", exitOf(err), out, errOut)
				}
				if took > 10*time.Second {
					t.Errorf("it took %v", took)
				}
				nothingIn(t, dir)
			})
		}
	}
}

// watchFor copies a terminal's text to all, until its end, and calls found when a word has appeared. The time of that is given at the end.
func watchFor(terminal io.Reader, all *bytes.Buffer, word string, found func()) <-chan time.Time {
	at := make(chan time.Time, 1)
	go func() {
		var seen time.Time
		b := make([]byte, 4096)
		for {
			n, err := terminal.Read(b)
			all.Write(b[:n])
			if seen.IsZero() && strings.Contains(all.String(), word) {
				seen = time.Now()
				found()
			}
			if err != nil {
				at <- seen
				return
			}
		}
	}()
	return at
}
