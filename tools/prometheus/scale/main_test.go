package main

import (
	"strings"
	"testing"
)

func TestScale_DividesRangesAndForOnly(t *testing.T) {
	const rules = `groups:
- name: g
  rules:
  - alert: A
    expr: 'sum by (job) (rate(x_total{code=~"5m|10m"}[5m])) > 0.1 unless max_over_time(y[1h:10m] offset 20m) > 600'
    for: 15m
    labels: {severity: page}
    annotations: {summary: 'for 5m: {{ $value }}'}
  - alert: B
    expr: 'min(z) - time() < 7 * 86400'
    for: 0m
`
	scaled, err := scale([]byte(rules), 20)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`rate(x_total{code=~"5m|10m"}[15s])`, "> 0.1", "max_over_time(y[3m:30s] offset 1m) > 600", "for: 45s",
		"severity: page", "for 5m: {{ $value }}", "min(z) - time() < 7 * 86400",
	} {
		if !strings.Contains(string(scaled), want) {
			t.Errorf("the scaled rules lack %q:\n%s", want, scaled)
		}
	}
	if _, err := scale([]byte("groups: [{name: g, rules: [{alert: A, expr: 'x['}]}]"), 20); err == nil {
		t.Error("a wrong expression was accepted")
	}
}
