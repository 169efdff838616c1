package bench

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"strings"
	"time"
)

//go:embed report.html.tmpl
var pageText string

// parameter is one line of the table of parameters.
type parameter struct{ Name, Value string }

// WriteHTML writes the report as one self-contained page with plots. It needs no network and no script.
func (rp *Report) WriteHTML(w io.Writer) error {
	page, err := template.New("report").Funcs(template.FuncMap{
		"value": valueText, "short": short, "bytes": bytesText, "count": count, "float": func(n int64) float64 { return float64(n) },
	}).Parse(pageText)
	if err != nil {
		return fmt.Errorf("reading the page's template: %w", err)
	}
	input, err := rp.parameters()
	if err != nil {
		return err
	}
	if err := page.Execute(w, struct {
		*Report
		Plots                  []template.HTML
		Input                  []parameter
		Outcome, GeneratorText string
	}{rp, rp.plots(), input, rp.outcome(), rp.generatorText()}); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return nil
}

// outcome is the verdict in a word.
func (rp *Report) outcome() string {
	switch {
	case rp.Interrupted != "":
		return "interrupted"
	case rp.Verdict.Pass:
		return "pass"
	default:
		return "fail"
	}
}

// parameters are the scenario's options in their own order.
func (rp *Report) parameters() ([]parameter, error) {
	text, err := json.Marshal(rp.Parameters)
	if err != nil {
		return nil, fmt.Errorf("encoding the parameters: %w", err)
	}
	return flatten(nil, text)
}

// flatten appends the members of a JSON object, those of objects in it too. What is no object appends nothing.
func flatten(list []parameter, object []byte) ([]parameter, error) {
	members := json.NewDecoder(bytes.NewReader(object))
	members.UseNumber()
	if start, err := members.Token(); err != nil || start != json.Delim('{') {
		return list, nil
	}
	for members.More() {
		name, err := members.Token()
		if err != nil {
			return nil, fmt.Errorf("reading the parameters: %w", err)
		}
		var value json.RawMessage
		if err := members.Decode(&value); err != nil {
			return nil, fmt.Errorf("reading the parameters: %w", err)
		}
		if value[0] == '{' {
			if list, err = flatten(list, value); err != nil {
				return nil, err
			}
			continue
		}
		list = append(list, parameterText(fmt.Sprint(name), value))
	}
	return list, nil
}

// parameterText writes one parameter for people: times with their unit, words instead of underscores.
func parameterText(name string, value json.RawMessage) parameter {
	text := strings.Trim(string(value), `"`)
	if short, ok := strings.CutSuffix(name, "_ns"); ok {
		if d, err := time.ParseDuration(text + "ns"); err == nil {
			name, text = short, d.String()
		}
	}
	return parameter{strings.ReplaceAll(name, "_", " "), text}
}
