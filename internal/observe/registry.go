package observe

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/trivet-dev/trivet/internal/identity"
)

// NewRegistry returns a registry with the metrics of every process: Go runtime, operating system,
// and trivet_build_info.
func NewRegistry() *prometheus.Registry {
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "trivet_build_info",
		Help:        "Always 1; the label tells the version of the build.",
		ConstLabels: prometheus.Labels{"version": identity.Version()},
	})
	build.Set(1)
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		build,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return registry
}
