// Package slicewrites counts the writes of EndpointSlices by the metrics of kube-apiserver.
package slicewrites

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/client-go/kubernetes"
)

// Count returns the number of successful write requests for slices since the start of
// kube-apiserver. It includes writes without a change.
func Count(ctx context.Context, kube kubernetes.Interface) (int, error) {
	text, err := kube.DiscoveryV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	return count(string(text))
}

// count adds up the successful writes of slices in Prometheus' text format.
func count(metrics string) (int, error) {
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
