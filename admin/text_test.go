package admin

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"holdfast/codec"
)

func TestStringsAreReadAsJSONHasThem(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", 10)
	for text, want := range map[string]string{
		`""`: "", `"a"`: "a", `"` + long + `"`: long, `"\"\\\/\b\f\n\r\t"`: "\"\\/\b\f\n\r\t", `"\u0041\u00e9\u20AC\ud83d\uDE00"`: "Aé€😀",
		`"é€😀` + long + `\n"`: "é€😀" + long + "\n", "\"\x7f\"": "\x7f", `"` + long + `\"` + long + `"`: long + `"` + long, `"\u0000"`: "\x00",
	} {
		s := &scanner{b: []byte(text)}
		got, ok := s.text()
		if !ok || string(got) != want || !s.end() {
			t.Errorf("%s: got %q %v %s", text, got, ok, s.fault)
		}
	}
	for _, text := range []string{
		``, `"`, `"abc`, `"` + long, `"\`, `"\"`, `"\x"`, `"\u12"`, `"\u12g4"`, `"\ud800"`, `"\ud800\n"`, `"\ud800\u0041"`, `"\udc00"`, `"\ud83d\u"`,
		"\"\n\"", "\"abcdefgh\x1f\"", "\"\\n\x00\"", "\"\xff\"", "\"abcdefgh\xc3\"", "\"\\n\xff\"", "\"\xed\xa0\x80\"", `a`,
	} {
		if got, ok := (&scanner{b: []byte(text)}).text(); ok {
			t.Errorf("%q: taken as %q", text, got)
		}
	}
}

// The scan in steps of eight bytes must stop at the same byte as a scan in steps of one, wherever the byte stands.
func TestPlainStopsAtTheFirstByteThatIsNotPlain(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		b := make([]byte, r.IntN(40))
		for i := range b {
			if b[i] = byte(' ' + r.IntN(95)); r.IntN(12) == 0 {
				b[i] = byte(r.IntN(256))
			}
		}
		s := &scanner{b: b}
		s.plain()
		special := func(c byte) bool { return c < 0x20 || c == '"' || c == '\\' || c >= utf8.RuneSelf }
		if i := slices.IndexFunc(b[:s.i], special); i >= 0 {
			t.Fatalf("%q: passed over byte %d", b, i)
		}
		if len(b)-s.i >= 8 && !special(b[s.i]) {
			t.Fatalf("%q: stopped at byte %d", b, s.i)
		}
	}
}

func TestValuesArePassedOverOnlyWhenTheyAreJSON(t *testing.T) {
	for _, text := range []string{`0`, `-0`, `10.5e+3`, `1E-2`, `null`, `true`, `false`, `[]`, `{}`, `[1, "a" ,[{}]]`, `{"a" : {"b":[null]} , "c":1}`, `"x"`} {
		if s := (&scanner{b: []byte(text)}); !s.value(10) || !s.end() {
			t.Errorf("%s: %s", text, s.message())
		}
	}
	for _, text := range []string{``, `-`, `01`, `1.`, `.5`, `1e`, `1e+`, `+1`, `nul`, `[1,]`, `[1 2]`, `{"a"}`, `{"a":}`, `{a:1}`, `{"a":1,}`, `[`, `{`, `NaN`, `'a'`} {
		if s := (&scanner{b: []byte(text)}); s.value(10) && s.end() {
			t.Errorf("%s: taken", text)
		}
	}
}

func FuzzAppendString(f *testing.F) {
	for _, seed := range []string{"", "a\"b\\c\n\r\t\x00\x1f\x7f", "é€😀", "\xff\xc3", "\u2028"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var got string
		encoded := appendString(nil, text)
		if err := json.Unmarshal(encoded, &got); err != nil || got != string([]rune(text)) {
			t.Fatalf("%q became %s: %q %v", text, encoded, got, err)
		}
		if same := appendString(nil, []byte(text)); string(same) != string(encoded) {
			t.Fatalf("%s as bytes, %s as a string", same, encoded)
		}
	})
}

// Every refusal the wire knows has a status, a text, and a name in the document.
func TestEveryResultIsExplained(t *testing.T) {
	codes := map[string]bool{}
	for _, c := range loaded.doc.Components.Schemas["Code"].Value.Enum {
		codes[c.(string)] = true
	}
	for r := range codec.Result(64) {
		if r.OK() || r.String() == "unknown" {
			continue
		}
		p := problemOf(r)
		if !codes[p.code] || p.text == "" {
			t.Errorf("%s: %+v", r, p)
		}
		if later := p.status() == 429 || p.status() >= 500; later != r.Retry() || later != (p.retryAfterS() > 0) {
			t.Errorf("%s: status %d, Retry-After %d, and the wire says retry %v", r, p.status(), p.retryAfterS(), r.Retry())
		}
	}
	if n := len(errorCodes()); n != len(codes) {
		t.Errorf("%d codes, %d in the document", n, len(codes))
	}
	for _, code := range errorCodes() {
		if !codes[code] {
			t.Errorf("%s is not in the document", code)
		}
	}
	if p := bodyProblem(errors.New("reset"), 1); p.code != codeBadJSON {
		t.Errorf("got %+v", p)
	}
}
