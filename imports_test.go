package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// imports is the import graph of ARCHITECTURE.md: which of our packages each package may import, and why not more. Tests of a package
// may import what they need to build a scene, except where tests is false.
var importGraph = []struct {
	pkg string
	may []string
	why string
}{
	{"codec", nil, "bytes to frames and back: other-language clients are checked against it, so it depends on nothing"},
	{"scheduler", nil, "says when, knows nothing of messages"},
	{"ack", []string{"scheduler"}, "what is in flight; what happens next to it is delivery's business"},
	{"delivery", []string{"ack", "codec", "scheduler"}, "decides; it reaches sockets and the store through its own ports only"},
	{"conn", []string{"codec"}, "owns sockets; has never heard of retries"},
	{"store", []string{"codec", "delivery"}, "implements delivery's ports; codec for the types in them"},
	{"admin", []string{"codec", "delivery"}, "the HTTP side; codec for the types in delivery's ports"},
	{"client", []string{"codec"}, "what other people's programs link: nothing of the server"},
	{"bench", []string{"client", "codec"}, "sees the gateway as a client does"},
	{"e2e", []string{"client", "codec"}, "tests the built binary from outside"},
}

// externalHomes names the packages that may import a library, where that is a rule: the rest of the tree must not depend on it.
var externalHomes = map[string][]string{
	"github.com/panjf2000/gnet/v2":       {"conn"},
	"github.com/alecthomas/kong":         {"."},
	"github.com/goccy/go-yaml":           {"."},
	"github.com/golang-jwt/jwt/v5":       {".", "conn"},
	"github.com/HdrHistogram":            {"bench"},
	"github.com/getkin/kin-openapi":      {"admin", "e2e"},
	"github.com/mochi-mqtt":              nil, // bench/peers only, which is a module of its own
	"golang.org/x/sys/unix":              {"conn", "store", "bench"},
	"net/http":                           {".", "admin", "e2e", "bench"},
	"github.com/VictoriaMetrics/metrics": {".", "admin", "conn", "delivery", "store"},
}

// importsOf returns the imports of the Go files of a directory that keep selects, with a file that has each.
func importsOf(t *testing.T, dir string, keep func(name string) bool) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, e := range entries {
		if e.IsDir() || !strings.HasSuffix(e.Name(), ".go") || !keep(e.Name()) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			found[name] = path
		}
	}
	return found
}

// product selects files that are compiled into the binary.
func product(name string) bool { return !strings.HasSuffix(name, "_test.go") }

// packagesInTree lists the directories with Go files, relative to the module.
func packagesInTree(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var dirs []string
	for _, f := range files {
		if d := filepath.Dir(f); !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
		}
	}
	return dirs
}

func TestImportGraph(t *testing.T) {
	var listed []string
	for _, rule := range importGraph {
		listed = append(listed, rule.pkg)
		if _, err := os.Stat(rule.pkg); err != nil {
			t.Errorf("package %s is in the graph and not in the tree", rule.pkg)
			continue
		}
		for path, file := range importsOf(t, rule.pkg, product) {
			ours, ok := strings.CutPrefix(path, "holdfast/")
			if ok && !slices.Contains(rule.may, ours) {
				t.Errorf("%s imports %s; %s may import only %v: %s", file, path, rule.pkg, rule.may, rule.why)
			}
		}
	}
	for _, dir := range packagesInTree(t) {
		if !slices.Contains(listed, dir) {
			t.Errorf("package %s is in the tree and not in the graph: add it with its reason", dir)
		}
	}
}

func TestLibrariesStayAtHome(t *testing.T) {
	for _, dir := range append(packagesInTree(t), ".") {
		for path, file := range importsOf(t, dir, product) {
			for library, homes := range externalHomes {
				if (path == library || strings.HasPrefix(path, library+"/")) && !slices.Contains(homes, dir) {
					t.Errorf("%s imports %s, which only %v may", file, path, homes)
				}
			}
		}
	}
}

func TestPackagesAreOneLevelDeep(t *testing.T) {
	deep, err := filepath.Glob("*/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range deep {
		if !strings.Contains(f, "testdata") {
			t.Errorf("%s: packages are one level deep", f)
		}
	}
}
