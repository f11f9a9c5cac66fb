package endpoint

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// BenchmarkGet_BesideADirectOne sends each GET twice, to kube-apiserver and through the endpoint,
// in turn, so that both meet the same load of the machine. It reports percentiles of both and the
// difference.
func BenchmarkGet_BesideADirectOne(b *testing.B) {
	f := newFixture(b, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("x", 4<<10)) // as a Node
	}))
	proxied, direct := f.kubelet(), directClient(b, f.cluster, f.server.Server)
	get := func(client *http.Client, url string) time.Duration {
		start := time.Now()
		response, err := client.Get(url + "/api/v1/nodes/" + node)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			b.Fatal(err)
		}
		_ = response.Body.Close()
		return time.Since(start)
	}
	for range 50 { // connections and caches
		get(proxied, f.url)
		get(direct, f.server.URL)
	}
	var through, beside []time.Duration
	for b.Loop() {
		through = append(through, get(proxied, f.url))
		beside = append(beside, get(direct, f.server.URL))
	}
	b.ReportMetric(0, "ns/op")
	for _, p := range []struct {
		name string
		rank float64
	}{{"p50", 0.5}, {"p99", 0.99}} {
		t, d := percentile(through, p.rank), percentile(beside, p.rank)
		b.ReportMetric(d, "direct-"+p.name+"-ms")
		b.ReportMetric(t, "proxied-"+p.name+"-ms")
		b.ReportMetric(t-d, "added-"+p.name+"-ms")
	}
}

func percentile(samples []time.Duration, rank float64) float64 {
	slices.Sort(samples)
	return float64(samples[int(rank*float64(len(samples)-1))]) / float64(time.Millisecond)
}
