package allocationcontroller

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// Herald tells of what an auditor finds and does.
type Telemetry struct {
	kube kubernetes.Interface
	// recorders is nil while no Events are sent.
	recorders atomic.Pointer[recorders]

	portErrors, addressErrors     *prometheus.CounterVec
	portFailures, addressFailures prometheus.Counter
	findings, allocated, capacity *prometheus.GaugeVec
	steps                         *prometheus.CounterVec
	duration                      prometheus.Histogram
}

var _ Reporter = (*Telemetry)(nil)

// New returns a herald that sends Events by kube and registers its metrics; where either is nil, it leaves that out.
func NewTelemetry(kube kubernetes.Interface, registerer prometheus.Registerer) (*Telemetry, error) {
	h := &Telemetry{
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
			Help: "Open findings about what is allocated, by store and code; absent where this replica does not lead.",
		}, []string{"store", "code"}),
		allocated: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "trivet_bootstrap_allocated",
			Help: "How much is allocated, by store; absent where this replica does not lead.",
		}, []string{"store"}),
		capacity: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "trivet_bootstrap_allocation_capacity",
			Help: "How much there is to allocate in all, by store; absent where this replica does not lead.",
		}, []string{"store"}),
		steps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_bootstrap_repair_steps_total",
			Help: "Steps of repairs, by verb (create, relabel, delete, set, clear) and result (done, unneeded, failed).",
		}, []string{"verb", "result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "trivet_bootstrap_audit_seconds", Buckets: prometheus.ExponentialBuckets(0.000_01, 4, 10),
			Help: "How long a comparison of what is used with what is allocated took.",
		}),
	}
	h.expect()
	if registerer == nil {
		return h, nil
	}
	for _, collector := range []prometheus.Collector{
		h.portErrors, h.addressErrors, h.portFailures, h.addressFailures, h.findings, h.allocated, h.capacity, h.steps, h.duration,
	} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return h, nil
}

// expect has the series of what may be counted be there before the first, so that an alert sees it come.
func (h *Telemetry) expect() {
	for _, kind := range []string{leak, mended, full, outOfRange, duplicate, unknown} {
		h.portErrors.WithLabelValues(kind)
		h.addressErrors.WithLabelValues(kind)
	}
	h.addressErrors.WithLabelValues(invalid)
	for _, verb := range []allocation.Verb{allocation.Create, allocation.Relabel, allocation.Delete, allocation.SetBit, allocation.ClearBit} {
		for _, state := range []repairstore.StepState{repairstore.StepDone, repairstore.StepUnneeded, repairstore.StepFailed} {
			h.steps.WithLabelValues(string(verb), string(state))
		}
	}
}

// Upstream's types of errors.
const (
	leak       = "leak"
	mended     = "repair"
	full       = "full"
	outOfRange = "outOfRange"
	duplicate  = "duplicate"
	unknown    = "unknown"
	invalid    = "invalid"
)

func typeOf(finding allocation.Finding) string {
	switch finding.Code {
	case allocation.NotAllocated, allocation.WrongReference, allocation.WrongLabels:
		return mended
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

// FindingOpened counts a finding and sends its Events.
func (h *Telemetry) FindingOpened(finding allocation.Finding) {
	errorsOf := h.addressErrors
	if finding.Store == allocation.NodePorts {
		errorsOf = h.portErrors
	}
	errorsOf.WithLabelValues(typeOf(finding)).Inc()
	h.tell(finding)
}

// PassFinished counts a pass that failed, and shows what one has left.
func (h *Telemetry) PassFinished(took time.Duration, view *Snapshot, err error) {
	if err != nil {
		h.failed(err)
	}
	if view == nil {
		return
	}
	h.duration.Observe(took.Seconds())
	h.findings.Reset()
	open := map[allocation.Store]map[allocation.Code]int{}
	for _, store := range allocation.Stores() {
		open[store] = map[allocation.Code]int{}
	}
	for _, finding := range view.Current {
		if finding.State == allocation.StateOpen {
			open[finding.Store][finding.Code]++
		}
	}
	for _, state := range view.Stores {
		if !state.Present {
			continue
		}
		h.allocated.WithLabelValues(state.Store.String()).Set(float64(state.Allocated))
		h.capacity.WithLabelValues(state.Store.String()).Set(float64(state.Capacity))
		for _, code := range allocation.Codes() {
			h.findings.WithLabelValues(state.Store.String(), code.String()).Set(float64(open[state.Store][code]))
		}
	}
}

// failed counts against that half of the work that could not be done, where that is known.
func (h *Telemetry) failed(err error) {
	if !errors.Is(err, ErrUnavailable) || errors.Is(err, rangestore.ErrUnavailable) {
		h.portFailures.Inc()
	}
	if !errors.Is(err, rangestore.ErrUnavailable) || errors.Is(err, ErrUnavailable) {
		h.addressFailures.Inc()
	}
}

// StepFinished counts a step of a repair.
func (h *Telemetry) StepFinished(step allocation.Step, outcome repairstore.StepResult) {
	h.steps.WithLabelValues(string(step.Verb), string(outcome.State)).Inc()
}

// ResetLeaderMetrics drops what only a leader knows.
func (h *Telemetry) ResetLeaderMetrics() {
	h.findings.Reset()
	h.allocated.Reset()
	h.capacity.Reset()
}
