package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// results are everything that was measured.
type results struct {
	Started  time.Time         `json:"started"`
	Machine  machine           `json:"machine"`
	Versions map[string]string `json:"versions"`
	Rounds   int               `json:"rounds"`
	Commands map[string]string `json:"commands"` // by work
	Table    []row             `json:"table"`
	Runs     []oneRun          `json:"runs"`
}

// oneRun is one work on one peer.
type oneRun struct {
	Work           string             `json:"work"`
	Peer           string             `json:"peer"`
	Round          int                `json:"round"`
	Figures        map[string]float64 `json:"figures"`
	GeneratorCores float64            `json:"generator_cores"`
	Failures       []string           `json:"failures,omitempty"` // of the generator's verdict

	version string
}

// row is one figure of all peers.
type row struct {
	Work   string          `json:"work"`
	Figure string          `json:"figure"`
	Unit   string          `json:"unit"`
	Lower  bool            `json:"lower_is_better"`
	Cells  map[string]cell `json:"peers"`
}

// cell is a figure over all rounds. Ratio is the median over that of the first peer; 0: there is none.
type cell struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Ratio  float64 `json:"ratio,omitempty"`
	Failed int     `json:"failed,omitempty"` // rounds whose verdict was no
}

// tabulate fills the table from the runs.
func (r *results) tabulate(works []work, peers []peer) {
	r.Commands = map[string]string{}
	r.Table = nil
	for i := range works {
		w := &works[i]
		r.Commands[w.name] = "holdfast bench " + strings.Join(w.args, " ")
		for _, f := range w.figures {
			line := row{Work: w.name, Figure: f.label, Unit: f.unit, Lower: f.lower, Cells: map[string]cell{}}
			for j := range peers {
				if c, ok := r.cell(w.name, peers[j].name, f.key); ok {
					if first := line.Cells[peers[0].name]; j > 0 && first.Median > 0 {
						c.Ratio = c.Median / first.Median
					}
					line.Cells[peers[j].name] = c
				}
			}
			r.Table = append(r.Table, line)
		}
	}
}

func (r *results) cell(work, peer, key string) (c cell, ok bool) {
	var values []float64
	for i := range r.Runs {
		x := &r.Runs[i]
		if x.Work != work || x.Peer != peer {
			continue
		}
		if v, there := x.Figures[key]; there {
			values = append(values, v)
		}
		if len(x.Failures) > 0 {
			c.Failed++
		}
	}
	if len(values) == 0 {
		return c, false
	}
	slices.Sort(values)
	n := len(values)
	c.Min, c.Median, c.Max = values[0], (values[(n-1)/2]+values[n/2])/2, values[n-1]
	return c, true
}

// text is a cell for people: median, spread, ratio, and a dagger for failed rounds.
func (c *cell) text() string {
	b := &strings.Builder{}
	b.WriteString(number(c.Median))
	if c.Min != c.Max {
		fmt.Fprintf(b, " (%s to %s)", number(c.Min), number(c.Max))
	}
	if c.Ratio > 0 {
		fmt.Fprintf(b, ", %s×", ratio(c.Ratio))
	}
	if c.Failed > 0 {
		b.WriteString(" †")
	}
	return b.String()
}

// ratio keeps two digits, however small.
func ratio(v float64) string {
	if v >= 10 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2g", v)
}

// number writes three digits, with thousands apart.
func number(v float64) string {
	if v == 0 {
		return "0"
	}
	if math.Abs(v) < 1000 {
		scale := math.Pow(10, 2-math.Floor(math.Log10(math.Abs(v))))
		return strings.TrimSuffix(fmt.Sprintf("%g", math.Round(v*scale)/scale), ".")
	}
	if v < 0 {
		return "-" + thousands(int64(math.Round(-v)))
	}
	return thousands(int64(math.Round(v)))
}

func thousands(n int64) string {
	if n < 1000 {
		return strconv.FormatInt(n, 10)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// lines are the table's cells line by line, the head first: figure, then one column a peer.
func (r *results) lines(works []work, peers []peer) (head []string, body [][]string) {
	head = []string{""}
	for i := range peers {
		head = append(head, peers[i].name)
	}
	titles := map[string]string{}
	for i := range works {
		titles[works[i].name] = works[i].title
	}
	last := ""
	for i := range r.Table {
		line := &r.Table[i]
		if line.Work != last {
			last = line.Work
			body = append(body, append([]string{titles[last]}, make([]string, len(peers))...))
		}
		label := line.Figure
		if line.Unit != "" {
			label += ", " + line.Unit
		}
		cells := []string{label}
		for j := range peers {
			text := "–"
			if c, ok := line.Cells[peers[j].name]; ok {
				text = c.text()
			}
			cells = append(cells, text)
		}
		body = append(body, cells)
	}
	return head, body
}

// writeText writes the table for a terminal.
func (r *results) writeText(w io.Writer, works []work, peers []peer) error {
	tabs := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	head, body := r.lines(works, peers)
	for i, line := range append([][]string{head}, body...) {
		indent := "  "
		if i == 0 || strings.Join(line[1:], "") == "" {
			indent = ""
		}
		fmt.Fprintln(tabs, indent+strings.Join(line, "\t"))
	}
	if err := tabs.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s", r.footer(peers, "%s\n"))
	return err
}

// markdown is the table as Markdown.
func (r *results) markdown(works []work, peers []peer) string {
	b := &strings.Builder{}
	head, body := r.lines(works, peers)
	fmt.Fprintf(b, "| %s |\n|---|%s\n", strings.Join(head, " | "), strings.Repeat("---:|", len(peers)))
	for _, line := range body {
		if strings.Join(line[1:], "") == "" {
			line[0] = "**" + line[0] + "**"
		}
		fmt.Fprintf(b, "| %s |\n", strings.Join(line, " | "))
	}
	b.WriteString("\n" + r.footer(peers, "- %s\n"))
	b.WriteString("\n```sh\n")
	for i := range works {
		fmt.Fprintf(b, "%s\n", r.Commands[works[i].name])
	}
	b.WriteString("```\n")
	return b.String()
}

// footer says how to read the table, and where it comes from.
func (r *results) footer(peers []peer, format string) string {
	lines := []string{}
	spread := ""
	if r.Rounds > 1 {
		spread = " (lowest to highest)"
	}
	lines = append(lines, fmt.Sprintf("Median of %d round(s)%s, then the ratio to %s. %s. Server and generator share the machine: %s.",
		r.Rounds, spread, peers[0].name, r.Started.Format("2 January 2006"), &r.Machine))
	for i := range peers {
		lines = append(lines, fmt.Sprintf("%s: %s (%s).", peers[i].name, peers[i].note, r.Versions[peers[i].name]))
	}
	failed := map[string]bool{}
	for i := range r.Runs {
		if x := &r.Runs[i]; len(x.Failures) > 0 && !failed[x.Work+x.Peer] {
			failed[x.Work+x.Peer] = true
			lines = append(lines, fmt.Sprintf("† %s did not pass %s: %s.", x.Peer, x.Work, x.Failures[0]))
		}
	}
	b := &strings.Builder{}
	for _, line := range lines {
		fmt.Fprintf(b, format, line)
	}
	return b.String()
}

// write puts the results everywhere they were asked for.
func (r *results) write(o *options, works []work, peers []peer, out io.Writer) error {
	r.tabulate(works, peers)
	if err := r.writeText(out, works, peers); err != nil {
		return err
	}
	text := r.markdown(works, peers)
	if o.markdownFile != "" {
		if err := os.WriteFile(o.markdownFile, []byte(text), 0o644); err != nil {
			return err
		}
	}
	if o.jsonFile != "" {
		encoded, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.jsonFile, append(encoded, '\n'), 0o644); err != nil {
			return err
		}
	}
	if o.page == "" {
		return nil
	}
	page, err := os.ReadFile(o.page)
	if err != nil {
		return err
	}
	replaced, err := between(string(page), text)
	if err != nil {
		return fmt.Errorf("%s: %w", o.page, err)
	}
	return os.WriteFile(o.page, []byte(replaced), 0o644)
}

// The markers of a page, each on a line of its own.
const (
	markerBegin = "<!-- compare: begin -->"
	markerEnd   = "<!-- compare: end -->"
)

// between replaces what stands between the markers of a page.
func between(page, text string) (string, error) {
	before, rest, ok := strings.Cut(page, markerBegin+"\n")
	_, after, closed := strings.Cut(rest, markerEnd)
	if !ok || !closed {
		return "", errors.New("it has no lines " + markerBegin + " and " + markerEnd)
	}
	return before + markerBegin + "\n" + text + markerEnd + after, nil
}
