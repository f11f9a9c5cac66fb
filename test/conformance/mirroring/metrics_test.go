package mirroring

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const metricsPrefix = "endpoint_slice_mirroring_controller_"

// runMetrics compares the metrics of both controllers after each step. Of a histogram it compares
// the bounds of the buckets, and the sum if a second sync adds nothing to it: how many syncs there
// are is each controller's own matter.
func runMetrics(s *script) {
	listening := map[string]int{}
	step := func(name string, do func(*scene)) {
		s.step(name, do)
		s.compareMetrics(name, listening)
	}
	step("made", func(s *scene) {
		listening[s.name] = freePort(s.t)
		s.start(s.t, setup{metrics: listening[s.name]})
		s.mirror("web", subset(http80, addresses("10.1.0.1", "10.1.0.2", "fd00::1")))
		s.mirror("two", subset(http80, addresses("10.1.0.1")), subset(ports("dns", 53), addresses("10.1.0.1", "10.1.0.2")))
		s.mirror("many", subset(http80, many(1, 1001)))
	})
	step("address more and less", func(s *scene) {
		s.resubset("web", subset(http80, addresses("10.1.0.1", "10.1.0.3", "10.1.0.4"), address("fd00::1")))
	})
	step("other ports", func(s *scene) { s.resubset("web", subset(ports("http", 81), addresses("10.1.0.1"))) })
	step("port set goes", func(s *scene) { s.resubset("two", subset(http80, addresses("10.1.0.1"))) })
	step("deleted", func(s *scene) { s.deleteEndpoints("web") })
}

func (s *script) compareMetrics(step string, listening map[string]int) {
	s.t.Helper()
	var seen []map[string]string
	for _, on := range s.sides {
		seen = append(seen, scrape(s.t, on, listening[on.name]))
	}
	s.t.Logf("%s: metrics of %s: %v", step, s.sides[0].name, seen[0])
	if len(seen) < 2 {
		return
	}
	var differences []difference
	for _, name := range sortedKeys(seen[0], seen[1]) {
		if u, o := seen[0][name], seen[1][name]; u != o {
			differences = append(differences, difference{step: step, field: name, upstream: u, ours: o})
		}
	}
	j := judge(differences, s.scenario.allowances)
	maps.Copy(s.used, j.used)
	s.t.Log(strings.Join(j.explained, "\n"))
	for _, d := range j.unexplained {
		s.t.Error(d)
	}
}

// scrape returns the values and the types of the controller's metrics.
func scrape(t *testing.T, on *side, port int) map[string]string {
	t.Helper()
	scheme := "https"
	if on.name == ours {
		scheme = "http"
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	var text string
	testkit.Eventually(t, patience, func() error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("%s://127.0.0.1:%d/metrics", scheme, port), nil)
		if err != nil {
			return err
		}
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		text = string(body)
		if err == nil && answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", on.name, answer.Status)
		}
		return err
	})
	return metricsIn(text)
}

// metricsIn reads the text format: the type of each metric, and the value of each series but for
// counts and durations.
func metricsIn(text string) map[string]string {
	found, bounds := map[string]string{}, map[string][]string{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		if kind, ok := strings.CutPrefix(line, "# TYPE "+metricsPrefix); ok {
			name, of, _ := strings.Cut(kind, " ")
			found["type of "+name] = of
			continue
		}
		series, ok := strings.CutPrefix(line, metricsPrefix)
		if !ok {
			continue
		}
		name, value, _ := strings.Cut(series, " ")
		if of, bound, isBucket := strings.Cut(name, "_bucket{"); isBucket {
			bounds[of] = append(bounds[of], strings.TrimSuffix(bound, "}"))
			continue
		}
		skipped := strings.HasSuffix(name, "_count") || strings.HasPrefix(name, "endpoints_sync_duration") || strings.HasPrefix(name, "addresses_skipped")
		if !skipped && value != "0" { // upstream has no series before the first value
			found[name] = value
		}
	}
	for of, all := range bounds {
		slices.Sort(all)
		found["buckets of "+of] = strings.Join(all, " ")
	}
	return found
}

// freePort returns a port of loopback that is free now.
func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}
