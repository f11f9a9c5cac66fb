package writeback

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	leaseUID = types.UID("0f8fad5b-d9cb-469f-a165-70867728950e")
	nodeUID  = types.UID("7c9e6679-7425-40de-944b-e07fc1f90ae7")
)

// storedLease is a Lease as the kube-apiserver returns it.
func storedLease(r LeaseUpdate, change func(*coordinationv1.Lease)) *coordinationv1.Lease {
	l := NewLease(r, nodeUID)
	l.UID, l.ResourceVersion = leaseUID, "7"
	if change != nil {
		change(l)
	}
	return l
}

func TestLeaseRecord_ReturnsTheLeaseItWasMadeOf(t *testing.T) {
	agent := testUpdate
	agent.Class = "agent"
	for name, c := range map[string]struct {
		renewal LeaseUpdate
		change  func(*coordinationv1.Lease)
		plain   bool
	}{
		"of a node":       {renewal: testUpdate, plain: true},
		"of an agent":     {renewal: agent, plain: true},
		"annotated":       {renewal: testUpdate, change: func(l *coordinationv1.Lease) { l.Annotations = map[string]string{"a": "b"} }},
		"labelled":        {renewal: testUpdate, change: func(l *coordinationv1.Lease) { l.Labels = map[string]string{"a": "b"} }},
		"labelled, agent": {renewal: agent, change: func(l *coordinationv1.Lease) { l.Labels["a"] = "b" }},
		"another owner":   {renewal: testUpdate, change: func(l *coordinationv1.Lease) { l.OwnerReferences[0].Kind = "Machine" }},
		"owner that blocks": {renewal: testUpdate, change: func(l *coordinationv1.Lease) {
			l.OwnerReferences[0].BlockOwnerDeletion = new(true)
		}},
		"no time":        {renewal: testUpdate, change: func(l *coordinationv1.Lease) { l.Spec.RenewTime = nil }},
		"acquired":       {renewal: testUpdate, change: func(l *coordinationv1.Lease) { l.Spec.AcquireTime = microTime(noon) }},
		"terminating":    {renewal: testUpdate, change: func(l *coordinationv1.Lease) { l.DeletionTimestamp = new(metav1.NewTime(noon)) }},
		"another holder": {renewal: testUpdate, change: func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("other") }},
		"other UID":      {renewal: testUpdate, change: func(l *coordinationv1.Lease) { l.UID = types.UID(strings.ToUpper(string(leaseUID))) }},
		"other version":  {renewal: testUpdate, change: func(l *coordinationv1.Lease) { l.ResourceVersion = "007" }},
	} {
		lease := storedLease(c.renewal, c.change)
		known := NewLeaseRecord(lease)
		if got := known.whole == nil; got != c.plain {
			t.Errorf("%s: compact %t, want %t", name, got, c.plain)
		}
		got, ok := known.Lease(c.renewal, nodeUID)
		if !ok {
			t.Errorf("%s: not returned", name)
			continue
		}
		if diff := cmp.Diff(lease, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if known.UID() != lease.UID || known.ResourceVersion() != lease.ResourceVersion {
			t.Errorf("%s: %s@%s, want %s@%s", name, known.UID(), known.ResourceVersion(), lease.UID, lease.ResourceVersion)
		}
	}
}

func TestLeaseRecord_LeaseOfAnotherNodeMustBeRead(t *testing.T) {
	known := NewLeaseRecord(storedLease(testUpdate, nil))
	if _, ok := known.Lease(testUpdate, leaseUID); ok {
		t.Error("returned for a Node with another UID")
	}
	var none LeaseRecord
	if _, ok := none.Lease(testUpdate, nodeUID); ok || none.Exists() {
		t.Error("the zero record returned a Lease")
	}
}

func TestLeaseRecord_Takes48Bytes(t *testing.T) {
	if size := unsafe.Sizeof(LeaseRecord{}); size > 48 {
		t.Errorf("a LeaseRecord takes %d bytes", size)
	}
}

func TestUpdatedLease_ExpiredHoldersLeaseReadsAsLapsed(t *testing.T) {
	lastBeat := noon.Truncate(time.Microsecond)
	for name, c := range map[string]struct {
		renewed  time.Time // in the Lease before
		seconds  int32
		lapsed   time.Duration // after the last beat
		want     time.Time
		duration int32
	}{
		"renewed before the beat":  {lastBeat.Add(-4 * time.Minute), 500, 20 * time.Second, lastBeat, 20},
		"carries the last beat":    {lastBeat, 500, 20 * time.Second, lastBeat, 20},
		"part of a second":         {lastBeat, 500, 20*time.Second + 900*time.Millisecond, lastBeat, 20},
		"lapsed already":           {lastBeat.Add(-time.Minute), 15, 20 * time.Second, lastBeat, 15},
		"clock ahead":              {lastBeat.Add(5 * time.Second), 500, 20 * time.Second, lastBeat.Add(5 * time.Second), 15},
		"clock far ahead":          {lastBeat.Add(time.Hour), 500, 20 * time.Second, lastBeat.Add(time.Hour), 1},
		"silent for half a second": {lastBeat, 500, time.Second / 2, lastBeat, 1},
	} {
		last := storedLease(testUpdate, func(l *coordinationv1.Lease) {
			l.Spec.RenewTime, l.Spec.LeaseDurationSeconds = microTime(c.renewed), new(c.seconds)
		})
		r := testUpdate
		r.Duration, r.ExpireTime = 500*time.Second, lastBeat.Add(c.lapsed)
		got, err := UpdatedLease(last, r, nodeUID)
		if err != nil {
			t.Fatal(err)
		}
		if !got.Spec.RenewTime.Time.Equal(c.want) || *got.Spec.LeaseDurationSeconds != c.duration {
			t.Errorf("%s: renewed %v for %d s, want %v for %d s", name, got.Spec.RenewTime, *got.Spec.LeaseDurationSeconds, c.want, c.duration)
		}
		again, err := UpdatedLease(got, r, nodeUID)
		if err != nil || !EqualLeases(got, again) {
			t.Errorf("%s: written twice (error %v):\n%s", name, err, cmp.Diff(got, again))
		}
	}
}

func TestOrphaned_LeaseMustBeCreatedAndRenewedHere(t *testing.T) {
	agent := testUpdate
	agent.Class = "agent"
	entry := func(manager, field string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate,
			FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(`{"f:spec":{"f:%s":{}}}`, field)),
		}
	}
	ours := func(change func(*coordinationv1.Lease)) *coordinationv1.Lease {
		return storedLease(agent, func(l *coordinationv1.Lease) {
			l.ManagedFields = []metav1.ManagedFieldsEntry{entry(FieldManager, "renewTime")}
			change(l)
		})
	}
	none := func(*coordinationv1.Lease) {}
	late := noon.Add(time.Hour)
	for name, c := range map[string]struct {
		lease *coordinationv1.Lease
		now   time.Time
		want  bool
	}{
		"long lapsed":   {ours(none), late, true},
		"not long yet":  {ours(none), noon.Add(40*time.Second + 59*time.Second), false},
		"another class": {ours(func(l *coordinationv1.Lease) { l.Labels[ClassLabel] = "sidecar" }), late, false},
		"no label":      {ours(func(l *coordinationv1.Lease) { l.Labels = nil }), late, false},
		"owned":         {ours(func(l *coordinationv1.Lease) { l.OwnerReferences = []metav1.OwnerReference{nodeReference("n", "u")} }), late, false},
		"other holder":  {ours(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("other") }), late, false},
		"renewed by another": {ours(func(l *coordinationv1.Lease) {
			l.ManagedFields = []metav1.ManagedFieldsEntry{entry(FieldManager, "holderIdentity"), entry("kubelet", "renewTime")}
		}), late, false},
		"shared with another": {ours(func(l *coordinationv1.Lease) {
			l.ManagedFields = append(l.ManagedFields, entry("kubectl", "renewTime"))
		}), late, false},
		"no managed fields": {ours(func(l *coordinationv1.Lease) { l.ManagedFields = nil }), late, false},
	} {
		if got := Orphaned(c.lease, "agent", c.now, time.Minute); got != c.want {
			t.Errorf("%s: orphaned %t, want %t", name, got, c.want)
		}
	}
}
