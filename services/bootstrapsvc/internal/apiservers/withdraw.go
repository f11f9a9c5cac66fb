package apiservers

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// withdraw takes addresses out of what is published and leaves the rest as it is. It is for servers that stop
// while no other is ready: what else is published may belong to a server whose key is missing for a moment.
func withdraw(leaving []netip.Addr, have Snapshot) []baseline.Change {
	texts := make([]string, 0, len(leaving))
	for _, address := range leaving {
		texts = append(texts, address.String())
	}
	isLeaving := func(address string) bool { return slices.Contains(texts, address) }
	detail := "kube-apiserver " + addressesText(texts) + " stops and no other is ready; its address is taken out"
	var changes []baseline.Change
	for _, slice := range byName(have.Slices) {
		if isOwn(slice) && slices.ContainsFunc(publishedIn(slice), isLeaving) {
			changes = append(changes, baseline.Change{
				Verb: baseline.Update, Object: sliceWithout(slice, isLeaving), Reason: LastServerLeft, Detail: detail,
			})
		}
	}
	if slices.ContainsFunc(PublishedInEndpoints(have.Endpoints), isLeaving) {
		changes = append(changes, baseline.Change{
			Verb: baseline.Update, Object: endpointsWithout(have.Endpoints, isLeaving), Reason: LastServerLeft, Detail: detail,
		})
	}
	return changes
}

func sliceWithout(slice *discoveryv1.EndpointSlice, isOut func(address string) bool) *discoveryv1.EndpointSlice {
	remaining := slice.DeepCopy()
	remaining.Endpoints = slices.DeleteFunc(remaining.Endpoints, func(endpoint discoveryv1.Endpoint) bool {
		return slices.ContainsFunc(endpoint.Addresses, isOut)
	})
	return remaining
}

func endpointsWithout(endpoints *corev1.Endpoints, isOut func(address string) bool) *corev1.Endpoints {
	remaining := endpoints.DeepCopy()
	isLeaving := func(has corev1.EndpointAddress) bool { return isOut(has.IP) }
	for i := range remaining.Subsets {
		remaining.Subsets[i].Addresses = slices.DeleteFunc(remaining.Subsets[i].Addresses, isLeaving)
	}
	// An apiserver refuses a subset without any address.
	remaining.Subsets = slices.DeleteFunc(remaining.Subsets, func(subset corev1.EndpointSubset) bool {
		return len(subset.Addresses) == 0 && len(subset.NotReadyAddresses) == 0
	})
	return remaining
}
