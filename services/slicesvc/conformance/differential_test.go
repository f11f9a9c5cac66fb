package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"
)

// steps is the length of a history.
const steps = 8

// TestHistories_AsUpstream compares every sync of random histories. Two differences are allowed:
// one more write for each slice less, because upstream leaves an empty slice if a Pod without an
// address of the family would serve its ports; and one more slice, with its write, for each slice
// that keeps an endpoint and gets other ports, because upstream packs those endpoints anew. More
// histories: -args -rapid.checks=20000.
func TestHistories_AsUpstream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, u := newClusterState(t, false), newUpstream()
		for range steps {
			theirs, ours := syncBoth(t, u, w)
			if diff := cmp.Diff(published(theirs), published(ours)); diff != "" {
				t.Fatalf("endpoints of slices (-upstream +ours):\n%s", diff)
			}
			if family := familyWithout(ours, w); family != "" {
				t.Fatalf("no slice of family %s", family)
			}
			if diff := cmp.Diff(labels(theirs), labels(ours)); diff != "" {
				t.Fatalf("labels of slices (-upstream +ours):\n%s", diff)
			}
			fewer, kept := len(theirs.slices)-len(ours.slices), keptWithOtherPorts(ours, w)
			if fewer < -kept || ours.writes > theirs.writes+max(fewer, kept) {
				t.Fatalf("ours wrote %d times and left %d slices, upstream wrote %d times and left %d; from\n%s\nours:\n%s\nupstream:\n%s",
					ours.writes, len(ours.slices), theirs.writes, len(theirs.slices), dump(newStore(w.slices)), dump(ours), dump(theirs))
			}
			w.adopt(t, theirs, ours)
			w.step(t, false)
		}
	})
}

// TestHistories_TopologyAnnotation compares without hints: which endpoint is for which zone may
// differ.
func TestHistories_TopologyAnnotation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, u := newClusterState(t, true), newUpstream()
		for range steps {
			theirs, ours := syncBoth(t, u, w)
			if diff := cmp.Diff(published(withoutHints(theirs)), published(withoutHints(ours))); diff != "" {
				t.Fatalf("endpoints of slices (-upstream +ours):\n%s", diff)
			}
			if problem := hintProblem(ours, w); problem != "" {
				t.Fatal(problem)
			}
			w.checkNewHints(t)
			w.adopt(t, theirs, ours)
			w.step(t, true)
		}
	})
}

// syncBoth syncs both from the same state. A second sync of ours must write nothing.
func syncBoth(t *rapid.T, u *upstream, w clusterState) (theirs, ours *store) {
	theirs, err := u.sync(w)
	if err != nil {
		t.Fatalf("upstream: %v", err)
	}
	if ours, err = syncOurs(w); err != nil {
		t.Fatalf("ours: %v", err)
	}
	w.slices = sorted(ours)
	again, err := syncOurs(w)
	if err != nil || again.writes > 0 {
		t.Fatalf("a second sync of ours: %d writes, %v", again.writes, err)
	}
	return theirs, ours
}

// keptWithOtherPorts counts the slices that got other ports and kept an endpoint.
func keptWithOtherPorts(after *store, before clusterState) int {
	kept := 0
	for _, was := range before.slices {
		is, found := after.slices[was.Name]
		if !found || portText(is.Ports) == portText(was.Ports) {
			continue
		}
		if slices.ContainsFunc(was.Endpoints, func(endpoint discoveryv1.Endpoint) bool {
			return slices.ContainsFunc(is.Endpoints, func(other discoveryv1.Endpoint) bool {
				return other.Addresses[0] == endpoint.Addresses[0]
			})
		}) {
			kept++
		}
	}
	return kept
}

// adopt continues the history from one of the two results.
func (w *clusterState) adopt(t *rapid.T, theirs, ours *store) {
	w.slices = sorted(ours)
	if rapid.Bool().Draw(t, "adopt upstream") {
		w.slices = sorted(theirs)
	}
}

// checkNewHints compares whether there are hints if there were none before. Upstream gives up hints
// in more cases: for a Node or a ready endpoint without a zone.
func (w clusterState) checkNewHints(t *rapid.T) {
	w.slices = nil
	theirs, ours := syncBoth(t, newUpstream(), w)
	got := hinted(ours)
	for family, hints := range hinted(theirs) {
		if hints && !got[family] {
			t.Fatalf("without hints before, upstream gives them to %s and ours does not", family)
		}
	}
}

func sorted(s *store) []*discoveryv1.EndpointSlice {
	var found []*discoveryv1.EndpointSlice
	for _, name := range slices.Sorted(maps.Keys(s.slices)) {
		found = append(found, s.slices[name])
	}
	return found
}

// published returns every endpoint with the family and ports of its slice, sorted.
func published(s *store) []string {
	var lines []string
	for _, slice := range s.slices {
		about := fmt.Sprintf("%s %s ", slice.AddressType, portText(slice.Ports))
		for i := range slice.Endpoints {
			lines = append(lines, about+text(slice.Endpoints[i]))
		}
	}
	slices.Sort(lines)
	return lines
}

// familyWithout returns a family of the Service without any slice, "" if there is none.
func familyWithout(s *store, w clusterState) discoveryv1.AddressType {
	has := map[discoveryv1.AddressType]bool{}
	for _, slice := range s.slices {
		has[slice.AddressType] = true
	}
	for _, family := range w.service.Spec.IPFamilies {
		if !has[discoveryv1.AddressType(family)] {
			return discoveryv1.AddressType(family)
		}
	}
	return ""
}

// dump formats slices for a failure.
func dump(s *store) string {
	var lines strings.Builder
	for _, slice := range sorted(s) {
		fmt.Fprintf(&lines, "%s owner=%s labels=%v %s %s:", slice.Name, slice.OwnerReferences[0].UID, slice.Labels, slice.AddressType, portText(slice.Ports))
		for i := range slice.Endpoints {
			fmt.Fprintf(&lines, " %s", text(slice.Endpoints[i]))
		}
		lines.WriteString("\n")
	}
	return lines.String()
}

func portText(ports []discoveryv1.EndpointPort) string {
	var texts []string
	for _, port := range ports {
		texts = append(texts, text(port))
	}
	slices.Sort(texts)
	return strings.Join(texts, ",")
}

func text(value any) string {
	encoded, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(encoded)
}

// labels returns the different label sets of the slices.
func labels(s *store) []string {
	var texts []string
	for _, slice := range s.slices {
		texts = append(texts, text(slice.Labels))
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}

func withoutHints(s *store) *store {
	stripped := newStore(sorted(s))
	for _, slice := range stripped.slices {
		for i := range slice.Endpoints {
			slice.Endpoints[i].Hints = nil
		}
	}
	return stripped
}

// hinted returns, for each family, whether an endpoint has a hint.
func hinted(s *store) map[discoveryv1.AddressType]bool {
	families := map[discoveryv1.AddressType]bool{}
	for _, slice := range s.slices {
		for i := range slice.Endpoints {
			families[slice.AddressType] = families[slice.AddressType] || slice.Endpoints[i].Hints != nil
		}
	}
	return families
}

// hintProblem returns what is invalid about hints, "" if nothing is. In a family either every ready
// endpoint and no other has a hint for one zone with a Node, or no endpoint has a hint.
func hintProblem(s *store, w clusterState) string {
	zones := map[string]bool{}
	for _, node := range w.nodes {
		zones[node.Labels["topology.kubernetes.io/zone"]] = true
	}
	families := hinted(s)
	for _, slice := range s.slices {
		for _, endpoint := range slice.Endpoints {
			wanted := families[slice.AddressType] && *endpoint.Conditions.Ready
			switch {
			case !wanted && endpoint.Hints != nil:
				return "an endpoint that is not ready has a hint: " + text(endpoint)
			case wanted && (endpoint.Hints == nil || len(endpoint.Hints.ForZones) != 1 || len(endpoint.Hints.ForNodes) > 0):
				return "a ready endpoint does not have one zone: " + text(endpoint)
			case wanted && !zones[endpoint.Hints.ForZones[0].Name]:
				return "a hint for a zone without nodes: " + text(endpoint)
			}
		}
	}
	return ""
}
