package damage

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/testkit"
	"github.com/trivet-dev/trivet/test/faults/damage/internal/custody"
)

// The witness says nothing against kube-apiserver alone, so what it says in other tests is about others.
func TestWitness_PeaceBreaksNoRule(t *testing.T) {
	h := newHand(t)
	startChurn(t, h.kube, testkit.Namespace(t, h.kube), min(*services, 200)).end(t)
	h.witness.verdict(t, nil)
	if events := h.witness.judge.Events(); events < 200 {
		t.Errorf("%d events were judged, want some for each Service", events)
	}
}

// The witness sees what is done to addresses and ports that are used.
func TestWitness_SeesHarm(t *testing.T) {
	h := newHand(t)
	service := h.service(withPorts)
	ip, number := service.Spec.ClusterIP, service.Spec.Ports[0].NodePort
	if err := h.kube.NetworkingV1().IPAddresses().Delete(t.Context(), ip, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	h.setPort(number, 0)
	h.witness.caughtUp(t)
	h.setPort(number, 1)
	h.allocate(ip, parentOf(service))
	h.witness.caughtUp(t)
	got := h.witness.judge.Breaches()
	want := func(b custody.Breach) bool {
		return b.Rule == custody.FreedInUse && b.Subject == ip && b.Healed > b.Revision
	}
	// The port was the hand's own doing, and pardoned.
	if len(got) != 1 || !slices.ContainsFunc(got, want) {
		t.Errorf("breaches are %v, want one, healed, of %s", got, ip)
	}
}
