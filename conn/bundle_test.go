//go:build linux

package conn

import (
	"testing"

	"golang.org/x/sys/unix"
)

// busyBench is bench with a loop that is busy for the whole test, and whose rounds only the test starts. writes counts the calls of
// write(2) since it was asked last.
func busyBench(t *testing.T) (l *loop, s *Session, writes func() uint64) {
	l, s, other, _ := bench(t)
	l.server.bundleMs = 1000
	l.busy, l.rateMs = true, 1<<40
	t.Cleanup(func() {
		if l.later != nil {
			l.later.Stop()
		}
	})
	before := uint64(0)
	return l, s, func() uint64 {
		var sink [64 << 10]byte
		_, _ = unix.Read(other, sink[:]) // nothing there: just as well
		n := l.stats.writes.Load()
		defer func() { before = n }()
		return n - before
	}
}

func sendMany(s *Session, frame []byte, n int) {
	for range n {
		s.Send(frame)
	}
}

func (l *loop) testRound() {
	l.round()
	l.signal.Store(true)
}

// What comes for a connection that was written to a moment ago leaves together, once the delay is over.
func TestABusyLoopBundlesWhatOneConnectionGets(t *testing.T) {
	l, s, writes := busyBench(t)
	frame := pushFrame(1, make([]byte, 160))
	s.wroteMs = uint16(l.server.nowMs())
	for range 3 {
		for range 5 {
			s.Send(frame)
		}
		l.testRound()
		if n := writes(); n != 0 {
			t.Fatalf("%d writes inside the delay", n)
		}
	}
	l.heldMs -= 1000 // a second later
	s.wroteMs -= 1000
	l.testRound()
	if n, frames := writes(), l.stats.framesOut.Load(); n != 1 || frames != 15 {
		t.Fatalf("%d writes, %d frames", n, frames)
	}
	if l.held != nil || s.queued {
		t.Fatal("the session is still held")
	}
}

// A connection that gets little, a reply, and everything on a loop that is not busy leave at once.
func TestWhatIsNotMadeToWait(t *testing.T) {
	frame := pushFrame(1, make([]byte, 160))
	for name, prepare := range map[string]func(l *loop, s *Session){
		"first message for long": func(l *loop, s *Session) { s.wroteMs = uint16(l.server.nowMs() - 2000) },
		"reply":                  func(_ *loop, s *Session) { s.SendControl(frame) },
		"bundle":                 func(_ *loop, s *Session) { sendMany(s, frame, bundleFrames) },
		"quiet loop":             func(l *loop, _ *Session) { l.busy = false },
		"switched off":           func(l *loop, _ *Session) { l.server.bundleMs = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			l, s, writes := busyBench(t)
			s.wroteMs = uint16(l.server.nowMs())
			s.Send(frame)
			prepare(l, s)
			l.testRound()
			if writes() == 0 {
				t.Fatal("held")
			}
		})
	}
}

// A loop is busy by the messages it sends.
func TestBusyIsALoopThatSendsMuch(t *testing.T) {
	l, _, _, _ := bench(t)
	l.reckon(1000)
	l.messages += 2999
	if l.reckon(1200); l.busy {
		t.Fatal("busy at 14,995 messages a second")
	}
	l.messages += 3000
	if l.reckon(1300); l.busy {
		t.Fatal("reckoned inside the window")
	}
	if l.reckon(1400); !l.busy {
		t.Fatal("not busy at 15,000 messages a second")
	}
}
