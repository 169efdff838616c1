package main

import (
	"encoding/json"
	"fmt"
	"strings"
)

// configCommand prints or checks settings.
type configCommand struct {
	Show  configShowCommand  `cmd:"" default:"withargs" help:"Print the effective configuration, with where each value came from."`
	Check configCheckCommand `cmd:"" help:"Check a file without starting anything."`
}

// configShowCommand prints the effective configuration.
type configShowCommand struct {
	configFlags `embed:""`
	JSON        bool `name:"json" help:"Print a JSON array of settings."`
	Short       bool `help:"Leave the explanations out."`
}

// Help is the long help of the command.
func (configShowCommand) Help() string {
	return `Prints every setting as YAML with its meaning, its default and where the value came from. What it prints is itself a
valid file (a secret is commented out).

Examples:
  holdfast config > holdfast.yaml                  # a commented file to start from
  holdfast config --config holdfast.yaml --short   # what holds, and why
  holdfast config --json | jq '.[] | select(.origin != "default")'
  holdfast config check holdfast.yaml

Order: defaults, then the file, then HOLDFAST_SECTION_KEY variables, then flags.`
}

// Run prints.
func (s *configShowCommand) Run(term *terminal) error {
	c, err := s.load(term.environ)
	if err != nil {
		return err
	}
	if s.JSON {
		return writeJSON(term, c.list())
	}
	return c.writeYAML(term.out, !s.Short)
}

// configCheckCommand checks one file.
type configCheckCommand struct {
	File string `arg:"" help:"YAML file of settings."`
}

// Run checks the file alone, without the environment of whoever runs the check: the file is meant for another place.
func (s *configCheckCommand) Run(term *terminal) error {
	flags := configFlags{File: s.File}
	c, err := flags.load(nil)
	if err != nil {
		return err
	}
	changed := 0
	for _, key := range c.keys() {
		if strings.HasPrefix(c.origin(key), "file ") {
			changed++
		}
	}
	fmt.Fprintf(term.out, "%s: good, %d settings\n", s.File, changed)
	return nil
}

// writeJSON prints a value as indented JSON.
func writeJSON(term *terminal, value any) error {
	enc := json.NewEncoder(term.out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return fmt.Errorf("printing JSON: %w", err)
	}
	return nil
}
