package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"holdfast/codec"
)

// cli runs a command of the binary and returns its output and exit code.
func cli(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("running %v: %v", args, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// TestStartErrorsNameTheirCause: a node that cannot run as configured says which key is wrong and does not start.
func TestStartErrorsNameTheirCause(t *testing.T) {
	file := filepath.Join(t.TempDir(), "holdfast.yaml")
	if err := os.WriteFile(file, []byte("ack:\n  timeuot: 5s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"no authentication beyond loopback": {[]string{"--listen", "0.0.0.0:0"}, []string{"tcp.listen", "insecure"}},
		"http beyond loopback":              {[]string{"--http", "0.0.0.0:0"}, []string{"http.listen", "http.token"}},
		"unknown key in the file":           {[]string{"--config", file}, []string{"timeuot", "ack.timeout"}},
		"unknown key on the command line":   {[]string{"--set", "ack.timeot=5s"}, []string{"ack.timeot"}},
		"zero timeout":                      {[]string{"--set", "ack.timeout=0s"}, []string{"ack.timeout"}},
		"negative timeout":                  {[]string{"--set", "ack.timeout=-5s"}, []string{"ack.timeout"}},
		"impossible relation":               {[]string{"--set", "tcp.keepalive_min=2m", "--set", "tcp.keepalive_max=1m"}, []string{"keepalive"}},
		"payload over the frame":            {[]string{"--set", "message.payload_max=64KiB"}, []string{"message.payload_max", "tcp.frame_max"}},
		"jwt without keys":                  {[]string{"--auth", "jwt"}, []string{"auth.keys"}},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"serve", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"}, c.args...)
			_, stderr, code := cli(t, "", args...)
			if code == 0 {
				t.Fatal("it started")
			}
			for _, w := range c.want {
				if !strings.Contains(stderr, w) {
					t.Errorf("the error does not name %q:\n%s", w, stderr)
				}
			}
		})
	}
}

// TestSecondProcessOnTheSameData is refused with a clear error and disturbs nothing.
func TestSecondProcessOnTheSameData(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	_, stderr, code := cli(t, "", "serve", "--data", s.dir, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
	if code == 0 || !strings.Contains(stderr, s.dir) {
		t.Fatalf("exit code %d:\n%s", code, stderr)
	}
	s.push("two", "m")
	s.login("two", "phone").wantTexts(time.Second, "m")
}

// TestPortInUse names the address.
func TestPortInUse(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	_, stderr, code := cli(t, "", "serve", "--data", t.TempDir(), "--listen", s.tcp, "--http", "127.0.0.1:0")
	if code == 0 || !strings.Contains(stderr, "in use") || !strings.Contains(stderr, s.tcp) {
		t.Fatalf("exit code %d:\n%s", code, stderr)
	}
}

// TestTokens: logins need a good token; its subject is the user; a publisher needs the role.
func TestTokens(t *testing.T) {
	t.Parallel()
	key := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(key, []byte(strings.Repeat("k", 48)), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, append(quick, "auth.mode=jwt", "auth.keys=HS256:"+key)...)
	mint := func(args ...string) []byte {
		t.Helper()
		out, stderr, code := cli(t, "", append([]string{"token", "--key", "HS256:" + key}, args...)...)
		if code != 0 {
			t.Fatalf("token %v: %s", args, stderr)
		}
		return []byte(strings.TrimSpace(out))
	}
	with := func(token []byte) func(*codec.Connect) { return func(c *codec.Connect) { c.Token = token } }
	good := mint("--user", "alice")
	old := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": "alice", "exp": time.Now().Add(-time.Hour).Unix()})
	signed, err := old.SignedString([]byte(strings.Repeat("k", 48)))
	if err != nil {
		t.Fatal(err)
	}
	expired := []byte(signed)
	d := s.login("alice", "phone", with(good))
	s.push("alice", "m")
	d.wantTexts(time.Second, "m")
	for name, c := range map[string]struct {
		user  string
		token []byte
		code  codec.Code
	}{
		"no token":        {"alice", nil, codec.CodeUnauthorized},
		"garbage":         {"alice", []byte("not.a.token"), codec.CodeUnauthorized},
		"cut signature":   {"alice", good[:len(good)-4], codec.CodeUnauthorized},
		"somebody else's": {"bob", good, codec.CodeForbidden},
		"expired":         {"alice", expired, codec.CodeTokenExpired},
	} {
		x := s.dial()
		err := x.connect(c.user, "phone", with(c.token))
		closed, ok := errors.AsType[closedError](err)
		if !ok {
			t.Errorf("%s: %v, want a CLOSE", name, err)
		} else if closed.Code != c.code && closed.Code != codec.CodeUnauthorized {
			t.Errorf("%s: closed with %s, want %s", name, closed.Code, c.code)
		}
	}
	asPublisher := func(c *codec.Connect) { c.Capabilities = codec.CapPublisher }
	back := mint("--user", "backend", "--role", "publisher")
	err = s.dial().connect("backend", "1", with(back))
	if closed, ok := errors.AsType[closedError](err); !ok || closed.Code != codec.CodeForbidden {
		t.Errorf("a publisher's token without the capability (P-CONNECT-5): %v, want forbidden", err)
	}
	p := s.login("backend", "1", with(back), asPublisher)
	p.publish(1, codec.PublishItem{User: []byte("alice"), MessageID: []byte("t-1"), Payload: []byte("by token")})
	d.wantTexts(time.Second, "by token")
}

// TestFullDisk: publishers are refused visibly while the disk is full, what was accepted stays, and all goes on when there is room.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount the small file system that this test fills; CI runs as root")
	}
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", dir).CombinedOutput(); err != nil {
		t.Fatalf("a small file system is needed for this test (as root): %v %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", dir).Run() })
	s := &server{t: t, dir: filepath.Join(dir, "data"), args: []string{"--set", "ack.timeout=1s", "--set", "store.segment_bytes=4MiB", "--set", "store.queue_bytes_max=1GiB", "--set", "store.queue_messages_max=1000000"}}
	s.run()
	t.Cleanup(s.kill)
	pad := strings.Repeat("x", 20<<10)
	accepted := 0
	var refusal api
	for refusal.Status == 0 && accepted < 5000 {
		a := s.must("POST", "/v1/push", map[string]any{"user": fmt.Sprint("disk", accepted%10), "text": fmt.Sprintf("%d %s", accepted, pad)})
		if a.Status == 200 {
			accepted++
		} else {
			refusal = a
		}
	}
	if refusal.Status != 507 || refusal.code() != "storage_full" {
		t.Fatalf("after %d accepted: HTTP %d %s", accepted, refusal.Status, refusal.Raw)
	}
	drain := func() (got int) {
		for u := range 10 {
			d := s.login(fmt.Sprint("disk", u), "phone")
			for {
				m, err := d.push(400 * time.Millisecond)
				if err != nil {
					break
				}
				got++
				d.ack(m)
			}
			d.logout()
		}
		return got
	}
	s.crash() // a restart on a full disk
	if got := drain(); got != accepted {
		t.Fatalf("%d of %d accepted came", got, accepted)
	}
	eventually(t, 20*time.Second, "there is room again", func() bool {
		a := s.must("POST", "/v1/push", map[string]any{"user": "disk0", "text": "room"})
		return a.Status == 200
	})
	s.checkLedger()
}

// TestE7MemoryIsBounded: a lot of payload for absent users lives on the disk, not in memory.
func TestE7MemoryIsBounded(t *testing.T) {
	s := start(t, append(quick, "store.queue_bytes_max=1GiB")...)
	before := s.rssKB()
	pad := strings.Repeat("x", 16<<10)
	for u := range 40 {
		var items []map[string]any
		for i := range 100 {
			items = append(items, map[string]any{"user": fmt.Sprint("e7-", u), "text": fmt.Sprintf("%d %s", i, pad)})
		}
		if a := s.must("POST", "/v1/push", items); a.Status != 200 {
			t.Fatalf("HTTP %d %.200s", a.Status, a.Raw)
		}
	}
	if grown := s.rssKB() - before; grown > 64<<10 {
		t.Errorf("64 MB stored cost %d KB of memory", grown)
	}
	slow := s.login("e7-0", "phone")
	for range 20 {
		slow.ack(slow.want(5 * time.Second))
	}
	other := s.login("e7-live", "phone")
	s.push("e7-live", "m")
	other.wantTexts(time.Second, "m")
	s.checkLedger()
}

// TestTour is the example, command by command.
func TestTour(t *testing.T) {
	t.Parallel()
	s := start(t, quick...)
	url := "http://" + s.http
	listener := exec.Command(binary, "listen", "--server", s.tcp, "--user", "alice", "--count", "1")
	var heard bytes.Buffer
	listener.Stdout = &heard
	if err := listener.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Process.Kill() })
	eventually(t, 5*time.Second, "alice is online", func() bool { return s.metric("holdfast_online") == 1 })
	out, stderr, code := cli(t, "", "push", "--api", url, "--user", "alice", "hello")
	if code != 0 || !strings.Contains(out, "acked by alice") {
		t.Errorf("push: exit %d\n%s%s", code, out, stderr)
	}
	if err := listener.Wait(); err != nil || !strings.Contains(heard.String(), "hello") {
		t.Errorf("listen: %v\n%s", err, heard.String())
	}
	id, _, _ := strings.Cut(out, "\n")
	out, stderr, code = cli(t, "", "trace", "--api", url, strings.TrimSpace(id))
	if code != 0 || !strings.Contains(out, "ACKED") {
		t.Errorf("trace: exit %d\n%s%s", code, out, stderr)
	}
	out, _, code = cli(t, "", "push", "--api", url, "--user", "bob", "later")
	if code != 0 || !strings.Contains(out, "stored") {
		t.Errorf("push to somebody offline: exit %d\n%s", code, out)
	}
	out, stderr, code = cli(t, "one\ntwo\nthree\n", "publish", "--server", s.tcp, "--user", "bob")
	if code != 0 {
		t.Errorf("publish: exit %d\n%s%s", code, out, stderr)
	}
	s.login("bob", "phone").wantTexts(time.Second, "later", "one", "two", "three")
}
