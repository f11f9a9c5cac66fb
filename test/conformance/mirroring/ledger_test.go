package mirroring

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// snapshot has the objects of a namespace.
type snapshot struct {
	endpoints map[string]*corev1.Endpoints
	slices    []discoveryv1.EndpointSlice
}

func (s *side) snapshot(ctx context.Context, namespace string) (snapshot, error) {
	list, err := s.kube.CoreV1().Endpoints(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return snapshot{}, err
	}
	found, err := s.kube.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return snapshot{}, err
	}
	taken := snapshot{endpoints: map[string]*corev1.Endpoints{}, slices: found.Items}
	for i := range list.Items {
		taken.endpoints[list.Items[i].Name] = &list.Items[i]
	}
	return taken, nil
}

// mirrored returns the slices of each Service that count, by the name of the Service.
func (s snapshot) mirrored() map[string][]*discoveryv1.EndpointSlice {
	all := map[string][]*discoveryv1.EndpointSlice{}
	for i := range s.slices {
		slice := &s.slices[i]
		if slice.Labels[discoveryv1.LabelManagedBy] == mirrorManager && slice.DeletionTimestamp == nil {
			name := slice.Labels[discoveryv1.LabelServiceName]
			all[name] = append(all[name], slice)
		}
	}
	return all
}

// ledger is what another writer did to slices, by UID.
type ledger struct {
	annotations map[types.UID][]string
	pins        map[types.UID]bool
	versions    map[types.UID]string // of released slices
}

func newLedger() *ledger {
	return &ledger{annotations: map[types.UID][]string{}, pins: map[types.UID]bool{}, versions: map[types.UID]string{}}
}

func (l *ledger) annotated(uid types.UID, key string) {
	l.annotations[uid] = append(l.annotations[uid], key)
}
func (l *ledger) pinned(uid types.UID) { l.pins[uid] = true }
func (l *ledger) released(slice *discoveryv1.EndpointSlice) {
	l.versions[slice.UID] = slice.ResourceVersion
}

// check returns what is wrong with the slices of a controller. want are the objects from which
// kube-controller-manager has made its slices from nothing.
func check(want, got snapshot, kept *ledger) []string {
	problems := kept.check(got.slices)
	theirs, own := want.mirrored(), got.mirrored()
	names := maps.Clone(own)
	maps.Copy(names, theirs)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if endpoints := got.endpoints[name]; endpoints != nil && packedOtherwise(endpoints) {
			problems = append(problems, checkPairs(name, endpoints, own[name])...)
			continue
		}
		u, o := want.describe(theirs[name]), got.describe(own[name])
		if !slices.Equal(u, o) {
			problems = append(problems, fmt.Sprintf("%s: upstream makes\n  %s\nwe have\n  %s", name, strings.Join(u, "\n  "), strings.Join(o, "\n  ")))
		}
	}
	return problems
}

// describe has a line for each slice, without what another writer added.
func (s snapshot) describe(all []*discoveryv1.EndpointSlice) []string {
	live := map[types.UID]string{}
	for name, e := range s.endpoints {
		live[e.UID] = name
	}
	var lines []string
	for _, slice := range all {
		own := slice.DeepCopy()
		own.Finalizers = nil
		maps.DeleteFunc(own.Annotations, func(key, _ string) bool { return strings.HasPrefix(key, foreignKey) })
		fields := fieldsOf(own, live)
		line := titleOf(own)
		for _, field := range slices.Sorted(maps.Keys(fields)) {
			line += " | " + field + ": " + fields[field]
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}

// check returns what another writer did and has lost.
func (l *ledger) check(all []discoveryv1.EndpointSlice) []string {
	var problems []string
	found := map[types.UID]bool{}
	for _, slice := range all {
		found[slice.UID] = true
		for _, key := range l.annotations[slice.UID] {
			if slice.Annotations[key] == "" {
				problems = append(problems, fmt.Sprintf("slice %s has lost the foreign annotation %s", slice.Name, key))
			}
		}
		if l.pins[slice.UID] && slice.DeletionTimestamp == nil && !slices.Contains(slice.Finalizers, foreignPin) {
			problems = append(problems, fmt.Sprintf("slice %s has lost the foreign finalizer", slice.Name))
		}
		if version := l.versions[slice.UID]; version != "" && version != slice.ResourceVersion {
			problems = append(problems, fmt.Sprintf("slice %s of another manager was written", slice.Name))
		}
	}
	for uid := range l.versions {
		if !found[uid] {
			problems = append(problems, fmt.Sprintf("the slice with UID %s, of another manager, is gone", uid))
		}
	}
	return problems
}

// packedOtherwise says whether promise 2 or 3 makes other slices of an Endpoints object than
// upstream does: one address has two ports of one name, or one port with an application protocol is
// in two subsets.
func packedOtherwise(endpoints *corev1.Endpoints) bool {
	type named struct{ ip, name string }
	numbers, protocols := map[named]corev1.EndpointPort{}, map[string]int{}
	for i, s := range endpoints.Subsets {
		for _, p := range s.Ports {
			if p.AppProtocol != nil {
				if before, known := protocols[p.String()]; known && before != i {
					return true
				}
				protocols[p.String()] = i
			}
			for _, a := range slices.Concat(s.Addresses, s.NotReadyAddresses) {
				key := named{ip: a.IP, name: p.Name}
				if before, known := numbers[key]; known && before.String() != p.String() {
					return true
				}
				numbers[key] = p
			}
		}
	}
	return false
}

// pair is an address with a port, or with none.
type pair struct {
	ip, name, protocol string
	number             int32
}

// checkPairs compares the pairs of address and port of an Endpoints object with those in slices.
// The order of slices and their grouping is free, but no slice may have two ports of one name, no
// two slices may have the same family and ports, and a pair may be in one slice only.
func checkPairs(name string, endpoints *corev1.Endpoints, all []*discoveryv1.EndpointSlice) []string {
	var problems []string
	wrong := func(format string, args ...any) { problems = append(problems, name+": "+fmt.Sprintf(format, args...)) }
	want, addressesOf := map[pair]bool{}, map[string]bool{}
	for _, s := range endpoints.Subsets {
		for _, a := range slices.Concat(s.Addresses, s.NotReadyAddresses) {
			if a.TargetRef != nil {
				addressesOf[a.IP+" "+string(a.TargetRef.UID)] = true
			} else {
				addressesOf[a.IP] = true
			}
			for _, p := range s.Ports {
				want[pair{a.IP, p.Name, string(p.Protocol), p.Port}] = true
			}
		}
	}
	got, titles := map[pair]int{}, map[string]bool{}
	for _, slice := range all {
		if title := titleOf(slice); titles[title] {
			wrong("two slices are %s", title)
		} else {
			titles[title] = true
		}
		seen := map[string]bool{}
		for _, p := range slice.Ports {
			if seen[*p.Name] {
				wrong("%s has two ports of the name %q", slice.Name, *p.Name)
			}
			seen[*p.Name] = true
			in := map[pair]bool{} // twins have one address
			for _, e := range slice.Endpoints {
				in[pair{e.Addresses[0], *p.Name, string(*p.Protocol), *p.Port}] = true
			}
			for key := range in {
				if got[key]++; got[key] > 1 {
					wrong("%v is in two slices", key)
				}
				if !want[key] {
					wrong("%v is in %s and not in the Endpoints object", key, slice.Name)
				}
			}
		}
	}
	if len(addressesOf) <= historyLimit { // nothing is dropped
		for key := range want {
			if got[key] == 0 {
				wrong("%v is in no slice", key)
			}
		}
	}
	return problems
}
