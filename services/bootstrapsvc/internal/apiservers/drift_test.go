package apiservers

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

func TestNewPlan_EndpointsDriftIsRepairedAndForeignMetadataStays(t *testing.T) {
	cases := map[string]func(*corev1.Endpoints){
		"skip-mirror label gone":    func(e *corev1.Endpoints) { delete(e.Labels, discoveryv1.LabelSkipMirror) },
		"all labels gone":           func(e *corev1.Endpoints) { e.Labels = nil },
		"subsets gone":              func(e *corev1.Endpoints) { e.Subsets = nil },
		"a second subset":           func(e *corev1.Endpoints) { e.Subsets = append(e.Subsets, *e.Subsets[0].DeepCopy()) },
		"a foreign address":         func(e *corev1.Endpoints) { e.Subsets[0].Addresses[0].IP = "192.0.2.1" },
		"an address marked unready": func(e *corev1.Endpoints) { e.Subsets[0].NotReadyAddresses = e.Subsets[0].Addresses[:1] },
		"another port":              func(e *corev1.Endpoints) { e.Subsets[0].Ports[0].Port = 443 },
		"another protocol":          func(e *corev1.Endpoints) { e.Subsets[0].Ports[0].Protocol = corev1.ProtocolUDP },
		"a port by another name":    func(e *corev1.Endpoints) { e.Subsets[0].Ports[0].Name = "secure" },
		"no port":                   func(e *corev1.Endpoints) { e.Subsets[0].Ports = nil },
		"an address listed for two": func(e *corev1.Endpoints) { e.Subsets[0].Addresses[1] = e.Subsets[0].Addresses[0] },
		"an address more than wanted": func(e *corev1.Endpoints) {
			e.Subsets[0].Addresses = append(e.Subsets[0].Addresses, corev1.EndpointAddress{IP: "192.0.2.1"})
		},
	}
	for name, damage := range cases {
		t.Run(name, func(t *testing.T) {
			want := settled(t, ready("10.1.0.1"), ready("10.1.0.2"))
			want.Endpoints.Annotations = map[string]string{"team": "net"}
			have := Snapshot{Servers: want.Servers, Endpoints: want.Endpoints.DeepCopy(), Slices: want.Slices}
			damage(have.Endpoints)
			plan := NewPlan(onIPv4(), have)
			one := []step{{Verb: planned.Update, Kind: "Endpoints", Name: "kubernetes", Reason: EndpointsDrifted}}
			if diff := cmp.Diff(one, steps(plan.Changes)); diff != "" {
				t.Fatalf("plan (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want, applied(t, have, plan.Changes), byValue()); diff != "" {
				t.Errorf("repaired (-want +got):\n%s", diff)
			}
		})
	}
}

func byValue() cmp.Option {
	return cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
}

func TestNewPlan_SliceDriftIsRepairedAndForeignMetadataStays(t *testing.T) {
	yes, no, other := true, false, int32(443)
	cases := map[string]func(*discoveryv1.EndpointSlice){
		"service label gone":       func(s *discoveryv1.EndpointSlice) { delete(s.Labels, discoveryv1.LabelServiceName) },
		"endpoints gone":           func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil },
		"an endpoint marked down":  func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Ready = &no },
		"an endpoint not serving":  func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Serving = &no },
		"an endpoint terminating":  func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Terminating = &yes },
		"a foreign address":        func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses[0] = "192.0.2.1" },
		"two addresses as one":     func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = []string{"10.1.0.1", "10.1.0.2"} },
		"another port":             func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = &other },
		"a port without name":      func(s *discoveryv1.EndpointSlice) { s.Ports[0].Name = nil },
		"no port":                  func(s *discoveryv1.EndpointSlice) { s.Ports = nil },
		"a port without a number":  func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = nil },
		"a port without protocol":  func(s *discoveryv1.EndpointSlice) { s.Ports[0].Protocol = nil },
		"a second port":            func(s *discoveryv1.EndpointSlice) { s.Ports = append(s.Ports, s.Ports[0]) },
		"an endpoint listed twice": func(s *discoveryv1.EndpointSlice) { s.Endpoints = append(s.Endpoints, s.Endpoints[0]) },
	}
	for name, damage := range cases {
		t.Run(name, func(t *testing.T) {
			want := settled(t, ready("10.1.0.1"), ready("10.1.0.2"))
			want.Slices[0].Labels["team"] = "net"
			have := Snapshot{
				Servers: want.Servers, Endpoints: want.Endpoints,
				Slices: []*discoveryv1.EndpointSlice{want.Slices[0].DeepCopy()},
			}
			damage(have.Slices[0])
			plan := NewPlan(onIPv4(), have)
			one := []step{{Verb: planned.Update, Kind: "EndpointSlice", Name: "kubernetes", Reason: SliceDrifted}}
			if diff := cmp.Diff(one, steps(plan.Changes)); diff != "" {
				t.Fatalf("plan (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want, applied(t, have, plan.Changes), byValue()); diff != "" {
				t.Errorf("repaired (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNewPlan_OrderOfAddressesIsNoDrift(t *testing.T) {
	have := settled(t, ready("10.1.0.1"), ready("10.1.0.2"))
	addresses, endpoints := have.Endpoints.Subsets[0].Addresses, have.Slices[0].Endpoints
	addresses[0], addresses[1] = addresses[1], addresses[0]
	endpoints[0], endpoints[1] = endpoints[1], endpoints[0]
	if plan := NewPlan(onIPv4(), have); len(plan.Changes) != 0 {
		t.Errorf("plan = %v, want none", steps(plan.Changes))
	}
}

func TestNewPlan_SliceOfAnotherFamilyIsReplaced(t *testing.T) {
	have := settled(t, ready("10.1.0.1"))
	old := have.Slices[0]
	old.UID, old.ResourceVersion = "uid", "7"
	old.AddressType = discoveryv1.AddressTypeIPv6
	old.Labels["team"] = "net"
	plan := NewPlan(onIPv4(), have)
	want := []step{
		{Verb: planned.Delete, Kind: "EndpointSlice", Name: "kubernetes", Reason: SliceWrongFamily},
		{Verb: planned.Create, Kind: "EndpointSlice", Name: "kubernetes", Reason: SliceWrongFamily},
	}
	if diff := cmp.Diff(want, steps(plan.Changes)); diff != "" {
		t.Fatalf("plan (-want +got):\n%s", diff)
	}
	doomed, fresh := plan.Changes[0].Object, plan.Changes[1].Object
	if doomed.GetUID() != "uid" || doomed.GetResourceVersion() != "7" {
		t.Errorf("delete is guarded by UID %q and resourceVersion %q, want those that were read", doomed.GetUID(), doomed.GetResourceVersion())
	}
	if fresh.GetUID() != "" || fresh.GetResourceVersion() != "" || fresh.GetLabels()["team"] != "net" {
		t.Errorf("successor carries UID %q, resourceVersion %q, labels %v", fresh.GetUID(), fresh.GetResourceVersion(), fresh.GetLabels())
	}
}

func TestNewPlan_ForeignSlicesAreReportedAndNeverTouched(t *testing.T) {
	have := settled(t, ready("10.1.0.1"))
	for _, name := range []string{"kubernetes-zz", "kubernetes-aa"} {
		foreign := have.Slices[0].DeepCopy()
		foreign.Name = name
		foreign.Labels[discoveryv1.LabelManagedBy] = "endpointslicemirroring-controller.k8s.io"
		have.Slices = append(have.Slices, foreign)
	}
	want := []step{
		{Verb: planned.Report, Kind: "EndpointSlice", Name: "kubernetes-aa", Reason: SliceForeign},
		{Verb: planned.Report, Kind: "EndpointSlice", Name: "kubernetes-zz", Reason: SliceForeign},
	}
	if diff := cmp.Diff(want, steps(NewPlan(onIPv4(), have).Changes)); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

func TestNewPlan_Properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawWant(t)
		if rapid.Bool().Draw(t, "leaves") {
			want.Leaving = []netip.Addr{drawAddress(t)}
		}
		have := Snapshot{
			Servers:   rapid.SliceOfN(rapid.Custom(drawServer), 0, 5).Draw(t, "servers"),
			Endpoints: drawEndpoints(t),
			Slices:    drawSlices(t),
		}
		before := deepCopy(have)

		plan := NewPlan(want, have)
		after := applied(t, have, plan.Changes)

		if diff := cmp.Diff(before, have, byValue()); diff != "" {
			t.Fatalf("the plan changed its input (-before +after):\n%s", diff)
		}
		if diff := cmp.Diff(plan, NewPlan(want, have), byValue()); diff != "" {
			t.Fatalf("the same snapshot gave two plans:\n%s", diff)
		}
		if again := baseline.Writes(NewPlan(want, after).Changes); len(again) != 0 {
			t.Fatalf("second plan writes %v: %s", steps(again), again[0].Detail)
		}
		if want.Kind == Untouched && len(plan.Changes) > 0 {
			t.Fatalf("plan = %v, want no change of the endpoints", steps(plan.Changes))
		}
		if len(leaving(want, have.Servers)) == 0 {
			neverErased(t, PublishedInEndpoints(have.Endpoints), PublishedInEndpoints(after.Endpoints))
			neverErased(t, publishedByOwn(have), publishedByOwn(after))
		}
	})
}

func drawWant(t *rapid.T) Want {
	want := Want{
		Policy: Policy{
			Kind:     rapid.SampledFrom([]Kind{Live, Counted, Static, Untouched}).Draw(t, "kind"),
			Count:    rapid.IntRange(1, 3).Draw(t, "count"),
			MinReady: rapid.IntRange(0, 3).Draw(t, "floor"),
			KeepLast: rapid.Bool().Draw(t, "keeps the last"),
		},
		ServiceIP: rapid.SampledFrom([]netip.Addr{{}, addr("10.1.0.3"), addr("fd00:1::1")}).Draw(t, "service ip"),
		DualStack: rapid.Bool().Draw(t, "dual-stack"),
	}
	if rapid.Bool().Draw(t, "has an extra port") {
		want.ExtraPorts = []Port{{Name: "konnectivity", Protocol: corev1.ProtocolTCP, Port: 8132}}
	}
	return want
}

func publishedByOwn(have Snapshot) []string {
	if slice := sliceNamed(have.Slices, baseline.ServiceName); slice != nil {
		return publishedIn(slice)
	}
	return nil
}

func neverErased(t *rapid.T, before, after []string) {
	if len(before) > 0 && len(after) == 0 {
		t.Fatalf("%v was published, nothing is afterwards", before)
	}
}

func deepCopy(have Snapshot) Snapshot {
	copied := Snapshot{Endpoints: have.Endpoints.DeepCopy()}
	copied.Servers = append(copied.Servers, have.Servers...)
	if copied.Servers == nil {
		copied.Servers = have.Servers
	}
	for _, slice := range have.Slices {
		copied.Slices = append(copied.Slices, slice.DeepCopy())
	}
	return copied
}

func drawAddress(t *rapid.T) netip.Addr {
	return addr(rapid.SampledFrom([]string{
		"10.1.0.1", "10.1.0.2", "10.1.0.3", "fd00::1", "fd00::2", "127.0.0.1", "::1", "0.0.0.0", "::ffff:10.1.0.1", "fe80::1%eth0",
	}).Draw(t, "address"))
}

func drawServer(t *rapid.T) Server {
	drawn := Server{
		Address: drawAddress(t),
		Port:    rapid.SampledFrom([]int32{6443, 8443}).Draw(t, "port"),
		Ready:   rapid.Bool().Draw(t, "ready"),
	}
	drawn.Left = !drawn.Ready && rapid.Bool().Draw(t, "left")
	drawn.Stale = !drawn.Ready && rapid.Bool().Draw(t, "stale")
	return drawn
}

func drawEndpoints(t *rapid.T) *corev1.Endpoints {
	if !rapid.Bool().Draw(t, "endpoints exist") {
		return nil
	}
	endpoints := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default", ResourceVersion: "7"}}
	for range rapid.IntRange(0, 2).Draw(t, "subsets") {
		subset := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{
			Name: "https", Protocol: corev1.ProtocolTCP, Port: rapid.SampledFrom([]int32{6443, 1}).Draw(t, "endpoint port"),
		}}}
		for range rapid.IntRange(0, 2).Draw(t, "addresses") {
			subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: drawAddress(t).String()})
		}
		endpoints.Subsets = append(endpoints.Subsets, subset)
	}
	return endpoints
}

func drawSlices(t *rapid.T) []*discoveryv1.EndpointSlice {
	var all []*discoveryv1.EndpointSlice
	for _, name := range []string{"kubernetes", "kubernetes-ipv4", "kubernetes-ipv6", "kubernetes-x"} {
		if !rapid.Bool().Draw(t, name+" exists") {
			continue
		}
		family := rapid.SampledFrom([]discoveryv1.AddressType{"IPv4", "IPv6"}).Draw(t, "type")
		slice := newSlice(name, desired{family: family, port: 6443})
		slice.UID, slice.ResourceVersion = "uid", "7"
		if rapid.Bool().Draw(t, "is foreign") {
			slice.Labels[discoveryv1.LabelManagedBy] = "other.example"
		}
		for range rapid.IntRange(0, 3).Draw(t, "endpoints") {
			isReady := rapid.Bool().Draw(t, "ready")
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses:  []string{drawAddress(t).String()},
				Conditions: discoveryv1.EndpointConditions{Ready: &isReady},
			})
		}
		all = append(all, slice)
	}
	return all
}
