package endpointset

import (
	"maps"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestSet_EachChangeIsOneAddressOfOneObject(t *testing.T) {
	kube := fake.NewClientset()
	set, err := Create(t.Context(), kube, 2, 3, 4)
	if err != nil {
		t.Fatal(err)
	}
	before := maps.Collect(set.All())
	if len(before) != 12 || set.Len() != 12 {
		t.Fatalf("%d addresses, want 12", len(before))
	}
	for n := range 3 {
		address, ready, err := set.flipOne(t.Context(), n)
		if err != nil || ready || !before[address] {
			t.Fatalf("change %d made %s ready=%t, %v", n, address, ready, err)
		}
		delete(before, address)
	}
	for address, ready := range set.All() {
		if ready != before[address] {
			t.Errorf("%s is ready=%t", address, ready)
		}
	}
	stored, err := kube.CoreV1().Endpoints("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, endpoints := range stored.Items {
		if subset := endpoints.Subsets[0]; len(subset.Addresses) != 3 || len(subset.NotReadyAddresses) != 1 {
			t.Errorf("%s has %d ready and %d other addresses, want 3 and 1", endpoints.Name, len(subset.Addresses), len(subset.NotReadyAddresses))
		}
	}
}
