package writebackcontroller_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writebackcontroller"
)

// agent renews the Lease of a holder that is no Node.
func (f *leaseFixture) writeAgent(last writeback.LeaseRecord, change func(*writeback.LeaseUpdate)) (writeback.LeaseRecord, writebackcontroller.Verb) {
	f.t.Helper()
	f.time = f.time.Add(time.Second)
	r := writeback.LeaseUpdate{
		Namespace: f.namespace, Name: f.node, Class: "agent", Duration: 40 * time.Second, RenewTime: f.time, Last: last,
	}
	if change != nil {
		change(&r)
	}
	known, verb, err := f.writer.Write(f.t.Context(), r)
	if err != nil {
		f.t.Fatal(err)
	}
	return known, verb
}

func TestWrite_LeaseOfAnAgentNeedsNoNodeAndIsLabelled(t *testing.T) {
	f := newLeaseFixture(t)
	known, verb := f.writeAgent(writeback.LeaseRecord{}, nil)
	if verb != writebackcontroller.VerbCreate {
		t.Errorf("verb %s, want create", verb)
	}
	known, verb = f.writeAgent(known, nil)
	if verb != writebackcontroller.VerbUpdate {
		t.Errorf("verb %s, want update", verb)
	}
	got := f.stored()
	if diff := cmp.Diff(map[string]string{writeback.ClassLabel: "agent"}, got.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	f.expect(nil, known)
}

func TestWrite_ExpiredHolderIsSaidToBeDeadOnceAndLivesAgain(t *testing.T) {
	f := newLeaseFixture(t)
	uid := f.addNode()
	expire := func(r *writeback.LeaseUpdate) {
		r.Class, r.Duration, r.RenewTime, r.ExpireTime = "", 500*time.Second, f.time, f.time.Add(20*time.Second)
	}
	if _, verb := f.writeAgent(writeback.LeaseRecord{}, expire); verb != writebackcontroller.VerbNone {
		t.Errorf("without a Lease: verb %s, want none", verb)
	}
	known := f.mustWrite(writeback.LeaseRecord{}, writebackcontroller.VerbCreate)
	known, verb := f.writeAgent(known, expire)
	if got := f.stored().Spec; verb != writebackcontroller.VerbUpdate || *got.LeaseDurationSeconds != 20 || !got.RenewTime.Time.Equal(f.time) {
		t.Errorf("verb %s, spec %+v; want 20 s from %v", verb, got, f.time)
	}
	if _, verb = f.writeAgent(writeback.LeaseRecord{}, func(r *writeback.LeaseUpdate) {
		expire(r)
		r.RenewTime, r.ExpireTime = r.RenewTime.Add(-time.Second), r.ExpireTime.Add(-time.Second) // as heard by who took over
	}); verb != writebackcontroller.VerbNone {
		t.Errorf("said already: verb %s, want none", verb)
	}
	f.expect(owner(f.node, uid), f.mustWrite(known, writebackcontroller.VerbUpdate))
}

func TestWrite_ForeignAnnotationsAndOwnersAreKept(t *testing.T) {
	f := newLeaseFixture(t)
	uid := f.addNode()
	last := f.mustWrite(writeback.LeaseRecord{}, writebackcontroller.VerbCreate)
	foreign := f.stored()
	foreign.Annotations = map[string]string{"example.org/note": "mine"}
	other := metav1.OwnerReference{APIVersion: "example.org/v1", Kind: "Machine", Name: "m", UID: "6b29fc40-ca47-1067-b31d-00dd010662da"}
	foreign.OwnerReferences = append(foreign.OwnerReferences, other)
	f.put(foreign)
	for range 2 { // once by a conflict, once from what is known then
		last = f.mustWrite(last, writebackcontroller.VerbUpdate)
	}
	f.expect(append(owner(f.node, uid), other), last)
	if got := f.stored().Annotations["example.org/note"]; got != "mine" {
		t.Errorf("the foreign annotation is %q", got)
	}
}

func TestDelete_TouchesOnlyWhatWasRenewedHereLast(t *testing.T) {
	f := newLeaseFixture(t)
	known, _ := f.writeAgent(writeback.LeaseRecord{}, nil)
	foreign := f.stored()
	foreign.Spec.RenewTime = &metav1.MicroTime{Time: f.time.Add(time.Minute)}
	foreign = f.put(foreign) // as by a kubelet that writes its own
	if err := f.writer.Delete(t.Context(), f.namespace, f.node); err != nil {
		t.Error(err)
	}
	if got := f.stored().ResourceVersion; got != foreign.ResourceVersion {
		t.Fatalf("resourceVersion %s, want %s as the other left it", got, foreign.ResourceVersion)
	}
	f.time = f.time.Add(time.Hour)
	f.writeAgent(known, nil)
	for range 2 { // the second time there is nothing left to delete
		if err := f.writer.Delete(t.Context(), f.namespace, f.node); err != nil {
			t.Error(err)
		}
	}
	if _, err := f.kube.CoordinationV1().Leases(f.namespace).Get(t.Context(), f.node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get after it: error %v, want not found", err)
	}
}

func TestOrphaned_OnARealAPIServer(t *testing.T) {
	f := newLeaseFixture(t)
	f.writeAgent(writeback.LeaseRecord{}, nil)
	var seen []coordinationv1.Lease
	err := f.writer.List(t.Context(), f.namespace, writeback.ClassLabel+"=agent", func(page []coordinationv1.Lease) error {
		seen = append(seen, page...)
		return nil
	})
	if err != nil || len(seen) != 1 {
		t.Fatalf("%d leases, error %v", len(seen), err)
	}
	if !writeback.Orphaned(&seen[0], "agent", f.time.Add(time.Hour), time.Minute) {
		t.Errorf("not found to be ours: %+v", seen[0])
	}
	f.writeAgent(writeback.LeaseRecord{}, nil) // its holder is back
	if err := f.writer.DeleteUnchanged(t.Context(), &seen[0]); !apierrors.IsConflict(err) {
		t.Errorf("deleted what has changed: error %v, want a conflict", err)
	}
	now := f.stored()
	if err := f.writer.DeleteUnchanged(t.Context(), now); err != nil {
		t.Errorf("delete: %v", err)
	}
}
