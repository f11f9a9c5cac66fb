package apiservers

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// managedBy labels the slices that Trivet creates beside the one that kube-apiserver knows.
const managedBy = "bootstrapsvc.trivet.dev"

// sliceName is the name of a second slice of this family.
func sliceName(family discoveryv1.AddressType) string {
	return baseline.ServiceName + "-" + strings.ToLower(string(family))
}

// SliceNames are the names of managed slices. A slice of another controller may also have one of
// them.
func SliceNames() []string {
	return []string{baseline.ServiceName, sliceName(discoveryv1.AddressTypeIPv4), sliceName(discoveryv1.AddressTypeIPv6)}
}

// secondSliceName is the name of the slice of the Service's second family.
func (w Want) secondSliceName() string { return sliceName(otherFamily(FamilyOf(w.ServiceIP))) }

func sortedByName(all []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	return slices.SortedFunc(slices.Values(all), func(a, b *discoveryv1.EndpointSlice) int {
		return strings.Compare(a.Name, b.Name)
	})
}

func sliceNamed(all []*discoveryv1.EndpointSlice, name string) *discoveryv1.EndpointSlice {
	for _, slice := range all {
		if slice.Name == name {
			return slice
		}
	}
	return nil
}

// PublishedInEndpoints lists the ready addresses of an Endpoints object, ordered; none for nil.
func PublishedInEndpoints(endpoints *corev1.Endpoints) []string {
	if endpoints == nil {
		return nil
	}
	var published []string
	for _, subset := range endpoints.Subsets {
		for _, address := range subset.Addresses {
			published = append(published, address.IP)
		}
	}
	slices.Sort(published)
	return slices.Compact(published)
}

// PublishedInSlices returns the ready addresses of the Service's slices, each once, ordered.
func PublishedInSlices(all []*discoveryv1.EndpointSlice) []string {
	var published []string
	for _, slice := range all {
		if isOfService(slice) {
			published = append(published, publishedIn(slice)...)
		}
	}
	slices.Sort(published)
	return slices.Compact(published)
}

func publishedIn(slice *discoveryv1.EndpointSlice) []string {
	var published []string
	for _, endpoint := range slice.Endpoints {
		if receives(endpoint.Conditions) {
			published = append(published, endpoint.Addresses...)
		}
	}
	return published
}

// receives says whether an endpoint receives traffic. Unset conditions have the defaults of the
// API.
func receives(conditions discoveryv1.EndpointConditions) bool {
	isReady := conditions.Ready == nil || *conditions.Ready
	isServing := conditions.Serving == nil || *conditions.Serving
	isTerminating := conditions.Terminating != nil && *conditions.Terminating
	return isReady && isServing && !isTerminating
}

// isManaged says whether Trivet manages a slice: the slice that is named after the Service, which
// kube-apiserver also writes, and the slices that Trivet created.
func isManaged(slice *discoveryv1.EndpointSlice) bool {
	return slice.Name == baseline.ServiceName || isSecondary(slice)
}

func isSecondary(slice *discoveryv1.EndpointSlice) bool {
	return slice.Labels[discoveryv1.LabelManagedBy] == managedBy &&
		(slice.Name == sliceName(discoveryv1.AddressTypeIPv4) || slice.Name == sliceName(discoveryv1.AddressTypeIPv6))
}

// isOfService says whether a slice adds endpoints to the Service.
func isOfService(slice *discoveryv1.EndpointSlice) bool {
	return slice.Labels[discoveryv1.LabelServiceName] == baseline.ServiceName
}
