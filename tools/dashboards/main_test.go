package main

import (
	"context"
	"image"
	"image/color"
	"image/png"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"gonum.org/v1/plot/plotter"
)

func TestSubstitute_ReplacesEachForm(t *testing.T) {
	variables := map[string]string{"namespace": "demo", "__rate_interval": "4s"}
	got, err := substitute(`rate(a{namespace="$namespace",b=~"${namespace:regex}|x$"}[$__rate_interval]) + c{n="${namespace}"}`, variables)
	if want := `rate(a{namespace="demo",b=~"demo|x$"}[4s]) + c{n="demo"}`; err != nil || got != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	if _, err := substitute(`a{pod="$pod"}`, variables); err == nil || !strings.Contains(err.Error(), "$pod") {
		t.Errorf("an unknown variable: %v", err)
	}
}

func TestSpan_VariablesFitTheScrapeInterval(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	for _, test := range []struct {
		last, scrape, step  time.Duration
		interval, rate, all string
	}{
		{10 * time.Minute, time.Second, time.Second, "1s", "4s", "600s"},
		{time.Hour, 15 * time.Second, 15 * time.Second, "15s", "60s", "3600s"},
		{24 * time.Hour, 15 * time.Second, 124 * time.Second, "124s", "139s", "86304s"},
	} {
		s, err := spanOf("", "", test.last, test.scrape, now)
		if err != nil {
			t.Fatal(err)
		}
		got := s.variables("")
		if s.step != test.step || got["__interval"] != test.interval || got["__rate_interval"] != test.rate || got["__range"] != test.all {
			t.Errorf("%v: step %v, variables %v; want %+v", test.last, s.step, got, test)
		}
	}
	if _, err := spanOf("2026-01-02T03:05:00Z", "2026-01-02T03:04:00Z", 0, time.Second, now); err == nil {
		t.Error("the begin may be after the end")
	}
}

func TestLegend_HasTheLabels(t *testing.T) {
	labels := model.Metric{"job": "leasesvc", "reason": "expired"}
	for _, test := range []struct {
		format string
		labels model.Metric
		want   string
	}{
		{"{{job}}: lost, {{ reason }}", labels, "leasesvc: lost, expired"},
		{"{{job}}{{pod}}!", labels, "leasesvc!"},
		{"", labels, `{job="leasesvc", reason="expired"}`},
		{"__auto", nil, "sum(a)"},
	} {
		if got := legend(target{Expr: "sum(a)", LegendFormat: test.format}, test.labels); got != test.want {
			t.Errorf("%q: %q, want %q", test.format, got, test.want)
		}
	}
	if got := legendWithoutLabels(target{LegendFormat: "{{job}}: lost"}); got != "{job}: lost" {
		t.Errorf("without data: %q", got)
	}
}

func TestLayout_PanelsDoNotOverlapAndLegendsFit(t *testing.T) {
	left, right, below := gridPos{0, 0, 12, 8}.place(), gridPos{12, 0, 12, 8}.place(), gridPos{0, 8, 24, 4}.place()
	if left.Max.X != right.Min.X-gap || right.Max.X != width-gap || below.Max.X != width-gap || below.Min.Y != left.Max.Y+gap {
		t.Errorf("the panels are at %v, %v, %v", left, right, below)
	}
	rows, hidden := legendRows([]float64{40, 50, 20, 90, 10}, 100)
	if !slices.EqualFunc(rows, [][]int{{0, 1}, {2}, {3, 4}}, slices.Equal) || hidden != 0 {
		t.Errorf("the rows are %v, and %d entries are hidden", rows, hidden)
	}
	if rows, hidden = legendRows(slices.Repeat([]float64{80}, mostRows+3), 100); len(rows) != mostRows || hidden != 3 {
		t.Errorf("the rows are %v, and %d entries are hidden", rows, hidden)
	}
}

func TestUnits_FitTheLargestValue(t *testing.T) {
	for _, test := range []struct {
		unit    string
		high    float64
		divisor float64
		suffix  string
	}{
		{"s", 0.005, 1e-3, " ms"}, {"s", 90 * 86400, 86400, " days"}, {"s", 1, 1e-3, " ms"}, {"s", 0, 1e-6, " µs"},
		{"short", 8, 1, ""}, {"short", 65536, 1e3, " K"}, {"ops", 0.1, 1, " ops/s"}, {"percentunit", 1, 0.01, " %"},
	} {
		if divisor, suffix, err := unitOf(test.unit, test.high); err != nil || divisor != test.divisor || suffix != test.suffix {
			t.Errorf("%v of unit %s: %v, %q, %v; want %+v", test.high, test.unit, divisor, suffix, err, test)
		}
	}
	if _, _, err := unitOf("furlongs", 1); err == nil {
		t.Error("an unknown unit is accepted")
	}
}

func TestValueTicks_AreShortNumbersWithTheUnit(t *testing.T) {
	var labels []string
	for _, tick := range valueTicks(1e-3, " ms")(0, 0.00525) {
		if tick.Label != "" {
			labels = append(labels, tick.Label)
		}
	}
	if want := []string{"0 ms", "2.5 ms", "5 ms"}; !slices.Equal(labels, want) {
		t.Errorf("the labels are %q, want %q", labels, want)
	}
}

func TestLines_BreakWhereSamplesAreMissing(t *testing.T) {
	points := finite([]model.SamplePair{{Timestamp: 1000, Value: 1}, {Timestamp: 2000, Value: 2}, {Timestamp: 3000, Value: model.SampleValue(math.NaN())}, {Timestamp: 5000, Value: 5}})
	want := []plotter.XYs{{{X: 1, Y: 1}, {X: 2, Y: 2}}, {{X: 5, Y: 5}, {X: 6, Y: 5}}}
	if got := unbroken(points, time.Second); !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("the lines are %v, want %v", got, want)
	}
}

// server is a Prometheus that answers each query with one series, unless its expression is "fails",
// "nan" or "absent".
func server(t *testing.T) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch answer, query := `{"status":"success","data":{"resultType":"matrix","result":[`, r.FormValue("query"); query {
		case "fails":
			http.Error(w, `{"status":"error","errorType":"execution","error":"out of memory"}`, http.StatusUnprocessableEntity)
		case "nan":
			_, _ = w.Write([]byte(answer + `{"metric":{"job":"a"},"values":[[` + r.FormValue("start") + `,"NaN"]]}]}}`))
		case "absent":
			_, _ = w.Write([]byte(answer + `]}}`))
		default:
			_, _ = w.Write([]byte(answer + `{"metric":{"job":"a"},"values":[[` + r.FormValue("start") + `,"1"],[` + r.FormValue("end") + `,"3"]]}]}}`))
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func TestQuery_SaysWhatHasNoData(t *testing.T) {
	client, err := api.NewClient(api.Config{Address: server(t).URL})
	if err != nil {
		t.Fatal(err)
	}
	shown, err := spanOf("", "", time.Second, time.Second, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	p := panel{Targets: []target{{Expr: "present", LegendFormat: "{{job}}"}, {Expr: "nan", LegendFormat: "{{job}}"}, {Expr: "absent", LegendFormat: "{{job}}"}}}
	if err := p.query(context.Background(), prometheus.NewAPI(client), shown, nil); err != nil {
		t.Fatal(err)
	}
	var legends []string
	for _, s := range p.series {
		legends = append(legends, s.legend)
	}
	if want := []string{"a", "a (no data)", "{job} (no data)"}; !slices.Equal(legends, want) {
		t.Errorf("the legends are %q, want %q", legends, want)
	}
}

func write(t *testing.T, expression string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "small.json")
	text := `{"title": "Small", "panels": [{"type": "timeseries", "title": "Is it there?", "gridPos": {"x": 0, "y": 0, "w": 24, "h": 8},
		"fieldConfig": {"defaults": {"unit": "short", "min": 0,
			"thresholds": {"steps": [{"color": "green", "value": null}, {"color": "red", "value": 2}]}, "custom": {"thresholdsStyle": {"mode": "dashed"}}}},
		"targets": [{"refId": "A", "expr": "` + expression + `", "legendFormat": "{{job}}"}]}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRun_DrawsLinesAndThresholds(t *testing.T) {
	shown, err := spanOf("", "", time.Second, time.Second, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]map[color.Color]bool{}
	for _, expression := range []string{"present", "absent"} {
		out := t.TempDir()
		if err := run(context.Background(), server(t).URL, "", out, shown, []string{write(t, expression)}); err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(filepath.Join(out, "dashboard-small.png"))
		if err != nil {
			t.Fatal(err)
		}
		picture, err := png.Decode(file)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		if want := image.Rect(0, 0, width, header+8*gridRow); picture.Bounds() != want {
			t.Errorf("the picture is %v, want %v", picture.Bounds(), want)
		}
		has[expression] = map[color.Color]bool{}
		area := gridPos{0, 0, 24, 8}.place()
		for x := area.Min.X; x < area.Max.X; x++ {
			for y := area.Min.Y; y < area.Max.Y-40; y++ { // without the legend
				has[expression][color.NRGBAModel.Convert(picture.At(x, y))] = true
			}
		}
	}
	if !has["present"][palette[0]] || !has["present"][levels["red"]] {
		t.Error("the panel has no line or no threshold")
	}
	if has["absent"][palette[0]] {
		t.Error("the panel without data has a line")
	}
}

func TestRun_AQueryThatFailsIsNamed(t *testing.T) {
	shown, err := spanOf("", "", time.Minute, time.Second, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	err = run(context.Background(), server(t).URL, "", out, shown, []string{write(t, "fails")})
	if err == nil || !strings.Contains(err.Error(), `panel "Is it there?": query A, fails: `) || !strings.Contains(err.Error(), "out of memory") {
		t.Errorf("the error is %v", err)
	}
	if left, err := os.ReadDir(out); err != nil || len(left) > 0 {
		t.Errorf("the folder has %v, %v", left, err)
	}
}
