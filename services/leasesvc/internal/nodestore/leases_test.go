package nodestore_test

import (
	"context"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
)

// samples are of Leases that are older than those in newLeaseReader.
func samples(names string) (samples []nodehealth.Sample) {
	for _, name := range strings.Fields(names) {
		samples = append(samples, nodehealth.Sample{Node: name, LeaseVersion: "1"})
	}
	return samples
}

// renewed is when the Leases in newLeaseReader were renewed.
func renewed() time.Time { return time.Unix(1_800_000_000, 123_000) }

// newLeaseReader returns a Writer whose reads of Leases fail if their name begins with f.
func newLeaseReader(t *testing.T) *nodestore.Writer {
	kube := fake.NewClientset()
	kube.PrependReactor("get", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		get, is := action.(clienttesting.GetAction)
		if !is {
			t.Errorf("action %v", action)
			return false, nil, nil
		}
		lease := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: renewed()}}}
		lease.Name, lease.ResourceVersion = get.GetName(), "7"
		if get.GetName()[0] == 'f' {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, get.GetName(), context.Canceled)
		}
		return true, lease, nil
	})
	return nodestore.New(kube, nodestore.Config{NodeHealth: true, RenewedByUs: func(*coordinationv1.Lease) bool { return false }}).Writer()
}

// One Lease that can never be read forbids no answer.
func TestWriter_NewerLeasesNeedsOneAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		names   string
		newer   int
		refused bool
	}{
		"all answer":      {names: "q1 q2 q3", newer: 3},
		"one fails":       {names: "f1 q2 q3", newer: 2},
		"all fail":        {names: "f1 f2", refused: true},
		"one is the only": {names: "f1 f2 q3", newer: 1},
	} {
		t.Run(name, func(t *testing.T) {
			newer, err := newLeaseReader(t).NewerLeases(t.Context(), samples(c.names))
			if len(newer) != c.newer || apierrors.IsForbidden(err) != c.refused || err != nil && !c.refused {
				t.Errorf("newer Leases %v, error %v", newer, err)
			}
		})
	}
}

// Another writer annotates a Lease all the time. Only a renewal shows that the cache is behind.
func TestWriter_AnAnnotatedLeaseIsNoNewerOne(t *testing.T) {
	for name, c := range map[string]struct {
		cached time.Time
		newer  int
	}{
		"annotated": {cached: renewed()},
		"renewed":   {cached: renewed().Add(-10 * time.Second), newer: 1},
	} {
		t.Run(name, func(t *testing.T) {
			newer, err := newLeaseReader(t).NewerLeases(t.Context(), []nodehealth.Sample{{Node: "q1", LeaseVersion: "1", RenewTime: c.cached}})
			if err != nil || len(newer) != c.newer {
				t.Errorf("newer Leases %v, error %v; want %d", newer, err, c.newer)
			}
		})
	}
}
