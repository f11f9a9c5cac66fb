package nodeagent

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// addChecks adds what /readyz names: kubelet, leasesvc, and kube-apiserver if there is a
// kubeconfig.
func (n *node) addChecks() {
	n.ready.AddWithDetail("kubelet", n.checkKubelet, func() string {
		return "last seen " + ago(n.prober.Status().LastSeen)
	})
	n.ready.AddWithDetail("leasesvc", n.beats.check, n.beats.detail)
	if n.cfg.Kubeconfig != "" {
		n.ready.AddWithDetail("kube-apiserver", n.apiservers.check, n.apiservers.detail)
	}
}

// checkKubelet fails after several probes in a row.
func (n *node) checkKubelet() error {
	status := n.prober.Status()
	switch {
	case status.LastSeen.IsZero() && status.Err == nil:
		return errors.New("not probed yet")
	case status.Err == nil || time.Since(status.LastSeen) < silentAfter*n.cfg.Kubelet.Interval:
		return nil
	}
	return fmt.Errorf("last seen %s: %w; check that the kubelet runs and serves --kubelet-healthz", ago(status.LastSeen), status.Err)
}

func ago(at time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return time.Since(at).Round(time.Millisecond).String() + " ago"
}

// addMetrics adds the metrics of the parts that exist from the start.
func (n *node) addMetrics() error {
	gauge := func(name, help string, value func() float64) error {
		return n.registry.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "trivet_agent_" + name, Help: help}, value))
	}
	probes := func(result string, value func() uint64) error {
		return n.registry.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "trivet_agent_kubelet_probes_total", Help: "Probes of the kubelet's health check by result: answered or failed.",
			ConstLabels: prometheus.Labels{"result": result},
		}, func() float64 { return float64(value()) }))
	}
	return errors.Join(
		gauge("kubelet_probed_timestamp_seconds", "When the kubelet last answered its health check, in seconds since 1970; 0 if it never did.", func() float64 {
			if at := n.prober.Status().LastSeen; !at.IsZero() {
				return float64(at.UnixMilli()) / 1000
			}
			return 0
		}),
		gauge("replicas", "Replicas of leasesvc that are known.", func() float64 { return float64(len(n.finder.Status().Addresses)) }),
		gauge("replicas_found_timestamp_seconds", "When the list of the replicas was last confirmed, in seconds since 1970; 0 for the list of a former run.", func() float64 {
			if at := n.finder.Status().FoundTime; !at.IsZero() {
				return float64(at.UnixMilli()) / 1000
			}
			return 0
		}),
		probes("answered", func() uint64 { return n.prober.Status().Answered }),
		probes("failed", func() uint64 { return n.prober.Status().Failed }),
	)
}
