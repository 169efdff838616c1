package bench

import (
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"
)

// The plots are SVG written into the page: it opens anywhere, from a file, and loads nothing. Colours are classes of the page's
// style, which has them for light and for dark. The width is near that of a phone, so that the texts stay readable there.
const (
	plotWidth, plotHeight = 420, 220
	plotLeft, plotRight   = 56, 14
	plotTop, plotBottom   = 34, 26
	gridLines             = 4
	colors                = 5 // in the style
	legendWidth           = 40
)

// series is one line of a plot.
type series struct {
	name string
	x, y []float64
}

// plot is a line chart from x0 to x1. The y axis begins at zero, or is logarithmic.
type plot struct {
	title  string
	series []series
	x0, x1 float64
	xTicks []tick
	yText  func(float64) string
	yLog   bool
	shade  [2]float64 // the measured span; equal: none

	low, high float64 // of the y axis; set by svg
}

type tick struct {
	at   float64
	text string
}

// px and py are a value's place in the picture.
func (p *plot) px(x float64) float64 {
	return plotLeft + (x-p.x0)/max(p.x1-p.x0, 1e-9)*(plotWidth-plotLeft-plotRight)
}

func (p *plot) py(y float64) float64 {
	part := (y - p.low) / (p.high - p.low)
	if p.yLog {
		part = math.Log10(max(y, p.low)/p.low) / math.Log10(p.high/p.low)
	}
	return plotHeight - plotBottom - part*(plotHeight-plotTop-plotBottom)
}

// scale sets the y axis and returns where its grid lines are.
func (p *plot) scale() []float64 {
	least, most := math.Inf(1), 0.0
	for _, s := range p.series {
		for _, y := range s.y {
			most = max(most, y)
			if y > 0 {
				least = min(least, y)
			}
		}
	}
	var grid []float64
	if !p.yLog || most == 0 {
		p.yLog, p.low, p.high = false, 0, niceCeil(most)
		for i := range gridLines + 1 {
			grid = append(grid, p.high*float64(i)/gridLines)
		}
		return grid
	}
	first, last := math.Floor(math.Log10(least)), math.Ceil(math.Log10(most))
	last = max(last, first+1)
	p.low, p.high = math.Pow(10, first), math.Pow(10, last)
	for e := first; e <= last; e++ {
		grid = append(grid, math.Pow(10, e))
	}
	return grid
}

// svg draws the plot.
func (p *plot) svg() template.HTML {
	grid := p.scale()
	b := &strings.Builder{}
	fmt.Fprintf(b, `<svg viewBox="0 0 %d %d" role="img"><title>%s</title>`, plotWidth, plotHeight, template.HTMLEscapeString(p.title))
	if p.shade[1] > p.shade[0] {
		fmt.Fprintf(b, `<rect class="span" x="%.1f" y="%d" width="%.1f" height="%d"/>`,
			p.px(p.shade[0]), plotTop, p.px(p.shade[1])-p.px(p.shade[0]), plotHeight-plotTop-plotBottom)
	}
	for _, y := range grid {
		fmt.Fprintf(b, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`,
			plotLeft, plotWidth-plotRight, p.py(y), p.py(y), plotLeft-6, p.py(y)+4, template.HTMLEscapeString(p.yText(y)))
	}
	for _, t := range p.xTicks {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`, p.px(t.at), plotHeight-8, template.HTMLEscapeString(t.text))
	}
	fmt.Fprintf(b, `<text class="title" x="12" y="20">%s</text>`, template.HTMLEscapeString(p.title))
	for i := range p.series {
		b.WriteString(p.line(i))
	}
	b.WriteString(p.legend())
	b.WriteString("</svg>")
	return template.HTML(b.String()) // every text went through HTMLEscapeString
}

// line draws one series.
func (p *plot) line(i int) string {
	s := &p.series[i]
	b := &strings.Builder{}
	for i := range s.x {
		verb := "L"
		if i == 0 {
			verb = "M"
		}
		fmt.Fprintf(b, "%s%.1f %.1f", verb, p.px(s.x[i]), p.py(s.y[i]))
	}
	return fmt.Sprintf(`<path class="s%d" d="%s"/>`, i%colors, b.String())
}

// legend names the series: short names beside the title, those of curves in the lower right, where rising curves are not.
func (p *plot) legend() string {
	if len(p.series) < 2 {
		return ""
	}
	b := &strings.Builder{}
	for i := range p.series {
		x, y := plotWidth-plotRight-4, plotHeight-plotBottom-8-15*(len(p.series)-1-i)
		if !p.yLog {
			x, y = plotWidth-plotRight-legendWidth*(len(p.series)-1-i), 20
		}
		fmt.Fprintf(b, `<text class="s%d" x="%d" y="%d" text-anchor="end">%s</text>`, i%colors, x, y, template.HTMLEscapeString(p.series[i].name))
	}
	return b.String()
}

// niceCeil is the next of 1, 2, 2.5, 5 times a power of ten, so that the grid has readable labels.
func niceCeil(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, step := range []float64{1, 2, 2.5, 5} {
		if v <= step*power {
			return step * power
		}
	}
	return 10 * power
}

const ticksMax = 6

// compact writes a number of an axis in few characters.
func compact(v float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if math.Abs(v) >= u.size {
			return trimmed(v/u.size) + u.name
		}
	}
	return trimmed(v)
}

func trimmed(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }

// overTime makes a plot over the samples of a report.
func (rp *Report) overTime(title string, yText func(float64) string, lines ...series) plot {
	p := plot{title: title, yText: yText, series: lines}
	if n := len(rp.Samples); n > 0 {
		p.x0, p.x1 = rp.Samples[0].Seconds, rp.Samples[n-1].Seconds
		every := niceCeil((p.x1 - p.x0) / ticksMax)
		for at := math.Ceil(p.x0/every) * every; at <= p.x1; at += every {
			p.xTicks = append(p.xTicks, tick{at, trimmed(at) + " s"})
		}
	}
	for _, s := range rp.Samples {
		if s.Phase != "measure" {
			continue
		}
		if p.shade[0] == 0 {
			p.shade[0] = max(s.Seconds-sampleEvery.Seconds(), p.x0)
		}
		p.shade[1] = s.Seconds
	}
	return p
}

// column is one value of the samples as a series.
func (rp *Report) column(name string, value func(*Sample) float64) series {
	s := series{name: name}
	for i := range rp.Samples {
		s.x = append(s.x, rp.Samples[i].Seconds)
		s.y = append(s.y, value(&rp.Samples[i]))
	}
	return s
}

// plots are the pictures of the page, those that have something to show.
func (rp *Report) plots() []template.HTML {
	var plots []plot
	if len(rp.Samples) > 1 {
		plots = append(plots,
			rp.overTime("throughput: "+rp.RateName+" per second", compact, rp.column("", func(s *Sample) float64 { return s.PerSecond })),
			rp.overTime(rp.latencyTitle(), compact,
				rp.column("p50", func(s *Sample) float64 { return s.P50Ms }),
				rp.column("p99", func(s *Sample) float64 { return s.P99Ms })))
	}
	if len(rp.Latencies) > 0 {
		plots = append(plots, rp.curves())
	}
	if rp.Server != nil && len(rp.Samples) > 1 {
		plots = append(plots,
			rp.overTime("server CPU, cores", compact, rp.column("", func(s *Sample) float64 { return s.CPU })),
			rp.memory())
	}
	pictures := make([]template.HTML, 0, len(plots))
	for i := range plots {
		pictures = append(pictures, plots[i].svg())
	}
	return pictures
}

// memory is the server's over time, in the unit that suits its largest value.
func (rp *Report) memory() plot {
	var most int64
	for i := range rp.Samples {
		most = max(most, rp.Samples[i].RSSBytes)
	}
	unit, name := float64(1<<20), "MiB"
	if most >= 1<<30 {
		unit, name = 1<<30, "GiB"
	}
	return rp.overTime("server memory (RSS), "+name, compact, rp.column("", func(s *Sample) float64 { return float64(s.RSSBytes) / unit }))
}

// latencyTitle says whose latency is plotted over time.
func (rp *Report) latencyTitle() string {
	if rp.LatencyName == "" {
		return "latency, ms"
	}
	return rp.LatencyName + ", ms"
}

// curves is latency over percentile, spaced by nines: 90, 99 and 99.9 are equally far apart, as is what one wants to see.
func (rp *Report) curves() plot {
	nines := func(percentile float64) float64 { return -math.Log10(1 - min(percentile, 99.999)/100) }
	p := plot{title: "latency by percentile, ms", yText: compact, yLog: true, x1: nines(99.999)}
	for _, at := range []float64{50, 90, 99, 99.9, 99.99} {
		p.xTicks = append(p.xTicks, tick{nines(at), fmt.Sprintf("%g %%", at)})
	}
	for i := range rp.Latencies {
		s := series{name: rp.Latencies[i].Name}
		for _, c := range rp.Latencies[i].Curve {
			s.x, s.y = append(s.x, nines(c.Percentile)), append(s.y, c.Ms)
		}
		p.series = append(p.series, s)
	}
	return p
}
