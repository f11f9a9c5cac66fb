package damage

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/testkit"
	"github.com/trivet-dev/trivet/test/faults/damage/internal/oracle"
)

// The witness says nothing against kube-apiserver alone, so what it says in other tests is about others.
func TestObserver_BaselineRunHasNoViolations(t *testing.T) {
	inj := newInjector(t)
	startChurn(t, inj.kube, testkit.Namespace(t, inj.kube), min(*services, 200)).end(t)
	inj.observer.checkViolations(t, nil)
	if events := inj.observer.oracle.Events(); events < 200 {
		t.Errorf("%d events were judged, want some for each Service", events)
	}
}

// The witness sees what is done to addresses and ports that are used.
func TestObserver_RecordsViolations(t *testing.T) {
	inj := newInjector(t)
	service := inj.createService(withPorts)
	ip, number := service.Spec.ClusterIP, service.Spec.Ports[0].NodePort
	if err := inj.kube.NetworkingV1().IPAddresses().Delete(t.Context(), ip, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	inj.setPortBit(number, 0)
	inj.observer.waitUntilCurrent(t)
	inj.setPortBit(number, 1)
	inj.allocate(ip, parentOf(service))
	inj.observer.waitUntilCurrent(t)
	got := inj.observer.oracle.Violations()
	want := func(b oracle.Violation) bool {
		return b.Rule == oracle.FreedInUse && b.Subject == ip && b.ReallocatedAt > b.Revision
	}
	// The port was the hand's own doing, and pardoned.
	if len(got) != 1 || !slices.ContainsFunc(got, want) {
		t.Errorf("breaches are %v, want one, healed, of %s", got, ip)
	}
}
