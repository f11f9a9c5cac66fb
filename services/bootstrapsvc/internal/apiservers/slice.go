package apiservers

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

const (
	// SliceMissing: the EndpointSlice does not exist.
	SliceMissing baseline.Reason = "ENDPOINT_SLICE_MISSING"
	// SliceDrifted: the EndpointSlice differs in endpoints, ports or the label that names its
	// Service.
	SliceDrifted baseline.Reason = "ENDPOINT_SLICE_DRIFTED"
	// SliceWrongFamily: the EndpointSlice has the wrong address type, which cannot be changed; it
	// is deleted and created again.
	SliceWrongFamily baseline.Reason = "ENDPOINT_SLICE_WRONG_FAMILY"
	// SliceUnwanted: a slice that Trivet created is of a family that is not wanted any more. It is
	// deleted.
	SliceUnwanted baseline.Reason = "ENDPOINT_SLICE_UNWANTED"
	// SliceForeign: a slice of another controller adds endpoints to the Service, or has the name of
	// the second slice. It is never written.
	SliceForeign baseline.Reason = "ENDPOINT_SLICE_FOREIGN"
)

// reportForeign reports foreign slices of the Service, and a foreign slice with the name of the
// second slice.
func reportForeign(want Want, all []*discoveryv1.EndpointSlice) []baseline.Change {
	var reports []baseline.Change
	for _, slice := range sortedByName(all) {
		var harm string
		switch {
		case isManaged(slice):
			continue
		case isOfService(slice):
			harm = "also adds " + addressesText(publishedIn(slice)) + " to service default/kubernetes"
		case want.DualStack && slice.Name == want.secondSliceName():
			harm = "has the name of the second slice of service default/kubernetes, which cannot be created"
		default:
			continue // it has nothing to do with the Service
		}
		reports = append(reports, baseline.Change{
			Verb: planned.Report, Object: slice.DeepCopy(), Reason: SliceForeign,
			Detail: fmt.Sprintf("slice %s of %q %s; delete it if it has no owner",
				slice.Name, slice.Labels[discoveryv1.LabelManagedBy], harm),
		})
	}
	return reports
}

func planUnwantedSlices(want Want, all []*discoveryv1.EndpointSlice) []baseline.Change {
	var changes []baseline.Change
	for _, slice := range sortedByName(all) {
		if !isSecondary(slice) || want.DualStack && slice.Name == want.secondSliceName() {
			continue
		}
		changes = append(changes, baseline.Change{
			Verb: planned.Delete, Object: slice.DeepCopy(), Reason: SliceUnwanted,
			Detail: fmt.Sprintf("slice %s is of a family that is not wanted for the endpoints of default/kubernetes", slice.Name),
		})
	}
	return changes
}

// planSlice plans the slice with a name. A foreign slice with the name of the second slice stays.
func planSlice(name string, want desired, all []*discoveryv1.EndpointSlice) []baseline.Change {
	existing := sliceNamed(all, name)
	fresh := newSlice(name, want)
	switch {
	case existing == nil:
		return []baseline.Change{{
			Verb:   planned.Create,
			Object: fresh,
			Reason: SliceMissing,
			Detail: fmt.Sprintf("endpointslice default/%s does not exist; it will hold %s", name, addressesText(want.texts())),
		}}
	case !isManaged(existing):
		return nil // reportForeign reports it
	case existing.AddressType != want.family:
		detail := fmt.Sprintf("addressType %s, want %s; it cannot be changed in place", existing.AddressType, want.family)
		keepForeignMetadata(fresh, existing)
		return []baseline.Change{
			{Verb: planned.Delete, Object: existing.DeepCopy(), Reason: SliceWrongFamily, Detail: detail},
			{Verb: planned.Create, Object: fresh, Reason: SliceWrongFamily, Detail: detail},
		}
	default:
		return repairSlice(fresh, want, existing)
	}
}

func newSlice(name string, want desired) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:      name,
			Namespace: metav1.NamespaceDefault,
			Labels:    map[string]string{discoveryv1.LabelServiceName: baseline.ServiceName},
		},
		AddressType: want.family,
		Ports:       want.slicePorts(),
	}
	if name != baseline.ServiceName {
		slice.Labels[discoveryv1.LabelManagedBy] = managedBy
	}
	for _, address := range want.texts() {
		ready := true
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{address},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return slice
}

func keepForeignMetadata(fresh, existing *discoveryv1.EndpointSlice) {
	old := existing.DeepCopy()
	fresh.Annotations = old.Annotations
	for key, value := range old.Labels {
		if _, ours := fresh.Labels[key]; !ours {
			fresh.Labels[key] = value
		}
	}
}

func repairSlice(fresh *discoveryv1.EndpointSlice, want desired, existing *discoveryv1.EndpointSlice) []baseline.Change {
	repaired := existing.DeepCopy()
	var differences []string
	if has := repaired.Labels[discoveryv1.LabelServiceName]; has != baseline.ServiceName {
		setLabel(&repaired.ObjectMeta, discoveryv1.LabelServiceName, baseline.ServiceName)
		differences = append(differences, fmt.Sprintf("label %s %q, want %q", discoveryv1.LabelServiceName, has, baseline.ServiceName))
	}
	if !holdsExactly(existing.Endpoints, want.texts()) {
		repaired.Endpoints = fresh.Endpoints
		differences = append(differences, fmt.Sprintf("ready addresses %s in %d endpoints, want %s",
			addressesText(publishedIn(existing)), len(existing.Endpoints), addressesText(want.texts())))
	}
	if !samePorts(existing.Ports, fresh.Ports) {
		repaired.Ports = fresh.Ports
		differences = append(differences, "ports differ, want "+want.portsText())
	}
	if len(differences) == 0 {
		return nil
	}
	return []baseline.Change{{
		Verb: planned.Update, Object: repaired, Before: existing.DeepCopy(), Reason: SliceDrifted, Detail: strings.Join(differences, "; "),
	}}
}

// holdsExactly says whether the endpoints are these addresses in any order, each one ready and in
// an endpoint of its own.
func holdsExactly(endpoints []discoveryv1.Endpoint, want []string) bool {
	has := make([]string, 0, len(endpoints))
	for _, endpoint := range endpoints {
		if len(endpoint.Addresses) != 1 || !receives(endpoint.Conditions) {
			return false
		}
		has = append(has, endpoint.Addresses[0])
	}
	return sameSet(has, want)
}

func samePorts(has, want []discoveryv1.EndpointPort) bool {
	return slices.EqualFunc(has, want, func(a, b discoveryv1.EndpointPort) bool {
		return equal(a.Name, b.Name) && equal(a.Protocol, b.Protocol) && equal(a.Port, b.Port) && a.AppProtocol == nil
	})
}

func equal[T comparable](has, want *T) bool { return has != nil && *has == *want }

func sliceWithout(slice *discoveryv1.EndpointSlice, isOut func(address string) bool) *discoveryv1.EndpointSlice {
	remaining := slice.DeepCopy()
	remaining.Endpoints = slices.DeleteFunc(remaining.Endpoints, func(endpoint discoveryv1.Endpoint) bool {
		return slices.ContainsFunc(endpoint.Addresses, isOut)
	})
	return remaining
}

// managedBy labels the slices that Trivet creates beside the one that kube-apiserver knows.
const managedBy = "bootstrapsvc.trivet.dev"

func sliceName(family discoveryv1.AddressType) string {
	return baseline.ServiceName + "-" + strings.ToLower(string(family))
}

// SliceNames are the names of managed slices. A slice of another controller may also have one of
// them.
func SliceNames() []string {
	return []string{baseline.ServiceName, sliceName(discoveryv1.AddressTypeIPv4), sliceName(discoveryv1.AddressTypeIPv6)}
}

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

func isOfService(slice *discoveryv1.EndpointSlice) bool {
	return slice.Labels[discoveryv1.LabelServiceName] == baseline.ServiceName
}
