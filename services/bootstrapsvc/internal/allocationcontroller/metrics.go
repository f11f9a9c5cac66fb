package allocationcontroller

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/errorclass"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// Telemetry implements Reporter with Events and metrics. It is safe for concurrent use, and its
// methods never block. Events that cannot be sent are lost.
type Telemetry struct {
	kube kubernetes.Interface
	// recorders is nil outside of a term.
	recorders atomic.Pointer[recorders]

	portErrors, addressErrors     *prometheus.CounterVec
	portFailures, addressFailures prometheus.Counter
	findings, allocated, capacity *prometheus.GaugeVec
	steps                         *prometheus.CounterVec
	duration                      prometheus.Histogram
}

var _ Reporter = (*Telemetry)(nil)

// NewTelemetry returns a Telemetry that sends Events by kube and registers its metrics. A nil kube
// sends no Events; a nil registerer registers nothing.
func NewTelemetry(kube kubernetes.Interface, registerer prometheus.Registerer) (*Telemetry, error) {
	t := &Telemetry{
		kube: kube,
		portErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_nodeport_repair_port_errors_total",
			Help: "Findings about node ports, by type (leak, repair, full, outOfRange, duplicate, unknown).",
		}, []string{"type"}),
		addressErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_clusterip_repair_ip_errors_total",
			Help: "Findings about ClusterIPs, by type (leak, repair, full, outOfRange, duplicate, unknown, invalid).",
		}, []string{"type"}),
		portFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "apiserver_nodeport_repair_reconcile_errors_total",
			Help: "Passes over node ports that failed.",
		}),
		addressFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "apiserver_clusterip_repair_reconcile_errors_total",
			Help: "Passes over ClusterIPs that failed.",
		}),
		findings: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "trivet_bootstrap_allocation_findings",
			Help: "Open findings about allocations, by store and code; absent on a replica that does not lead.",
		}, []string{"store", "code"}),
		allocated: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "trivet_bootstrap_allocated",
			Help: "Allocated addresses or ports, by store; absent on a replica that does not lead.",
		}, []string{"store"}),
		capacity: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "trivet_bootstrap_allocation_capacity",
			Help: "Addresses or ports of the ranges, by store; absent on a replica that does not lead.",
		}, []string{"store"}),
		steps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_bootstrap_repair_steps_total",
			Help: "Steps of repairs, by verb (create, relabel, delete, set, clear) and result (done, unneeded, failed).",
		}, []string{"verb", "result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "trivet_bootstrap_audit_seconds", Buckets: prometheus.ExponentialBuckets(0.000_01, 4, 10),
			Help: "Duration of a comparison of what is used with what is allocated, in seconds.",
		}),
	}
	t.createSeries()
	if registerer == nil {
		return t, nil
	}
	for _, collector := range []prometheus.Collector{
		t.portErrors, t.addressErrors, t.portFailures, t.addressFailures, t.findings, t.allocated, t.capacity, t.steps, t.duration,
	} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return t, nil
}

// createSeries creates all series with the value 0, so that an alert sees the first increase.
func (t *Telemetry) createSeries() {
	for _, kind := range []string{leak, repaired, full, outOfRange, duplicate, unknown} {
		t.portErrors.WithLabelValues(kind)
		t.addressErrors.WithLabelValues(kind)
	}
	t.addressErrors.WithLabelValues(invalid)
	for _, verb := range []allocation.Verb{allocation.Create, allocation.Relabel, allocation.Delete, allocation.SetBit, allocation.ClearBit} {
		for _, state := range []repairstore.StepState{repairstore.StepDone, repairstore.StepUnneeded, repairstore.StepFailed} {
			t.steps.WithLabelValues(string(verb), string(state))
		}
	}
}

// kube-apiserver's values of the label type.
const (
	leak       = "leak"
	repaired   = "repair"
	full       = "full"
	outOfRange = "outOfRange"
	duplicate  = "duplicate"
	unknown    = "unknown"
	invalid    = "invalid"
)

func errorType(finding allocation.Finding) string {
	switch finding.Code {
	case allocation.NotAllocated, allocation.WrongReference, allocation.WrongLabels:
		return repaired
	case allocation.Leaked, allocation.Orphan:
		return leak
	case allocation.DuplicateOwner:
		return duplicate
	case allocation.OutOfRange:
		return outOfRange
	case allocation.RangeFull:
		return full
	case allocation.Invalid:
		if finding.Store != allocation.NodePorts {
			return invalid
		}
	}
	return unknown
}

// FindingOpened counts the finding and sends its Events.
func (t *Telemetry) FindingOpened(finding allocation.Finding) {
	errorsOf := t.addressErrors
	if finding.Store == allocation.NodePorts {
		errorsOf = t.portErrors
	}
	errorsOf.WithLabelValues(errorType(finding)).Inc()
	t.sendEvents(finding)
}

// PassFinished counts a failed pass, and updates the gauges from the snapshot.
func (t *Telemetry) PassFinished(compareDuration time.Duration, snapshot *Snapshot, err error) {
	if err != nil {
		t.countFailure(err)
	}
	if snapshot == nil {
		return
	}
	t.duration.Observe(compareDuration.Seconds())
	t.findings.Reset()
	open := map[allocation.Store]map[allocation.Code]int{}
	for _, store := range allocation.Stores() {
		open[store] = map[allocation.Code]int{}
	}
	for _, finding := range snapshot.Current {
		if finding.State == allocation.StateOpen {
			open[finding.Store][finding.Code]++
		}
	}
	for _, state := range snapshot.Stores {
		if !state.Present {
			continue
		}
		t.allocated.WithLabelValues(state.Store.String()).Set(float64(state.Allocated))
		t.capacity.WithLabelValues(state.Store.String()).Set(float64(state.Capacity))
		for _, code := range allocation.Codes() {
			t.findings.WithLabelValues(state.Store.String(), code.String()).Set(float64(open[state.Store][code]))
		}
	}
}

// countFailure counts a failed pass for node ports, for ClusterIPs, or for both if the cause is
// unknown.
func (t *Telemetry) countFailure(err error) {
	if !errors.Is(err, errorclass.ErrUnavailable) || errors.Is(err, rangestore.ErrUnavailable) {
		t.portFailures.Inc()
	}
	if !errors.Is(err, rangestore.ErrUnavailable) || errors.Is(err, errorclass.ErrUnavailable) {
		t.addressFailures.Inc()
	}
}

// StepFinished counts a step of a repair.
func (t *Telemetry) StepFinished(step allocation.Step, outcome repairstore.StepResult) {
	t.steps.WithLabelValues(string(step.Verb), string(outcome.State)).Inc()
}

// ResetLeaderMetrics removes the gauges that only a leader sets.
func (t *Telemetry) ResetLeaderMetrics() {
	t.findings.Reset()
	t.allocated.Reset()
	t.capacity.Reset()
}
