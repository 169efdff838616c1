package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// envPrefix starts every environment variable of ours.
const envPrefix = "HOLDFAST_"

// flagValue is one setting given on the command line.
type flagValue struct {
	key   string
	value string
	flag  string // as typed, for the origin: "--sync"
}

// configSources is where values come from; a later one wins: defaults, file, environment, flags.
type configSources struct {
	file    string   // path; empty: HOLDFAST_CONFIG, else none
	environ []string // as os.Environ
	flags   []flagValue
}

// loadConfig merges the sources and checks the result. All mistakes are reported at once, one a line, each naming its key
// and where it stands.
func loadConfig(src configSources) (*Config, error) {
	c := newConfig()
	var problems []error
	file := src.file
	if file == "" {
		file = lookupEnv(src.environ, envPrefix+"CONFIG")
	}
	if file != "" {
		problems = append(problems, c.readFile(file)...)
	}
	problems = append(problems, c.readEnviron(src.environ)...)
	for _, f := range src.flags {
		if err := c.set(f.key, f.value, "flag "+f.flag); err != nil {
			problems = append(problems, err)
		}
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	c.derive()
	if err := c.check(); err != nil {
		return nil, err
	}
	return c, nil
}

// lookupEnv returns the value of one variable of environ, or "".
func lookupEnv(environ []string, name string) string {
	for _, e := range environ {
		if k, v, _ := strings.Cut(e, "="); k == name {
			return v
		}
	}
	return ""
}

// clientVariables are the HOLDFAST_ variables that are not settings of a node.
func clientVariables() []string {
	return []string{envPrefix + "CONFIG", envPrefix + "SERVER", envPrefix + "API", envPrefix + "TOKEN", envPrefix + "API_TOKEN"}
}

// envName is the variable of a key.
func envName(key string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// readEnviron takes every HOLDFAST_ variable. An unknown one is an error: a misspelled limit must not be a silent default.
func (c *Config) readEnviron(environ []string) []error {
	keyOf := map[string]string{}
	known := clientVariables()
	for _, key := range c.keys() {
		keyOf[envName(key)] = key
		known = append(known, envName(key))
	}
	var problems []error
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, envPrefix) || setByKubernetes(name) || slices.Contains(clientVariables(), name) {
			continue
		}
		key, ok := keyOf[name]
		if !ok {
			problems = append(problems, fmt.Errorf("environment: unknown variable %s%s", name, didYouMean(name, known)))
			continue
		}
		if err := c.set(key, value, "environment "+name); err != nil {
			problems = append(problems, err)
		}
	}
	return problems
}

// setByKubernetes recognises the variables that Kubernetes puts into every pod beside a service called "holdfast"
// (HOLDFAST_SERVICE_HOST, HOLDFAST_PORT_7700_TCP_ADDR …). Nobody wrote them, so they are no mistake of anybody.
func setByKubernetes(name string) bool {
	rest := strings.TrimPrefix(name, envPrefix)
	return strings.HasPrefix(rest, "SERVICE_") || rest == "PORT" || strings.HasPrefix(rest, "PORT_")
}

// readFile takes a YAML file of sections. Errors carry file:line.
func (c *Config) readFile(path string) []error {
	data, err := os.ReadFile(path)
	if err != nil {
		return []error{fmt.Errorf("reading the configuration: %w", err)}
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return []error{yamlError(path, err)}
	}
	var problems []error
	for _, doc := range file.Docs {
		problems = append(problems, c.readSections(path, doc.Body)...)
	}
	return problems
}

// yamlError turns the parser's picture of the place into one line.
func yamlError(path string, err error) error {
	var y yaml.Error
	if errors.As(err, &y) && y.GetToken() != nil {
		return fmt.Errorf("%s:%d: %s", path, y.GetToken().Position.Line, y.GetMessage())
	}
	return fmt.Errorf("%s: %w", path, err)
}

// readSections walks the top-level mapping.
func (c *Config) readSections(path string, body ast.Node) []error {
	entries, err := mapping(body)
	if err != nil {
		return []error{fmt.Errorf("%s: the file must be a mapping of sections: %w", path, err)}
	}
	var problems []error
	for _, entry := range entries {
		at, name := entryPlace(path, entry)
		i := slices.IndexFunc(c.sections, func(s section) bool { return s.name == name })
		if i < 0 {
			problems = append(problems, fmt.Errorf("%s: unknown section %q%s", at, name, didYouMean(name, c.sectionNames())))
			continue
		}
		settings, err := mapping(entry.Value)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: section %s must be a mapping of settings: %w", at, name, err))
			continue
		}
		problems = append(problems, c.readSettings(path, name, settings)...)
	}
	return problems
}

// readSettings takes the entries of one section.
func (c *Config) readSettings(path, section string, entries []*ast.MappingValueNode) []error {
	var problems []error
	for _, entry := range entries {
		at, name := entryPlace(path, entry)
		key := section + "." + name
		if before := c.byKey[key]; before != nil && strings.HasPrefix(before.origin, "file ") {
			problems = append(problems, fmt.Errorf("%s: %s is set twice (before: %s)", at, key, before.origin))
			continue
		}
		value, err := scalarText(entry.Value)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %s: %w", at, key, err))
			continue
		}
		if err := c.set(key, value, "file "+at); err != nil {
			problems = append(problems, err)
		}
	}
	return problems
}

// mapping returns the entries of a mapping node; nothing at all (an empty file, a section of comments) is an empty mapping.
func mapping(n ast.Node) ([]*ast.MappingValueNode, error) {
	switch n := n.(type) {
	case nil, *ast.NullNode, *ast.CommentGroupNode:
		return nil, nil
	case *ast.MappingNode:
		return n.Values, nil
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, nil
	default:
		return nil, fmt.Errorf("this is a %s", strings.ToLower(n.Type().String()))
	}
}

// entryPlace returns file:line and the key of an entry.
func entryPlace(path string, entry *ast.MappingValueNode) (at, key string) {
	token := entry.Key.GetToken()
	return fmt.Sprintf("%s:%d", path, token.Position.Line), token.Value
}

// scalarText returns the text of a value for parseInto. Lists (of keys) are joined with commas, a mapping {alg, id, file}
// becomes ALG:ID:FILE, so that there is one parser of values for all sources.
func scalarText(n ast.Node) (string, error) {
	switch n := n.(type) {
	case nil, *ast.NullNode:
		return "", errors.New("has no value")
	case *ast.StringNode:
		return n.Value, nil
	case *ast.LiteralNode:
		return n.Value.Value, nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, nil
	case *ast.SequenceNode:
		parts := make([]string, 0, len(n.Values))
		for _, item := range n.Values {
			text, err := scalarText(item)
			if err != nil {
				return "", err
			}
			parts = append(parts, text)
		}
		return strings.Join(parts, ","), nil
	case *ast.MappingNode, *ast.MappingValueNode:
		return keyText(n)
	default:
		return "", fmt.Errorf("a %s cannot be a value here", strings.ToLower(n.Type().String()))
	}
}

// keyText reads a mapping {alg, id, file}.
func keyText(n ast.Node) (string, error) {
	entries, err := mapping(n)
	if err != nil {
		return "", err
	}
	fields := map[string]string{}
	for _, e := range entries {
		name := e.Key.GetToken().Value
		if name != "alg" && name != "id" && name != "file" {
			return "", fmt.Errorf("unknown key %q (a mapping here is a key: alg, id, file)", name)
		}
		if fields[name], err = scalarText(e.Value); err != nil {
			return "", fmt.Errorf("%s %w", name, err)
		}
	}
	return fields["alg"] + ":" + fields["id"] + ":" + fields["file"], nil
}

// sectionNames lists the sections.
func (c *Config) sectionNames() []string {
	names := make([]string, len(c.sections))
	for i, s := range c.sections {
		names[i] = s.name
	}
	return names
}
