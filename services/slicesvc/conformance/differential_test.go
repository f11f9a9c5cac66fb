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

// steps is how long a history is.
const steps = 8

// TestHistories_AsUpstream compares every sync of random histories. A write more is for a slice less: upstream leaves one
// without endpoints where a pod that has no address of the family would serve its ports. More histories: -args
// -rapid.checks=20000.
func TestHistories_AsUpstream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, u := newWorld(t, false), newUpstream()
		for range steps {
			theirs, ours := both(t, u, w)
			if diff := cmp.Diff(published(theirs), published(ours)); diff != "" {
				t.Fatalf("endpoints of slices (-upstream +ours):\n%s", diff)
			}
			if family := familyWithout(ours, w); family != "" {
				t.Fatalf("there is no slice of %s", family)
			}
			if diff := cmp.Diff(labels(theirs), labels(ours)); diff != "" {
				t.Fatalf("labels of slices (-upstream +ours):\n%s", diff)
			}
			if fewer := len(theirs.slices) - len(ours.slices); fewer < 0 || ours.writes > theirs.writes+fewer {
				t.Fatalf("ours wrote %d times and left %d slices, upstream wrote %d times and left %d; from\n%s\nours:\n%s\nupstream:\n%s",
					ours.writes, len(ours.slices), theirs.writes, len(theirs.slices), dump(newStore(w.slices)), dump(ours), dump(theirs))
			}
			w.goOn(t, theirs, ours)
			w.step(t, false)
		}
	})
}

// TestHistories_TopologyAnnotation: which endpoint is meant for which zone is each one's own choice.
func TestHistories_TopologyAnnotation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, u := newWorld(t, true), newUpstream()
		for range steps {
			theirs, ours := both(t, u, w)
			if diff := cmp.Diff(published(withoutHints(theirs)), published(withoutHints(ours))); diff != "" {
				t.Fatalf("endpoints of slices (-upstream +ours):\n%s", diff)
			}
			if problem := hintProblem(ours, w); problem != "" {
				t.Fatal(problem)
			}
			w.fromNothing(t)
			w.goOn(t, theirs, ours)
			w.step(t, true)
		}
	})
}

// both lets both sync from the same state, and ours again from its own outcome, when nothing may be left to do.
func both(t *rapid.T, u *upstream, w world) (theirs, ours *store) {
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

// goOn takes one outcome or the other as the state from which the history goes on.
func (w *world) goOn(t *rapid.T, theirs, ours *store) {
	w.slices = sorted(ours)
	if rapid.Bool().Draw(t, "upstream goes on") {
		w.slices = sorted(theirs)
	}
}

// fromNothing compares whether there are hints when neither knows of any before. Upstream has none in more cases: for a node
// without a zone, or a ready endpoint without one, it gives them up.
func (w world) fromNothing(t *rapid.T) {
	w.slices = nil
	theirs, ours := both(t, newUpstream(), w)
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

// published is every endpoint as its slice says it, with its family and ports, sorted.
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

// familyWithout finds a family of the Service that has no slice, though one without endpoints would do. It returns "" if all have.
func familyWithout(s *store, w world) discoveryv1.AddressType {
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

// dump shows slices for people.
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

// labels are the different sets of labels that slices have.
func labels(s *store) []string {
	var texts []string
	for _, slice := range s.slices {
		texts = append(texts, text(slice.Labels))
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}

func withoutHints(s *store) *store {
	bare := newStore(sorted(s))
	for _, slice := range bare.slices {
		for i := range slice.Endpoints {
			slice.Endpoints[i].Hints = nil
		}
	}
	return bare
}

// hinted says for each family whether any endpoint has a hint.
func hinted(s *store) map[discoveryv1.AddressType]bool {
	families := map[discoveryv1.AddressType]bool{}
	for _, slice := range s.slices {
		for i := range slice.Endpoints {
			families[slice.AddressType] = families[slice.AddressType] || slice.Endpoints[i].Hints != nil
		}
	}
	return families
}

// hintProblem finds fault with hints that a proxy would not go by, or that name a zone without a node: of a family all that
// are ready have one zone each, and no other has any; or none has.
func hintProblem(s *store, w world) string {
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
				return "not all that are ready have one zone: " + text(endpoint)
			case wanted && !zones[endpoint.Hints.ForZones[0].Name]:
				return "a hint for a zone without nodes: " + text(endpoint)
			}
		}
	}
	return ""
}
