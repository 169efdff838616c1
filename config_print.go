package main

import (
	"fmt"
	"io"
	"strings"
)

// writeYAML prints the effective configuration as a file that reads back, each key with its reason and its origin.
func (c *Config) writeYAML(w io.Writer, comments bool) error {
	b := &strings.Builder{}
	for i, s := range c.sections {
		if i > 0 {
			b.WriteByte('\n')
		}
		if comments {
			fmt.Fprintf(b, "# %s\n", s.help)
		}
		fmt.Fprintf(b, "%s:\n", s.name)
		for _, set := range s.settings {
			_, name, _ := strings.Cut(set.key, ".")
			if comments {
				for _, line := range wrap(set.help, 100) {
					fmt.Fprintf(b, "  # %s\n", line)
				}
				fmt.Fprintf(b, "  # default %s\n", presetText(set))
			}
			fmt.Fprintf(b, "  %s%s: %s # %s\n", hiddenMark(set), name, visible(set), set.origin)
		}
	}
	_, err := io.WriteString(w, b.String())
	if err != nil {
		return fmt.Errorf("printing the configuration: %w", err)
	}
	return nil
}

// presetText writes a default for people.
func presetText(set *setting) string {
	if set.preset == "" {
		return "empty"
	}
	return set.preset
}

// hiddenMark comments a secret out, so that the printed file still reads back without giving the secret away.
func hiddenMark(set *setting) string {
	if set.secret && formatValue(set.target) != "" {
		return "# "
	}
	return ""
}

// visible is the value as YAML, secrets hidden.
func visible(set *setting) string {
	if set.secret && formatValue(set.target) != "" {
		return "(set, not shown)"
	}
	return quoteIfText(set.target)
}

// settingJSON is one key in the JSON output of holdfast config.
type settingJSON struct {
	Key     string `json:"key"`
	Value   string `json:"value"`
	Default string `json:"default"`
	Origin  string `json:"origin"`
	Env     string `json:"env"`
	Help    string `json:"help"`
}

// list returns every setting for the JSON output.
func (c *Config) list() []settingJSON {
	var all []settingJSON
	for _, s := range c.sections {
		for _, set := range s.settings {
			value := formatValue(set.target)
			if set.secret && value != "" {
				value = "(set, not shown)"
			}
			all = append(all, settingJSON{set.key, value, set.preset, set.origin, envName(set.key), set.help})
		}
	}
	return all
}

// wrap breaks a text into lines of at most width characters at spaces.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case len(line)+1+len(word) > width:
			lines = append(lines, line)
			line = word
		default:
			line += " " + word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
