package allocationcontroller

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// receivedEvents counts the received Events by "kind/name reason source".
type receivedEvents struct {
	mu     sync.Mutex // guards events
	events map[string]int
}

func recordEvents(kube *fake.Clientset) *receivedEvents {
	s := &receivedEvents{events: map[string]int{}}
	kube.PrependReactor("create", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
		event := action.(clienttesting.CreateAction).GetObject().(*corev1.Event)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.events[fmt.Sprintf("%s/%s %s %s", event.InvolvedObject.Kind, event.InvolvedObject.Name, event.Reason, event.Source.Component)]++
		return true, event, nil
	})
	return s
}

func owner(name string) allocation.Owner {
	return allocation.Owner{Key: allocation.Key{Namespace: "default", Name: name}, UID: "uid-of-" + name}
}

func TestFindingOpened_SendsEventsWithUpstreamNames(t *testing.T) {
	t.Parallel()
	kube := fake.NewClientset()
	got := recordEvents(kube)
	h := NewTelemetry(kube, nil)
	done := h.Start(t.Context())
	object := []allocation.Evidence{{Code: allocation.ServiceUse}, {IPAddress: &allocation.IPAddressRef{Name: "10.0.0.9", UID: "u"}}}
	for i, finding := range []allocation.Finding{
		{Code: allocation.NotAllocated, Store: allocation.IPAddresses, Owners: []allocation.Owner{owner("missing")}},
		{Code: allocation.DuplicateOwner, Store: allocation.IPAddresses, Owners: []allocation.Owner{owner("rightful"), owner("second"), owner("third")}},
		{Code: allocation.OutOfRange, Store: allocation.IPAddresses, Owners: []allocation.Owner{owner("outside")}},
		{Code: allocation.Invalid, Store: allocation.IPAddresses, Owners: []allocation.Owner{owner("invalid")}},
		{Code: allocation.WrongReference, Store: allocation.IPAddresses, Owners: []allocation.Owner{owner("named")}, Evidence: object},
		{Code: allocation.Orphan, Store: allocation.IPAddresses, Evidence: object},
		{Code: allocation.WrongLabels, Store: allocation.IPAddresses, Owners: []allocation.Owner{owner("labels")}, Evidence: object},
		{Code: allocation.NotAllocated, Store: allocation.NodePorts, Owners: []allocation.Owner{owner("port")}},
		{Code: allocation.DuplicateOwner, Store: allocation.NodePorts, Owners: []allocation.Owner{owner("rightful"), owner("twice")}},
		{Code: allocation.OutOfRange, Store: allocation.NodePorts, Owners: []allocation.Owner{owner("high")}},
		{Code: allocation.Leaked, Store: allocation.NodePorts, Subject: "30001"},
	} {
		finding.Message = fmt.Sprint("message ", i)
		h.FindingOpened(finding)
	}
	const addresses, ports = "ipallocator-repair-controller", "portallocator-repair-controller"
	want := map[string]int{
		"Service/missing ClusterIPNotAllocated " + addresses:      1,
		"Service/second ClusterIPAlreadyAllocated " + addresses:   1,
		"Service/third ClusterIPAlreadyAllocated " + addresses:    1,
		"Service/outside ClusterIPOutOfRange " + addresses:        1,
		"Service/invalid ClusterIPNotValid " + addresses:          1,
		"Service/named ClusterIPNotAllocated " + addresses:        1,
		"IPAddress/10.0.0.9 IPAddressWrongReference " + addresses: 1,
		"IPAddress/10.0.0.9 IPAddressNotAllocated " + addresses:   1,
		"Service/port PortNotAllocated " + ports:                  1,
		"Service/twice PortAlreadyAllocated " + ports:             1,
		"Service/high PortOutOfRange " + ports:                    1,
	}
	testkit.Eventually(t, time.Minute, func() error {
		got.mu.Lock()
		defer got.mu.Unlock()
		if diff := cmp.Diff(want, got.events); diff != "" {
			return fmt.Errorf("events (-want +got):\n%s", diff)
		}
		return nil
	})
	done()
	h.FindingOpened(allocation.Finding{Code: allocation.NotAllocated, Owners: []allocation.Owner{owner("late")}}) // no recorder: nothing is sent
}

// seriesOf returns the series that are not 0, by "name label…".
func seriesOf(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, family := range families {
		for _, series := range family.GetMetric() {
			name := family.GetName()
			for _, label := range series.GetLabel() {
				name += " " + label.GetValue()
			}
			value := series.GetCounter().GetValue() + series.GetGauge().GetValue() + float64(series.GetHistogram().GetSampleCount())
			if value != 0 {
				found[name] = value
			}
		}
	}
	return found
}

// Many ranges must not make many series, and one that is gone leaves none.
func TestTelemetry_RangesHaveASeriesEachUpToALimit(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	h := NewTelemetry(nil, registry)
	var counts []allocation.RangeCount
	for i := range maxRanges + 3 {
		counts = append(counts, allocation.RangeCount{Range: fmt.Sprintf("10.%d.0.0/24", i), Family: allocation.FamilyIPv4, Allocated: 1, Capacity: 254})
	}
	counts = append(counts, allocation.RangeCount{Range: "fd00::/112", Family: allocation.FamilyIPv6, Allocated: 2, Capacity: 65535})
	publish := func(counts []allocation.RangeCount) map[string]float64 {
		h.PassFinished(0, &Snapshot{Stores: []allocation.StoreState{{Store: allocation.IPAddresses, Present: true, Counts: counts}}}, nil)
		found := map[string]float64{}
		for name, value := range seriesOf(t, registry) {
			if strings.HasPrefix(name, "trivet_bootstrap_alloc") {
				found[name] = value
			}
		}
		return found
	}
	many := publish(counts)
	if len(many) != 2*(maxRanges+2) || many["trivet_bootstrap_allocated IPv4 (other) ip-addresses"] != 3 ||
		many["trivet_bootstrap_allocation_capacity IPv4 (other) ip-addresses"] != 762 {
		t.Errorf("series are %v", many)
	}
	want := map[string]float64{
		"trivet_bootstrap_allocated IPv6 fd00::/112 ip-addresses": 2, "trivet_bootstrap_allocation_capacity IPv6 fd00::/112 ip-addresses": 65535,
	}
	if diff := cmp.Diff(want, publish(counts[maxRanges+3:])); diff != "" {
		t.Errorf("series of one range (-want +got):\n%s", diff)
	}
}

func TestTelemetry_HasUpstreamMetricsAndItsOwn(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	h := NewTelemetry(nil, registry)
	for _, code := range allocation.Codes() {
		h.FindingOpened(allocation.Finding{Code: code, Store: allocation.NodePorts})
		h.FindingOpened(allocation.Finding{Code: code, Store: allocation.IPAddresses})
	}
	open := allocation.Finding{Code: allocation.Leaked, Store: allocation.NodePorts, State: allocation.StateOpen}
	snapshot := &Snapshot{
		Stores: []allocation.StoreState{
			{Store: allocation.NodePorts, Present: true, Counts: []allocation.RangeCount{{Range: "30000-32767", Allocated: 7, Capacity: 2768}}},
			{Store: allocation.ClusterIPs},
		},
		Current: []allocation.Finding{
			open, open, {Code: allocation.Leaked, Store: allocation.NodePorts, State: allocation.StatePending},
		},
	}
	h.PassFinished(time.Millisecond, snapshot, nil)
	h.PassFinished(0, nil, fmt.Errorf("pass: %w", guarded.ErrUnavailable))
	h.PassFinished(0, nil, rangestore.ErrUnavailable)
	h.PassFinished(0, nil, errors.New("both"))
	h.StepFinished(allocation.Step{Verb: planned.ClearBit}, repairstore.StepResult{State: repairstore.StepDone})
	h.StepRefused(allocation.Step{Verb: planned.Create}, errors.New("forbidden"))
	want := map[string]float64{
		"apiserver_clusterip_repair_ip_errors_total duplicate": 1, "apiserver_clusterip_repair_ip_errors_total full": 1,
		"apiserver_clusterip_repair_ip_errors_total invalid": 1, "apiserver_clusterip_repair_ip_errors_total leak": 2,
		"apiserver_clusterip_repair_ip_errors_total outOfRange": 1, "apiserver_clusterip_repair_ip_errors_total repair": 3,
		"apiserver_clusterip_repair_ip_errors_total unknown":    2,
		"apiserver_clusterip_repair_reconcile_errors_total":     2,
		"apiserver_nodeport_repair_port_errors_total duplicate": 1, "apiserver_nodeport_repair_port_errors_total full": 1,
		"apiserver_nodeport_repair_port_errors_total leak": 2, "apiserver_nodeport_repair_port_errors_total outOfRange": 1,
		"apiserver_nodeport_repair_port_errors_total repair": 3, "apiserver_nodeport_repair_port_errors_total unknown": 3,
		"apiserver_nodeport_repair_reconcile_errors_total":             2,
		"trivet_bootstrap_allocated  30000-32767 node-ports":           7,
		"trivet_bootstrap_allocation_capacity  30000-32767 node-ports": 2768,
		"trivet_bootstrap_allocation_findings leaked node-ports":       2,
		"trivet_bootstrap_audit_seconds":                               1,
		"trivet_bootstrap_repair_refusals_total create":                1,
		"trivet_bootstrap_repair_steps_total done clear":               1,
	}
	if diff := cmp.Diff(want, seriesOf(t, registry)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	h.Start(t.Context())()
	for name := range seriesOf(t, registry) {
		if strings.HasPrefix(name, "trivet_bootstrap_allocated ") {
			t.Error("a gauge of the leader is still set")
		}
	}
}
