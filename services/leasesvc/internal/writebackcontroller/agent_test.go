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
func (b *bench) agent(last writeback.LeaseRecord, change func(*writeback.LeaseUpdate)) (writeback.LeaseRecord, writebackcontroller.Verb) {
	b.t.Helper()
	b.time = b.time.Add(time.Second)
	r := writeback.LeaseUpdate{
		Namespace: b.namespace, Name: b.node, Class: "agent", Duration: 40 * time.Second, RenewTime: b.time, Last: last,
	}
	if change != nil {
		change(&r)
	}
	known, verb, err := b.writer.Write(b.t.Context(), r)
	if err != nil {
		b.t.Fatal(err)
	}
	return known, verb
}

func TestWrite_LeaseOfAnAgentNeedsNoNodeAndIsLabelled(t *testing.T) {
	b := newBench(t)
	known, verb := b.agent(writeback.LeaseRecord{}, nil)
	if verb != writebackcontroller.VerbCreate {
		t.Errorf("verb %s, want create", verb)
	}
	known, verb = b.agent(known, nil)
	if verb != writebackcontroller.VerbUpdate {
		t.Errorf("verb %s, want update", verb)
	}
	got := b.stored()
	if diff := cmp.Diff(map[string]string{writeback.ClassLabel: "agent"}, got.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	b.expect(nil, known)
}

func TestWrite_ExpiredHolderIsSaidToBeDeadOnceAndLivesAgain(t *testing.T) {
	b := newBench(t)
	uid := b.addNode()
	expire := func(r *writeback.LeaseUpdate) {
		r.Class, r.Duration, r.RenewTime, r.ExpireTime = "", 500*time.Second, b.time, b.time.Add(20*time.Second)
	}
	if _, verb := b.agent(writeback.LeaseRecord{}, expire); verb != writebackcontroller.VerbNone {
		t.Errorf("without a Lease: verb %s, want none", verb)
	}
	known := b.mustWrite(writeback.LeaseRecord{}, writebackcontroller.VerbCreate)
	known, verb := b.agent(known, expire)
	if got := b.stored().Spec; verb != writebackcontroller.VerbUpdate || *got.LeaseDurationSeconds != 20 || !got.RenewTime.Time.Equal(b.time) {
		t.Errorf("verb %s, spec %+v; want 20 s from %v", verb, got, b.time)
	}
	if _, verb = b.agent(writeback.LeaseRecord{}, func(r *writeback.LeaseUpdate) {
		expire(r)
		r.RenewTime, r.ExpireTime = r.RenewTime.Add(-time.Second), r.ExpireTime.Add(-time.Second) // as heard by who took over
	}); verb != writebackcontroller.VerbNone {
		t.Errorf("said already: verb %s, want none", verb)
	}
	b.expect(owner(b.node, uid), b.mustWrite(known, writebackcontroller.VerbUpdate))
}

func TestWrite_ForeignAnnotationsAndOwnersAreKept(t *testing.T) {
	b := newBench(t)
	uid := b.addNode()
	last := b.mustWrite(writeback.LeaseRecord{}, writebackcontroller.VerbCreate)
	foreign := b.stored()
	foreign.Annotations = map[string]string{"example.org/note": "mine"}
	other := metav1.OwnerReference{APIVersion: "example.org/v1", Kind: "Machine", Name: "m", UID: "6b29fc40-ca47-1067-b31d-00dd010662da"}
	foreign.OwnerReferences = append(foreign.OwnerReferences, other)
	b.put(foreign)
	for range 2 { // once by a conflict, once from what is known then
		last = b.mustWrite(last, writebackcontroller.VerbUpdate)
	}
	b.expect(append(owner(b.node, uid), other), last)
	if got := b.stored().Annotations["example.org/note"]; got != "mine" {
		t.Errorf("the foreign annotation is %q", got)
	}
}

func TestDelete_TouchesOnlyWhatWasRenewedHereLast(t *testing.T) {
	b := newBench(t)
	known, _ := b.agent(writeback.LeaseRecord{}, nil)
	foreign := b.stored()
	foreign.Spec.RenewTime = &metav1.MicroTime{Time: b.time.Add(time.Minute)}
	foreign = b.put(foreign) // as by a kubelet that writes its own
	if err := b.writer.Delete(t.Context(), b.namespace, b.node); err != nil {
		t.Error(err)
	}
	if got := b.stored().ResourceVersion; got != foreign.ResourceVersion {
		t.Fatalf("resourceVersion %s, want %s as the other left it", got, foreign.ResourceVersion)
	}
	b.time = b.time.Add(time.Hour)
	b.agent(known, nil)
	for range 2 { // the second time there is nothing left to delete
		if err := b.writer.Delete(t.Context(), b.namespace, b.node); err != nil {
			t.Error(err)
		}
	}
	if _, err := b.kube.CoordinationV1().Leases(b.namespace).Get(t.Context(), b.node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get after it: error %v, want not found", err)
	}
}

func TestOrphaned_OnARealAPIServer(t *testing.T) {
	b := newBench(t)
	b.agent(writeback.LeaseRecord{}, nil)
	var seen []coordinationv1.Lease
	err := b.writer.List(t.Context(), b.namespace, writeback.ClassLabel+"=agent", func(page []coordinationv1.Lease) error {
		seen = append(seen, page...)
		return nil
	})
	if err != nil || len(seen) != 1 {
		t.Fatalf("%d leases, error %v", len(seen), err)
	}
	if !writeback.Orphaned(&seen[0], "agent", b.time.Add(time.Hour), time.Minute) {
		t.Errorf("not found to be ours: %+v", seen[0])
	}
	b.agent(writeback.LeaseRecord{}, nil) // its holder is back
	if err := b.writer.DeleteUnchanged(t.Context(), &seen[0]); !apierrors.IsConflict(err) {
		t.Errorf("deleted what has changed: error %v, want a conflict", err)
	}
	now := b.stored()
	if err := b.writer.DeleteUnchanged(t.Context(), now); err != nil {
		t.Errorf("delete: %v", err)
	}
}
