package mirror_test

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

func groupOf(slice *discoveryv1.EndpointSlice) string {
	return fmt.Sprintf("%s %q", slice.AddressType, desired.KeyOf(slice.Ports))
}

// wantedSlices is the specification of Resolve in other words: it goes through the addresses port
// by port, as upstream does. It returns for each group how many slices it needs and how often each
// endpoint is in them. The random inputs have no targets.
func wantedSlices(endpoints *corev1.Endpoints, limits mirror.Limits) map[string]map[string]int {
	byPort := map[string]map[string]bool{} // ready by port and text
	ports := map[string]*corev1.EndpointPort{}
	for i := range endpoints.Subsets {
		of := &endpoints.Subsets[i]
		subsetPorts := of.Ports
		if len(subsetPorts) == 0 {
			subsetPorts = make([]corev1.EndpointPort, 1) // the number 0 stands for no port
		}
		for _, port := range subsetPorts {
			key := ""
			if port.Port > 0 {
				app := "-"
				if port.AppProtocol != nil {
					app = "=" + *port.AppProtocol
				}
				key = fmt.Sprintf("%s %s %06d %s", port.Name, port.Protocol, port.Port, app)
				ports[key] = &port
			}
			if byPort[key] == nil {
				byPort[key] = map[string]bool{}
			}
			for _, address := range of.Addresses {
				if _, known := byPort[key][address.IP]; !known {
					byPort[key][address.IP] = true
				}
			}
			for _, address := range of.NotReadyAddresses {
				byPort[key][address.IP] = false
			}
		}
	}
	byAddresses := map[string][]string{} // ports by addresses
	for _, key := range slices.Sorted(maps.Keys(byPort)) {
		addresses := fmt.Sprint(byPort[key])
		byAddresses[addresses] = append(byAddresses[addresses], key)
	}
	groups := map[string]map[string]int{}
	for _, keys := range byAddresses {
		for family, chosen := range chosenOf(byPort[keys[0]], limits) {
			for _, list := range lists(keys, ports) {
				group := fmt.Sprintf("%s %q", family, desired.KeyOf(list))
				groups[group] = map[string]int{"slices": (len(chosen) + limits.PerSlice() - 1) / limits.PerSlice()}
				for address, ready := range chosen {
					if !ready {
						address = "!" + address
					}
					groups[group][address] = 1
				}
			}
		}
	}
	return groups
}

// chosenOf returns the addresses that the limit leaves, by family: whether each is ready.
func chosenOf(addresses map[string]bool, limits mirror.Limits) map[discoveryv1.AddressType]map[string]bool {
	texts := slices.Collect(maps.Keys(addresses))
	sort.Slice(texts, func(i, j int) bool {
		if addresses[texts[i]] != addresses[texts[j]] {
			return addresses[texts[i]]
		}
		return texts[i] < texts[j]
	})
	chosen := map[discoveryv1.AddressType]map[string]bool{}
	count := 0
	for _, text := range texts {
		canonical, family, ok := desired.ParseAddress(text)
		if !ok || (count == limits.PerSubset && !limits.Spill) {
			continue
		}
		count++
		if chosen[family] == nil {
			chosen[family] = map[string]bool{}
		}
		chosen[family][canonical] = addresses[text]
	}
	return chosen
}

// lists divides ports so that no list has two of one name: the first ports of each name, the second
// ones, and so on.
func lists(keys []string, ports map[string]*corev1.EndpointPort) [][]discoveryv1.EndpointPort {
	result := [][]discoveryv1.EndpointPort{nil}
	count := map[string]int{}
	for _, key := range keys {
		port := ports[key]
		if port == nil {
			continue
		}
		at := count[port.Name]
		count[port.Name]++
		if at == len(result) {
			result = append(result, nil)
		}
		result[at] = append(result[at], discoveryv1.EndpointPort{Name: &port.Name, Protocol: &port.Protocol, Port: &port.Port, AppProtocol: port.AppProtocol})
	}
	return result
}

func drawEndpoints(t *rapid.T, label string) *corev1.Endpoints {
	endpoints := endpointsOf()
	for range rapid.IntRange(0, 4).Draw(t, label+" subsets") {
		endpoints.Subsets = append(endpoints.Subsets, subset(
			rapid.SliceOfN(rapid.SampledFrom([]string{"http:80", "http:8080", "admin:90", ":90", "dns:53/UDP", "dns:53/TCP", "http:80@h2c"}), 0, 3).Draw(t, label+" ports"),
			rapid.SliceOfN(rapid.SampledFrom([]string{
				"10.0.0.1", "10.0.0.2", "10.0.0.3", "!10.0.0.3", "!10.0.0.4", "10.0.0.10", "010.0.0.1", "!::ffff:10.0.0.2",
				"fd00::1", "!fd00::2", "fd00:0::1", "web", "!10.0.0",
			}), 0, 8).Draw(t, label+" addresses")...,
		))
	}
	endpoints.Labels = rapid.SampledFrom([]map[string]string{nil, {"team": "a"}, {"team": "b", discoveryv1.LabelManagedBy: "me"}}).Draw(t, label+" labels")
	endpoints.Annotations = rapid.SampledFrom([]map[string]string{nil, {"note": "a"}, {"note": "b", "more": ""}}).Draw(t, label+" annotations")
	return endpoints
}

func drawLimits(t *rapid.T, label string) mirror.Limits {
	return mirror.Limits{PerSubset: rapid.IntRange(1, 6).Draw(t, label+" limit"), Spill: rapid.Bool().Draw(t, label+" spill")}
}

// drawLimitsFor draws limits that no slice exceeds: a slice above the limit keeps its endpoints.
func drawLimitsFor(t *rapid.T, existing []*discoveryv1.EndpointSlice) mirror.Limits {
	limits := drawLimits(t, "wanted")
	for _, slice := range existing {
		limits.PerSubset = max(limits.PerSubset, len(slice.Endpoints))
	}
	return limits
}

// drawCluster draws slices as an earlier sync left them and other writers changed them.
func drawCluster(t *rapid.T) *cluster {
	store := newCluster()
	store.sync(t, drawEndpoints(t, "earlier"), drawLimits(t, "earlier"))
	for _, slice := range store.list() {
		if rapid.IntRange(0, 3).Draw(t, "duplicate") == 0 {
			twin := slice.DeepCopy()
			twin.Name, twin.UID = slice.Name+"x", slice.UID+"x"
			twin.Endpoints = twin.Endpoints[:rapid.IntRange(0, len(twin.Endpoints)).Draw(t, "of it")]
			store.slices[twin.Name] = twin
		}
	}
	for _, slice := range store.list() {
		store.slices[slice.Name] = edited(slice, func(slice *discoveryv1.EndpointSlice) { edit(t, slice) })
	}
	return store
}

// edit changes a slice as another writer may.
func edit(t *rapid.T, slice *discoveryv1.EndpointSlice) {
	switch rapid.IntRange(0, 14).Draw(t, "edit") {
	case 0:
		slice.OwnerReferences[0].UID = "earlier"
	case 1:
		slice.OwnerReferences = append(slice.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "c", UID: "further"})
	case 2:
		slice.Labels["by"] = "hand"
	case 3:
		slice.Annotations = map[string]string{"by": "hand"}
	case 4:
		slice.Finalizers = []string{"example.com/hold"}
	case 5:
		deleted(slice)
	case 6:
		slice.Endpoints = append(slice.Endpoints, slice.Endpoints...)
	case 7:
		slice.Endpoints = nil
	case 8:
		slice.Ports = nil
	case 9:
		slice.AddressType = discoveryv1.AddressTypeFQDN
	case 10:
		for i := range slice.Endpoints {
			slice.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "zone-a"}}}
		}
	case 11:
		if len(slice.Endpoints) > 1 {
			slice.Endpoints[0] = slice.Endpoints[1]
		}
	}
}

func TestMake_OneApplicationConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		store, endpoints := drawCluster(t), drawEndpoints(t, "wanted")
		before := store.list()
		limits := drawLimitsFor(t, before)
		plan := store.sync(t, endpoints, limits)
		checkSlices(t, store, endpoints, limits)
		checkForeign(t, before, store)
		checkWrites(t, before, plan, endpoints, limits)
	})
}

func TestMake_ConvergesWithoutRecycling(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		store, endpoints := drawCluster(t), drawEndpoints(t, "wanted")
		limits := drawLimitsFor(t, store.list())
		in := input(endpoints, limits, store.list())
		in.WithoutRecycling = true
		for _, change := range pack.Make(in).Changes {
			if change.Verb == planned.Update && desired.KeyOf(change.From.Ports) != desired.KeyOf(change.Slice.Ports) {
				t.Fatalf("the update of %s changes its ports", change.Slice.Name)
			}
			store.write(t, change)
		}
		checkSlices(t, store, endpoints, limits)
	})
}

// checkForeign fails if a slice that stays has lost what belongs to another writer.
func checkForeign(t *rapid.T, before []*discoveryv1.EndpointSlice, store *cluster) {
	for _, was := range before {
		is := store.slices[was.Name]
		if is == nil {
			continue
		}
		if was.Annotations["by"] != is.Annotations["by"] || !slices.Equal(was.Finalizers, is.Finalizers) {
			t.Fatalf("slice %s had %v %v and has %v %v", was.Name, was.Annotations, was.Finalizers, is.Annotations, is.Finalizers)
		}
		for _, owner := range was.OwnerReferences {
			if owner.Kind != "Endpoints" && !slices.ContainsFunc(is.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == owner.UID }) {
				t.Fatalf("slice %s lost the owner %s", was.Name, owner.Name)
			}
		}
	}
}

// checkWrites fails if a plan has more writes than the groups need slices, and surplus slices are.
func checkWrites(t *rapid.T, before []*discoveryv1.EndpointSlice, plan pack.Plan, endpoints *corev1.Endpoints, limits mirror.Limits) {
	needed, existing := 0, map[string]int{}
	for _, slice := range before {
		if slice.DeletionTimestamp == nil {
			existing[groupOf(slice)]++
		}
	}
	surplus := 0
	wanted := wantedSlices(endpoints, limits)
	for group, of := range wanted {
		needed += of["slices"]
		surplus += max(existing[group]-of["slices"], 0)
	}
	for group, count := range existing {
		if wanted[group] == nil {
			surplus += count
		}
	}
	if len(plan.Changes) > needed+surplus {
		t.Fatalf("%d writes for %d slices and %d that are not needed: %v", len(plan.Changes), needed, surplus, verbs(plan))
	}
}

// After each of the writes, every endpoint that is in the slices before and after the plan, for the
// same ports, is in a slice. The same holds if a write fails and those that supersede are left out.
func TestMake_NoEndpointIsMissingWhileAPlanIsApplied(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		store, endpoints, limits := drawCluster(t), drawEndpoints(t, "wanted"), drawLimits(t, "wanted")
		plan := pack.Make(input(endpoints, limits, store.list()))
		stays := servedBy(store.live())
		wanted := servedBy(with(newCluster(store.list()...), func(c *cluster) { c.sync(t, endpoints, limits) }).live())
		maps.DeleteFunc(stays, func(endpoint string, _ bool) bool { return !wanted[endpoint] })
		for n := range plan.Changes {
			between, failed := newCluster(store.list()...), newCluster(store.list()...)
			for i, change := range plan.Changes {
				if i < n {
					between.write(t, change)
				}
				if i < n || (i > n && !change.Supersedes()) {
					failed.write(t, change)
				}
			}
			for _, at := range []*cluster{between, failed} {
				there := servedBy(at.live())
				for endpoint := range stays {
					if !there[endpoint] {
						t.Fatalf("%s is in no slice when write %d of %v comes or fails", endpoint, n, verbs(plan))
					}
				}
			}
		}
	})
}

func servedBy(of []*discoveryv1.EndpointSlice) map[string]bool {
	served := map[string]bool{}
	for _, slice := range of {
		for i := range slice.Endpoints {
			served[groupOf(slice)+" "+slice.Endpoints[i].Addresses[0]] = true
		}
	}
	return served
}

func TestMake_OrderOfInputsDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		store, endpoints, limits := drawCluster(t), drawEndpoints(t, "wanted"), drawLimits(t, "wanted")
		shuffled := endpoints.DeepCopy()
		shuffled.Subsets = rapid.Permutation(shuffled.Subsets).Draw(t, "subsets")
		for i := range shuffled.Subsets {
			of := &shuffled.Subsets[i]
			of.Addresses = rapid.Permutation(of.Addresses).Draw(t, "addresses")
			of.NotReadyAddresses = rapid.Permutation(of.NotReadyAddresses).Draw(t, "not ready addresses")
			of.Ports = rapid.Permutation(of.Ports).Draw(t, "ports")
		}
		plan := pack.Make(input(endpoints, limits, store.list()))
		other := pack.Make(input(shuffled, limits, rapid.Permutation(store.list()).Draw(t, "slices")))
		if diff := gocmp.Diff(plan, other); diff != "" {
			t.Fatalf("another order gives another plan:\n%s", diff)
		}
	})
}

func TestMake_ChangesNoInput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		store, endpoints, limits := drawCluster(t), drawEndpoints(t, "wanted"), drawLimits(t, "wanted")
		wantEndpoints, want := endpoints.DeepCopy(), map[string]*discoveryv1.EndpointSlice{}
		for name, slice := range store.slices {
			want[name] = slice.DeepCopy()
		}
		pack.Make(input(endpoints, limits, store.list()))
		mirror.Explain(endpoints, limits, "10.0.0.1")
		if diff := gocmp.Diff(wantEndpoints, endpoints) + gocmp.Diff(want, store.slices); diff != "" {
			t.Fatalf("the inputs changed:\n%s", diff)
		}
	})
}

// What Explain says of an address is what Resolve does with it.
func TestExplain_AgreesWithResolve(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		endpoints, limits := drawEndpoints(t, "wanted"), drawLimits(t, "wanted")
		served := map[string]bool{} // by address: whether it is ready for some port
		for _, family := range mirror.Resolve(endpoints, limits).Families {
			for _, group := range family.Groups {
				for _, endpoint := range group.Endpoints {
					served[endpoint.Addresses] = served[endpoint.Addresses] || endpoint.Ready
				}
			}
		}
		for _, text := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.10", "fd00::1", "fd00::2", "web"} {
			var some, ready bool
			for _, origin := range mirror.Explain(endpoints, limits, text) {
				some = some || origin.Dropped == ""
				ready = ready || origin.ServedReady
			}
			if wantReady, want := served[text]; some != want || ready != wantReady {
				t.Fatalf("%s is served %t, ready %t; explained as %t, %t", text, want, wantReady, some, ready)
			}
		}
	})
}
