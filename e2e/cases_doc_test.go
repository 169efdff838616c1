package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCasesPageNamesTestsThatExist: docs/cases.md has a line for each case, and each test it names exists.
func TestCasesPageNamesTestsThatExist(t *testing.T) {
	raw, err := os.ReadFile("../docs/cases.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	exists := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	err = filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(source, -1) {
			exists[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(page, -1) {
		if !exists[m[1]] {
			t.Errorf("docs/cases.md names %s, which does not exist", m[1])
		}
	}
	for _, group := range []string{"A2 A4", "B1 B2 B4 B6", "C1 C2 C4", "D2 D4 D6", "E2 E3 E4 E6 E7", "F2 F4", "G1 G2 G3 G4 G5 G7 G8", "H1 H3 H4 H5", "I1 I3 I4 I5", "J1 J2 J3 J4 J5", "K1", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15"} {
		for name := range strings.FieldsSeq(group) {
			if !strings.Contains(page, "\n| "+name+" |") {
				t.Errorf("docs/cases.md has no line for case %s", name)
			}
		}
	}
}
