package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/internal/evidence"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// explainAddress returns the chain of an address that no Pod has. The links of a Pod do not apply,
// except for its address.
func explainAddress(f Facts) Chain {
	places := addressPlaces(f)
	chain := Chain{Included: len(places) > 0, Settled: !f.Pending && len(places) == 0}
	chain.add(f, serviceLink(f))
	chain.add(f, unmirroredLinks(f)...)
	for range max(len(f.Service.Spec.Selector), 1) {
		chain.add(f, noPodLink(CodeSelector))
	}
	chain.add(f, noPodLink(CodePhase))
	families := addressFamilies(f, places)
	for _, family := range families {
		chain.add(f, noPodAddressLink(f, family))
	}
	for _, code := range []string{CodeNode, CodeReadiness, CodeTermination, CodePorts} {
		chain.add(f, noPodLink(code))
	}
	for _, family := range families {
		chain.add(f, noPodSliceLink(f, family, places))
	}
	chain.add(f, noPodLink(CodeHints))
	return chain
}

func noPodLink(code string) evidence.Link {
	return evidence.Link{Code: code, Source: "pod", Result: evidence.NotApplicable, Message: "There is no Pod with the address."}
}

// addressFamilies returns the families of the Service, that of the address, and those of the slices
// with the address.
func addressFamilies(f Facts, places []place) []discoveryv1.AddressType {
	families := desired.Families(f.Service)
	if family, ok := desired.FamilyOf(f.Address); ok {
		families = append(families, family)
	}
	for _, at := range places {
		families = append(families, at.slice.AddressType)
	}
	slices.Sort(families)
	return slices.Compact(families)
}

func noPodAddressLink(f Facts, family discoveryv1.AddressType) evidence.Link {
	l := noPodLink(CodeAddress)
	if own, ok := desired.FamilyOf(f.Address); ok && own != family {
		l.Message = fmt.Sprintf("%s is no %s address.", f.Address, family)
		return l
	}
	l.Result = evidence.Failed
	l.Message = fmt.Sprintf("No Pod of namespace %s has the address %s.", f.Service.Namespace, f.Address)
	l.Next = "Compare the address with those of the pods: kubectl get pods -o wide."
	return l
}

// noPodSliceLink says which slices have the address, though no Pod has it.
func noPodSliceLink(f Facts, family discoveryv1.AddressType, places []place) evidence.Link {
	l := evidence.Link{Code: CodeSlice, Source: "endpointslice"}
	here := slices.DeleteFunc(slices.Clone(places), func(at place) bool { return at.slice.AddressType != family })
	if len(here) == 0 {
		l.Result, l.Message = evidence.NotApplicable, fmt.Sprintf("It is in no %s slice that slicesvc writes.", family)
		return l
	}
	at := here[0]
	of := ""
	if at.endpoint.PodName != "" {
		of = fmt.Sprintf(", for pod %s, which does not have it", at.endpoint.PodName)
	}
	setSlice(&l, at.slice)
	l.Result, l.Next = evidence.Warning, f.nextWrite()
	l.Message = fmt.Sprintf("It is endpoint %d of %d in %s%s.", at.position, len(at.slice.Endpoints), at.slice.Name, of)
	return l
}

// addressPlaces returns the endpoints with the address, ordered by slice and position.
func addressPlaces(f Facts) []place {
	var places []place
	for _, slice := range f.Slices {
		for i := range slice.Endpoints {
			endpoint, exact := desired.FromObject(&slice.Endpoints[i])
			if slices.Contains(strings.Split(endpoint.Addresses, ","), f.Address) {
				places = append(places, place{slice: slice, position: i + 1, endpoint: endpoint, exact: exact})
			}
		}
	}
	slices.SortStableFunc(places, func(a, b place) int { return cmp.Compare(a.slice.Name, b.slice.Name) })
	return places
}
