package bench

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestIdleHoldsEverySizeInSeveralProcessesAndFromSeveralAddresses(t *testing.T) {
	t.Parallel()
	s, err := Idle(IdleOptions{
		Sizes: []int{30, 70}, Hold: 200 * time.Millisecond, Keepalive: 30 * time.Second, PerProcess: 40, PerSource: 25,
		Worker: []string{gatewayBinary, "bench", "worker"},
	})
	o := quick(t)
	o.Duration = time.Minute
	report := execute(t, o, s, err)
	wantPass(t, report)
	if n := value(t, report, "processes"); n != 2 {
		t.Errorf("%v processes", n)
	}
	for _, key := range []string{"rss_bytes_30", "rss_bytes_70", "logins_per_second_70"} {
		if value(t, report, key) <= 0 {
			t.Errorf("%s is %v", key, value(t, report, key))
		}
	}
	for _, key := range []string{"rss_bytes_per_connection", "cpu_us_per_connection_second_70", "kernel_buffer_bytes_per_connection_70", "kernel_object_bytes_per_connection_70"} {
		value(t, report, key) // small sizes say nothing of the value
	}
}

func TestIdleFailsWhenConnectionsAreRefusedOrLost(t *testing.T) {
	t.Parallel()
	s, err := Idle(IdleOptions{Sizes: []int{20}, Hold: 100 * time.Millisecond, Keepalive: 30 * time.Second})
	o := quick(t, "tcp.connections_max=15")
	o.Duration = time.Minute
	report := execute(t, o, s, err)
	if failures := strings.Join(report.Verdict.Failures, "\n"); report.Verdict.Pass ||
		!strings.Contains(failures, "overloaded") || !strings.Contains(failures, "5 of 20") {
		t.Errorf("verdict %+v", report.Verdict)
	}
}

func TestIdleSaysWhenItsTimeIsOver(t *testing.T) {
	s, err := Idle(IdleOptions{Sizes: []int{5}, Hold: time.Minute, Keepalive: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	o := quick(t)
	o.WarmUp, o.Duration = 0, 300*time.Millisecond
	if _, err := Execute(t.Context(), o, s); err == nil || !strings.Contains(err.Error(), "time was over") {
		t.Errorf("error %v", err)
	}
}

func TestIdleRefusesWhatCannotWork(t *testing.T) {
	good := IdleOptions{Sizes: []int{1, 2}, Hold: time.Second, Keepalive: time.Second}
	for _, test := range []struct {
		change func(*IdleOptions)
		want   string
	}{
		{func(o *IdleOptions) { o.Sizes = nil }, "sizes"},
		{func(o *IdleOptions) { o.Sizes = []int{2, 1} }, "rising"},
		{func(o *IdleOptions) { o.Sizes = []int{2, 2} }, "rising"},
		{func(o *IdleOptions) { o.Hold = 0 }, "hold"},
		{func(o *IdleOptions) { o.Keepalive = 0 }, "keepalive"},
		{func(o *IdleOptions) { o.PerProcess = -1 }, "negative"},
	} {
		o := good
		test.change(&o)
		if _, err := Idle(o); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v, want one about %s", err, test.want)
		}
	}
}

func TestSourcesAreLoopbackAddressesOnlyForLoopbackTargets(t *testing.T) {
	local := order{Addr: "127.0.0.1:7700", PerSource: 10}
	for user, want := range map[int]net.IP{0: nil, 9: nil, 10: net.IPv4(127, 0, 0, 2), 25: net.IPv4(127, 0, 0, 3), 2600: net.IPv4(127, 0, 1, 5)} {
		if got := source(local, user); !got.Equal(want) {
			t.Errorf("user %d comes from %v, want %v", user, got, want)
		}
	}
	for _, o := range []order{{Addr: "192.0.2.1:7700", PerSource: 10}, {Addr: "127.0.0.1:7700"}, {Addr: "[::1]:7700", PerSource: 10}, {Addr: "x"}} {
		if got := source(o, 50); got != nil {
			t.Errorf("%+v: from %v", o, got)
		}
	}
	if n := portsPerSource(); n < 1000 {
		t.Errorf("%d ports", n)
	}
	if n := connectionsMax(); n < 100 {
		t.Errorf("%d connections", n)
	}
}

func TestDialFromUsesTheAddress(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	nc, err := dialFrom(t.Context(), ln.Addr().String(), net.IPv4(127, 0, 3, 4))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if host, _, _ := net.SplitHostPort(nc.LocalAddr().String()); host != "127.0.3.4" {
		t.Errorf("it comes from %s", host)
	}
}

func TestWorkerAnswersEachOrderAndRefusesOthers(t *testing.T) {
	var out bytes.Buffer
	in := strings.NewReader("\n" + `{"addr":"127.0.0.1:1","from":0,"count":2,"keepalive_ns":30000000000}` + "\n" + `{"addr":"127.0.0.1:1"}` + "\n")
	if err := Worker(t.Context(), in, &out, nil); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "login of bench-") || lines[1] != `{"held":0,"lost":0}` {
		t.Errorf("answers %q", lines)
	}
	if err := Worker(t.Context(), strings.NewReader("x\n"), &out, nil); err == nil {
		t.Error("an order that is none was taken")
	}
}

func TestAFurtherProcessThatFailsIsAnError(t *testing.T) {
	if _, err := startHolder(nil); err == nil {
		t.Error("no command, no error")
	}
	h, err := startHolder([]string{"/bin/true"})
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	if _, err := h.grow(t.Context(), order{}); err == nil {
		t.Error("a process that says nothing is no error")
	}
}

// TestAnInterruptedWorkerIsGone: the process ends with the context, not with the patience of its connections.
func TestAnInterruptedWorkerIsGone(t *testing.T) {
	pidFile := filepath.Join(t.TempDir(), "pid")
	h, err := startHolder([]string{"/bin/sh", "-c", "echo $$ > " + pidFile + "; exec sleep 60"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := h.grow(ctx, order{}); err == nil {
		t.Error("no error")
	}
	h.close()
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return // it was ended before it began
	}
	if pid := strings.TrimSpace(string(text)); pid != "" {
		if _, err := os.Stat("/proc/" + pid); err == nil {
			t.Errorf("process %s is still there", pid)
		}
	}
}
