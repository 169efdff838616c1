package codec

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/protocol.md is the contract; these tests keep it and the code from drifting apart.

func document(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "docs", "protocol.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestEveryClauseCitedIsDefinedOnce(t *testing.T) {
	defined := map[string]int{}
	doc := document(t)
	for _, m := range regexp.MustCompile(`\*\*\[(P-[A-Z]+-\d+)\]\*\*`).FindAllStringSubmatch(doc, -1) {
		defined[m[1]]++
	}
	for clause, n := range defined {
		if n != 1 {
			t.Errorf("[%s] is defined %d times", clause, n)
		}
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	vectors, err := filepath.Glob("testdata/vectors/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(append(files, vectors...), "../docs/protocol.md") {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, clause := range regexp.MustCompile(`P-[A-Z]+-\d+`).FindAllString(string(raw), -1) {
			if defined[clause] == 0 {
				t.Errorf("%s cites [%s], which the document does not define", name, clause)
			}
		}
	}
}

func TestEveryTypeCodeAndResultIsInTheDocument(t *testing.T) {
	doc := document(t)
	rows := func(value int, format, name string) {
		if row := fmt.Sprintf(format, value, name); name != "unknown" && !strings.Contains(doc, row) {
			t.Errorf("the document has no row %q", row)
		}
	}
	for _, typ := range allTypes() {
		rows(int(typ), "\n| 0x%02x | %s |", typ.String())
	}
	for i := 1; i < 1000; i++ {
		rows(i, "\n| %d | %s |", Code(i).String())
	}
	for i := range 1000 {
		rows(i, "\n| %d | %s |", Result(i).String())
	}
}

func TestLimitsInTheDocumentAreThoseOfTheCode(t *testing.T) {
	doc := document(t)
	for _, row := range []string{
		fmt.Sprintf("| user | 1-%d |", UserBytesMax),
		fmt.Sprintf("| device | 1-%d |", DeviceBytesMax),
		fmt.Sprintf("| message id, client message id | 1-%d |", MessageIDBytesMax),
		fmt.Sprintf("| conversation | 1-%d |", ConversationBytesMax),
		fmt.Sprintf("| type | 0-%d |", TypeBytesMax),
		fmt.Sprintf("| reason | 0-%d |", ReasonBytesMax),
		fmt.Sprintf("| token | 0-%d |", TokenBytesMax),
		fmt.Sprintf("| client name | 0-%d |", ClientNameBytesMax),
		fmt.Sprintf("| node | 0-%d |", NodeBytesMax),
		fmt.Sprintf("| servers | 0-%d |", ServersBytesMax),
		fmt.Sprintf("| numbers in one ACK range | 1-%d,", AckCountMax),
		fmt.Sprintf("| ranges in an ACK list | 1-%d |", AckRangesMax),
		fmt.Sprintf("| items of a PUBLISH, results of a PUBLISHED | 1-%d |", PublishItemsMax),
		fmt.Sprintf("| entries of a HEADS reply | 0-%d |", HeadsMax),
		fmt.Sprintf("| data of PING and PONG | 0-%d |", PingBytesMax),
		fmt.Sprintf("accepts up to %d.", FrameBytesDefault),
		fmt.Sprintf("The protocol's own ceiling is %d.", FrameBytesMax),
	} {
		if !strings.Contains(doc, row) {
			t.Errorf("the document does not say %q", row)
		}
	}
}

// sessionStep is one frame of the worked example.
type sessionStep struct{ From, Text, Hex string }

// documentSession reads the worked example: "# text", then "C hex" or "S hex" and indented lines with more hex.
func documentSession(t *testing.T) (steps []sessionStep) {
	t.Helper()
	_, block, ok := strings.Cut(document(t), "```session\n")
	if !ok {
		t.Fatal("the document has no session")
	}
	block, _, _ = strings.Cut(block, "\n```")
	text := ""
	for line := range strings.SplitSeq(block, "\n") {
		pairs := strings.ReplaceAll(line[1:], " ", "")
		switch line[0] {
		case '#':
			text = line[2:]
		case 'C':
			steps = append(steps, sessionStep{"client", text, pairs})
		case 'S':
			steps = append(steps, sessionStep{"server", text, pairs})
		default:
			steps[len(steps)-1].Hex += pairs
		}
	}
	return steps
}

func TestWorkedSessionInTheDocument(t *testing.T) {
	want := readVectors[sessionStep](t, "session.json")
	got := documentSession(t)
	if len(got) != len(want) {
		t.Fatalf("%d frames in the document, %d in session.json", len(got), len(want))
	}
	var names []string
	for i, step := range got {
		if step != want[i] {
			t.Errorf("step %d:\n document %v\n vectors  %v", i, step, want[i])
		}
		b := unhex(t, step.Hex)
		f, n, err := Parse(b, FrameBytesDefault)
		if err != nil || n != len(b) {
			t.Fatalf("%s: %d of %d bytes, %v", step.Text, n, len(b), err)
		}
		x, err := decodeAny(f)
		if err != nil {
			t.Fatalf("%s: %v", step.Text, err)
		}
		if again := hex.EncodeToString(appendAny(nil, x)); again != step.Hex {
			t.Errorf("%s: encodes as %s", step.Text, again)
		}
		names = append(names, step.From[:1]+" "+f.Type.String())
	}
	order := "c CONNECT, s WELCOME, s PUSH, c ACK, s PUSH, s PUSH, c ACK, s PUSH, s PUSH, c ACK, c PING, s PONG, s GOAWAY, c CLOSE"
	if strings.Join(names, ", ") != order {
		t.Errorf("the session is %s", strings.Join(names, ", "))
	}
}
