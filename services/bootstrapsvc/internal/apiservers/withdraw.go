package apiservers

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/change"
)

// withdraw takes one address out of what is published and leaves the rest as it is. It is for the server that stops
// while no other is ready: what else is published may belong to a server whose key is missing for a moment.
func withdraw(leaving netip.Addr, have Snapshot) []change.Change {
	address := leaving.String()
	detail := "kube-apiserver " + address + " stops and no other is ready; its address is taken out"
	var changes []change.Change
	if slice := ownSlice(have.Slices); slice != nil && slices.Contains(publishedIn(slice), address) {
		changes = append(changes, change.Change{
			Verb: change.Update, Object: sliceWithout(slice, address), Reason: LastServerLeft, Detail: detail,
		})
	}
	if slices.Contains(PublishedInEndpoints(have.Endpoints), address) {
		changes = append(changes, change.Change{
			Verb: change.Update, Object: endpointsWithout(have.Endpoints, address), Reason: LastServerLeft, Detail: detail,
		})
	}
	return changes
}

func sliceWithout(slice *discoveryv1.EndpointSlice, address string) *discoveryv1.EndpointSlice {
	remaining := slice.DeepCopy()
	remaining.Endpoints = slices.DeleteFunc(remaining.Endpoints, func(endpoint discoveryv1.Endpoint) bool {
		return slices.Contains(endpoint.Addresses, address)
	})
	return remaining
}

func endpointsWithout(endpoints *corev1.Endpoints, address string) *corev1.Endpoints {
	remaining := endpoints.DeepCopy()
	isLeaving := func(has corev1.EndpointAddress) bool { return has.IP == address }
	for i := range remaining.Subsets {
		remaining.Subsets[i].Addresses = slices.DeleteFunc(remaining.Subsets[i].Addresses, isLeaving)
	}
	// An apiserver refuses a subset without any address.
	remaining.Subsets = slices.DeleteFunc(remaining.Subsets, func(subset corev1.EndpointSubset) bool {
		return len(subset.Addresses) == 0 && len(subset.NotReadyAddresses) == 0
	})
	return remaining
}
