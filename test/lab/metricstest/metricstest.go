// Package metricstest lists the metrics of a registry, checks their names and labels, and holds the
// generated docs/metrics.md.
package metricstest

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// Metric is one name that a program exposes. Labels have the values that were seen.
type Metric struct {
	Name, Type, Help string
	Labels           map[string][]string
}

// description is the text of a prometheus.Desc, whose fields are not exported.
var (
	description = regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: "((?:[^"\\]|\\.)*)", unit: "[^"]*", constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	constLabel  = regexp.MustCompile(`([a-zA-Z_]\w*)="`)
)

// List returns every metric of a registry by name, also one without a series yet. The Go runtime
// and the operating system decide about go_* and process_*, so these are left out.
func List(t testing.TB, registry *prometheus.Registry) map[string]Metric {
	t.Helper()
	types := vectors(reflect.ValueOf(registry).Elem().FieldByName("collectorsByID"), map[string]string{}, 8)
	if len(types) == 0 {
		t.Fatal("the registry shows no vector: client_golang has changed")
	}
	found := map[string]Metric{}
	for _, text := range describe(registry) {
		parts := description.FindStringSubmatch(text)
		if parts == nil {
			t.Fatalf("cannot read %s", text)
		}
		name, metric := parts[1], Metric{Name: parts[1], Help: strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(parts[2]), Type: types[parts[1]]}
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		metric.Labels = map[string][]string{}
		if known, again := found[name]; again { // series that differ in constant labels
			metric.Labels = known.Labels
		}
		for _, label := range constLabel.FindAllStringSubmatch(parts[3], -1) {
			if _, known := metric.Labels[label[1]]; !known {
				metric.Labels[label[1]] = nil
			}
		}
		if parts[4] != "" {
			for label := range strings.SplitSeq(parts[4], ",") {
				metric.Labels[strings.TrimSpace(label)] = nil
			}
		}
		found[name] = metric
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		metric, described := found[family.GetName()]
		if !described {
			continue
		}
		metric.Type = strings.ToLower(family.GetType().String())
		for _, series := range family.GetMetric() {
			for _, label := range series.GetLabel() {
				metric.see(label.GetName(), label.GetValue())
			}
		}
		found[family.GetName()] = metric
	}
	for name, metric := range found {
		if metric.Type == "" { // a collector without a series, whose values are constant metrics
			metric.Type = map[bool]string{true: "counter", false: "gauge"}[strings.HasSuffix(name, "_total")]
			found[name] = metric
		}
	}
	return found
}

func (m Metric) see(label, value string) {
	if values := m.Labels[label]; !slices.Contains(values, value) {
		m.Labels[label] = append(values, value)
	}
}

func describe(registry *prometheus.Registry) (texts []string) {
	descs := make(chan *prometheus.Desc)
	go func() {
		registry.Describe(descs)
		close(descs)
	}()
	for desc := range descs {
		texts = append(texts, desc.String())
	}
	return texts
}

// vectors finds the types of vectors below a value: a vector without a series is in no result of
// Gather, and its description has no type.
func vectors(value reflect.Value, types map[string]string, depth int) map[string]string {
	if depth == 0 || !value.IsValid() {
		return types
	}
	switch value.Kind() {
	case reflect.Map:
		for _, key := range value.MapKeys() {
			vectors(value.MapIndex(key), types, depth-1)
		}
	case reflect.Interface, reflect.Pointer:
		if value.IsNil() {
			return types
		}
		if value.Kind() == reflect.Pointer {
			if kind, isVector := vectorTypes[value.Type()]; isVector {
				types[nameOf(value)] = kind
				return types
			}
		}
		vectors(value.Elem(), types, depth-1)
	case reflect.Struct:
		for i := range value.NumField() {
			vectors(value.Field(i), types, depth-1)
		}
	}
	return types
}

var vectorTypes = map[reflect.Type]string{
	reflect.TypeFor[*prometheus.CounterVec]():   "counter",
	reflect.TypeFor[*prometheus.GaugeVec]():     "gauge",
	reflect.TypeFor[*prometheus.HistogramVec](): "histogram",
}

// nameOf reads a vector behind a field that is not exported.
func nameOf(vector reflect.Value) string {
	descs := make(chan *prometheus.Desc, 1)
	if collector, ok := reflect.NewAt(vector.Type().Elem(), unsafe.Pointer(vector.Pointer())).Interface().(prometheus.Collector); ok {
		collector.Describe(descs)
	}
	return description.FindStringSubmatch((<-descs).String())[1]
}

// Row is the line of a metric in docs/metrics.md.
func (m Metric) Row() string {
	labels := make([]string, 0, len(m.Labels))
	for _, label := range slices.Sorted(maps.Keys(m.Labels)) {
		labels = append(labels, "`"+label+"`")
	}
	return fmt.Sprintf("| `%s` | %s | %s | %d | %s |\n", m.Name, m.Type, strings.Join(labels, ", "), Series(m), strings.NewReplacer("|", `\|`, "\n", " ").Replace(m.Help))
}

// Table renders metrics in the order of their names.
func Table(metrics map[string]Metric) string {
	var text strings.Builder
	text.WriteString("\n| metric | type | labels | most series | meaning |\n|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		text.WriteString(metrics[name].Row())
	}
	return text.String()
}

// CheckSection compares a section of the file with its text, or writes it.
func CheckSection(t testing.TB, path, title, text string, update bool) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head := "\n## " + title + "\n"
	before, rest, found := strings.Cut(string(content), head)
	if !found {
		t.Fatalf("%s has no section %s", path, title)
	}
	body, after := rest, ""
	if end := strings.Index(rest, "\n## "); end >= 0 {
		body, after = rest[:end], rest[end:]
	}
	if update {
		if err := os.WriteFile(path, []byte(before+head+text+after), 0o644); err != nil {
			t.Fatal(err)
		}
		body = text
	}
	if diff := cmp.Diff(text, body); diff != "" {
		t.Errorf("section %s of metrics.md is out of date; run make metrics (-code +file):\n%s", title, diff)
	}
}
