package leasesvc_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/trivet-dev/trivet/services/leasesvc"
)

// awaitProblems waits for problems, each as severity, code and resource, in this order.
func (f *fixture) awaitProblems(want ...string) {
	f.t.Helper()
	f.eventually(func() error {
		var got []string
		for _, p := range f.service.Problems() {
			got = append(got, fmt.Sprintf("%v %s %s", p.Severity, p.Code, p.Resource))
			if kind := p.Object.GetKind(); kind == "Node" != strings.HasPrefix(p.Resource, "nodes/") || kind == "Lease" != strings.Contains(p.Resource, "/leases/") {
				f.t.Errorf("problem %v has the object %v", p, p.Object)
			}
			if p.Message == "" || p.Next == "" || p.Service != "leasesvc" {
				f.t.Errorf("problem %v is incomplete", p)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return errors.New("problems (-want +got):\n" + diff)
		}
		return nil
	})
}

func TestProblems_NamesNodesAndZones(t *testing.T) {
	t.Parallel()
	f := newNodeAPIFixture(t)
	f.awaitProblems()
	f.setReady(f.nodes[0], "100", corev1.ConditionFalse)
	notReady := "SEVERITY_WARNING NODES_NOT_READY nodes/" + f.nodes[0]
	f.awaitProblems(notReady)
	f.setReady(f.nodes[2], "101", corev1.ConditionFalse) // the other one of its zone
	f.awaitProblems("SEVERITY_ERROR ZONE_DISRUPTED zones/eu:a", notReady)
	f.lose(0, "there:7601") // that replica says it
	f.awaitProblems()
}

func TestProblems_NamesLeases(t *testing.T) {
	t.Parallel()
	kube := fake.NewClientset(nodeObject("n1"))
	kube.PrependReactor("create", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("injected by the test")
	})
	f := newFixture(t, setup{kube: kube, config: func(c *leasesvc.Config) { c.Shards, c.MaxSessions = 2, 2 }})
	f.awaitProblems()
	f.beat(1, holder("n1", "1"))
	f.awaitProblems("SEVERITY_ERROR LEASES_NOT_WRITTEN " + leaseName("n1"))
	f.beat(1, holder("stranger", "1"))
	f.beat(1, holder("stranger", "2"))
	for range 2 {
		f.beat(2, holder("stranger", "1"))
	}
	f.awaitProblems(
		"SEVERITY_ERROR LEASES_NOT_WRITTEN "+leaseName("n1"), "SEVERITY_ERROR HOLDER_LIMIT_REACHED replicas/"+member.ID,
		"SEVERITY_WARNING LEASES_WITHOUT_NODE "+leaseName("stranger"), "SEVERITY_WARNING DUPLICATE_HOLDERS "+leaseName("stranger"))
}
