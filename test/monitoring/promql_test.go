package monitoring_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/trivet-dev/trivet/test/lab/metricstest"
)

var (
	// tokens are what an expression consists of, as far as names matter: strings, ranges, variables
	// of Grafana, names, selectors.
	token    = regexp.MustCompile(`"[^"]*"|\[[^\]]*\]|\$\w+|[a-zA-Z_:][a-zA-Z0-9_:]*|[{}(),]|[0-9.]+[a-z]*|[^\s\w]`)
	matcher  = regexp.MustCompile(`(\w+)(=~|!~|!=|=)"([^"]*)"`)
	keywords = []string{"and", "or", "unless", "on", "ignoring", "bool", "offset", "group_left", "group_right"}
	// targetLabels come from the scrape and not from the process.
	targetLabels = []string{"job", "namespace", "pod", "instance"}
)

// selector is a metric with the matchers of its labels.
type selector struct {
	metric   string
	matchers [][3]string // label, operator, value
}

// parse returns the selectors of an expression and the labels that it groups by. promtool checks
// the syntax.
func parse(expression string) (selectors []selector, grouped []string) {
	found := token.FindAllString(expression, -1)
	for i := 0; i < len(found); i++ {
		next := func() string {
			if i+1 < len(found) {
				return found[i+1]
			}
			return ""
		}
		switch word := found[i]; {
		case word == "by" || word == "without":
			for i += 2; i < len(found) && found[i] != ")"; i++ {
				if found[i] != "," {
					grouped = append(grouped, found[i])
				}
			}
		case !regexp.MustCompile(`^[a-zA-Z_:]`).MatchString(word), slices.Contains(keywords, word), next() == "(", next() == "by", next() == "without":
		default:
			s := selector{metric: word}
			if next() == "{" {
				var inside strings.Builder
				for i += 2; i < len(found) && found[i] != "}"; i++ {
					inside.WriteString(found[i])
				}
				for _, m := range matcher.FindAllStringSubmatch(inside.String(), -1) {
					s.matchers = append(s.matchers, [3]string{m[1], m[2], m[3]})
				}
			}
			selectors = append(selectors, s)
		}
	}
	return selectors, grouped
}

func groupings(expression string) []string {
	_, grouped := parse(expression)
	return grouped
}

// problems names each metric, label and value of an expression that no program exposes.
func problems(expression string, metrics map[string]metricstest.Metric) (found []string) {
	selectors, grouped := parse(expression)
	if len(selectors) == 0 {
		return []string{"has no selector: " + expression}
	}
	known := slices.Clone(targetLabels)
	for _, s := range selectors {
		m, exists := series(s.metric, metrics)
		if !exists {
			return append(found, s.metric+" does not exist, or is a histogram")
		}
		for label := range m.Labels {
			known = append(known, label)
		}
		if m.Type == "histogram" && strings.HasSuffix(s.metric, "_bucket") {
			known = append(known, "le")
		}
		found = append(found, wrongMatchers(s, m)...)
	}
	for _, label := range grouped {
		if !slices.Contains(known, label) {
			found = append(found, "groups by "+label+", which no metric has")
		}
	}
	return found
}

func wrongMatchers(s selector, m metricstest.Metric) (found []string) {
	for _, match := range s.matchers {
		if slices.Contains(targetLabels, match[0]) {
			continue
		}
		if _, has := m.Labels[match[0]]; !has {
			found = append(found, fmt.Sprintf("%s has no label %s", s.metric, match[0]))
			continue
		}
		for value := range strings.SplitSeq(match[2], "|") {
			if !metricstest.HasValue(m.Name, match[0], value) {
				found = append(found, fmt.Sprintf("%s never has %s=%q", s.metric, match[0], value))
			}
		}
	}
	return found
}

// series returns the metric of a series: a histogram has three kinds of them, and none of its name.
func series(name string, metrics map[string]metricstest.Metric) (metricstest.Metric, bool) {
	if m, exists := metrics[name]; exists {
		return m, m.Type != "histogram"
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if m, exists := metrics[strings.TrimSuffix(name, suffix)]; exists && strings.HasSuffix(name, suffix) && m.Type == "histogram" {
			return m, true
		}
	}
	return metricstest.Metric{}, false
}
