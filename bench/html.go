package bench

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
)

//go:embed report.html.tmpl
var pageText string

// WriteHTML writes the report as one self-contained page with plots. It needs no network and no script.
func (rp *Report) WriteHTML(w io.Writer) error {
	page, err := template.New("report").Funcs(template.FuncMap{"value": valueText, "short": short, "bytes": bytesText, "float": func(n int64) float64 { return float64(n) }}).Parse(pageText)
	if err != nil {
		return fmt.Errorf("reading the page's template: %w", err)
	}
	parameters, err := json.MarshalIndent(rp.Parameters, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the parameters: %w", err)
	}
	if err := page.Execute(w, struct {
		*Report
		Plots []template.HTML
		Input string
	}{rp, rp.plots(), string(parameters)}); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return nil
}
