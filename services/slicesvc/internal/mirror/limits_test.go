package mirror_test

import (
	"fmt"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
)

// With spill, a group has as few slices as the limit allows, and a small change writes one of them.
func TestPromise1_SpillWritesFewSlices(t *testing.T) {
	limits := mirror.Limits{PerSubset: 100, Spill: true}
	all := addresses(400)
	store := newCluster()
	for _, step := range []struct {
		what   string
		has    []string
		writes []string
		slices int
	}{
		{"250 are new", all[:250], []string{"create NEW_ENDPOINTS", "create NEW_ENDPOINTS", "create NEW_ENDPOINTS"}, 3},
		{"30 come", all[:280], []string{"update ENDPOINTS_CHANGED"}, 3},
		{"10 of one slice go", all[10:280], []string{"update ENDPOINTS_CHANGED"}, 3},
		{"15 come into one slice", all[10:295], []string{"update ENDPOINTS_CHANGED"}, 3},
		{"15 come into both gaps", all[10:310], []string{"update ENDPOINTS_CHANGED", "update ENDPOINTS_CHANGED"}, 3},
		{"one comes", all[10:311], []string{"create NEW_ENDPOINTS"}, 4},
		{"it goes", all[10:310], []string{"delete EMPTIED"}, 3},
		{"none is left", nil, []string{"delete FAMILY_GONE", "delete FAMILY_GONE", "delete FAMILY_GONE"}, 0},
	} {
		endpoints := endpointsOf(subset([]string{"http:80"}, step.has...))
		if diff := gocmp.Diff(step.writes, verbs(store.sync(t, endpoints, limits))); diff != "" {
			t.Errorf("%s: writes (-want +got):\n%s", step.what, diff)
		}
		if len(store.list()) != step.slices {
			t.Errorf("%s: %d slices, want %d", step.what, len(store.list()), step.slices)
		}
		checkSlices(t, store, endpoints, limits)
	}
}

// 300 addresses shrink to 90, 30 in each of three slices: they end in one.
func TestPromise1_SpilledSlicesAreMerged(t *testing.T) {
	limits := mirror.Limits{PerSubset: 100, Spill: true}
	all := addresses(300)
	store := newCluster()
	store.sync(t, endpointsOf(subset([]string{"http:80"}, all...)), limits)
	few := endpointsOf(subset([]string{"http:80"}, slices.Concat(all[:30], all[100:130], all[200:230])...))
	plan := store.sync(t, few, limits)
	if diff := gocmp.Diff([]string{"update ENDPOINTS_CHANGED", "delete COMPACTED", "delete COMPACTED"}, verbs(plan)); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	checkSlices(t, store, few, limits)
}

// A small Endpoints object must not make very many slices, or take very long.
func TestResolve_IsBounded(t *testing.T) {
	oneName := func(n int) (ports []string) {
		for i := range n {
			ports = append(ports, fmt.Sprintf("http:%d", i+1))
		}
		return ports
	}
	pairs := func() (subsets []corev1.EndpointSubset) {
		for i := range 40 {
			var ports []string
			for j := range 40 {
				if i != j {
					ports = append(ports, fmt.Sprintf("p%d-%d:80", min(i, j), max(i, j)))
				}
			}
			subsets = append(subsets, subset(ports))
			for k := range 800 {
				subsets[i].Addresses = append(subsets[i].Addresses, corev1.EndpointAddress{IP: fmt.Sprintf("10.%d.%d.%d", i, k/250, k%250)})
			}
		}
		return subsets
	}
	for name, c := range map[string]struct {
		subsets   []corev1.EndpointSubset
		limit     int
		groups    int
		endpoints int
		tooMany   int
	}{
		"sets of ports":      {[]corev1.EndpointSubset{subset(oneName(1200), "10.0.0.1", "10.0.0.2")}, 1000, 1000, 2000, 400},
		"endpoints":          {[]corev1.EndpointSubset{subset(oneName(200), addresses(1000)...)}, 1000, 200, 100_000, 500},
		"work":               {pairs(), 1, 625, 625, 625*1599 + 155*1600}, // 780 sets of 1600 addresses
		"ports of one slice": {[]corev1.EndpointSubset{subset(manyPorts(20_001), "10.0.0.1")}, 1000, 2, 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			resolved := mirror.Resolve(endpointsOf(c.subsets...), mirror.Limits{PerSubset: c.limit})
			groups, endpoints := 0, 0
			for _, family := range resolved.Families {
				groups += len(family.Groups)
				for _, group := range family.Groups {
					endpoints += len(group.Endpoints)
					if len(group.Ports) > 20_000 {
						t.Errorf("%d ports in a slice", len(group.Ports))
					}
				}
			}
			if groups != c.groups || endpoints != c.endpoints {
				t.Errorf("%d groups, %d endpoints, want %d, %d", groups, endpoints, c.groups, c.endpoints)
			}
			if resolved.TooMany != c.tooMany {
				t.Errorf("%d are too many, want %d", resolved.TooMany, c.tooMany)
			}
		})
	}
}

func manyPorts(n int) (ports []string) {
	for i := range n {
		ports = append(ports, fmt.Sprintf("p%d:%d", i, i%60_000+1))
	}
	return ports
}

func TestResolve_InvalidAddressesAreBounded(t *testing.T) {
	var texts []string
	for i := range 30 {
		texts = append(texts, fmt.Sprintf("x%02d-%0100d\xff", i, i))
	}
	got := mirror.Resolve(endpointsOf(subset([]string{"http:80"}, texts...)), standard())
	if got.InvalidCount != 30 || len(got.Invalid) != 10 || got.Invalid[0] != texts[0][:64] {
		t.Errorf("%d invalid addresses, of these %q", got.InvalidCount, got.Invalid)
	}
}

// Families, groups and ports have a fixed order.
func TestResolve_Order(t *testing.T) {
	got := mirror.Resolve(endpointsOf(subset([]string{"http:80", "admin:90"}, "fd00::1", "10.0.0.1"), subset([]string{"dns:53"}, "fd00::2")), standard())
	var order []string
	for _, family := range got.Families {
		if !slices.IsSortedFunc(family.Groups, func(a, b desired.Group) int { return slices.Compare([]byte(a.Key), []byte(b.Key)) }) {
			t.Errorf("the groups of %s are not sorted", family.AddressType)
		}
		for _, group := range family.Groups {
			order = append(order, fmt.Sprintf("%s %s", family.AddressType, desired.PortText(group.Ports)))
		}
	}
	want := []string{"IPv4 admin 90/TCP, http 80/TCP", "IPv6 dns 53/TCP", "IPv6 admin 90/TCP, http 80/TCP"}
	if diff := gocmp.Diff(want, order); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
}
