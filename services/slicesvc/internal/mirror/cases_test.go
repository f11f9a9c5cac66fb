package mirror_test

import (
	"fmt"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
)

// The tests of this file are named after the cases of the specification of mirroring.

func TestCases3And5_WhatIsMirrored(t *testing.T) {
	service := func(selector map[string]string) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{Selector: selector}}
	}
	label := func(value string) func(*corev1.Endpoints) {
		return func(endpoints *corev1.Endpoints) {
			endpoints.Labels = map[string]string{discoveryv1.LabelSkipMirror: value}
		}
	}
	leader := func(endpoints *corev1.Endpoints) {
		endpoints.Annotations = map[string]string{"control-plane.alpha.kubernetes.io/leader": ""}
	}
	for name, c := range map[string]struct {
		endpoints *corev1.Endpoints
		service   *corev1.Service
		want      mirror.Reason
	}{
		"2: no Service":                  {endpoints: endpointsOf(), want: mirror.NoService},
		"4: no Endpoints":                {service: service(nil), want: mirror.NoEndpoints},
		"3: no selector":                 {endpoints: endpointsOf(), service: service(nil)},
		"3: empty selector":              {endpoints: endpointsOf(), service: service(map[string]string{})},
		"3: selector":                    {endpoints: endpointsOf(), service: service(map[string]string{"app": "web"}), want: mirror.HasSelector},
		"5: skip-mirror is true":         {endpoints: with(endpointsOf(), label("true")), service: service(nil), want: mirror.SkipMirrorLabel},
		"5: skip-mirror is false":        {endpoints: with(endpointsOf(), label("false")), service: service(nil)},
		"5: skip-mirror is True":         {endpoints: with(endpointsOf(), label("True")), service: service(nil)},
		"5: leader, empty":               {endpoints: with(endpointsOf(), leader), service: service(nil), want: mirror.LeaderAnnotation},
		"6: ExternalName with Endpoints": {endpoints: endpointsOf(), service: &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName}}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := mirror.ReasonOf(c.endpoints, c.service); got != c.want {
				t.Errorf("reason %q, want %q", got, c.want)
			}
		})
	}
}

func TestCases7To9_ContentOfSlices(t *testing.T) {
	http, admin := []string{"http:80"}, []string{"admin:90"}
	for name, c := range map[string]struct {
		subsets []corev1.EndpointSubset
		want    []string
	}{
		"7: ready, not ready, both": {
			subsets: []corev1.EndpointSubset{subset(http, "10.0.0.1", "10.0.0.3", "!10.0.0.2", "!10.0.0.3")},
			want:    []string{"IPv4 [http 80/TCP] !10.0.0.2 !10.0.0.3 10.0.0.1"},
		},
		"7: not ready for one of two ports": {
			subsets: []corev1.EndpointSubset{subset(http, "10.0.0.1"), subset(admin, "!10.0.0.1")},
			want:    []string{"IPv4 [admin 90/TCP] !10.0.0.1", "IPv4 [http 80/TCP] 10.0.0.1"},
		},
		"8: equal addresses": {
			subsets: []corev1.EndpointSubset{subset(http, "10.0.0.1"), subset(admin, "10.0.0.1")},
			want:    []string{"IPv4 [admin 90/TCP, http 80/TCP] 10.0.0.1"},
		},
		"8: different addresses": {
			subsets: []corev1.EndpointSubset{subset(http, "10.0.0.1", "10.0.0.2"), subset(admin, "10.0.0.1")},
			want:    []string{"IPv4 [admin 90/TCP] 10.0.0.1", "IPv4 [http 80/TCP] 10.0.0.1 10.0.0.2"},
		},
		"8: one port in two subsets": {
			subsets: []corev1.EndpointSubset{subset(http, "10.0.0.1"), subset(http, "10.0.0.2")},
			want:    []string{"IPv4 [http 80/TCP] 10.0.0.1 10.0.0.2"},
		},
		"8: no ports": {
			subsets: []corev1.EndpointSubset{subset(nil, "10.0.0.1")},
			want:    []string{"IPv4 [none] 10.0.0.1"},
		},
		"8: no ports and a port": {
			subsets: []corev1.EndpointSubset{subset(nil, "10.0.0.1"), subset(http, "10.0.0.1", "10.0.0.2")},
			want:    []string{"IPv4 [http 80/TCP] 10.0.0.1 10.0.0.2", "IPv4 [none] 10.0.0.1"},
		},
		"8: no addresses": {subsets: []corev1.EndpointSubset{subset(http)}},
		"8: no subsets":   {},
		"9: both families": {
			subsets: []corev1.EndpointSubset{subset(http, "10.0.0.1", "fd00::1")},
			want:    []string{"IPv4 [http 80/TCP] 10.0.0.1", "IPv6 [http 80/TCP] fd00::1"},
		},
		"9: mapped and padded": {
			subsets: []corev1.EndpointSubset{subset(http, "::ffff:10.0.0.1", "010.000.000.002", "FD00:0:0::0001", "::ffff:010.0.0.3")},
			want:    []string{"IPv4 [http 80/TCP] 10.0.0.1 10.0.0.2 10.0.0.3", "IPv6 [http 80/TCP] fd00::1"},
		},
		"9: two texts of one IP": {
			subsets: []corev1.EndpointSubset{subset(http, "10.0.0.1", "010.0.0.1")},
			want:    []string{"IPv4 [http 80/TCP] 10.0.0.1"},
		},
		"9: invalid ones only": {subsets: []corev1.EndpointSubset{subset(http, "web", "10.0.0.256", "fe80::1%eth0", "")}},
		"23: two numbers of one name": {
			subsets: []corev1.EndpointSubset{subset([]string{"http:80", "admin:90"}, "10.0.0.1"), subset([]string{"http:8080"}, "10.0.0.1")},
			want:    []string{"IPv4 [admin 90/TCP, http 80/TCP] 10.0.0.1", "IPv4 [http 8080/TCP] 10.0.0.1"},
		},
		"23: two protocols of one name": {
			subsets: []corev1.EndpointSubset{subset([]string{"dns:53/UDP", "dns:53/TCP"}, "10.0.0.1", "fd00::1")},
			want: []string{
				"IPv4 [dns 53/TCP] 10.0.0.1", "IPv4 [dns 53/UDP] 10.0.0.1",
				"IPv6 [dns 53/TCP] fd00::1", "IPv6 [dns 53/UDP] fd00::1",
			},
		},
		"23: unnamed ports": {
			subsets: []corev1.EndpointSubset{subset([]string{":80"}, "10.0.0.1"), subset([]string{":8080"}, "10.0.0.1")},
			want:    []string{"IPv4 [80/TCP] 10.0.0.1", "IPv4 [8080/TCP] 10.0.0.1"},
		},
		"23: equal appProtocol in two subsets": {
			subsets: []corev1.EndpointSubset{subset([]string{"http:80@h2c"}, "10.0.0.1"), subset([]string{"http:80@h2c"}, "10.0.0.2")},
			want:    []string{"IPv4 [http 80/TCP] 10.0.0.1 10.0.0.2"},
		},
		"23: two appProtocols of one port": {
			subsets: []corev1.EndpointSubset{subset([]string{"http:80@h2c"}, "10.0.0.1"), subset([]string{"http:80"}, "10.0.0.1")},
			want:    []string{"IPv4 [http 80/TCP] 10.0.0.1", "IPv4 [http 80/TCP] 10.0.0.1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := newCluster()
			plan := store.sync(t, endpointsOf(c.subsets...), standard())
			if diff := gocmp.Diff(c.want, texts(store.list())); diff != "" {
				t.Errorf("slices (-want +got):\n%s", diff)
			}
			if len(plan.Changes) != len(c.want) {
				t.Errorf("writes %v, want one for each of %d slices", verbs(plan), len(c.want))
			}
			if again := store.sync(t, endpointsOf(c.subsets...), standard()); !again.Empty() {
				t.Errorf("21: the second sync writes %v", verbs(again))
			}
		})
	}
}

func TestCase7_FlipUpdatesInPlace(t *testing.T) {
	store := newCluster()
	store.sync(t, endpointsOf(subset([]string{"http:80"}, "10.0.0.1", "10.0.0.2")), standard())
	before := store.list()[0]
	plan := store.sync(t, endpointsOf(subset([]string{"http:80"}, "10.0.0.1", "!10.0.0.2")), standard())
	if len(plan.Changes) != 1 || plan.Changes[0].Verb != planned.Update || plan.Changes[0].Changed != 1 {
		t.Fatalf("changes %+v, want one update of one endpoint", plan.Changes)
	}
	after := store.list()[0]
	if diff := gocmp.Diff(before.Endpoints[0], after.Endpoints[0]); diff != "" || endpointText(&after.Endpoints[1]) != "!10.0.0.2" {
		t.Errorf("endpoints %v, want the second one not ready:\n%s", after.Endpoints, diff)
	}
}

func TestCase10_FieldsOfAnEndpoint(t *testing.T) {
	node, app := "node-a", "kubernetes.io/h2c"
	target := &corev1.ObjectReference{Kind: "Server", APIVersion: "example.com/v1", Namespace: "other", Name: "s", UID: "u", FieldPath: "spec.a", ResourceVersion: "5"}
	endpoints := endpointsOf(corev1.EndpointSubset{
		Addresses: []corev1.EndpointAddress{
			{IP: "10.0.0.1", Hostname: "web-0", NodeName: &node, TargetRef: target},
			{IP: "10.0.0.2", TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: "web-1", UID: "v"}},
		},
		NotReadyAddresses: []corev1.EndpointAddress{{IP: "10.0.0.3"}},
		Ports:             []corev1.EndpointPort{{Port: 80, Protocol: corev1.ProtocolTCP, AppProtocol: &app}},
	})
	store := newCluster()
	store.sync(t, endpoints, standard())
	yes, no, empty, number, protocol, hostname := true, false, "", int32(80), corev1.ProtocolTCP, "web-0"
	want := []discoveryv1.Endpoint{
		{Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &yes}, Hostname: &hostname, NodeName: &node, TargetRef: target},
		{Addresses: []string{"10.0.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: &yes}, TargetRef: endpoints.Subsets[0].Addresses[1].TargetRef},
		{Addresses: []string{"10.0.0.3"}, Conditions: discoveryv1.EndpointConditions{Ready: &no}},
	}
	slice := store.list()[0]
	if diff := gocmp.Diff(want, slice.Endpoints); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
	if diff := gocmp.Diff([]discoveryv1.EndpointPort{{Name: &empty, Port: &number, Protocol: &protocol, AppProtocol: &app}}, slice.Ports); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
	for what, change := range map[string]struct {
		make   func(*corev1.EndpointAddress)
		writes int
	}{
		"the version of the target":   {func(a *corev1.EndpointAddress) { a.TargetRef.ResourceVersion = "6" }, 0},
		"no version of the target":    {func(a *corev1.EndpointAddress) { a.TargetRef.ResourceVersion = "" }, 0},
		"the kind of the target":      {func(a *corev1.EndpointAddress) { a.TargetRef.Kind = "Pod" }, 1},
		"the fieldPath of the target": {func(a *corev1.EndpointAddress) { a.TargetRef.FieldPath = "" }, 1},
		"the UID of the target":       {func(a *corev1.EndpointAddress) { a.TargetRef.UID = "w" }, 1},
		"no target":                   {func(a *corev1.EndpointAddress) { a.TargetRef = nil }, 1},
		"the hostname":                {func(a *corev1.EndpointAddress) { a.Hostname = "other" }, 1},
		"no node":                     {func(a *corev1.EndpointAddress) { a.NodeName = nil }, 1},
	} {
		changed := endpoints.DeepCopy()
		change.make(&changed.Subsets[0].Addresses[0])
		copied := newCluster(store.list()...)
		if plan := copied.sync(t, changed, standard()); len(plan.Changes) != change.writes {
			t.Errorf("%s changes: writes %v, want %d", what, verbs(plan), change.writes)
		}
		if again := copied.sync(t, changed, standard()); !again.Empty() {
			t.Errorf("%s changes: the second sync writes %v", what, verbs(again))
		}
	}
}

func TestCase11_Twins(t *testing.T) {
	address := func(uid types.UID, name, node string) corev1.EndpointAddress {
		return corev1.EndpointAddress{IP: "10.0.0.1", NodeName: &node, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: name, UID: uid}}
	}
	http := []corev1.EndpointPort{endpointPort("http:80")}
	for name, c := range map[string]struct {
		subsets []corev1.EndpointSubset
		want    []string // nodes
	}{
		"names differ": {
			subsets: []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{address("u", "a", "first"), address("v", "b", "second")}, Ports: http}},
			want:    []string{"first ready", "second ready"},
		},
		"the UID differs: the later one stays": {
			subsets: []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{address("v", "a", "later"), address("u", "a", "earlier")}, Ports: http}},
			want:    []string{"later ready"},
		},
		"the UID differs: the one that is not ready stays": {
			subsets: []corev1.EndpointSubset{{
				Addresses:         []corev1.EndpointAddress{address("v", "a", "ready one")},
				NotReadyAddresses: []corev1.EndpointAddress{address("u", "a", "other one")},
				Ports:             http,
			}},
			want: []string{"other one not ready"},
		},
		"the same address twice: the first copy stays": {
			subsets: []corev1.EndpointSubset{
				{Addresses: []corev1.EndpointAddress{address("u", "a", "first")}, Ports: http},
				{NotReadyAddresses: []corev1.EndpointAddress{address("u", "b", "second")}, Ports: http},
			},
			want: []string{"first not ready"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := newCluster()
			store.sync(t, endpointsOf(c.subsets...), standard())
			var got []string
			for _, endpoint := range store.list()[0].Endpoints {
				text := *endpoint.NodeName + " not ready"
				if *endpoint.Conditions.Ready {
					text = *endpoint.NodeName + " ready"
				}
				got = append(got, text)
			}
			slices.Sort(got)
			if diff := gocmp.Diff(c.want, got); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
			if again := store.sync(t, endpointsOf(c.subsets...), standard()); !again.Empty() {
				t.Errorf("the second sync writes %v", verbs(again))
			}
		})
	}
}

func TestCase12_MoreThanTheLimit(t *testing.T) {
	http := []string{"http:80"}
	notReady := func(of []string) []string {
		var all []string
		for _, address := range of {
			all = append(all, "!"+address)
		}
		return all
	}
	v6 := func(n int) []string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("fd00::%x", 0x1000+i))
		}
		return all
	}
	for name, c := range map[string]struct {
		addresses []string
		dropped   []string
	}{
		"1000": {addresses: addresses(1000)},
		"1001": {addresses: addresses(1001), dropped: addresses(1001)[1000:]},
		"500 and 501 not ready": {
			addresses: slices.Concat(notReady(addresses(501)), addresses(1001)[501:]),
			dropped:   notReady(addresses(501)[500:]),
		},
		"600 and 600 of the other family": {
			addresses: slices.Concat(addresses(600), v6(600)),
			dropped:   v6(600)[400:],
		},
		"IP text order": {
			addresses: slices.Concat(addresses(1000), []string{"10.1.10.1", "9.0.0.1"}),
			dropped:   []string{"10.1.109.199", "9.0.0.1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			endpoints := endpointsOf(subset(http, c.addresses...))
			store := newCluster()
			store.sync(t, endpoints, standard())
			got, want := held(store.list()), map[string]int{}
			for _, address := range c.addresses {
				if !slices.Contains(c.dropped, address) {
					want[address] = 1
				}
			}
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
			if resolved := mirror.Resolve(endpoints, standard()); resolved.TooMany != len(c.dropped) || resolved.InvalidCount != 0 {
				t.Errorf("%d addresses are too many, %d invalid, want %d and 0", resolved.TooMany, resolved.InvalidCount, len(c.dropped))
			}
			spilled := newCluster(store.list()...)
			spill := mirror.Limits{PerSubset: 1000, Spill: true}
			plan := spilled.sync(t, endpoints, spill)
			if got := held(spilled.list()); len(got) != len(c.addresses) {
				t.Errorf("with spill, the slices have %d addresses, want %d", len(got), len(c.addresses))
			}
			if mirror.Resolve(endpoints, spill).TooMany != 0 || len(plan.Changes) > 2 {
				t.Errorf("with spill, writes %v", verbs(plan))
			}
			if again := spilled.sync(t, endpoints, spill); !again.Empty() {
				t.Errorf("with spill, the second sync writes %v", verbs(again))
			}
		})
	}
}

// held counts the endpoints of slices.
func held(of []*discoveryv1.EndpointSlice) map[string]int {
	all := map[string]int{}
	for _, slice := range of {
		for i := range slice.Endpoints {
			all[endpointText(&slice.Endpoints[i])]++
		}
	}
	return all
}

func TestCase12_InvalidAddressesDoNotCountForTheLimit(t *testing.T) {
	endpoints := endpointsOf(subset([]string{"http:80"}, "!10.0.0.9", "10.0.0.1", "10.0.0.300", "web", "10.0.0.2"), subset([]string{"admin:90"}, "web", "10.0.0.1"))
	got := mirror.Resolve(endpoints, mirror.Limits{PerSubset: 2})
	if diff := gocmp.Diff([]string{"web"}, got.Invalid); diff != "" {
		t.Errorf("invalid addresses (-want +got):\n%s", diff)
	}
	// In order: 10.0.0.1, 10.0.0.2 are taken; 10.0.0.300, web and 10.0.0.9 are above the limit of
	// http. For admin, web is invalid.
	if got.InvalidCount != 1 || got.TooMany != 3 {
		t.Errorf("%d invalid, %d too many, want 1 and 3", got.InvalidCount, got.TooMany)
	}
}

func TestCase13_MaxIsLowered(t *testing.T) {
	endpoints := endpointsOf(subset([]string{"http:80"}, addresses(250)...))
	store := newCluster()
	store.sync(t, endpoints, standard())
	plan := store.sync(t, endpoints, mirror.Limits{PerSubset: 100})
	if diff := gocmp.Diff([]string{"update ENDPOINTS_CHANGED"}, verbs(plan)); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	if got := held(store.list()); len(got) != 100 || got[addresses(250)[99]] != 1 {
		t.Errorf("the slices have %d addresses, want the first 100", len(got))
	}
	spill := mirror.Limits{PerSubset: 100, Spill: true}
	store.sync(t, endpoints, spill)
	if got := held(store.list()); len(got) != 250 || len(store.list()) != 3 {
		t.Errorf("with spill, %d slices have %d addresses, want 3 and 250", len(store.list()), len(got))
	}
}

func TestCase14_Metadata(t *testing.T) {
	endpoints := with(endpointsOf(subset([]string{"http:80"}, "10.0.0.1")), func(endpoints *corev1.Endpoints) {
		endpoints.Labels = map[string]string{
			"team": "a", corev1.IsHeadlessService: "", discoveryv1.LabelManagedBy: "me", discoveryv1.LabelServiceName: "other",
		}
		endpoints.Annotations = map[string]string{
			"note": "n", corev1.EndpointsLastChangeTriggerTime: "2026-03-01T12:00:00Z", corev1.LastAppliedConfigAnnotation: "{}",
		}
	})
	store := newCluster()
	plan := store.sync(t, endpoints, standard())
	slice := store.list()[0]
	wantLabels := map[string]string{
		"team": "a", corev1.IsHeadlessService: "", discoveryv1.LabelManagedBy: mirror.ManagedBy, discoveryv1.LabelServiceName: "web",
	}
	if diff := gocmp.Diff(wantLabels, slice.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if diff := gocmp.Diff(map[string]string{"note": "n"}, slice.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	yes := true
	wantOwner := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Endpoints", Name: "web", UID: "uid-of-endpoints", Controller: &yes, BlockOwnerDeletion: &yes}}
	if diff := gocmp.Diff(wantOwner, slice.OwnerReferences); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
	if len(plan.Changes) != 1 {
		t.Errorf("writes %v, want one", verbs(plan))
	}
	step := func(what string, change func(*corev1.Endpoints), want ...string) {
		t.Helper()
		change(endpoints)
		if diff := gocmp.Diff(want, verbs(store.sync(t, endpoints, standard()))); diff != "" {
			t.Errorf("%s: writes (-want +got):\n%s", what, diff)
		}
		if again := store.sync(t, endpoints, standard()); !again.Empty() {
			t.Errorf("%s: the second sync writes %v", what, verbs(again))
		}
	}
	step("a reserved label", func(e *corev1.Endpoints) { e.Labels[discoveryv1.LabelManagedBy] = "you" })
	step("the trigger time", func(e *corev1.Endpoints) { e.Annotations[corev1.EndpointsLastChangeTriggerTime] = "later" })
	step("last-applied", func(e *corev1.Endpoints) { e.Annotations[corev1.LastAppliedConfigAnnotation] = "{}{}" })
	step("a label", func(e *corev1.Endpoints) { e.Labels["team"] = "b" }, "update LABELS_CHANGED")
	step("no label", func(e *corev1.Endpoints) { delete(e.Labels, "team") }, "update LABELS_CHANGED")
	step("an annotation", func(e *corev1.Endpoints) { e.Annotations["note"] = "m" }, "update ANNOTATIONS_CHANGED")
	step("another annotation", func(e *corev1.Endpoints) { e.Annotations["more"] = "" }, "update ANNOTATIONS_CHANGED")
	step("no annotation", func(e *corev1.Endpoints) { delete(e.Annotations, "note") }, "update ANNOTATIONS_CHANGED")
	step("no annotations", func(e *corev1.Endpoints) { e.Annotations = nil }, "update ANNOTATIONS_CHANGED")
	if got := store.list()[0].Annotations; len(got) != 0 {
		t.Errorf("annotations %v stay", got)
	}
}

func TestCase18_PortChangeKeepsTheName(t *testing.T) {
	both := []string{"10.0.0.1", "fd00::1"}
	store := newCluster()
	store.sync(t, endpointsOf(subset([]string{"http:80"}, both...)), standard())
	names := func() (all []string) {
		for _, slice := range store.list() {
			all = append(all, fmt.Sprintf("%s %s", slice.AddressType, slice.Name))
		}
		return all
	}
	before := names()
	plan := store.sync(t, endpointsOf(subset([]string{"http:8080"}, both...)), standard())
	if diff := gocmp.Diff([]string{"update RECYCLED", "update RECYCLED"}, verbs(plan)); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	if diff := gocmp.Diff(before, names()); diff != "" {
		t.Errorf("names (-before +after):\n%s", diff)
	}
	if diff := gocmp.Diff([]string{"IPv4 [http 8080/TCP] 10.0.0.1", "IPv6 [http 8080/TCP] fd00::1"}, texts(store.list())); diff != "" {
		t.Errorf("slices (-want +got):\n%s", diff)
	}
}

// A set of ports keeps its slice although all of its addresses change, and another set is new. So
// the set has an endpoint at each moment, and also if the new slice is refused.
func TestCase18_APortSetKeepsItsSlice(t *testing.T) {
	store := newCluster()
	store.sync(t, endpointsOf(subset([]string{"http:80"}, "10.0.0.5")), standard())
	name := store.list()[0].Name
	plan := store.sync(t, endpointsOf(subset([]string{"http:80"}, "10.0.0.6"), subset([]string{"dns:53"}, "10.0.0.3")), standard())
	if diff := gocmp.Diff([]string{"create NEW_ENDPOINTS", "update ENDPOINTS_CHANGED"}, verbs(plan)); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	if got := texts([]*discoveryv1.EndpointSlice{store.slices[name]})[0]; got != "IPv4 [http 80/TCP] 10.0.0.6" {
		t.Errorf("the slice is now %s", got)
	}
}
