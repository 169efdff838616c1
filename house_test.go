package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// The numbers the code is held to (CONTRIBUTING.md).
const (
	fileLinesMax     = 600
	functionLinesMax = 70
)

// goFile is one parsed file of the tree.
type goFile struct {
	path  string
	pkg   string // its directory
	test  bool
	lines int
	text  string
	set   *token.FileSet
	ast   *ast.File
}

// goFiles returns every Go file of the tree, parsed.
func goFiles(t *testing.T) []goFile {
	t.Helper()
	files, err := parseTree()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// parseTree parses the tree once for all tests: it is slow under the race detector.
var parseTree = sync.OnceValues(func() ([]goFile, error) {
	var files []goFile
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, path, source, parser.ParseComments)
		if err != nil {
			return err
		}
		files = append(files, goFile{
			path: path, pkg: filepath.ToSlash(filepath.Dir(path)), test: strings.HasSuffix(path, "_test.go"),
			lines: bytes.Count(source, []byte("\n")), text: string(source), set: set, ast: parsed,
		})
		return nil
	})
	return files, err
})

func TestFilesAndFunctionsFitTheirLimits(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.lines > fileLinesMax {
			t.Errorf("%s has %d lines, the limit is %d", f.path, f.lines, fileLinesMax)
		}
		if f.test {
			continue // tables of cases may be long
		}
		for _, decl := range f.ast.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := f.set.Position(fn.End()).Line - f.set.Position(fn.Pos()).Line + 1; n > functionLinesMax {
				t.Errorf("%s: %s has %d lines, the limit is %d", f.path, fn.Name.Name, n, functionLinesMax)
			}
		}
	}
}

func TestEveryExportedNameIsDocumented(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		for _, decl := range f.ast.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && exportedReceiver(d) && d.Doc == nil {
					t.Errorf("%s: %s has no doc comment", f.path, d.Name.Name)
				}
			case *ast.GenDecl:
				for _, name := range undocumented(d) {
					t.Errorf("%s: %s has no doc comment", f.path, name)
				}
			}
		}
	}
}

// exportedReceiver reports whether a function is reachable from outside: no receiver, or one of an exported type.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	typ := d.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if index, ok := typ.(*ast.IndexExpr); ok {
		typ = index.X
	}
	name, ok := typ.(*ast.Ident)
	return ok && name.IsExported()
}

// undocumented lists the exported names of a declaration without a comment of their own, a trailing one, or one for the group.
func undocumented(d *ast.GenDecl) []string {
	var names []string
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() && s.Doc == nil && d.Doc == nil && s.Comment == nil {
				names = append(names, s.Name.Name)
			}
		case *ast.ValueSpec:
			for _, n := range s.Names {
				if n.IsExported() && s.Doc == nil && d.Doc == nil && s.Comment == nil {
					names = append(names, n.Name)
				}
			}
		}
	}
	return names
}

// clockless are the packages that are given the time and never ask for it, so that a simulation can run them. In delivery the
// dispatcher is the part that lives in real time.
var clockless = []string{"codec", "scheduler", "ack", "delivery"}

// clockCalls are the functions that ask for it, or for luck nobody injected.
var clockCalls = map[string][]string{
	"time": {"Now", "Sleep", "After", "AfterFunc", "Since", "Until", "NewTimer", "NewTicker", "Tick"},
	"rand": {"Int", "IntN", "Int64", "Int64N", "Uint32", "Uint64", "Uint64N", "Uint32N", "Float64", "N", "Perm", "Shuffle", "Text", "Read"},
}

func TestPureCodeHasNoClockAndNoLuckOfItsOwn(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test || !slices.Contains(clockless, f.pkg) || strings.HasPrefix(filepath.Base(f.path), "dispatcher") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Obj == nil && slices.Contains(clockCalls[pkg.Name], sel.Sel.Name) {
				t.Errorf("%s: %s.%s: time and randomness are injected here", f.set.Position(sel.Pos()), pkg.Name, sel.Sel.Name)
			}
			return true
		})
	}
}

// tolerated are the package variables that may be, with the reason.
var tolerated = map[string]string{
	"delivery.batches":   "a sync.Pool: losing or sharing it changes nothing but the number of allocations",
	"delivery.pumpOrder": "three constants in an array, which Go cannot make a constant",
	"delivery.neverSent": "a fault with its text, as errors are",
}

func TestNoInitAndNoMutablePackageVariables(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		for _, decl := range f.ast.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Name.Name == "init" && d.Recv == nil {
					t.Errorf("%s has an init function", f.path)
				}
			case *ast.GenDecl:
				if d.Tok == token.VAR && !embedded(d) {
					for _, name := range variables(d) {
						if tolerated[f.pkg+"."+name] != "" {
							continue
						}
						t.Errorf("%s: package variable %s: only errors, embedded files and compile-time checks may be", f.path, name)
					}
				}
			}
		}
	}
}

// embedded reports a go:embed directive.
func embedded(d *ast.GenDecl) bool {
	return d.Doc != nil && slices.ContainsFunc(d.Doc.List, func(c *ast.Comment) bool { return strings.HasPrefix(c.Text, "//go:embed") })
}

// variables lists the names of a var declaration that are neither errors (errX, ErrX) nor blank.
func variables(d *ast.GenDecl) []string {
	var names []string
	for _, spec := range d.Specs {
		for _, n := range spec.(*ast.ValueSpec).Names {
			if lower := strings.ToLower(n.Name); n.Name != "_" && !strings.HasPrefix(lower, "err") {
				names = append(names, n.Name)
			}
		}
	}
	return names
}

func TestNothingIsLeftForLater(t *testing.T) {
	leftover := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`)
	for _, f := range goFiles(t) {
		for _, group := range f.ast.Comments {
			for _, c := range group.List {
				if word := leftover.FindString(c.Text); word != "" {
					t.Errorf("%s: a comment says %s", f.set.Position(c.Pos()), word)
				}
			}
		}
	}
}

// TestDocumentedNamesExist keeps the pages honest: every metric, setting and command they name is in the code.
func TestDocumentedNamesExist(t *testing.T) {
	code := &strings.Builder{}
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		code.WriteString(f.text)
	}
	config := newConfig()
	metric := regexp.MustCompile(`holdfast_[a-z_]+[a-z]`)
	setting := regexp.MustCompile("`((?:" + strings.Join(config.sectionNames(), "|") + ")\\.[a-z_]+)[`=]")
	for _, page := range []string{"README.md", "ARCHITECTURE.md", "docs/operations.md", "docs/adr/*.md"} {
		paths, err := filepath.Glob(page)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %v", page, err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range metric.FindAllString(string(text), -1) {
				if !metricExists(code.String(), name) {
					t.Errorf("%s names the metric %s, which nothing exports", path, name)
				}
			}
			for _, match := range setting.FindAllStringSubmatch(string(text), -1) {
				if config.byKey[match[1]] == nil && !strings.HasSuffix(match[1], ".go") {
					t.Errorf("%s names the setting %s, which does not exist", path, match[1])
				}
			}
		}
	}
}

// metricExists reports whether the code writes the name, whole or put together from a prefix ("holdfast_conn_" + …).
func metricExists(code, name string) bool {
	if strings.Contains(code, name) {
		return true
	}
	for _, prefix := range []string{"holdfast_conn_", "holdfast_ledger_", "holdfast_store_"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok && strings.Contains(code, `"`+prefix) && strings.Contains(code, `"`+rest) {
			return true
		}
	}
	return false
}

func TestLinksOfThePagesLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:\s]+)(?:#[^)]*)?\)`)
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/adr/*.md"} {
		pages, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range pages {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			for _, match := range link.FindAllStringSubmatch(string(text), -1) {
				if _, err := os.Stat(filepath.Join(filepath.Dir(page), match[1])); err != nil {
					t.Errorf("%s links to %s: %v", page, match[1], err)
				}
			}
		}
	}
}
