package endpoint

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// resources are those that a kubelet uses. Any other one counts as "other".
var resources = map[string]bool{
	"nodes": true, "pods": true, "services": true, "configmaps": true, "secrets": true, "events": true, "leases": true,
	"serviceaccounts": true, "persistentvolumes": true, "persistentvolumeclaims": true, "volumeattachments": true,
	"csinodes": true, "csidrivers": true, "runtimeclasses": true, "resourceslices": true, "resourceclaims": true,
	"certificatesigningrequests": true, "clustertrustbundles": true, "podcertificaterequests": true,
	"tokenreviews": true, "subjectaccessreviews": true, "endpointslices": true, "endpoints": true,
}

// metrics count requests.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	refused  prometheus.Counter
}

func newMetrics() *metrics {
	return &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_agent_endpoint_requests_total",
			Help: "Requests of the kubelet, by verb, resource and code. The code is 0 if the kubelet got no response.",
		}, []string{"verb", "resource", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "trivet_agent_endpoint_request_duration_seconds",
			Help:    "Time until the response of a request began, by verb.",
			Buckets: []float64{0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"verb"}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "trivet_agent_endpoint_refused_total",
			Help: "Requests of callers that are not the node.",
		}),
	}
}

// observe counts a request of the node.
func (m *metrics) observe(r *http.Request, w *recorder) {
	resource, verb := resourceOf(r.URL.Path), verbOf(r)
	m.requests.WithLabelValues(verb, resource, codeOf(w.code)).Inc()
	if w.code != 0 {
		m.duration.WithLabelValues(verb).Observe(w.began.Sub(w.start).Seconds())
	}
}

func codeOf(code int) string {
	if code < 0 || code > 599 {
		return "other"
	}
	return strconv.Itoa(code)
}

// verbOf returns the verb as kube-apiserver names it, without a distinction of get and list.
func verbOf(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		if watch := r.URL.Query().Get("watch"); watch == "true" || watch == "1" {
			return "watch"
		}
		return "get"
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return "other"
}

// resourceOf returns the resource of a path, without subresources.
func resourceOf(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case parts[0] == "api" && len(parts) > 2:
		parts = parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		parts = parts[3:]
	default:
		return "none"
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	if !resources[parts[0]] {
		return "other"
	}
	return parts[0]
}

var (
	upstreamReady = prometheus.NewDesc("trivet_agent_endpoint_upstream_ready",
		"1 if the kube-apiserver is ready, by server.", []string{"server"}, nil)
	upstreamCurrent = prometheus.NewDesc("trivet_agent_endpoint_upstream_current",
		"1 if new requests go to the kube-apiserver, by server.", []string{"server"}, nil)
	passthroughSeconds = prometheus.NewDesc("trivet_agent_endpoint_passthrough_seconds_total",
		"Time in which Lease writes passed to kube-apiserver, because leasesvc did not acknowledge their heartbeats.", nil, nil)
	passthroughActive = prometheus.NewDesc("trivet_agent_endpoint_passthrough",
		"1 while Lease writes pass to kube-apiserver, because leasesvc does not acknowledge their heartbeats.", nil, nil)
	leaseWrites = prometheus.NewDesc("trivet_agent_endpoint_lease_writes_total",
		"Lease writes of the kubelet, by result: beat; passthrough; change for one that changes more than the time; overdue for one that passed because nothing else renewed the Lease.", []string{"result"}, nil)
	leaseConflicts = prometheus.NewDesc("trivet_agent_endpoint_lease_conflicts_total",
		"Conflicts of Lease writes that were repeated with the version of the real Lease.", nil, nil)
	openConnections = prometheus.NewDesc("trivet_agent_endpoint_connections",
		"Open connections, by whether the node has identified itself on them.", []string{"identified"}, nil)
)

// Describe sends the descriptions of the metrics.
func (e *Endpoint) Describe(ch chan<- *prometheus.Desc) {
	e.metrics.requests.Describe(ch)
	e.metrics.duration.Describe(ch)
	e.metrics.refused.Describe(ch)
	for _, d := range []*prometheus.Desc{upstreamReady, upstreamCurrent, passthroughSeconds, passthroughActive, leaseWrites, leaseConflicts, openConnections} {
		ch <- d
	}
}

// Collect sends the metrics.
func (e *Endpoint) Collect(ch chan<- prometheus.Metric) {
	e.metrics.requests.Collect(ch)
	e.metrics.duration.Collect(ch)
	e.metrics.refused.Collect(ch)
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	counter := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, value, labels...)
	}
	for _, u := range e.pool.Snapshot() {
		gauge(upstreamReady, number(u.Ready), u.Address)
		gauge(upstreamCurrent, number(u.Current), u.Address)
	}
	s := e.leases.current()
	total := s.total
	if !s.since.IsZero() {
		total += time.Since(s.since)
	}
	counter(passthroughSeconds, total.Seconds())
	gauge(passthroughActive, number(!s.since.IsZero()))
	counter(leaseWrites, float64(s.beats), "beat")
	counter(leaseWrites, float64(s.passed), "passthrough")
	counter(leaseWrites, float64(s.changes), "change")
	counter(leaseWrites, float64(s.overdue), "overdue")
	counter(leaseConflicts, float64(s.conflicts))
	strangers, nodes := e.conns.count()
	gauge(openConnections, float64(strangers), "false")
	gauge(openConnections, float64(nodes), "true")
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
