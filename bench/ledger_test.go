package bench

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// deliver sends n accepted messages to each of two users and returns their stamps by user.
func deliver(l *ledger, n int) [2][]stamp {
	var stamps [2][]stamp
	for user := range stamps {
		for range n {
			seq := l.send(user)
			l.answer(user, seq, true)
			stamps[user] = append(stamps[user], stamp{run: l.run, user: uint32(user), seq: seq})
		}
	}
	return stamps
}

func TestLedgerNamesEachFault(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault func(l *ledger, s [2][]stamp)
		want  []string // the failures before the examples
	}{
		{"all is well", func(*ledger, [2][]stamp) {}, nil},
		{"one lost", func(_ *ledger, s [2][]stamp) { s[0][1] = stamp{} }, []string{"1 lost"}},
		{"one doubled", func(l *ledger, s [2][]stamp) { l.receive(0, &s[0][0]) }, []string{"1 duplicated"}},
		{"two swapped", func(_ *ledger, s [2][]stamp) { s[1][1], s[1][2] = s[1][2], s[1][1] }, []string{"1 out of order"}},
		{"one at the wrong user", func(l *ledger, s [2][]stamp) { l.receive(1, &s[0][0]) }, []string{"1 at the wrong user"}},
		{"one misdelivered instead", func(l *ledger, s [2][]stamp) { l.receive(1, &s[0][2]); s[0][2] = stamp{} }, []string{"1 lost", "1 at the wrong user"}},
		{"one invented", func(l *ledger, _ [2][]stamp) { l.receive(0, &stamp{run: l.run, seq: 99}) }, []string{"1 never sent"}},
		{"a leftover of another run", func(l *ledger, _ [2][]stamp) { l.receive(0, &stamp{run: l.run + 1}) }, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLedger(7, 2)
			s := deliver(l, 3)
			// The doubled and misdelivered ones come first here; what the first copy of a message is does not matter to them.
			test.fault(l, s)
			for user := range s {
				for i := range s[user] {
					if s[user][i].run == 0 || (test.name == "one doubled" && user == 0 && i == 0) {
						continue
					}
					l.receive(user, &s[user][i])
				}
			}
			if test.name == "one doubled" {
				l.receive(0, &s[0][0])
			}
			tally := l.tally()
			got := tally.failures(false)
			if !slices.Equal(got[:min(len(got), len(test.want))], test.want) || (len(test.want) == 0) != (len(got) == 0) {
				t.Errorf("failures %q, want %q", got, test.want)
			}
			if len(test.want) > 0 && len(got) == len(test.want) {
				t.Errorf("failures %q name no message", got)
			}
		})
	}
}

func TestLedgerLetsALossPassOnlyForFireAndForget(t *testing.T) {
	l := newLedger(7, 2)
	deliver(l, 1)
	tally := l.tally()
	if got := tally.failures(true); got != nil {
		t.Errorf("failures %q with fire and forget", got)
	}
	if got := tally.failures(false); len(got) == 0 || got[0] != "2 lost" {
		t.Errorf("failures %q", got)
	}
}

func TestLedgerExplainsCopiesOfAReceiverThatForgot(t *testing.T) {
	l := newLedger(7, 2)
	s := deliver(l, 2)
	l.receive(0, &s[0][0])
	l.receive(0, &s[0][1])
	l.remember(messageID(7, 0, 0))
	l.died(0)
	l.receive(0, &s[0][1]) // not written down before the death: at least once, as promised
	if tally := l.tally(); tally.Duplicated != 0 || tally.Copies != 1 {
		t.Errorf("after a death: %+v", tally)
	}
	l.receive(0, &s[0][0]) // written down: the client should have known it
	if tally := l.tally(); tally.Duplicated != 1 || tally.Copies != 1 {
		t.Errorf("a remembered message came again: %+v", tally)
	}
}

func TestLedgerCountsRefusedAndUnansweredApartFromLost(t *testing.T) {
	l := newLedger(7, 1)
	l.answer(0, l.send(0), false)
	l.send(0)
	seq := l.send(0)
	l.answer(0, seq, true)
	if l.settled() {
		t.Error("settled although one has no answer")
	}
	l.noAnswer()
	l.receive(0, &stamp{run: 7, seq: seq})
	if !l.settled() {
		t.Error("not settled although everything has its answer and arrived")
	}
	tally := l.tally()
	if tally.Refused != 1 || tally.Unanswered != 1 || tally.Lost != 0 || tally.Sent != 3 {
		t.Errorf("tally %+v", tally)
	}
}

func TestLedgerBoundsItsExamples(t *testing.T) {
	l := newLedger(7, 10)
	for user := range 10 {
		for range 10 {
			l.answer(user, l.send(user), true)
		}
	}
	tally := l.tally()
	if len(tally.Examples) != examplesMax || !strings.HasPrefix(tally.Examples[0], "lost: "+messageID(7, 0, 0)) {
		t.Errorf("examples %q", tally.Examples)
	}
}

func TestStampAndMessageIDComeBack(t *testing.T) {
	want := stamp{run: 1<<63 + 5, user: 70000, seq: 1 << 31, intended: 12345678901}
	payload := make([]byte, PayloadBytesMin)
	want.put(payload)
	if got, ok := readStamp(payload); !ok || got != want {
		t.Errorf("stamp %+v %v, want %+v", got, ok, want)
	}
	if _, ok := readStamp(payload[:PayloadBytesMin-1]); ok {
		t.Error("a short payload has a stamp")
	}
	run, user, seq, ok := parseMessageID(messageID(want.run, want.user, want.seq))
	if !ok || run != want.run || user != want.user || seq != want.seq {
		t.Errorf("id %s came back as %d %d %d %v", messageID(want.run, want.user, want.seq), run, user, seq, ok)
	}
	for _, bad := range []string{"", "a-b", "a-b-c-d", "!-1-1", "1-zzzzzzzzzz-1", fmt.Sprintf("1-1-%s", strings.Repeat("z", 20))} {
		if _, _, _, ok := parseMessageID(bad); ok {
			t.Errorf("%q is an id", bad)
		}
	}
}
