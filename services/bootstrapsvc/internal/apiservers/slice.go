package apiservers

import (
	"fmt"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

const (
	// SliceMissing: the EndpointSlice does not exist.
	SliceMissing baseline.Reason = "ENDPOINT_SLICE_MISSING"
	// SliceDrifted: the EndpointSlice differs in endpoints, ports or the label that names its Service.
	SliceDrifted baseline.Reason = "ENDPOINT_SLICE_DRIFTED"
	// SliceWrongFamily: the EndpointSlice has an address type that cannot be changed; it is deleted and created again.
	SliceWrongFamily baseline.Reason = "ENDPOINT_SLICE_WRONG_FAMILY"
	// SliceUnwanted: a slice that was made here is of a family that endpoints are not to have any more. It is deleted.
	SliceUnwanted baseline.Reason = "ENDPOINT_SLICE_UNWANTED"
	// SliceForeign: somebody else's slice adds endpoints to the Service, or has the name that the second slice should have. It is
	// never touched here.
	SliceForeign baseline.Reason = "ENDPOINT_SLICE_FOREIGN"
)

// managedBy labels the slices that are kept here beside the one that kube-apiserver knows. They are told from others by it.
const managedBy = "bootstrapsvc.trivet.dev"

// nameOf is what the slice of the other family than the Service's first is called.
func nameOf(family discoveryv1.AddressType) string {
	return serviceName + "-" + strings.ToLower(string(family))
}

// SliceNames are the names that slices kept here may have, whoever made those that have them.
func SliceNames() []string {
	return []string{serviceName, nameOf(discoveryv1.AddressTypeIPv4), nameOf(discoveryv1.AddressTypeIPv6)}
}

// isOwn tells whether a slice is kept here: the one that is named after the Service, which kube-apiserver and this service
// share, and those that were made here.
func isOwn(slice *discoveryv1.EndpointSlice) bool {
	return slice.Name == serviceName || isSecondary(slice)
}

func isSecondary(slice *discoveryv1.EndpointSlice) bool {
	return slice.Labels[discoveryv1.LabelManagedBy] == managedBy &&
		(slice.Name == nameOf(discoveryv1.AddressTypeIPv4) || slice.Name == nameOf(discoveryv1.AddressTypeIPv6))
}

// isOfService tells whether a slice adds its endpoints to the Service.
func isOfService(slice *discoveryv1.EndpointSlice) bool {
	return slice.Labels[discoveryv1.LabelServiceName] == serviceName
}

// secondSlice is the name of the slice of the other family than the Service's first.
func (w Want) secondSlice() string { return nameOf(otherThan(FamilyOf(w.ServiceIP))) }

func byName(all []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	return slices.SortedFunc(slices.Values(all), func(a, b *discoveryv1.EndpointSlice) int {
		return strings.Compare(a.Name, b.Name)
	})
}

func named(all []*discoveryv1.EndpointSlice, name string) *discoveryv1.EndpointSlice {
	for _, slice := range all {
		if slice.Name == name {
			return slice
		}
	}
	return nil
}

// reportForeign reports slices of others: those of the Service, and one that is in the way of the second slice.
func reportForeign(want Want, all []*discoveryv1.EndpointSlice) []baseline.Change {
	var reports []baseline.Change
	for _, slice := range byName(all) {
		var harm string
		switch {
		case isOwn(slice):
			continue
		case isOfService(slice):
			harm = "also adds " + addressesText(publishedIn(slice)) + " to service default/kubernetes"
		case want.DualStack && slice.Name == want.secondSlice():
			harm = "has the name of the second slice of service default/kubernetes, which cannot be made"
		default:
			continue // it has nothing to do with the Service
		}
		reports = append(reports, baseline.Change{
			Verb: baseline.Report, Object: slice.DeepCopy(), Reason: SliceForeign,
			Detail: fmt.Sprintf("slice %s of %q %s; delete it if nobody owns it",
				slice.Name, slice.Labels[discoveryv1.LabelManagedBy], harm),
		})
	}
	return reports
}

// planUnwanted removes what was made here for a family that is not asked for any more.
func planUnwanted(want Want, all []*discoveryv1.EndpointSlice) []baseline.Change {
	var changes []baseline.Change
	for _, slice := range byName(all) {
		if !isSecondary(slice) || want.DualStack && slice.Name == want.secondSlice() {
			continue
		}
		changes = append(changes, baseline.Change{
			Verb: baseline.Delete, Object: slice.DeepCopy(), Reason: SliceUnwanted,
			Detail: fmt.Sprintf("slice %s is of a family that the endpoints of default/kubernetes are not to have", slice.Name),
		})
	}
	return changes
}

// planSlice plans the slice of a name. One that others made under the name of the second slice is theirs.
func planSlice(name string, want roster, all []*discoveryv1.EndpointSlice) []baseline.Change {
	existing := named(all, name)
	fresh := newSlice(name, want)
	switch {
	case existing == nil:
		return []baseline.Change{{
			Verb:   baseline.Create,
			Object: fresh,
			Reason: SliceMissing,
			Detail: fmt.Sprintf("endpointslice default/%s does not exist; it will hold %s", name, addressesText(want.texts())),
		}}
	case !isOwn(existing):
		return nil // reported as a foreign one
	case existing.AddressType != want.family:
		detail := fmt.Sprintf("addressType %s, want %s; it cannot be changed in place", existing.AddressType, want.family)
		keepForeignMetadata(fresh, existing)
		return []baseline.Change{
			{Verb: baseline.Delete, Object: existing.DeepCopy(), Reason: SliceWrongFamily, Detail: detail},
			{Verb: baseline.Create, Object: fresh, Reason: SliceWrongFamily, Detail: detail},
		}
	default:
		return repairSlice(fresh, want, existing)
	}
}

func newSlice(name string, want roster) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:      name,
			Namespace: metav1.NamespaceDefault,
			Labels:    map[string]string{discoveryv1.LabelServiceName: serviceName},
		},
		AddressType: want.family,
		Ports:       want.slicePorts(),
	}
	if name != serviceName {
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

// keepForeignMetadata carries what others wrote over to the successor of a slice.
func keepForeignMetadata(fresh, existing *discoveryv1.EndpointSlice) {
	old := existing.DeepCopy()
	fresh.Annotations = old.Annotations
	for key, value := range old.Labels {
		if _, ours := fresh.Labels[key]; !ours {
			fresh.Labels[key] = value
		}
	}
}

func repairSlice(fresh *discoveryv1.EndpointSlice, want roster, existing *discoveryv1.EndpointSlice) []baseline.Change {
	repaired := existing.DeepCopy()
	var differences []string
	if has := repaired.Labels[discoveryv1.LabelServiceName]; has != serviceName {
		setLabel(&repaired.ObjectMeta, discoveryv1.LabelServiceName, serviceName)
		differences = append(differences, fmt.Sprintf("label %s %q, want %q", discoveryv1.LabelServiceName, has, serviceName))
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
		Verb: baseline.Update, Object: repaired, Reason: SliceDrifted, Detail: strings.Join(differences, "; "),
	}}
}

// holdsExactly tells whether the endpoints are these addresses, each ready and alone, in whatever order.
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

// receives tells whether an endpoint gets traffic. Conditions that are not set count as the API documents them.
func receives(conditions discoveryv1.EndpointConditions) bool {
	isReady := conditions.Ready == nil || *conditions.Ready
	isServing := conditions.Serving == nil || *conditions.Serving
	isTerminating := conditions.Terminating != nil && *conditions.Terminating
	return isReady && isServing && !isTerminating
}

// samePorts compares what is kept here, in the order in which it is written. A port without a name or a protocol is another one.
func samePorts(has, want []discoveryv1.EndpointPort) bool {
	return slices.EqualFunc(has, want, func(a, b discoveryv1.EndpointPort) bool {
		return equal(a.Name, b.Name) && equal(a.Protocol, b.Protocol) && equal(a.Port, b.Port) && a.AppProtocol == nil
	})
}

func equal[T comparable](has, want *T) bool { return has != nil && *has == *want }

// PublishedInSlices lists the ready addresses of the slices that are the Service's, each once, ordered.
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
