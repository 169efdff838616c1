package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes, written as "512", "64KiB", "10MiB" or "2GiB".
type Size int64

// Key is one public key (or shared secret) that tokens may be signed with. It is written "ALG:FILE" or "ALG:ID:FILE"; in
// the file also as a mapping of alg, id and file.
type Key struct {
	ID   string // the token's kid; empty: tried for tokens without one
	Alg  string // HS256, RS256 or EdDSA
	File string // PEM (RS256, EdDSA) or the raw secret (HS256)
}

// sizeUnits from large to small. Powers of two only, so that a limit is the same number in the file, in a metric and in memory.
func sizeUnits() []struct {
	name  string
	bytes int64
} {
	return []struct {
		name  string
		bytes int64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}
}

// parseInto stores the text form of a value through a pointer. It is the only parser of values: the file, the environment and
// the flags all come here, so a value is written the same way everywhere.
func parseInto(target any, text string) error {
	var err error
	switch v := target.(type) {
	case *string:
		*v = text
	case oneOf:
		return v.set(text)
	case *bool:
		if *v, err = strconv.ParseBool(text); err != nil {
			return fmt.Errorf("%q is not true or false", text)
		}
	case *int:
		if *v, err = strconv.Atoi(text); err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
	case *float64:
		if *v, err = strconv.ParseFloat(text, 64); err != nil || math.IsNaN(*v) || math.IsInf(*v, 0) {
			return fmt.Errorf("%q is not a number", text)
		}
	case *time.Duration:
		*v, err = parseDuration(text)
	case *Size:
		*v, err = parseSize(text)
	case *[]Key:
		*v, err = parseKeys(text)
	default:
		panic(fmt.Sprintf("no parser for %T", target))
	}
	return err
}

// parseDuration reads what time.ParseDuration reads, and days ("7d").
func parseDuration(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.Atoi(days)
		if err != nil || n < 0 || n > 36500 {
			return 0, fmt.Errorf(`%q is not a number of days (write for example "7d")`, text)
		}
		return time.Duration(n) * day, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf(`%q is not a duration (write for example "10s", "500ms", "2h" or "7d")`, text)
	}
	if d < 0 {
		return 0, fmt.Errorf("%q is negative", text)
	}
	return d, nil
}

// parseSize reads a number of bytes with an optional unit.
func parseSize(text string) (Size, error) {
	number, factor := text, int64(1)
	for _, u := range sizeUnits() {
		if n, ok := strings.CutSuffix(text, u.name); ok {
			number, factor = strings.TrimSpace(n), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n > math.MaxInt64/factor {
		return 0, fmt.Errorf(`%q is not a size (write for example "65536", "64KiB", "10MiB" or "2GiB")`, text)
	}
	if n < 0 {
		return 0, fmt.Errorf("%q is negative", text)
	}
	return Size(n * factor), nil
}

// parseKeys reads a comma-separated list of ALG:FILE or ALG:ID:FILE. An empty text is the empty list.
func parseKeys(text string) ([]Key, error) {
	var keys []Key
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		fields := strings.SplitN(part, ":", 3)
		k := Key{Alg: fields[0]}
		switch len(fields) {
		case 2:
			k.File = fields[1]
		case 3:
			k.ID, k.File = fields[1], fields[2]
		default:
			return nil, fmt.Errorf(`%q is not ALG:FILE (write for example "EdDSA:/etc/holdfast/token.pub.pem")`, part)
		}
		if err := k.check(); err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return keys, nil
}

// check names what is wrong with a key's own fields.
func (k Key) check() error {
	switch k.Alg {
	case "HS256", "RS256", "EdDSA":
	default:
		return fmt.Errorf("key algorithm %q is not one of HS256, RS256, EdDSA", k.Alg)
	}
	if k.File == "" {
		return errors.New("a key needs a file")
	}
	return nil
}

// formatValue is the inverse of parseInto.
func formatValue(target any) string {
	switch v := target.(type) {
	case *string:
		return *v
	case oneOf:
		return *v.value
	case *bool:
		return strconv.FormatBool(*v)
	case *int:
		return strconv.Itoa(*v)
	case *float64:
		return strconv.FormatFloat(*v, 'g', -1, 64)
	case *time.Duration:
		return formatDuration(*v)
	case *Size:
		return v.String()
	case *[]Key:
		return formatKeys(*v)
	default:
		panic(fmt.Sprintf("no format for %T", target))
	}
}

// formatDuration writes the shortest form that reads back: "7d", "10s", "1m30s", not "168h0m0s".
func formatDuration(d time.Duration) string {
	if d >= day && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	s := d.String()
	if t, ok := strings.CutSuffix(s, "m0s"); ok {
		s = t + "m"
	}
	if t, ok := strings.CutSuffix(s, "h0m"); ok {
		s = t + "h"
	}
	return s
}

// String writes the size in the largest unit that divides it.
func (s Size) String() string {
	for _, u := range sizeUnits() {
		if int64(s) >= u.bytes && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// formatKeys writes the list as parseKeys reads it. Only paths, never key material.
func formatKeys(keys []Key) string {
	parts := make([]string, len(keys))
	for i, k := range keys {
		parts[i] = k.Alg + ":" + k.File
		if k.ID != "" {
			parts[i] = k.Alg + ":" + k.ID + ":" + k.File
		}
	}
	return strings.Join(parts, ",")
}

// quoteIfText writes a value as YAML: texts in double quotes (JSON quoting is a subset), numbers and booleans bare.
func quoteIfText(target any) string {
	text := formatValue(target)
	switch target.(type) {
	case *bool, *int, *float64:
		return text
	}
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(fmt.Sprintf("quoting %q: %v", text, err)) // a string always marshals
	}
	return string(quoted)
}
