package main

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/common/model"
	"golang.org/x/image/font"
	"gonum.org/v1/plot"
	plotfont "gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// Sizes are in pixels: at 72 dots per inch a point is one.
const (
	width       = 1600
	columns     = 24
	gridRow     = 42
	gap         = 10
	header      = 62
	padding     = 12
	legendRow   = 20
	mostRows    = 5 // of a legend
	swatch      = 18
	noThreshold = "off"
)

var (
	page   = color.Gray{Y: 0xf0}
	ink    = color.Gray{Y: 0x22}
	pale   = color.Gray{Y: 0x80}
	lines  = color.Gray{Y: 0xe0}
	levels = map[string]color.Color{"green": color.NRGBA{0x2e, 0x9e, 0x44, 0xff}, "orange": color.NRGBA{0xd9, 0x7a, 0, 0xff}, "red": color.NRGBA{0xd0, 0x1c, 0x2a, 0xff}}
	// palette can be told apart by colour-blind readers. Its second round is dashed.
	palette = []color.NRGBA{
		{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff}, {0xcc, 0x79, 0xa7, 0xff},
		{0xe6, 0x9f, 0x00, 0xff}, {0x56, 0xb4, 0xe9, 0xff}, {0x80, 0x60, 0x40, 0xff}, {0x60, 0x60, 0x60, 0xff},
	}
)

// draw returns the dashboard as PNG.
func (d dashboard) draw(shown span, namespace string) ([]byte, error) {
	height := 0
	for _, p := range d.Panels {
		height = max(height, p.GridPos.place().Max.Y+gap)
	}
	base := vgimg.NewWith(vgimg.UseWH(width, vg.Length(height)), vgimg.UseDPI(72), vgimg.UseBackgroundColor(page))
	canvas := draw.New(base)
	canvas.FillText(textOf(22, ink, font.WeightBold), vg.Point{X: gap + padding, Y: vg.Length(height - 28)}, d.Title)
	const clock = "2006-01-02 15:04:05"
	canvas.FillText(textOf(15, pale, font.WeightNormal), vg.Point{X: gap + padding, Y: vg.Length(height - 51)}, fmt.Sprintf(
		"namespace %s, %s to %s UTC. Drawn by tools/dashboards from the queries of the dashboard; Grafana looks different.",
		namespace, shown.from.UTC().Format(clock), shown.to.UTC().Format(clock)))
	for _, p := range d.Panels {
		r := p.GridPos.place()
		if err := p.draw(draw.Canvas{Canvas: canvas.Canvas, Rectangle: vg.Rectangle{
			Min: vg.Point{X: vg.Length(r.Min.X), Y: vg.Length(height - r.Max.Y)},
			Max: vg.Point{X: vg.Length(r.Max.X), Y: vg.Length(height - r.Min.Y)},
		}}, shown); err != nil {
			return nil, fmt.Errorf("panel %q: %w", p.Title, err)
		}
	}
	var out bytes.Buffer
	err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, paletted(base.Image()))
	return out.Bytes(), err
}

// paletted keeps the most frequent colours, and the nearest of them for the remaining ones, so that
// the file is less than half as large.
func paletted(from image.Image) *image.Paletted {
	bounds, count := from.Bounds(), map[color.Color]int{}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			count[from.At(x, y)]++
		}
	}
	most := slices.SortedFunc(maps.Keys(count), func(a, b color.Color) int { return count[b] - count[a] })
	to := image.NewPaletted(bounds, color.Palette(most[:min(len(most), 256)]))
	index := map[color.Color]uint8{}
	for c := range count {
		index[c] = uint8(to.Palette.Index(c))
	}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			to.SetColorIndex(x, y, index[from.At(x, y)])
		}
	}
	return to
}

// place returns the rectangle of a panel, in pixels from the upper left corner.
func (g gridPos) place() image.Rectangle {
	x := func(column int) int { return gap + column*(width-gap)/columns }
	y := func(row int) int { return header + row*gridRow }
	return image.Rect(x(g.X), y(g.Y), x(g.X+g.W)-gap, y(g.Y+g.H)-gap)
}

// draw draws the title above, the legend below, and the lines between both.
func (p *panel) draw(to draw.Canvas, shown span) error {
	to.FillPolygon(color.White, corners(to.Rectangle))
	to.FillText(textOf(17, ink, font.WeightBold), vg.Point{X: to.Min.X + padding, Y: to.Max.Y - 24}, p.Title)
	chart, err := p.chart(shown)
	if err != nil {
		return err
	}
	below := p.drawLegend(to)
	inner := draw.Crop(to, padding, -padding, below, -36)
	chart.Draw(inner)
	if !slices.ContainsFunc(p.series, func(s series) bool { return len(s.points) > 0 }) {
		style := textOf(17, pale, font.WeightNormal)
		style.XAlign = text.XCenter
		to.FillText(style, inner.Center(), "No data")
	}
	return nil
}

// drawLegend draws the legend at the bottom, and returns its height.
func (p *panel) drawLegend(to draw.Canvas) vg.Length {
	style := textOf(14, ink, font.WeightNormal)
	var widths []float64
	for _, s := range p.series {
		widths = append(widths, float64(style.Width(s.legend))+swatch+2*padding)
	}
	rows, left := legendRows(widths, float64(to.Size().X)-2*padding)
	height := vg.Length(len(rows)*legendRow + padding)
	if left > 0 {
		to.FillText(textOf(14, pale, font.WeightNormal), vg.Point{X: to.Min.X + padding, Y: to.Min.Y + padding}, fmt.Sprintf("and %d more", left))
		height += legendRow
	}
	for i, row := range rows {
		at := vg.Point{X: to.Min.X + padding, Y: to.Min.Y + height - vg.Length(i+1)*legendRow}
		for _, n := range row {
			to.StrokeLine2(lineStyle(n), at.X, at.Y+5, at.X+swatch, at.Y+5)
			if len(p.series[n].points) == 0 {
				style.Color = pale
			} else {
				style.Color = ink
			}
			to.FillText(style, vg.Point{X: at.X + swatch + padding/2, Y: at.Y}, p.series[n].legend)
			at.X += vg.Length(widths[n])
		}
	}
	return height
}

// legendRows breaks entries into rows. left is the number of entries for which no row is left.
func legendRows(widths []float64, available float64) (rows [][]int, left int) {
	used := math.Inf(1)
	for i, w := range widths {
		if used+w > available {
			if len(rows) == mostRows {
				return rows, len(widths) - i
			}
			rows, used = append(rows, nil), 0
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], i)
		used += w
	}
	return rows, 0
}

// chart has the axes, the lines and the thresholds of a panel.
func (p *panel) chart(shown span) (*plot.Plot, error) {
	low, high := p.bounds()
	divisor, suffix, err := unitOf(p.FieldConfig.Defaults.Unit, high)
	if err != nil {
		return nil, err
	}
	chart := plot.New()
	chart.BackgroundColor = color.Transparent
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = lines, lines
	chart.Add(grid)
	custom := p.FieldConfig.Defaults.Custom
	for i, s := range p.series {
		for _, part := range unbroken(s.points, shown.step) {
			line, err := plotter.NewLine(part)
			if err != nil {
				return nil, err
			}
			line.LineStyle = lineStyle(i)
			area := palette[i%len(palette)]
			area.A = uint8(255 * custom.FillOpacity / 100)
			line.FillColor = area
			chart.Add(line)
		}
	}
	begin, end := float64(shown.from.Unix()), float64(shown.to.Unix())
	for _, t := range p.FieldConfig.Defaults.Thresholds.Steps {
		if mode := custom.ThresholdsStyle.Mode; mode == "" || mode == noThreshold || t.Value == nil || *t.Value < low || *t.Value > high {
			continue
		}
		level, known := levels[t.Color]
		if !known {
			return nil, fmt.Errorf("the colour %q of a threshold is unknown", t.Color)
		}
		line, err := plotter.NewLine(plotter.XYs{{X: begin, Y: *t.Value}, {X: end, Y: *t.Value}})
		if err != nil {
			return nil, err
		}
		line.LineStyle = draw.LineStyle{Color: level, Width: 2, Dashes: []vg.Length{8, 5}}
		chart.Add(line)
	}
	chart.X.Min, chart.X.Max, chart.Y.Min, chart.Y.Max = begin, end, low, high
	chart.X.Tick.Marker, chart.Y.Tick.Marker = plot.TickerFunc(timeTicks), valueTicks(divisor, suffix)
	for _, axis := range []*plot.Axis{&chart.X, &chart.Y} {
		axis.Padding, axis.LineStyle.Color, axis.Tick.LineStyle.Color = 0, pale, pale
		axis.Tick.Label.Font, axis.Tick.Label.Color = textOf(14, ink, font.WeightNormal).Font, ink
	}
	return chart, nil
}

// bounds returns the ends of the axis of values. A threshold stretches it only as axisSoftMax.
func (p *panel) bounds() (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, s := range p.series {
		for _, point := range s.points {
			low, high = min(low, float64(point.Value)), max(high, float64(point.Value))
		}
	}
	defaults := p.FieldConfig.Defaults
	if defaults.Min != nil {
		low = *defaults.Min
	}
	if soft := defaults.Custom.AxisSoftMax; soft != nil {
		high = max(high, *soft)
	}
	switch {
	case defaults.Max != nil:
		high = *defaults.Max
	case math.IsInf(low, 0) || high <= low:
		if math.IsInf(low, 0) {
			low = 0
		}
		high = low + 1
	default:
		high += (high - low) / 20
	}
	return low, high
}

// unitOf returns what the numbers of an axis up to high are divided by, and what follows them.
func unitOf(unit string, high float64) (divisor float64, suffix string, err error) {
	type scale struct {
		divisor float64
		suffix  string
	}
	var scales []scale // from the largest
	switch unit {
	case "short":
		scales = []scale{{1e6, " Mil"}, {1e3, " K"}, {1, ""}}
	case "ops":
		scales = []scale{{1e3, "K ops/s"}, {1, " ops/s"}}
	case "s":
		scales = []scale{{86400, " days"}, {3600, " h"}, {60, " min"}, {1, " s"}, {1e-3, " ms"}, {1e-6, " µs"}}
	case "percentunit":
		scales = []scale{{0.01, " %"}}
	default:
		return 0, "", fmt.Errorf("the unit %q is unknown", unit)
	}
	for _, s := range scales {
		if divisor, suffix = s.divisor, s.suffix; high >= 2*divisor {
			break
		}
	}
	return divisor, suffix, nil
}

func valueTicks(divisor float64, suffix string) plot.TickerFunc {
	return func(low, high float64) []plot.Tick {
		ticks := plot.DefaultTicks{}.Ticks(low/divisor, high/divisor)
		for i, tick := range ticks {
			if tick.Label != "" {
				ticks[i].Label = strconv.FormatFloat(tick.Value, 'g', 6, 64) + suffix
			}
			ticks[i].Value *= divisor
		}
		return ticks
	}
}

// timeTicks has ten labels or fewer, at whole multiples of a step that people read well.
func timeTicks(begin, end float64) (ticks []plot.Tick) {
	step, format := 86400*math.Ceil((end-begin)/86400/10), "01-02"
	for _, s := range []time.Duration{10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour, 3 * time.Hour, 6 * time.Hour} {
		if (end-begin)/s.Seconds() <= 10 {
			step, format = s.Seconds(), "15:04"
			if s < time.Minute {
				format = "15:04:05"
			}
			break
		}
	}
	for at := math.Ceil(begin/step) * step; at <= end; at += step {
		ticks = append(ticks, plot.Tick{Value: at, Label: time.Unix(int64(at), 0).UTC().Format(format)})
	}
	return ticks
}

// unbroken splits a series where samples are missing. A single sample becomes a line of one step.
func unbroken(points []model.SamplePair, step time.Duration) (parts []plotter.XYs) {
	for i, point := range points {
		at := plotter.XY{X: float64(point.Timestamp) / 1000, Y: float64(point.Value)}
		if i == 0 || point.Timestamp.Sub(points[i-1].Timestamp) > step {
			parts = append(parts, nil)
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], at)
	}
	for i, part := range parts {
		if len(part) == 1 {
			parts[i] = append(part, plotter.XY{X: part[0].X + step.Seconds(), Y: part[0].Y})
		}
	}
	return parts
}

func lineStyle(n int) draw.LineStyle {
	style := draw.LineStyle{Color: palette[n%len(palette)], Width: 2}
	if round := n / len(palette); round > 0 {
		style.Dashes = []vg.Length{vg.Length(2 + 4*round), 3}
	}
	return style
}

func textOf(size vg.Length, c color.Color, weight font.Weight) text.Style {
	return text.Style{
		Color: c, Handler: plot.DefaultTextHandler,
		Font: plotfont.Font{Typeface: "Liberation", Variant: "Sans", Weight: weight, Size: size},
	}
}

func corners(r vg.Rectangle) []vg.Point {
	return []vg.Point{r.Min, {X: r.Max.X, Y: r.Min.Y}, r.Max, {X: r.Min.X, Y: r.Max.Y}}
}
