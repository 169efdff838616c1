package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Config is every setting of a node, grouped in sections. A key is "section.name" everywhere: in the file, in the
// environment (HOLDFAST_SECTION_NAME), in --set and in error texts. Each section's settings method is the one place that
// binds its fields to their keys, defaults and reasons; holdfast config and docs/configuration.md (by its test) are printed from it.
// A Config is made by loadConfig and not changed afterwards; any goroutine may read it.
type Config struct {
	Node     NodeConfig
	Store    StoreConfig
	TCP      TCPConfig
	Login    LoginConfig
	Auth     AuthConfig
	HTTP     HTTPConfig
	Ack      AckConfig
	Retry    RetryConfig
	Backlog  BacklogConfig
	Message  MessageConfig
	Delivery DeliveryConfig
	Drain    DrainConfig
	Log      LogConfig

	sections []section
	byKey    map[string]*setting
}

// section is one top-level mapping of the file.
type section struct {
	name     string
	help     string
	settings []*setting
}

// setting is one key: where its value lives, what it is by default and where the present value came from.
type setting struct {
	key    string // "ack.timeout"
	target any    // pointer into Config; parseInto and formatValue know its type
	preset string // the default as one would write it
	help   string // what it is, in which unit, and why the default is what it is
	secret bool   // printed as "(set)"
	origin string // "default", "file holdfast.yaml:3", "environment HOLDFAST_ACK_TIMEOUT", "flag --sync"
}

// adder binds one field of a section.
type adder func(name string, target any, preset, help string)

// originDefault marks a value nobody has set.
const originDefault = "default"

// newConfig returns a Config that holds the defaults.
func newConfig() *Config {
	c := &Config{byKey: map[string]*setting{}}
	c.section("node", "Who this node is.", c.Node.settings)
	c.section("store", "The embedded store: what was accepted is kept here until it has ended.", c.Store.settings)
	c.section("tcp", "The binary port clients and publishers connect to.", c.TCP.settings)
	c.section("login", "How fast clients may log in.", c.Login.settings)
	c.section("auth", "Who may connect to the TCP port.", c.Auth.settings)
	c.section("http", "The HTTP port: push API, trace, metrics, health.", c.HTTP.settings)
	c.section("ack", "What is in flight to one device, and for how long.", c.Ack.settings)
	c.section("retry", "What happens when no ACK comes.", c.Retry.settings)
	c.section("backlog", "How fast stored messages are sent after a login.", c.Backlog.settings)
	c.section("message", "Limits of one message.", c.Message.settings)
	c.section("delivery", "The lanes between publishers and connections.", c.Delivery.settings)
	c.section("drain", "How the node stops.", c.Drain.settings)
	c.section("log", "What is written to standard error.", c.Log.settings)
	return c
}

// section registers one section and sets its fields to their defaults. A default that does not parse is our own mistake.
func (c *Config) section(name, help string, bind func(adder)) {
	s := section{name: name, help: help}
	bind(func(key string, target any, preset, help string) {
		set := &setting{key: name + "." + key, target: target, preset: preset, help: help, origin: originDefault}
		set.secret = set.key == "http.token"
		if err := parseInto(target, preset); err != nil {
			panic(fmt.Sprintf("default of %s: %v", set.key, err))
		}
		s.settings = append(s.settings, set)
		c.byKey[set.key] = set
	})
	c.sections = append(c.sections, s)
}

// set gives one key a value. The error names the key, the origin and what was expected.
func (c *Config) set(key, value, origin string) error {
	s, ok := c.byKey[key]
	if !ok {
		return fmt.Errorf("%s: unknown setting %q%s", origin, key, didYouMean(key, c.keys()))
	}
	if err := parseInto(s.target, value); err != nil {
		return fmt.Errorf("%s: %s: %w", origin, key, err)
	}
	s.origin = origin
	return nil
}

// origin says where the value of a key came from.
func (c *Config) origin(key string) string { return c.byKey[key].origin }

// isDefault reports that nobody has set the key.
func (c *Config) isDefault(key string) bool { return c.byKey[key].origin == originDefault }

// keys returns every key in the order of the sections.
func (c *Config) keys() []string {
	var keys []string
	for _, s := range c.sections {
		for _, set := range s.settings {
			keys = append(keys, set.key)
		}
	}
	return keys
}

// didYouMean returns ", did you mean …?" for the nearest of known, or nothing when none is near.
func didYouMean(word string, known []string) string {
	best, bestDistance := "", max(3, 1+len(word)/2)
	for _, k := range known {
		d := editDistance(word, k)
		// A bare key ("timeout" for "ack.timeout") is a frequent slip too.
		if _, name, ok := strings.Cut(k, "."); ok {
			d = min(d, editDistance(word, name)+1)
		}
		if d < bestDistance {
			best, bestDistance = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(", did you mean %q?", best)
}

// editDistance is the Levenshtein distance in bytes.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// oneOf is a text that must be one of a few words.
type oneOf struct {
	value *string
	words []string
}

// choice binds a field that takes one of words.
func choice(value *string, words ...string) oneOf { return oneOf{value: value, words: words} }

// set checks and stores a word.
func (o oneOf) set(word string) error {
	if !slices.Contains(o.words, word) {
		return fmt.Errorf("%q is not one of %s", word, strings.Join(o.words, ", "))
	}
	*o.value = word
	return nil
}

// day is the largest unit durations are written in.
const day = 24 * time.Hour
