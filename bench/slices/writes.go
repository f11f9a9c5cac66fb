package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// written returns the number of successful write requests for slices since the start of the
// cluster, by kube-apiserver's metrics. It includes writes without a change.
func (a *worldRun) written(ctx context.Context) (int, error) {
	text, err := a.kube.DiscoveryV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	return countWrites(string(text))
}

// countWrites adds up the successful writes of slices in Prometheus' text format.
func countWrites(metrics string) (int, error) {
	sum := 0
	for line := range strings.Lines(metrics) {
		labels, sample, ok := strings.Cut(strings.TrimSpace(line), "} ")
		if !ok || !strings.HasPrefix(labels, "apiserver_request_total{") || !isWrite(labels) {
			continue
		}
		value, err := strconv.ParseFloat(sample, 64)
		if err != nil {
			return 0, fmt.Errorf("sample %q: %w", line, err)
		}
		sum += int(value)
	}
	return sum, nil
}

func isWrite(labels string) bool {
	if !strings.Contains(labels, `resource="endpointslices"`) || !strings.Contains(labels, `code="2`) {
		return false
	}
	for _, verb := range []string{"POST", "PUT", "PATCH", "APPLY", "DELETE"} {
		if strings.Contains(labels, `verb="`+verb+`"`) {
			return true
		}
	}
	return false
}
