package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/trivet-dev/trivet/test/lab/server"
)

// sessionsOf returns the number of a replica's sessions in a state.
func sessionsOf(ctx context.Context, server *server.Server, state string) (int, error) {
	text, err := fetch(ctx, "http://"+server.Admin+"/metrics")
	if err != nil {
		return 0, err
	}
	n, err := sumOf(text, "trivet_lease_sessions", fmt.Sprintf("state=%q", state))
	return int(n), err
}

func fetch(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", url, reply.Status)
	}
	return string(body), err
}

// sumOf adds up the samples of a metric in Prometheus' text format whose labels contain all given
// texts. It returns an error if there is none, because the name is wrong or has changed.
func sumOf(metrics, name string, labelled ...string) (float64, error) {
	sum, found := 0.0, false
	for line := range strings.Lines(metrics) {
		labels, sample, ok := strings.Cut(strings.TrimSpace(line), "} ")
		if !ok || !strings.HasPrefix(labels, name+"{") || !containsAll(labels, labelled) {
			continue
		}
		value, err := strconv.ParseFloat(sample, 64)
		if err != nil {
			return 0, fmt.Errorf("sample %q: %w", line, err)
		}
		sum, found = sum+value, true
	}
	if !found {
		return 0, fmt.Errorf("no metric %s with %q", name, labelled)
	}
	return sum, nil
}

func containsAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}
