package apiservers

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/change"
)

const (
	// SliceMissing: the EndpointSlice does not exist.
	SliceMissing change.Reason = "ENDPOINT_SLICE_MISSING"
	// SliceDrifted: the EndpointSlice differs in endpoints, ports or the label that names its Service.
	SliceDrifted change.Reason = "ENDPOINT_SLICE_DRIFTED"
	// SliceWrongFamily: the EndpointSlice has an address type that cannot be changed; it is deleted and created again.
	SliceWrongFamily change.Reason = "ENDPOINT_SLICE_WRONG_FAMILY"
	// SliceForeign: somebody else's slice adds endpoints to the Service. It is never touched here.
	SliceForeign change.Reason = "ENDPOINT_SLICE_FOREIGN"
)

// ownSlice finds the slice that kube-apiserver and this service share: the one named after the Service.
func ownSlice(all []*discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	for _, slice := range all {
		if slice.Name == serviceName {
			return slice
		}
	}
	return nil
}

func reportForeign(all []*discoveryv1.EndpointSlice) []change.Change {
	var reports []change.Change
	for _, slice := range all {
		if slice.Name == serviceName {
			continue
		}
		reports = append(reports, change.Change{
			Verb:   change.Report,
			Object: slice.DeepCopy(),
			Reason: SliceForeign,
			Detail: fmt.Sprintf("slice %s of %q also adds %s to service default/kubernetes; delete it if nobody owns it",
				slice.Name, slice.Labels[discoveryv1.LabelManagedBy], addressesText(publishedIn(slice))),
		})
	}
	slices.SortFunc(reports, func(a, b change.Change) int {
		return strings.Compare(a.Object.GetName(), b.Object.GetName())
	})
	return reports
}

func planSlice(family discoveryv1.AddressType, want roster, existing *discoveryv1.EndpointSlice) []change.Change {
	fresh := newSlice(family, want)
	switch {
	case existing == nil:
		return []change.Change{{
			Verb:   change.Create,
			Object: fresh,
			Reason: SliceMissing,
			Detail: "endpointslice default/kubernetes does not exist; it will hold " + addressesText(want.texts()),
		}}
	case existing.AddressType != family:
		detail := fmt.Sprintf("addressType %s, want %s; it cannot be changed in place", existing.AddressType, family)
		keepForeignMetadata(fresh, existing)
		return []change.Change{
			{Verb: change.Delete, Object: existing.DeepCopy(), Reason: SliceWrongFamily, Detail: detail},
			{Verb: change.Create, Object: fresh, Reason: SliceWrongFamily, Detail: detail},
		}
	default:
		return repairSlice(fresh, want, existing)
	}
}

func newSlice(family discoveryv1.AddressType, want roster) *discoveryv1.EndpointSlice {
	name, protocol, port := portName, corev1.ProtocolTCP, want.port
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:      serviceName,
			Namespace: metav1.NamespaceDefault,
			Labels:    map[string]string{discoveryv1.LabelServiceName: serviceName},
		},
		AddressType: family,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}},
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

func repairSlice(fresh *discoveryv1.EndpointSlice, want roster, existing *discoveryv1.EndpointSlice) []change.Change {
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
	if !servesOn(existing.Ports, want.port) {
		repaired.Ports = fresh.Ports
		differences = append(differences, fmt.Sprintf("ports differ, want %s %d/TCP", portName, want.port))
	}
	if len(differences) == 0 {
		return nil
	}
	return []change.Change{{
		Verb: change.Update, Object: repaired, Reason: SliceDrifted, Detail: strings.Join(differences, "; "),
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

func servesOn(ports []discoveryv1.EndpointPort, want int32) bool {
	if len(ports) != 1 {
		return false
	}
	port := ports[0]
	return port.Name != nil && *port.Name == portName &&
		port.Protocol != nil && *port.Protocol == corev1.ProtocolTCP &&
		port.Port != nil && *port.Port == want &&
		port.AppProtocol == nil
}

// PublishedInSlices lists the ready addresses of the slices, each once, ordered.
func PublishedInSlices(all []*discoveryv1.EndpointSlice) []string {
	var published []string
	for _, slice := range all {
		published = append(published, publishedIn(slice)...)
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
