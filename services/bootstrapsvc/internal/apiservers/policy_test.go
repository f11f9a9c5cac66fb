package apiservers

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

func left(address string) Server {
	return Server{Address: addr(address), Port: 6443, Left: true}
}

func stale(address string) Server {
	return Server{Address: addr(address), Port: 6443, Stale: true}
}

// publishing is a cluster whose endpoints have addresses and whose servers report.
func publishing(t *testing.T, addresses []string, servers ...Server) Snapshot {
	t.Helper()
	if len(addresses) == 0 {
		return Snapshot{Servers: servers}
	}
	var published []Server
	for _, address := range addresses {
		published = append(published, ready(address))
	}
	have := settled(t, published...)
	have.Servers = servers
	return have
}

// The rows combine existing endpoints and keys, like kube-apiserver's own tables, for each kind of
// policy.
func TestNewPlan_Policies(t *testing.T) {
	type row struct {
		policy    Policy
		published []string
		servers   []Server
		// unreported are published and have no key; those in failed do not answer probes.
		unreported, failed []string
		want               []string
		steps              []step // beside the writes
	}
	one, two, three := "10.1.0.1", "10.1.0.2", "10.1.0.3"
	floor := func(n int) Policy { return Policy{MinReady: n} }
	count := func(n int) Policy { return Policy{Kind: Counted, Count: n} }
	cases := map[string]row{
		"count: a reporting server before one with a stale key": {
			policy: count(2), published: []string{one, two, three}, servers: []Server{ready(one), stale(two), notReady(three)},
			want: []string{one, three}, steps: []step{reported(Kept)},
		},
		"floor: a published server that is not ready stays": {
			policy: floor(2), published: []string{one, two}, servers: []Server{ready(one), notReady(two)},
			want: []string{one, two}, steps: []step{reported(Kept)},
		},
		"floor: a server that was never published is not added": {
			policy: floor(2), published: []string{one}, servers: []Server{ready(one), notReady(two)}, want: []string{one},
		},
		"floor: no more servers than needed": {
			policy: floor(2), published: []string{one, two, three}, servers: []Server{notReady(one), notReady(two), ready(three)},
			want: []string{one, three}, steps: []step{reported(Kept)},
		},
		"floor: enough other servers are ready": {
			policy: floor(2), published: []string{one, two, three}, servers: []Server{ready(one), ready(two), notReady(three)},
			want: []string{one, two},
		},
		"floor: an address that is no server leaves": {
			policy: floor(3), published: []string{one, two}, servers: []Server{ready(one)}, want: []string{one},
		},
		"floor: servers whose keys are gone stay": {
			policy: floor(3), published: []string{one, two, three}, servers: []Server{ready(one)}, unreported: []string{two, three}, failed: []string{two, three},
			want: []string{one, two, three}, steps: []step{reported(Kept), reported(Kept)},
		},
		"floor: a server that reports before one whose key is gone": {
			policy: floor(2), published: []string{one, two, three}, servers: []Server{ready(one), notReady(three)}, unreported: []string{two}, failed: []string{two},
			want: []string{one, three}, steps: []step{reported(Kept)},
		},
		"floor: a server that left does not stay": {
			policy: floor(3), published: []string{one, two}, servers: []Server{ready(one), left(two)}, unreported: []string{two}, want: []string{one},
		},
		"a server whose key is gone stays while its probes do not fail": {
			policy: floor(1), published: []string{one, two, three}, servers: []Server{ready(one)}, unreported: []string{two, three}, failed: []string{three},
			want: []string{one, two}, steps: []step{reported(Kept)},
		},
		"floor: no server is ready": {
			policy: floor(2), published: []string{one, two}, servers: []Server{notReady(one)},
			want: []string{one, two}, steps: []step{reported(NoServerReady)},
		},
		"floor: a kept server must listen on the port": {
			policy: floor(2), published: []string{one, two}, servers: []Server{ready(one), {Address: addr(two), Port: 8443}},
			want: []string{one},
		},
		"count: a server whose key is gone stays": {
			policy: count(2), published: []string{one, two}, servers: []Server{ready(one)},
			want: []string{one, two}, steps: []step{reported(Kept)},
		},
		"count: until another server replaces it": {
			policy: count(2), published: []string{one, two}, servers: []Server{ready(one), ready(three)}, want: []string{one, three},
		},
		"count: a reporting server before one that does not report": {
			policy: count(2), published: []string{one, two, three}, servers: []Server{notReady(two), ready(three)},
			want: []string{two, three}, steps: []step{reported(Kept)},
		},
		"count: a server that stopped in good order leaves": {
			policy: count(3), published: []string{one, two}, servers: []Server{ready(one), left(two)}, want: []string{one},
		},
		"count: a server that stopped and is back stays": {
			policy: count(3), published: []string{one, two}, servers: []Server{ready(one), left(two), ready(two)}, want: []string{one, two},
		},
		"count: more servers are ready than the count": {
			policy: count(1), published: []string{one}, servers: []Server{ready(one), ready(two)},
			want: []string{one, two}, steps: []step{reported(CountExceeded)},
		},
		"count: the first servers": {
			policy: count(3), servers: []Server{ready(one), notReady(two)}, want: []string{one},
		},
		"count: the last server stopped in good order": {
			policy: count(3), published: []string{one}, servers: []Server{left(one)},
		},
		"count: one server stopped, and none is ready": {
			policy: count(3), published: []string{one, two}, servers: []Server{left(one), notReady(two)}, want: []string{two},
		},
		"static: the given addresses": {
			policy: Policy{Kind: Static}, published: []string{one}, servers: []Server{ready("192.0.2.7"), ready("192.0.2.8")},
			want: []string{"192.0.2.7", "192.0.2.8"},
		},
		"static: a name that resolves to both families": {
			policy: Policy{Kind: Static}, published: []string{one}, servers: []Server{ready("192.0.2.7"), ready("2001:db8::7")},
			want: []string{"192.0.2.7"},
		},
		"static: a name that does not resolve": {
			policy: Policy{Kind: Static}, published: []string{one}, want: []string{one}, steps: []step{reported(StaticUnresolved)},
		},
		"static: a name that resolves to loopback": {
			policy: Policy{Kind: Static}, published: []string{one}, servers: []Server{ready("127.0.0.1")},
			want: []string{one}, steps: []step{reported(NotRoutable), reported(NoServerReady)},
		},
		"none: nothing is touched": {
			policy: Policy{Kind: Untouched}, published: []string{one}, servers: []Server{ready(two)}, want: []string{one},
		},
		"none: not even an empty cluster": {
			policy: Policy{Kind: Untouched}, servers: []Server{ready(two)},
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			have := publishing(t, test.published, test.servers...)
			for _, address := range test.unreported {
				have.Unreported = append(have.Unreported, Unreported{Address: addr(address), Failed: slices.Contains(test.failed, address)})
			}
			want := onIPv4()
			want.Policy, want.Unresolved = test.policy, "api.example does not resolve"
			plan := NewPlan(want, have)
			after := applied(t, have, plan.Changes)
			if diff := cmp.Diff(test.want, PublishedInEndpoints(after.Endpoints)); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.want, PublishedInSlices(after.Slices)); diff != "" {
				t.Errorf("slices (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.steps, reportsOf(plan)); diff != "" {
				t.Errorf("reports (-want +got):\n%s", diff)
			}
		})
	}
}

func reportsOf(plan Plan) []step {
	var reports []step
	for _, s := range steps(plan.Changes) {
		if s.Verb == planned.Report {
			reports = append(reports, s)
		}
	}
	return reports
}

func TestNewPlan_LastAddressStaysWithKeepLast(t *testing.T) {
	want := onIPv4()
	want.KeepLast, want.Leaving = true, []netip.Addr{addr("10.1.0.1")}
	alone := publishing(t, []string{"10.1.0.1"})
	if diff := cmp.Diff([]step{reported(LastServerKept)}, steps(NewPlan(want, alone).Changes)); diff != "" {
		t.Errorf("the last one (-want +got):\n%s", diff)
	}
	beside := publishing(t, []string{"10.1.0.1", "10.1.0.2"}, ready("10.1.0.2"))
	after := applied(t, beside, NewPlan(want, beside).Changes)
	if diff := cmp.Diff([]string{"10.1.0.2"}, PublishedInSlices(after.Slices)); diff != "" {
		t.Errorf("beside another (-want +got):\n%s", diff)
	}
}

func TestNewPlan_DualStackHasOneSlicePerFamilyAndEndpointsOfTheFirst(t *testing.T) {
	want := onIPv4()
	want.DualStack = true
	have := Snapshot{Servers: []Server{ready("10.1.0.1"), ready("fd00::1"), ready("10.1.0.2"), notReady("fd00::2")}}
	plan := NewPlan(want, have)
	after := applied(t, have, plan.Changes)
	got := map[string][]string{"endpoints": PublishedInEndpoints(after.Endpoints)}
	for _, slice := range after.Slices {
		got[slice.Name+" "+string(slice.AddressType)+" "+slice.Labels[discoveryv1.LabelManagedBy]] = publishedIn(slice)
	}
	expected := map[string][]string{
		"endpoints":        {"10.1.0.1", "10.1.0.2"},
		"kubernetes IPv4 ": {"10.1.0.1", "10.1.0.2"},
		"kubernetes-ipv6 IPv6 bootstrapsvc.trivet.dev": {"fd00::1"},
	}
	if diff := cmp.Diff(expected, got); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	if len(reportsOf(plan)) != 0 {
		t.Errorf("reports = %v, want none", reportsOf(plan))
	}

	// No server of the second family is ready, so its slice stays. Without dual stack, the slice is
	// deleted.
	after.Servers = []Server{ready("10.1.0.1"), ready("10.1.0.2"), notReady("fd00::1")}
	if writes := baseline.Writes(NewPlan(want, after).Changes); len(writes) != 0 {
		t.Errorf("plan writes %v, want none", steps(writes))
	}
	want.DualStack = false
	gone := []step{{Verb: planned.Delete, Kind: "EndpointSlice", Name: "kubernetes-ipv6", Reason: SliceUnwanted}}
	if diff := cmp.Diff(gone, steps(NewPlan(want, after).Changes)); diff != "" {
		t.Errorf("single-stack again (-want +got):\n%s", diff)
	}
}

func TestNewPlan_DualStackServerThatIsTheLastLeavesBothSlices(t *testing.T) {
	want := onIPv4()
	want.DualStack = true
	have := Snapshot{Servers: []Server{ready("10.1.0.1"), ready("fd00::1")}}
	have = applied(t, have, NewPlan(want, have).Changes)
	have.Servers = nil
	want.Leaving = []netip.Addr{addr("10.1.0.1"), addr("fd00::1")}
	after := applied(t, have, NewPlan(want, have).Changes)
	if published := append(PublishedInSlices(after.Slices), PublishedInEndpoints(after.Endpoints)...); len(published) != 0 {
		t.Errorf("published = %v, want nothing", published)
	}
}

func TestNewPlan_ForeignSliceWithTheSecondNameStays(t *testing.T) {
	want := onIPv4()
	want.DualStack = true
	have := settled(t, ready("10.1.0.1"))
	foreign := have.Slices[0].DeepCopy()
	foreign.Name, foreign.AddressType = "kubernetes-ipv6", discoveryv1.AddressTypeIPv6
	have.Slices = append(have.Slices, foreign)
	have.Servers = []Server{ready("10.1.0.1"), ready("fd00::1")}
	expected := []step{{Verb: planned.Report, Kind: "EndpointSlice", Name: "kubernetes-ipv6", Reason: SliceForeign}}
	if diff := cmp.Diff(expected, steps(NewPlan(want, have).Changes)); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

// A static name without a usable address changes nothing, and neither does the stop of a sidecar.
func TestNewPlan_StaticAddressesDoNotLeave(t *testing.T) {
	want := onIPv4()
	want.Kind, want.Leaving = Static, []netip.Addr{addr("10.1.0.1")}
	have := publishing(t, []string{"10.1.0.1"}, ready("127.0.0.1"))
	expected := []step{reported(NotRoutable), reported(NoServerReady)}
	if diff := cmp.Diff(expected, steps(NewPlan(want, have).Changes)); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

// A key that outlived its server is no report: a floor does not count it, and no address stays
// because of it.
func TestNewPlan_StaleKeyKeepsNoAddress(t *testing.T) {
	want := onIPv4()
	want.MinReady = 2
	have := publishing(t, []string{"10.1.0.1", "10.1.0.2"}, ready("10.1.0.1"), stale("10.1.0.2"))
	after := applied(t, have, NewPlan(want, have).Changes)
	if diff := cmp.Diff([]string{"10.1.0.1"}, PublishedInSlices(after.Slices)); diff != "" {
		t.Errorf("with a floor of two (-want +got):\n%s", diff)
	}
	want.Leaving = []netip.Addr{addr("10.1.0.1")}
	after.Servers = []Server{stale("10.1.0.1"), stale("10.1.0.2")}
	after = applied(t, after, NewPlan(want, after).Changes)
	if published := PublishedInSlices(after.Slices); len(published) != 0 {
		t.Errorf("published = %v after the last server left, want nothing", published)
	}
}

// One server has both families, and the other only the first. When the former leaves, the second
// family loses its last address.
func TestNewPlan_DualStackServerLeavesAFamilyOfItsOwn(t *testing.T) {
	want := onIPv4()
	want.DualStack = true
	have := Snapshot{Servers: []Server{ready("10.1.0.1"), ready("fd00::1"), ready("10.1.0.2")}}
	have = applied(t, have, NewPlan(want, have).Changes)
	have.Servers = []Server{ready("10.1.0.2")}
	missed := applied(t, have, NewPlan(want, have).Changes)
	if diff := cmp.Diff([]string{"10.1.0.2", "fd00::1"}, PublishedInSlices(missed.Slices)); diff != "" {
		t.Errorf("published while a key is missing (-want +got):\n%s", diff)
	}
	want.Leaving = []netip.Addr{addr("10.1.0.1"), addr("fd00::1")}
	kept := want
	kept.KeepLast = true
	if published := PublishedInSlices(applied(t, have, NewPlan(kept, have).Changes).Slices); !slices.Contains(published, "fd00::1") {
		t.Errorf("published = %v, want the last address of the second family kept", published)
	}
	after := applied(t, have, NewPlan(want, have).Changes)
	if diff := cmp.Diff([]string{"10.1.0.2"}, PublishedInSlices(after.Slices)); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
}

// A slice that lost its label is not of the Service any more, but still has its name.
func TestNewPlan_SecondSliceThatLostItsLabelIsRepairedUnlessItIsForeign(t *testing.T) {
	want := onIPv4()
	want.DualStack = true
	have := Snapshot{Servers: []Server{ready("10.1.0.1"), ready("fd00::1")}}
	have = applied(t, have, NewPlan(want, have).Changes)
	second := sliceNamed(have.Slices, "kubernetes-ipv6")
	delete(second.Labels, discoveryv1.LabelServiceName)
	if diff := cmp.Diff([]string{"10.1.0.1"}, PublishedInSlices(have.Slices)); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	repair := []step{{Verb: planned.Update, Kind: "EndpointSlice", Name: "kubernetes-ipv6", Reason: SliceDrifted}}
	if diff := cmp.Diff(repair, steps(NewPlan(want, have).Changes)); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}

	delete(second.Labels, discoveryv1.LabelManagedBy)
	foreign := []step{{Verb: planned.Report, Kind: "EndpointSlice", Name: "kubernetes-ipv6", Reason: SliceForeign}}
	if diff := cmp.Diff(foreign, steps(NewPlan(want, have).Changes)); diff != "" {
		t.Errorf("plan without either label (-want +got):\n%s", diff)
	}
	want.DualStack, have.Servers = false, have.Servers[:1]
	if plan := NewPlan(want, have); len(plan.Changes) != 0 {
		t.Errorf("plan for one family = %v, want none: the slice is foreign", steps(plan.Changes))
	}
}

func TestNewPlan_ExtraPortsFollowTheOwnPort(t *testing.T) {
	want := onIPv4()
	want.ExtraPorts = []Port{{Name: "konnectivity", Protocol: corev1.ProtocolTCP, Port: 8132}}
	have := settled(t, ready("10.1.0.1"))
	after := applied(t, have, NewPlan(want, have).Changes)
	var names []string
	for _, port := range after.Slices[0].Ports {
		names = append(names, *port.Name)
	}
	if diff := cmp.Diff([]string{"https", "konnectivity"}, names); diff != "" {
		t.Errorf("ports of the slice (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]corev1.EndpointPort{
		{Name: "https", Port: 6443, Protocol: corev1.ProtocolTCP}, {Name: "konnectivity", Port: 8132, Protocol: corev1.ProtocolTCP},
	}, after.Endpoints.Subsets[0].Ports); diff != "" {
		t.Errorf("ports of the endpoints (-want +got):\n%s", diff)
	}
}

func TestNewPlan_EveryServerHasAReason(t *testing.T) {
	have := publishing(t, []string{"10.1.0.1", "10.1.0.2"},
		ready("10.1.0.1"), Server{Address: addr("10.1.0.2"), Port: 6443, Detail: "connection refused"},
		Server{Address: addr("10.1.0.3"), Port: 8443, Ready: true}, ready("fd00::1"))
	want := []ServerStatus{
		{Address: addr("10.1.0.1"), Wanted: true, Published: true, Reason: Ready, Why: "it is ready"},
		{Address: addr("10.1.0.2"), Published: true, Reason: NotReady, Why: "it is not ready: connection refused"},
		{Address: addr("10.1.0.3"), Reason: PortMismatch, Why: "kube-apiserver 10.1.0.3 listens on port 8443, most listen on 6443; it is left out"},
		{Address: addr("fd00::1"), Reason: FamilyMismatch, Why: "kube-apiserver fd00::1 is IPv6, the service default/kubernetes is IPv4; it is left out"},
	}
	got := NewPlan(onIPv4(), have).Statuses
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("statuses (-want +got):\n%s", diff)
	}
}

// The property states the policies independently of the code of the plan.
func TestNewPlan_SelectsByItsPolicy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawWant(t)
		have := Snapshot{
			Servers: rapid.SliceOfN(rapid.Custom(drawServer), 0, 6).Draw(t, "servers"), Endpoints: drawEndpoints(t), Slices: drawSlices(t),
		}
		isReady, reports, isPublished := map[netip.Addr]bool{}, map[netip.Addr]bool{}, map[netip.Addr]bool{}
		for _, server := range have.Servers {
			isReady[server.Address] = isReady[server.Address] || server.Ready
			reports[server.Address] = reports[server.Address] || !server.Left
		}
		for _, text := range append(PublishedInEndpoints(have.Endpoints), PublishedInSlices(have.Slices)...) {
			if address, err := netip.ParseAddr(text); err == nil {
				isPublished[address.Unmap()] = true // a slice may have it as an IPv6 address
			}
		}
		plan := NewPlan(want, have)
		var readyOnes, of4 int
		for _, address := range plan.Addresses {
			if address.Is4() {
				of4++
			}
			if isReady[address] {
				readyOnes++
				continue
			}
			switch {
			case !isPublished[address]:
				t.Fatalf("%s was added although it is not ready", address)
			case want.Kind == Counted && !reports[address] && slices.ContainsFunc(have.Servers, func(s Server) bool { return s.Address == address }):
				t.Fatalf("%s stays although it left", address)
			case want.Kind != Counted && (want.MinReady < 2 || !reports[address]):
				t.Fatalf("%s stays although no floor keeps it", address)
			}
		}
		if len(plan.Addresses) > 0 && readyOnes == 0 {
			t.Fatalf("%v are selected, and none of them is ready", plan.Addresses)
		}
		if want.Kind == Counted && !want.DualStack && len(plan.Addresses) > max(want.Count, readyOnes) {
			t.Fatalf("%d addresses, want at most %d or the ready ones", len(plan.Addresses), want.Count)
		}
		if family := FamilyOf(want.ServiceIP); !want.DualStack && len(plan.Addresses) > 0 && (of4 > 0) != (family == discoveryv1.AddressTypeIPv4) {
			t.Fatalf("%v of a service of %s", plan.Addresses, family)
		}
	})
}
