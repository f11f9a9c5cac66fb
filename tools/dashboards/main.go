// Command dashboards draws dashboards of Grafana as pictures for docs/. It runs the queries of each
// panel against a Prometheus, with the variables, the steps and the legends of Grafana. The
// pictures show the same data; Grafana looks different.
//
//	dashboards --prometheus http://127.0.0.1:9090 --last 10m --out docs fleet.json slices-audit.json
//
// It draws panels of type timeseries. An unknown variable, an unknown unit and a query that fails
// are errors.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
)

func main() {
	address := flag.String("prometheus", "http://127.0.0.1:9090", "The address of Prometheus.")
	from := flag.String("from", "", "The begin of the pictures, as in RFC 3339. Empty: --last before the end.")
	to := flag.String("to", "", "The end of the pictures, as in RFC 3339. Empty: now.")
	last := flag.Duration("last", time.Hour, "The time that the pictures show, without --from.")
	scrape := flag.Duration("scrape-interval", 15*time.Second, "The scrape interval of the data source.")
	namespace := flag.String("namespace", "trivet-system", "The value of the variable namespace.")
	out := flag.String("out", ".", "The folder for dashboard-NAME.png of each NAME.json.")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	shown, err := spanOf(*from, *to, *last, *scrape, time.Now())
	if err == nil {
		err = run(ctx, *address, *namespace, *out, shown, flag.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "dashboards:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, address, namespace, out string, shown span, paths []string) error {
	if len(paths) == 0 {
		return fmt.Errorf("give the files of dashboards")
	}
	client, err := api.NewClient(api.Config{Address: address})
	if err != nil {
		return err
	}
	for _, path := range paths {
		d, err := read(path)
		if err != nil {
			return err
		}
		for i := range d.Panels {
			if err := d.Panels[i].query(ctx, prometheus.NewAPI(client), shown, shown.variables(namespace)); err != nil {
				return fmt.Errorf("%s: panel %q: %w", path, d.Panels[i].Title, err)
			}
		}
		picture, err := d.draw(shown, namespace)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		name := "dashboard-" + strings.TrimSuffix(filepath.Base(path), ".json") + ".png"
		if err := os.WriteFile(filepath.Join(out, name), picture, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// dashboard is the part of Grafana's model that is drawn.
type dashboard struct {
	Title  string   `json:"title"`
	Panels []*panel `json:"panels"`
}

type panel struct {
	Type        string  `json:"type"`
	Title       string  `json:"title"`
	GridPos     gridPos `json:"gridPos"`
	FieldConfig struct {
		Defaults struct {
			Unit       string   `json:"unit"`
			Min        *float64 `json:"min"`
			Max        *float64 `json:"max"`
			Thresholds struct {
				Steps []threshold `json:"steps"`
			} `json:"thresholds"`
			Custom struct {
				FillOpacity     float64  `json:"fillOpacity"`
				AxisSoftMax     *float64 `json:"axisSoftMax"`
				ThresholdsStyle struct {
					Mode string `json:"mode"`
				} `json:"thresholdsStyle"`
			} `json:"custom"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
	Targets []target `json:"targets"`

	series []series
}

// gridPos is a place in Grafana's grid of 24 columns.
type gridPos struct{ X, Y, W, H int }

// threshold begins at Value; the first one of a panel has none.
type threshold struct {
	Color string   `json:"color"`
	Value *float64 `json:"value"`
}

type target struct {
	RefID        string `json:"refId"`
	Expr         string `json:"expr"`
	LegendFormat string `json:"legendFormat"`
}

// series is a line of a panel. A query without a result is one series without points.
type series struct {
	legend string
	points []model.SamplePair
}

func read(path string) (dashboard, error) {
	var d dashboard
	content, err := os.ReadFile(path)
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(content, &d); err != nil {
		return d, fmt.Errorf("%s: %w", path, err)
	}
	if len(d.Panels) == 0 {
		return d, fmt.Errorf("%s has no panels", path)
	}
	for _, p := range d.Panels {
		if p.Type != "timeseries" {
			return d, fmt.Errorf("%s: panel %q has type %q; only timeseries is drawn", path, p.Title, p.Type)
		}
	}
	return d, nil
}

// noData follows the legend of a query without a result.
const noData = " (no data)"

// query runs the queries of a panel.
func (p *panel) query(ctx context.Context, server prometheus.API, shown span, variables map[string]string) error {
	for _, t := range p.Targets {
		expression, err := substitute(t.Expr, variables)
		if err != nil {
			return fmt.Errorf("query %s: %w", t.RefID, err)
		}
		value, warnings, _, err := server.QueryRange(ctx, expression, prometheus.Range{Start: shown.from, End: shown.to, Step: shown.step})
		if err == nil && len(warnings) > 0 {
			err = errors.New(strings.Join(warnings, "; "))
		}
		if err != nil {
			return fmt.Errorf("query %s, %s: %w", t.RefID, expression, err)
		}
		matrix, isMatrix := value.(model.Matrix)
		if !isMatrix {
			return fmt.Errorf("query %s, %s: the answer is a %s", t.RefID, expression, value.Type())
		}
		if len(matrix) == 0 {
			p.series = append(p.series, series{legend: legendWithoutLabels(t) + noData})
		}
		for _, stream := range matrix {
			s := series{legend: legend(t, stream.Metric), points: finite(stream.Values)}
			if len(s.points) == 0 {
				s.legend += noData
			}
			p.series = append(p.series, s)
		}
	}
	return nil
}

// finite drops NaN, which a quantile of no event is, and infinities.
func finite(points []model.SamplePair) []model.SamplePair {
	return slices.DeleteFunc(points, func(p model.SamplePair) bool {
		return math.IsNaN(float64(p.Value)) || math.IsInf(float64(p.Value), 0)
	})
}

// span is the time that the pictures show. from and to are multiples of step.
type span struct {
	from, to     time.Time
	step, scrape time.Duration
}

// mostPoints bounds the points of a line, as the width of a panel does in Grafana.
const mostPoints = 700

func spanOf(from, to string, last, scrape time.Duration, now time.Time) (s span, err error) {
	s.to, s.scrape = now, scrape
	if to != "" {
		if s.to, err = time.Parse(time.RFC3339, to); err != nil {
			return s, fmt.Errorf("--to: %w", err)
		}
	}
	s.from = s.to.Add(-last)
	if from != "" {
		if s.from, err = time.Parse(time.RFC3339, from); err != nil {
			return s, fmt.Errorf("--from: %w", err)
		}
	}
	if !s.from.Before(s.to) || scrape < time.Second {
		return s, fmt.Errorf("the begin %v is not before the end %v, or --scrape-interval %v is below a second", s.from, s.to, scrape)
	}
	s.step = max(scrape, time.Duration(math.Ceil(s.to.Sub(s.from).Seconds()/mostPoints))*time.Second)
	s.from, s.to = s.from.Truncate(s.step), s.to.Truncate(s.step)
	return s, nil
}

// variables are those of the dashboards, and Grafana's own. Like Grafana's, the rate interval has
// four scrapes or more, and a line has each scrape in one of its rates.
func (s span) variables(namespace string) map[string]string {
	seconds := func(d time.Duration) string { return fmt.Sprintf("%ds", int(math.Ceil(d.Seconds()))) }
	return map[string]string{
		"datasource": "prometheus", "namespace": namespace,
		"__interval": seconds(s.step), "__rate_interval": seconds(max(s.step+s.scrape, 4*s.scrape)), "__range": seconds(s.to.Sub(s.from)),
	}
}

var variable = regexp.MustCompile(`\$(\w+)|\$\{(\w+)(?::\w+)?\}`)

// substitute replaces $name, ${name} and ${name:format}.
func substitute(text string, variables map[string]string) (string, error) {
	var err error
	return variable.ReplaceAllStringFunc(text, func(match string) string {
		names := variable.FindStringSubmatch(match)
		value, known := variables[names[1]+names[2]]
		if !known {
			err = fmt.Errorf("the variable %s is unknown", match)
		}
		return value
	}), err
}

var label = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)

// legend replaces {{label}} by its value, and by nothing without one. Without a format the legend
// has all labels, or the expression.
func legend(t target, labels model.Metric) string {
	if t.LegendFormat == "" || t.LegendFormat == "__auto" {
		if len(labels) == 0 {
			return t.Expr
		}
		return labels.String()
	}
	return label.ReplaceAllStringFunc(t.LegendFormat, func(match string) string {
		return string(labels[model.LabelName(label.FindStringSubmatch(match)[1])])
	})
}

// legendWithoutLabels names a query without a result, whose labels are unknown.
func legendWithoutLabels(t target) string {
	if t.LegendFormat == "" || t.LegendFormat == "__auto" {
		return t.Expr
	}
	return label.ReplaceAllString(t.LegendFormat, "{$1}")
}
