package codec

import (
	"errors"
	"strings"
	"testing"
)

func TestNamesAreUniqueAndComeBack(t *testing.T) {
	codes := 0
	for i := range 300 {
		if c := Code(i); c.String() != "unknown" {
			codes++
			if back, ok := ParseCode(c.String()); !ok || back != c {
				t.Errorf("code %d: %s comes back as %d", i, c, back)
			}
		}
		if r := Result(i); r.String() != "unknown" {
			if back, ok := ParseResult(r.String()); !ok || back != r {
				t.Errorf("result %d: %s comes back as %d", i, r, back)
			}
		}
		if p := Priority(i); i < 256 && p.String() != "unknown" {
			if back, ok := ParsePriority(p.String()); !ok || back != p {
				t.Errorf("priority %d: %s comes back as %d", i, p, back)
			}
		}
		if l := AckLevel(i); i < 256 && l.String() != "unknown" {
			if back, ok := ParseLevel(l.String()); !ok || back != l {
				t.Errorf("level %d: %s comes back as %d", i, l, back)
			}
		}
	}
	if codes != 19 {
		t.Errorf("%d codes have names", codes)
	}
	for _, name := range []string{"", "unknown", "Replaced"} {
		_, a := ParseCode(name)
		_, b := ParseResult(name)
		_, c := ParsePriority(name)
		_, d := ParseLevel(name)
		if a || b || c || d {
			t.Errorf("%q was taken for a name", name)
		}
	}
}

func TestCodeAndResultRanges(t *testing.T) {
	if !CodeUnavailable.Reconnect() || CodeReplaced.Reconnect() || !Code(99).Reconnect() || Code(60000).Reconnect() {
		t.Error("codes below 100 mean reconnect, the others stop")
	}
	if !ResultDuplicate.OK() || ResultOverloaded.OK() || !ResultDraining.Retry() || ResultBadUser.Retry() || ResultAccepted.Retry() {
		t.Error("results below 20 are success, 20-39 try again, the others final")
	}
}

func TestNamesOfUsersDevicesAndMessages(t *testing.T) {
	cases := []struct {
		text     string
		nonEmpty bool // user, device, message id
		optional bool // conversation, type
	}{
		{"", false, true},
		{"a", true, true},
		{"room/42 日本", true, true},
		{"a\tb", false, false},
		{"a\x00", false, false},
		{"a\x7f", false, false},
		{"\xff", false, false},
		{"\xed\xa0\x80", false, false}, // a surrogate
		{strings.Repeat("x", 64), true, true},
		{strings.Repeat("x", 129), false, false},
	}
	for _, c := range cases {
		b := []byte(c.text)
		if ValidUser(b) != c.nonEmpty || ValidDevice(b) != c.nonEmpty || ValidMessageID(b) != c.nonEmpty {
			t.Errorf("%q as a name", c.text)
		}
		if ValidConversation(b) != c.optional || ValidType(b) != c.optional {
			t.Errorf("%q as a conversation or type", c.text)
		}
	}
	long := []byte(strings.Repeat("x", 65))
	if !ValidUser(long) || ValidDevice(long) || ValidMessageID(long) || !ValidConversation(long) || ValidType(long) {
		t.Error("each kind of name has its own limit")
	}
}

func TestErrorsNameTheirClause(t *testing.T) {
	var err error = ErrFrameTooLarge
	var e *Error
	if !errors.As(err, &e) || e.Code != CodeFrameTooLarge || !strings.HasSuffix(err.Error(), "[P-FRAME-3]") {
		t.Errorf("%v", err)
	}
}

func TestEncodersRefuseWhatCannotTravel(t *testing.T) {
	cases := map[string]func(){
		"ack of unknown kind": func() { AppendAck(nil, &Ack{Kind: 5}) },
		"ack list of nothing": func() { AppendAckList(nil, nil, LevelRead) },
		"ack list that falls": func() { AppendAckList(nil, []Range{{5, 1}, {4, 1}}, LevelRead) },
		"ack list too long":   func() { AppendAckList(nil, make([]Range, AckRangesMax+1), LevelRead) },
		"frame of 256 MiB":    func() { lengthBytes(1 << 28) },
	}
	for name, f := range cases {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
	for length, want := range map[int]int{0: 1, 127: 1, 128: 2, 1<<14 - 1: 2, 1 << 14: 3, 1<<21 - 1: 3, 1 << 21: 4, 1<<28 - 1: 4} {
		if got := lengthBytes(length); got != want {
			t.Errorf("length %d takes %d bytes, want %d", length, got, want)
		}
	}
}

func TestLengthFieldIsRightWhateverWasGuessed(t *testing.T) {
	for _, n := range []int{0, 120, 121, 130, 1 << 14, 1 << 21} {
		for _, guess := range []int{0, 200, 1 << 15, 1 << 22} {
			dst, s := begin([]byte("before"), TypePong, 0, guess)
			dst = s.end(append(dst, make([]byte, n)...))
			f, took, err := Parse(dst[6:], 1<<28-1)
			if err != nil || took != len(dst)-6 || len(f.Body) != n || string(dst[:6]) != "before" {
				t.Errorf("body %d, guess %d: took %d of %d, %v", n, guess, took, len(dst)-6, err)
			}
		}
	}
}
