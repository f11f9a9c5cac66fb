package review

import (
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts the reviews of all caches of a process.
type Metrics struct {
	reviews *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	hits    *prometheus.CounterVec
	stale   *prometheus.CounterVec
	sizes   *sizes
}

// sizes is a collector of how many answers each cache keeps. It is safe for concurrent use.
type sizes struct {
	kept *prometheus.Desc

	mu sync.Mutex // guards of
	of map[string]func() (allowed, denied int)
}

// add adds the cache of a kind, or replaces it.
func (s *sizes) add(kind string, count func() (allowed, denied int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[kind] = count
}

// Describe implements prometheus.Collector.
func (s *sizes) Describe(into chan<- *prometheus.Desc) { into <- s.kept }

// Collect implements prometheus.Collector.
func (s *sizes) Collect(into chan<- prometheus.Metric) {
	s.mu.Lock()
	all := maps.Clone(s.of)
	s.mu.Unlock()
	for kind, count := range all {
		allowed, denied := count()
		into <- prometheus.MustNewConstMetric(s.kept, prometheus.GaugeValue, float64(allowed), kind, "allowed")
		into <- prometheus.MustNewConstMetric(s.kept, prometheus.GaugeValue, float64(denied), kind, "denied")
	}
}

// NewMetrics registers the collectors with into unless it is nil.
func NewMetrics(into prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		reviews: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_access_reviews_total",
			Help: "Reviews by the kube-apiserver, by kind (token, access) and result (allowed, denied, error).",
		}, []string{"kind", "result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "trivet_access_review_duration_seconds", Help: "Time of a review by the kube-apiserver.",
			Buckets: []float64{0.002, 0.01, 0.05, 0.25, 1, 5, 30},
		}, []string{"kind"}),
		hits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_access_review_cache_hits_total",
			Help: "Questions that were answered from memory, without a review.",
		}, []string{"kind"}),
		stale: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_access_review_stale_answers_total",
			Help: "Answers older than 10 seconds that were used because the kube-apiserver did not answer.",
		}, []string{"kind"}),
		sizes: &sizes{of: map[string]func() (int, int){}, kept: prometheus.NewDesc("trivet_access_review_answers",
			"Answers of the kube-apiserver that are kept, by kind (token, access) and result (allowed, denied).", []string{"kind", "result"}, nil)},
	}
	if into == nil {
		return m, nil
	}
	for _, collector := range []prometheus.Collector{m.reviews, m.seconds, m.hits, m.stale, m.sizes} {
		if err := into.Register(collector); err != nil {
			return nil, fmt.Errorf("register the metrics of reviews: %w", err)
		}
	}
	return m, nil
}

// kindMetrics are the metrics of one kind.
type kindMetrics struct {
	allowed, denied, failed, hits, stale prometheus.Counter
	seconds                              prometheus.Observer
}

func (m *Metrics) of(kind string) *kindMetrics {
	return &kindMetrics{
		allowed: m.reviews.WithLabelValues(kind, "allowed"), denied: m.reviews.WithLabelValues(kind, "denied"),
		failed: m.reviews.WithLabelValues(kind, "error"), seconds: m.seconds.WithLabelValues(kind),
		hits: m.hits.WithLabelValues(kind), stale: m.stale.WithLabelValues(kind),
	}
}

func (m *kindMetrics) reviewed(positive bool, err error, took time.Duration) {
	m.seconds.Observe(took.Seconds())
	switch {
	case err != nil:
		m.failed.Inc()
	case positive:
		m.allowed.Inc()
	default:
		m.denied.Inc()
	}
}
