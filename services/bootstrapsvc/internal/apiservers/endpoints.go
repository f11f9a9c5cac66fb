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
	// EndpointsMissing: the Endpoints object does not exist.
	EndpointsMissing baseline.Reason = "ENDPOINTS_MISSING"
	// EndpointsDrifted: the Endpoints object differs in addresses, ports or the label that stops
	// mirroring.
	EndpointsDrifted baseline.Reason = "ENDPOINTS_DRIFTED"
)

func planEndpoints(want desired, existing *corev1.Endpoints) []baseline.Change {
	if existing == nil {
		return []baseline.Change{{
			Verb:   planned.Create,
			Object: newEndpoints(want),
			Reason: EndpointsMissing,
			Detail: "endpoints default/kubernetes do not exist; they will hold " + addressesText(want.texts()),
		}}
	}
	repaired := existing.DeepCopy()
	var differences []string
	if has := existing.Labels[discoveryv1.LabelSkipMirror]; has != "true" {
		setLabel(&repaired.ObjectMeta, discoveryv1.LabelSkipMirror, "true")
		differences = append(differences, fmt.Sprintf("label %s %q, want \"true\"", discoveryv1.LabelSkipMirror, has))
	}
	if difference := subsetsDifference(existing.Subsets, want); difference != "" {
		repaired.Subsets = subsets(want)
		differences = append(differences, difference)
	}
	if len(differences) == 0 {
		return nil
	}
	return []baseline.Change{{
		Verb: planned.Update, Object: repaired, Before: existing.DeepCopy(), Reason: EndpointsDrifted, Detail: strings.Join(differences, "; "),
	}}
}

func newEndpoints(want desired) *corev1.Endpoints {
	return &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{
			Name:      baseline.ServiceName,
			Namespace: metav1.NamespaceDefault,
			Labels:    map[string]string{discoveryv1.LabelSkipMirror: "true"},
		},
		Subsets: subsets(want),
	}
}

func subsets(want desired) []corev1.EndpointSubset {
	subset := corev1.EndpointSubset{
		Ports: want.endpointsPorts(),
	}
	for _, address := range want.texts() {
		subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: address})
	}
	return []corev1.EndpointSubset{subset}
}

// subsetsDifference says how the subsets differ from the desired ones; empty if they do not. The
// order of addresses does not matter.
func subsetsDifference(has []corev1.EndpointSubset, want desired) string {
	if len(has) != 1 {
		return fmt.Sprintf("%d subsets, want one", len(has))
	}
	published := make([]string, 0, len(has[0].Addresses))
	for _, address := range has[0].Addresses {
		published = append(published, address.IP)
	}
	switch {
	case !sameSet(published, want.texts()):
		return fmt.Sprintf("addresses %s, want %s", addressesText(published), addressesText(want.texts()))
	case len(has[0].NotReadyAddresses) > 0:
		return fmt.Sprintf("%d addresses that are not ready, want none", len(has[0].NotReadyAddresses))
	case !slices.Equal(has[0].Ports, want.endpointsPorts()):
		return "ports differ, want " + want.portsText()
	default:
		return ""
	}
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

func endpointsWithout(endpoints *corev1.Endpoints, isOut func(address string) bool) *corev1.Endpoints {
	remaining := endpoints.DeepCopy()
	for i := range remaining.Subsets {
		remaining.Subsets[i].Addresses = slices.DeleteFunc(remaining.Subsets[i].Addresses,
			func(address corev1.EndpointAddress) bool { return isOut(address.IP) })
	}
	// The kube-apiserver rejects a subset without any address.
	remaining.Subsets = slices.DeleteFunc(remaining.Subsets, func(subset corev1.EndpointSubset) bool {
		return len(subset.Addresses) == 0 && len(subset.NotReadyAddresses) == 0
	})
	return remaining
}

func addressesText(addresses []string) string {
	if len(addresses) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(slices.Values(addresses)), ", ")
}
