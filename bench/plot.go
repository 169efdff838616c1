package bench

import (
	"fmt"
	"html/template"
	"math"
	"strings"
)

// The plots are SVG written into the page: it opens anywhere, from a file, and loads nothing.
const (
	plotWidth, plotHeight = 640, 240
	plotLeft, plotRight   = 64, 12
	plotTop, plotBottom   = 28, 30
	gridLines             = 4
)

// series is one line of a plot.
type series struct {
	name  string
	color string
	x, y  []float64
}

// plot is a line chart from x0 to x1, with the y axis from zero.
type plot struct {
	title  string
	series []series
	x0, x1 float64
	xTicks []tick
	yText  func(float64) string
	shade  [2]float64 // the measured span; equal: none
}

type tick struct {
	at   float64
	text string
}

// px and py are a value's place in the picture.
func (p *plot) px(x float64) float64 {
	return plotLeft + (x-p.x0)/max(p.x1-p.x0, 1e-9)*(plotWidth-plotLeft-plotRight)
}

func (p *plot) py(y, top float64) float64 {
	return plotHeight - plotBottom - y/top*(plotHeight-plotTop-plotBottom)
}

// svg draws the plot.
func (p *plot) svg() template.HTML {
	top := 0.0
	for _, s := range p.series {
		for _, y := range s.y {
			top = max(top, y)
		}
	}
	top = niceCeil(top)
	b := &strings.Builder{}
	fmt.Fprintf(b, `<svg viewBox="0 0 %d %d" role="img"><title>%s</title>`, plotWidth, plotHeight, template.HTMLEscapeString(p.title))
	if p.shade[1] > p.shade[0] {
		fmt.Fprintf(b, `<rect class="span" x="%.1f" y="%d" width="%.1f" height="%d"/>`,
			p.px(p.shade[0]), plotTop, p.px(p.shade[1])-p.px(p.shade[0]), plotHeight-plotTop-plotBottom)
	}
	for i := range gridLines + 1 {
		y := top * float64(i) / gridLines
		fmt.Fprintf(b, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`,
			plotLeft, plotWidth-plotRight, p.py(y, top), p.py(y, top), plotLeft-6, p.py(y, top)+4, template.HTMLEscapeString(p.yText(y)))
	}
	for _, t := range p.xTicks {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`, p.px(t.at), plotHeight-10, template.HTMLEscapeString(t.text))
	}
	fmt.Fprintf(b, `<text class="title" x="%d" y="16">%s</text>`, plotLeft, template.HTMLEscapeString(p.title))
	for i := range p.series {
		s := &p.series[i]
		b.WriteString(p.line(s, top))
		if len(p.series) > 1 {
			fmt.Fprintf(b, `<text x="%d" y="%d" style="fill:%s">%s</text>`, plotLeft+8, plotTop+14*(i+1), s.color, template.HTMLEscapeString(s.name))
		}
	}
	b.WriteString("</svg>")
	return template.HTML(b.String()) // every text went through HTMLEscapeString
}

// line draws one series.
func (p *plot) line(s *series, top float64) string {
	b := &strings.Builder{}
	for i := range s.x {
		verb := "L"
		if i == 0 {
			verb = "M"
		}
		fmt.Fprintf(b, "%s%.1f %.1f", verb, p.px(s.x[i]), p.py(s.y[i], top))
	}
	return fmt.Sprintf(`<path d="%s" style="stroke:%s"/>`, b.String(), s.color)
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

const (
	colorBlue, colorOrange, colorGreen, colorViolet, colorPink = "#2563eb", "#ea580c", "#16a34a", "#7c3aed", "#db2777"
	ticksMax                                                   = 8
)

// overTime makes a plot over the samples of a report.
func (rp *Report) overTime(title string, yText func(float64) string, lines ...series) plot {
	p := plot{title: title, yText: yText, series: lines}
	if n := len(rp.Samples); n > 0 {
		p.x0, p.x1 = rp.Samples[0].Seconds, rp.Samples[n-1].Seconds
		every := max(1, (n+ticksMax-1)/ticksMax)
		for i := 0; i < n; i += every {
			p.xTicks = append(p.xTicks, tick{rp.Samples[i].Seconds, fmt.Sprintf("%.0f s", rp.Samples[i].Seconds)})
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
func (rp *Report) column(name, color string, value func(*Sample) float64) series {
	s := series{name: name, color: color}
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
			rp.overTime("throughput, per second", count, rp.column("", colorBlue, func(s *Sample) float64 { return s.PerSecond })),
			rp.overTime("latency over time, ms", short,
				rp.column("p50", colorBlue, func(s *Sample) float64 { return s.P50Ms }),
				rp.column("p99", colorOrange, func(s *Sample) float64 { return s.P99Ms })))
	}
	if len(rp.Latencies) > 0 {
		plots = append(plots, rp.curves())
	}
	if rp.Server != nil && len(rp.Samples) > 1 {
		plots = append(plots,
			rp.overTime("server CPU, cores", short, rp.column("", colorBlue, func(s *Sample) float64 { return s.CPU })),
			rp.overTime("server memory (RSS)", bytesText, rp.column("", colorBlue, func(s *Sample) float64 { return float64(s.RSSBytes) })))
	}
	pictures := make([]template.HTML, 0, len(plots))
	for i := range plots {
		pictures = append(pictures, plots[i].svg())
	}
	return pictures
}

// curves is latency over percentile, spaced by nines: 90, 99 and 99.9 are equally far apart, as is what one wants to see.
func (rp *Report) curves() plot {
	nines := func(percentile float64) float64 { return -math.Log10(1 - min(percentile, 99.999)/100) }
	p := plot{title: "latency by percentile, ms", yText: short, x1: nines(99.999)}
	for _, at := range []float64{0, 50, 90, 99, 99.9, 99.99} {
		p.xTicks = append(p.xTicks, tick{nines(at), fmt.Sprintf("%g", at)})
	}
	colors := []string{colorBlue, colorOrange, colorGreen, colorViolet, colorPink}
	for i := range rp.Latencies {
		s := series{name: rp.Latencies[i].Name, color: colors[i%len(colors)]}
		for _, c := range rp.Latencies[i].Curve {
			s.x, s.y = append(s.x, nines(c.Percentile)), append(s.y, c.Ms)
		}
		p.series = append(p.series, s)
	}
	return p
}
