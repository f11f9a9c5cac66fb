package apiservers

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

func ready(address string) Server {
	return Server{Address: addr(address), Port: 6443, Ready: true}
}

func notReady(address string) Server {
	return Server{Address: addr(address), Port: 6443}
}

func onIPv4() Want { return Want{ServiceIP: addr("10.0.0.1")} }

// settled is a cluster whose endpoints match the servers.
func settled(t *testing.T, servers ...Server) Snapshot {
	t.Helper()
	return applied(t, Snapshot{Servers: servers}, NewPlan(onIPv4(), Snapshot{Servers: servers}).Changes)
}

// failer is implemented by *testing.T and *rapid.T.
type failer interface{ Fatalf(string, ...any) }

// applied is the snapshot after the changes. It fails for a write that a kube-apiserver would
// reject.
func applied(t failer, have Snapshot, changes []baseline.Change) Snapshot {
	after := Snapshot{Servers: have.Servers, Endpoints: have.Endpoints}
	slices := map[string]*discoveryv1.EndpointSlice{}
	for _, slice := range have.Slices {
		slices[slice.Name] = slice
	}
	for _, c := range baseline.Writes(changes) {
		switch object := c.Object.(type) {
		case *corev1.Endpoints:
			if (c.Verb == planned.Create) != (after.Endpoints == nil) {
				t.Fatalf("%s of endpoints does not fit what there is", c.Verb)
			}
			after.Endpoints = object
		case *discoveryv1.EndpointSlice:
			existing := slices[object.Name]
			if (c.Verb == planned.Create) != (existing == nil) {
				t.Fatalf("%s of a slice does not fit what there is", c.Verb)
			}
			if c.Verb == planned.Update && existing.AddressType != object.AddressType {
				t.Fatalf("update of a slice changes its immutable address type")
			}
			slices[object.Name] = object
			if c.Verb == planned.Delete {
				delete(slices, object.Name)
			}
		default:
			t.Fatalf("unexpected kind %T", object)
		}
	}
	for _, slice := range slices {
		after.Slices = append(after.Slices, slice)
	}
	return after
}

// step is a change without its object.
type step struct {
	Verb   planned.Verb
	Kind   string
	Name   string
	Reason baseline.Reason
}

func steps(changes []baseline.Change) []step {
	var taken []step
	for _, c := range changes {
		taken = append(taken, step{Verb: c.Verb, Kind: c.Kind().Kind, Name: c.Object.GetName(), Reason: c.Reason})
	}
	return taken
}

func reported(reason baseline.Reason) step {
	return step{Verb: planned.Report, Kind: "Endpoints", Name: "kubernetes", Reason: reason}
}

func TestNewPlan_FirstServersArePublishedInTheShapeOfKubeAPIServer(t *testing.T) {
	name, protocol, port, isReady := "https", corev1.ProtocolTCP, int32(6443), true
	want := Plan{
		Addresses: []netip.Addr{addr("10.1.0.1"), addr("10.1.0.2")},
		Statuses: []ServerStatus{
			{Address: addr("10.1.0.1"), Wanted: true, Reason: Ready, Why: "it is ready"},
			{Address: addr("10.1.0.2"), Wanted: true, Reason: Ready, Why: "it is ready"},
			{Address: addr("10.1.0.3"), Reason: NotReady, Why: "it is not ready: nothing is known of it"},
		},
		Changes: []baseline.Change{{
			Verb: planned.Create,
			Object: &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Name: "kubernetes", Namespace: "default",
					Labels: map[string]string{"kubernetes.io/service-name": "kubernetes"},
				},
				AddressType: discoveryv1.AddressTypeIPv4,
				Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}},
				Endpoints: []discoveryv1.Endpoint{
					{Addresses: []string{"10.1.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &isReady}},
					{Addresses: []string{"10.1.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: &isReady}},
				},
			},
			Reason: SliceMissing,
			Detail: "endpointslice default/kubernetes does not exist; it will hold 10.1.0.1, 10.1.0.2",
		}, {
			Verb: planned.Create,
			Object: &corev1.Endpoints{
				ObjectMeta: metav1.ObjectMeta{
					Name: "kubernetes", Namespace: "default",
					Labels: map[string]string{"endpointslice.kubernetes.io/skip-mirror": "true"},
				},
				Subsets: []corev1.EndpointSubset{{
					Addresses: []corev1.EndpointAddress{{IP: "10.1.0.1"}, {IP: "10.1.0.2"}},
					Ports:     []corev1.EndpointPort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: 6443}},
				}},
			},
			Reason: EndpointsMissing,
			Detail: "endpoints default/kubernetes do not exist; they will hold 10.1.0.1, 10.1.0.2",
		}},
	}
	got := NewPlan(onIPv4(), Snapshot{Servers: []Server{ready("10.1.0.2"), notReady("10.1.0.3"), ready("10.1.0.1")}})
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

func TestNewPlan_ServersComeAndGo(t *testing.T) {
	cases := map[string]struct {
		servers []Server
		want    []string
	}{
		"another server":                       {servers: []Server{ready("10.1.0.1"), ready("10.1.0.2")}, want: []string{"10.1.0.1", "10.1.0.2"}},
		"a server instead of another":          {servers: []Server{ready("10.1.0.2")}, want: []string{"10.1.0.2"}},
		"a server that is not ready any more":  {servers: []Server{notReady("10.1.0.1"), ready("10.1.0.2")}, want: []string{"10.1.0.2"}},
		"addresses are ordered by number":      {servers: []Server{ready("10.1.0.10"), ready("10.1.0.9")}, want: []string{"10.1.0.10", "10.1.0.9"}},
		"the same key read twice":              {servers: []Server{ready("10.1.0.2"), ready("10.1.0.2")}, want: []string{"10.1.0.2"}},
		"the same key, not ready":              {servers: []Server{notReady("10.1.0.2"), ready("10.1.0.2")}, want: []string{"10.1.0.2"}},
		"a server with an unreachable address": {servers: []Server{ready("127.0.0.1"), ready("10.1.0.2")}, want: []string{"10.1.0.2"}},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			have := settled(t, ready("10.1.0.1"))
			have.Servers = test.servers
			after := applied(t, have, NewPlan(onIPv4(), have).Changes)
			if diff := cmp.Diff(test.want, PublishedInEndpoints(after.Endpoints)); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.want, PublishedInSlices(after.Slices)); diff != "" {
				t.Errorf("slices (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNewPlan_MissingKnowledgeRemovesNothing(t *testing.T) {
	cases := map[string]struct {
		want    Want
		servers []Server
		steps   []step
	}{
		"no server reports": {
			want:  onIPv4(),
			steps: []step{reported(NoServerReports)},
		},
		"no server is ready": {
			want:    onIPv4(),
			servers: []Server{notReady("10.1.0.1"), notReady("10.1.0.2")},
			steps:   []step{reported(NoServerReady)},
		},
		"all servers are of the other family": {
			want:    onIPv4(),
			servers: []Server{ready("fd00::1")},
			steps:   []step{reported(FamilyMismatch), reported(NoServerReady)},
		},
		"a sidecar has the address of the service": {
			want:    onIPv4(),
			servers: []Server{ready("10.0.0.1")},
			steps:   []step{reported(NotRoutable), reported(NoServerReady)},
		},
		"no server can be reached": {
			want:    onIPv4(),
			servers: []Server{ready("127.0.0.1"), ready("169.254.1.1")},
			steps:   []step{reported(NotRoutable), reported(NotRoutable), reported(NoServerReady)},
		},
		"the family is unknown": {
			servers: []Server{ready("10.1.0.7")},
			steps:   []step{reported(FamilyUnknown)},
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			have := settled(t, ready("10.1.0.1"))
			have.Servers = test.servers
			if diff := cmp.Diff(test.steps, steps(NewPlan(test.want, have).Changes)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNewPlan_OneFamilyAndOnePort(t *testing.T) {
	elsewhere := ready("10.1.0.4")
	elsewhere.Port = 8443
	have := settled(t, ready("10.1.0.1"))
	have.Servers = []Server{ready("10.1.0.1"), ready("10.1.0.2"), elsewhere, ready("fd00::1"), ready("::ffff:10.1.0.5")}

	plan := NewPlan(onIPv4(), have)

	want := []step{
		reported(NotRoutable),
		reported(FamilyMismatch),
		reported(PortMismatch),
		{Verb: planned.Update, Kind: "EndpointSlice", Name: "kubernetes", Reason: SliceDrifted},
		{Verb: planned.Update, Kind: "Endpoints", Name: "kubernetes", Reason: EndpointsDrifted},
	}
	if diff := cmp.Diff(want, steps(plan.Changes)); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	after := applied(t, have, plan.Changes)
	if diff := cmp.Diff([]string{"10.1.0.1", "10.1.0.2"}, PublishedInSlices(after.Slices)); diff != "" {
		t.Errorf("slices (-want +got):\n%s", diff)
	}
}

func TestNewPlan_OfEquallyFrequentPortsTheLowestWins(t *testing.T) {
	high := ready("10.1.0.1")
	high.Port = 8443
	plan := NewPlan(onIPv4(), Snapshot{Servers: []Server{high, ready("10.1.0.2")}})
	if diff := cmp.Diff([]netip.Addr{addr("10.1.0.2")}, plan.Addresses, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
}

func TestNewPlan_Leaving(t *testing.T) {
	leaving := onIPv4()
	leaving.Leaving = []netip.Addr{addr("10.1.0.1")}
	cases := map[string]struct {
		published []Server
		servers   []Server
		reason    baseline.Reason
		want      []string
	}{
		"other servers are ready: only they stay": {
			published: []Server{ready("10.1.0.1"), ready("10.1.0.2")},
			servers:   []Server{ready("10.1.0.2")},
			reason:    SliceDrifted,
			want:      []string{"10.1.0.2"},
		},
		"the last server leaves nothing": {
			published: []Server{ready("10.1.0.1")},
			reason:    LastServerLeft,
		},
		"a server whose key is missing stays": {
			published: []Server{ready("10.1.0.1"), ready("10.1.0.2")},
			reason:    LastServerLeft,
			want:      []string{"10.1.0.2"},
		},
		"a server that is not ready stays": {
			published: []Server{ready("10.1.0.1"), ready("10.1.0.2")},
			servers:   []Server{notReady("10.1.0.2")},
			reason:    LastServerLeft,
			want:      []string{"10.1.0.2"},
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			have := settled(t, test.published...)
			have.Servers = test.servers
			plan := NewPlan(leaving, have)
			if len(plan.Changes) != 2 || plan.Changes[0].Reason != test.reason {
				t.Fatalf("plan = %v, want two updates, the first for %s", steps(plan.Changes), test.reason)
			}
			after := applied(t, have, plan.Changes)
			if diff := cmp.Diff(test.want, PublishedInEndpoints(after.Endpoints)); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.want, PublishedInSlices(after.Slices)); diff != "" {
				t.Errorf("slices (-want +got):\n%s", diff)
			}
			if again := NewPlan(leaving, after); len(again.Changes) != 0 {
				t.Errorf("second plan = %v, want none", steps(again.Changes))
			}
		})
	}
}

func TestNewPlan_NoServerLeavesThatReportsAgain(t *testing.T) {
	leaving := onIPv4()
	leaving.Leaving = []netip.Addr{addr("10.1.0.1")}
	for name, test := range map[string]struct {
		next  Server
		steps []step
	}{
		"ready":     {next: ready("10.1.0.1")},
		"not ready": {next: notReady("10.1.0.1"), steps: []step{reported(NoServerReady)}},
	} {
		t.Run(name, func(t *testing.T) {
			have := settled(t, ready("10.1.0.1"))
			have.Servers = []Server{test.next}
			if diff := cmp.Diff(test.steps, steps(NewPlan(leaving, have).Changes)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNewPlan_EmptySliceOfAnIPv6ClusterKeepsItsType(t *testing.T) {
	want := Want{ServiceIP: addr("fd00:1::1")}
	have := Snapshot{Servers: []Server{ready("fd00::1")}}
	have = applied(t, have, NewPlan(want, have).Changes)
	want.Leaving, have.Servers = []netip.Addr{addr("fd00::1")}, nil
	have = applied(t, have, NewPlan(want, have).Changes)
	if got := have.Slices[0]; got.AddressType != discoveryv1.AddressTypeIPv6 || len(got.Endpoints) != 0 {
		t.Fatalf("slice = %s with %d endpoints, want an empty IPv6 one", got.AddressType, len(got.Endpoints))
	}
	want.Leaving, have.Servers = nil, []Server{ready("fd00::1")}
	back := steps(NewPlan(want, have).Changes)
	if len(back) == 0 || back[0].Verb != planned.Update {
		t.Errorf("plan of the returning server = %v, want updates in place", back)
	}
}
