package writebackcontroller_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writebackcontroller"
)

// fakeLeases has Leases of agents and records deletions.
type fakeLeases struct {
	leases  []coordinationv1.Lease
	deleted []string
}

func (l *fakeLeases) List(_ context.Context, _, selector string, visit func([]coordinationv1.Lease) error) error {
	if selector != "trivet.dev/holder-class=agent" {
		return fmt.Errorf("listed by %q", selector)
	}
	return visit(l.leases)
}

func (l *fakeLeases) DeleteUnchanged(ctx context.Context, seen *coordinationv1.Lease) error {
	if seen.Name == "changed" {
		return apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, seen.Name, nil)
	}
	l.deleted = append(l.deleted, seen.Name)
	return ctx.Err()
}

// fakeAbsences has one held shard and the holders that are present in it.
type fakeAbsences struct {
	held    *sessioncontroller.HeldShard
	present []string
}

func (a fakeAbsences) CheckAbsent(_ context.Context, key session.Key, shard int, kept time.Duration) (*sessioncontroller.HeldShard, error) {
	switch {
	case shard != a.held.ID():
		return nil, sessioncontroller.NotHeldError{Shard: shard}
	case kept != time.Minute || slices.Contains(a.present, key.Name):
		return nil, nil
	}
	return a.held, nil
}

func orphanedLease(name string, lapsed time.Duration) coordinationv1.Lease {
	return coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{writeback.ClassLabel: "agent"},
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: writeback.FieldManager, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:renewTime":{}}}`),
			}},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new(name), LeaseDurationSeconds: new(int32(1)),
			RenewTime: &metav1.MicroTime{Time: time.Now().Add(-time.Second - lapsed)},
		},
	}
}

func TestCollect_DeletesOrphanedLeasesOfHeldShardsOnly(t *testing.T) {
	t.Parallel()
	kube := orphanedLease("kube", time.Hour)
	kube.ManagedFields = nil
	leases := &fakeLeases{leases: []coordinationv1.Lease{
		orphanedLease("changed", time.Hour), orphanedLease("elsewhere", time.Hour), orphanedLease("gone", time.Hour), kube,
		orphanedLease("late", 30*time.Second), orphanedLease("present", time.Hour), orphanedLease("too", time.Hour),
	}}
	metrics := writebackcontroller.NewMetrics(nil)
	s := &writebackcontroller.OrphanCollector{
		Classes: []writebackcontroller.OrphanClass{{ID: 1, Name: "agent", Namespace: "agents", Retention: time.Minute}},
		Shard: func(key session.Key) int {
			if key.Name == "elsewhere" {
				return 1
			}
			return 0
		},
		Leases: leases, Metrics: metrics, Timeout: time.Second,
	}
	term, end := context.WithCancel(t.Context())
	here := fakeAbsences{held: sessioncontroller.NewHeldShard(term, 0, 1), present: []string{"present"}}
	if err := s.Collect(t.Context(), here); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"gone", "too"}, leases.deleted); diff != "" {
		t.Errorf("deleted (-want +got):\n%s", diff)
	}
	end()
	leases.deleted = nil
	if err := s.Collect(t.Context(), here); err != nil || leases.deleted != nil {
		t.Errorf("after the term: deleted %v, error %v", leases.deleted, err)
	}
}
