package allocationcontroller

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
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
	// ranges are the labels of allocated and capacity. The goroutine of Run uses them.
	ranges          map[rangeLabels]allocation.RangeCount
	steps, refusals *prometheus.CounterVec
	duration        prometheus.Histogram
}

// NewTelemetry returns a Telemetry that sends Events by kube and registers its metrics. A nil kube
// sends no Events; a nil registerer registers nothing.
func NewTelemetry(kube kubernetes.Interface, registerer prometheus.Registerer) *Telemetry {
	register := promauto.With(registerer)
	t := &Telemetry{
		kube: kube,
		portErrors: register.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_nodeport_repair_port_errors_total",
			Help: "Findings about node ports, by type (leak, repair, full, outOfRange, duplicate, unknown).",
		}, []string{"type"}),
		addressErrors: register.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_clusterip_repair_ip_errors_total",
			Help: "Findings about ClusterIPs, by type (leak, repair, full, outOfRange, duplicate, unknown, invalid).",
		}, []string{"type"}),
		portFailures: register.NewCounter(prometheus.CounterOpts{
			Name: "apiserver_nodeport_repair_reconcile_errors_total",
			Help: "Passes over node ports that failed.",
		}),
		addressFailures: register.NewCounter(prometheus.CounterOpts{
			Name: "apiserver_clusterip_repair_reconcile_errors_total",
			Help: "Passes over ClusterIPs that failed.",
		}),
		findings: register.NewGaugeVec(prometheus.GaugeOpts{
			Name: "trivet_bootstrap_allocation_findings",
			Help: "Open findings about allocations, without ignored ones, by store and code; absent on a replica that does not lead.",
		}, []string{"store", "code"}),
		allocated: register.NewGaugeVec(prometheus.GaugeOpts{
			Name: "trivet_bootstrap_allocated",
			Help: "Allocated addresses or ports inside a range, by store, family (empty for ports) and range. A range inside another one, and one from which kube-apiserver does not allocate, is left out; further ranges of a family are added up as (other). Absent on a replica that does not lead.",
		}, []string{"store", "family", "range"}),
		capacity: register.NewGaugeVec(prometheus.GaugeOpts{
			Name: "trivet_bootstrap_allocation_capacity",
			Help: "Addresses or ports of a range, with the labels of trivet_bootstrap_allocated.",
		}, []string{"store", "family", "range"}),
		steps: register.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_bootstrap_repair_steps_total",
			Help: "Steps of repairs, by verb (create, relabel, delete, set, clear) and result (done, unneeded, failed, skipped).",
		}, []string{"verb", "result"}),
		refusals: register.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_bootstrap_repair_refusals_total",
			Help: "Attempts of repairs that were refused and are repeated, by the verb of the step. An attempt without an answer counts after many.",
		}, []string{"verb"}),
		duration: register.NewHistogram(prometheus.HistogramOpts{
			Name: "trivet_bootstrap_audit_seconds", Buckets: prometheus.ExponentialBuckets(0.000_01, 4, 10),
			Help: "Duration of a comparison of what is used with what is allocated, in seconds.",
		}),
	}
	t.createSeries()
	return t
}

// createSeries creates all series with the value 0, so that an alert sees the first increase.
func (t *Telemetry) createSeries() {
	for _, kind := range []string{typeLeak, typeRepair, typeFull, typeOutOfRange, typeDuplicate, typeUnknown} {
		t.portErrors.WithLabelValues(kind)
		t.addressErrors.WithLabelValues(kind)
	}
	t.addressErrors.WithLabelValues(typeInvalid)
	for _, verb := range []planned.Verb{planned.Create, planned.Relabel, planned.Delete, planned.SetBit, planned.ClearBit} {
		for _, state := range []repairstore.StepState{repairstore.StepDone, repairstore.StepUnneeded, repairstore.StepFailed, repairstore.StepSkipped} {
			t.steps.WithLabelValues(string(verb), string(state))
		}
		t.refusals.WithLabelValues(string(verb))
	}
}

// The values of the label type, as kube-apiserver has them.
const (
	typeLeak       = "leak"
	typeRepair     = "repair"
	typeFull       = "full"
	typeOutOfRange = "outOfRange"
	typeDuplicate  = "duplicate"
	typeUnknown    = "unknown"
	typeInvalid    = "invalid"
)

// upstreamNames are the names that kube-apiserver's repair controllers give a finding: the label
// type of its metrics, and the reasons of Events about a Service with an address, about a Service
// with a port, and about an IPAddress. An empty reason means that there is no Event.
type upstreamNames struct{ errorType, address, port, object string }

func namesOf(code allocation.Code) upstreamNames {
	names, ok := map[allocation.Code]upstreamNames{
		allocation.NotAllocated:   {errorType: typeRepair, address: "ClusterIPNotAllocated", port: "PortNotAllocated"},
		allocation.WrongReference: {errorType: typeRepair, address: "ClusterIPNotAllocated", object: "IPAddressWrongReference"},
		allocation.WrongLabels:    {errorType: typeRepair},
		allocation.Leaked:         {errorType: typeLeak, object: "IPAddressNotAllocated"},
		allocation.Orphan:         {errorType: typeLeak, object: "IPAddressNotAllocated"},
		allocation.DuplicateOwner: {errorType: typeDuplicate, address: "ClusterIPAlreadyAllocated", port: "PortAlreadyAllocated"},
		allocation.OutOfRange:     {errorType: typeOutOfRange, address: "ClusterIPOutOfRange", port: "PortOutOfRange"},
		allocation.RangeFull:      {errorType: typeFull},
		allocation.Invalid:        {errorType: typeInvalid, address: "ClusterIPNotValid"},
	}[code]
	if !ok {
		return upstreamNames{errorType: typeUnknown}
	}
	return names
}

// FindingOpened counts the finding and sends its Events.
func (t *Telemetry) FindingOpened(finding allocation.Finding) {
	errorsOf, errorType := t.addressErrors, namesOf(finding.Code).errorType
	if finding.Store == allocation.NodePorts {
		errorsOf = t.portErrors
		if finding.Code == allocation.Invalid {
			errorType = typeUnknown // kube-apiserver has no invalid ports
		}
	}
	errorsOf.WithLabelValues(errorType).Inc()
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
		if finding.IsOpen() {
			open[finding.Store][finding.Code]++
		}
	}
	for _, state := range snapshot.Stores {
		if !state.Present {
			continue
		}
		for _, code := range allocation.Codes() {
			t.findings.WithLabelValues(state.Store.String(), code.String()).Set(float64(open[state.Store][code]))
		}
	}
	t.setRanges(snapshot.Stores)
}

// rangeLabels are the labels of a range: its store, its family and the range itself.
type rangeLabels [3]string

// otherRanges is the label of the ranges beyond maxRanges of one family.
const (
	maxRanges   = 16
	otherRanges = "(other)"
)

// setRanges sets the gauges of the ranges. It removes only series of ranges that are gone: an alert
// must not miss one for a moment.
func (t *Telemetry) setRanges(stores []allocation.StoreState) {
	counts, series := map[rangeLabels]allocation.RangeCount{}, map[rangeLabels]int{}
	for _, state := range stores {
		for _, one := range state.Counts {
			family := rangeLabels{state.Store.String(), one.Family}
			labels := rangeLabels{family[0], family[1], one.Range}
			if series[family]++; series[family] > maxRanges {
				labels[2] = otherRanges
			}
			one.Allocated += counts[labels].Allocated
			one.Capacity = allocation.AddCapacity(one.Capacity, counts[labels].Capacity)
			counts[labels] = one
		}
	}
	for labels := range t.ranges {
		if _, still := counts[labels]; !still {
			t.allocated.DeleteLabelValues(labels[:]...)
			t.capacity.DeleteLabelValues(labels[:]...)
		}
	}
	for labels, one := range counts {
		t.allocated.WithLabelValues(labels[:]...).Set(float64(one.Allocated))
		t.capacity.WithLabelValues(labels[:]...).Set(float64(one.Capacity))
	}
	t.ranges = counts
}

// countFailure counts a failed pass for node ports, for ClusterIPs, or for both if the cause is
// unknown.
func (t *Telemetry) countFailure(err error) {
	if !errors.Is(err, guarded.ErrUnavailable) || errors.Is(err, rangestore.ErrUnavailable) {
		t.portFailures.Inc()
	}
	if !errors.Is(err, rangestore.ErrUnavailable) || errors.Is(err, guarded.ErrUnavailable) {
		t.addressFailures.Inc()
	}
}

// The reasons of Events about repairs, which kube-apiserver does not send.
const (
	reasonRepaired     = "AllocationRepaired"
	reasonRepairFailed = "AllocationRepairFailed"
)

// StepFinished counts a step of a repair, and sends an Event about the Service for which it
// allocates.
func (t *Telemetry) StepFinished(step allocation.Step, result repairstore.StepResult) {
	t.steps.WithLabelValues(string(step.Verb), string(result.State)).Inc()
	switch {
	case result.State == repairstore.StepDone && step.Verb != planned.Delete:
		t.sendRepairEvent(step, corev1.EventTypeNormal, reasonRepaired, fmt.Sprintf("%s %s is repaired: %s", step.Store, step.Subject, step.Detail))
	case result.State == repairstore.StepFailed:
		t.sendRepairEvent(step, corev1.EventTypeWarning, reasonRepairFailed,
			fmt.Sprintf("%s %s is not repaired: %s", step.Store, step.Subject, result.Error))
	}
}

// StepRefused counts the attempt, and sends an Event about the Service for which the step would
// allocate.
func (t *Telemetry) StepRefused(step allocation.Step, err error) {
	t.refusals.WithLabelValues(string(step.Verb)).Inc()
	t.sendRepairEvent(step, corev1.EventTypeWarning, reasonRepairFailed,
		fmt.Sprintf("%s %s is not repaired yet: %v", step.Store, step.Subject, err))
}

// sendRepairEvent sends an Event about the Service for which a step allocates. A step that frees
// has none.
func (t *Telemetry) sendRepairEvent(step allocation.Step, kind, reason, message string) {
	to := t.recorders.Load()
	if to == nil || step.Owner.Name == "" {
		return
	}
	recorder := to.addresses
	if step.Store == allocation.NodePorts {
		recorder = to.ports
	}
	recorder.Event(serviceReference(step.Owner), kind, reason, message)
}

func serviceReference(of allocation.Owner) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: of.Namespace, Name: of.Name, UID: types.UID(of.UID)}
}

// The sources of the Events, as kube-apiserver names them: people filter by them.
const (
	addressSource = "ipallocator-repair-controller"
	portSource    = "portallocator-repair-controller"
)

// recorders send Events while a term lasts.
type recorders struct{ addresses, ports record.EventRecorder }

// Start sends Events until ctx ends or the caller calls stop, which it must do once. stop also
// removes the gauges that only a leader sets.
func (t *Telemetry) Start(ctx context.Context) (stop func()) {
	reset := func() {
		t.findings.Reset()
		t.allocated.Reset()
		t.capacity.Reset()
	}
	if t.kube == nil {
		return reset
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: t.kube.CoreV1().Events("")})
	t.recorders.Store(&recorders{
		addresses: broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: addressSource}),
		ports:     broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: portSource}),
	})
	return func() {
		t.recorders.Store(nil)
		broadcaster.Shutdown()
		reset()
	}
}

// sendEvents sends the Events of a finding, about its Services, and about the IPAddress object if
// that is wrong.
func (t *Telemetry) sendEvents(finding allocation.Finding) {
	to := t.recorders.Load()
	if to == nil {
		return
	}
	names := namesOf(finding.Code)
	recorder, reason := to.addresses, names.address
	if finding.Store == allocation.NodePorts {
		recorder, reason = to.ports, names.port
	}
	if reason != "" {
		for _, owner := range affectedServices(finding) {
			recorder.Event(serviceReference(owner), corev1.EventTypeWarning, reason, finding.Message)
		}
	}
	if names.object != "" && finding.Store == allocation.IPAddresses {
		for _, evidence := range finding.Evidence {
			if evidence.IPAddress != nil {
				recorder.Event(addressReference(*evidence.IPAddress), corev1.EventTypeWarning, names.object, finding.Message)
				return
			}
		}
	}
}

func addressReference(of allocation.IPAddressRef) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "IPAddress", Name: of.Name, UID: types.UID(of.UID),
		ResourceVersion: of.ResourceVersion,
	}
}

// affectedServices returns the Services that the finding affects. The rightful owner of a duplicate
// is not affected.
func affectedServices(finding allocation.Finding) []allocation.Owner {
	if finding.Code == allocation.DuplicateOwner && len(finding.Owners) > 0 {
		return finding.Owners[1:]
	}
	return finding.Owners
}
