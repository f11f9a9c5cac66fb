package apiservers

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/change"
)

const (
	// EndpointsMissing: the Endpoints object does not exist.
	EndpointsMissing change.Reason = "ENDPOINTS_MISSING"
	// EndpointsDrifted: the Endpoints object differs in addresses, ports or the label that stops mirroring.
	EndpointsDrifted change.Reason = "ENDPOINTS_DRIFTED"
)

func planEndpoints(want roster, existing *corev1.Endpoints) []change.Change {
	if existing == nil {
		return []change.Change{{
			Verb:   change.Create,
			Object: newEndpoints(want),
			Reason: EndpointsMissing,
			Detail: "endpoints default/kubernetes do not exist; they will hold " + addressesText(want.texts()),
		}}
	}
	repaired := existing.DeepCopy()
	detail := ""
	if repaired.Labels[discoveryv1.LabelSkipMirror] != "true" {
		setLabel(&repaired.ObjectMeta, discoveryv1.LabelSkipMirror, "true")
		detail = "label " + discoveryv1.LabelSkipMirror + " is not true; "
	}
	if !publishes(existing.Subsets, want) {
		repaired.Subsets = subsets(want)
		detail += fmt.Sprintf("addresses %s in %d subsets, want %s in one on port %d",
			addressesText(PublishedInEndpoints(existing)), len(existing.Subsets), addressesText(want.texts()), want.port)
	}
	if detail == "" {
		return nil
	}
	return []change.Change{{Verb: change.Update, Object: repaired, Reason: EndpointsDrifted, Detail: detail}}
}

func newEndpoints(want roster) *corev1.Endpoints {
	return &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{
			Name:      serviceName,
			Namespace: metav1.NamespaceDefault,
			Labels:    map[string]string{discoveryv1.LabelSkipMirror: "true"},
		},
		Subsets: subsets(want),
	}
}

func subsets(want roster) []corev1.EndpointSubset {
	subset := corev1.EndpointSubset{
		Ports: []corev1.EndpointPort{{Name: portName, Protocol: corev1.ProtocolTCP, Port: want.port}},
	}
	for _, address := range want.texts() {
		subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: address})
	}
	return []corev1.EndpointSubset{subset}
}

// publishes tells whether the subsets say what is wanted, in whatever order.
func publishes(has []corev1.EndpointSubset, want roster) bool {
	if len(has) != 1 || len(has[0].NotReadyAddresses) > 0 || len(has[0].Ports) != 1 {
		return false
	}
	port := has[0].Ports[0]
	if port.Name != portName || port.Protocol != corev1.ProtocolTCP || port.Port != want.port || port.AppProtocol != nil {
		return false
	}
	published := make([]string, 0, len(has[0].Addresses))
	for _, address := range has[0].Addresses {
		published = append(published, address.IP)
	}
	return sameSet(published, want.texts())
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func setLabel(meta *metav1.ObjectMeta, key, value string) {
	if meta.Labels == nil {
		meta.Labels = map[string]string{}
	}
	meta.Labels[key] = value
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
