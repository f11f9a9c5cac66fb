package writeback

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 123456789, time.UTC)

var testUpdate = LeaseUpdate{Namespace: "kube-node-lease", Name: "n1", Duration: 40 * time.Second, RenewTime: noon}

func microTime(t time.Time) *metav1.MicroTime { return &metav1.MicroTime{Time: t} }

func leaseWith(change func(*coordinationv1.Lease)) *coordinationv1.Lease {
	l := NewLease(testUpdate, "uid-1")
	l.ResourceVersion = "7"
	change(l)
	return l
}

func TestUpdatedLease_KeepsForeignContent(t *testing.T) {
	foreign := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "d", UID: "x"}
	withFlag := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "uid-1", BlockOwnerDeletion: new(true)}
	for name, change := range map[string]struct{ before, after func(*coordinationv1.Lease) }{
		"plain": {before: func(*coordinationv1.Lease) {}, after: func(*coordinationv1.Lease) {}},
		"foreign fields stay": {
			before: func(l *coordinationv1.Lease) {
				l.Labels, l.Spec.LeaseTransitions = map[string]string{"a": "b"}, new(int32(3))
				l.OwnerReferences = []metav1.OwnerReference{withFlag, foreign}
			},
			after: func(l *coordinationv1.Lease) {
				l.Labels, l.Spec.LeaseTransitions = map[string]string{"a": "b"}, new(int32(3))
				l.OwnerReferences = []metav1.OwnerReference{withFlag, foreign}
			},
		},
		"no owner yet": {
			before: func(l *coordinationv1.Lease) { l.OwnerReferences = []metav1.OwnerReference{foreign} },
			after: func(l *coordinationv1.Lease) {
				l.OwnerReferences = []metav1.OwnerReference{foreign, nodeReference("n1", "uid-1")}
			},
		},
		"owned by an earlier Node with the name": {
			before: func(l *coordinationv1.Lease) {
				l.OwnerReferences = []metav1.OwnerReference{nodeReference("n1", "uid-0"), foreign}
			},
			after: func(l *coordinationv1.Lease) {
				l.OwnerReferences = []metav1.OwnerReference{foreign, nodeReference("n1", "uid-1")}
			},
		},
		"no holder, another duration": {
			before: func(l *coordinationv1.Lease) { l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds = nil, new(int32(9)) },
			after:  func(*coordinationv1.Lease) {},
		},
		"earlier time": {
			before: func(l *coordinationv1.Lease) { l.Spec.RenewTime = microTime(noon.Add(-time.Hour)) },
			after:  func(l *coordinationv1.Lease) { l.Spec.RenewTime = microTime(noon.Truncate(time.Microsecond)) },
		},
		"writer with a clock ahead": {
			before: func(l *coordinationv1.Lease) { l.Spec.RenewTime = microTime(noon.Add(time.Hour)) },
			after:  func(l *coordinationv1.Lease) { l.Spec.RenewTime = microTime(noon.Add(time.Hour + time.Microsecond)) },
		},
		"no time": {
			before: func(l *coordinationv1.Lease) { l.Spec.RenewTime = nil },
			after:  func(*coordinationv1.Lease) {},
		},
	} {
		last := leaseWith(change.before)
		if last.Spec.RenewTime != nil && name != "writer with a clock ahead" {
			last.Spec.RenewTime = microTime(noon.Add(-time.Second))
		}
		untouched := last.DeepCopy()
		got, err := UpdatedLease(last, testUpdate, "uid-1")
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(leaseWith(change.after), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(untouched, last); diff != "" {
			t.Errorf("%s: last was changed:\n%s", name, diff)
		}
	}
}

func TestUpdatedLease_FailsForForeignAndTerminatingLeases(t *testing.T) {
	if _, err := UpdatedLease(leaseWith(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("other") }), testUpdate, "uid-1"); !errors.Is(err, ErrForeignHolder) {
		t.Errorf("another holder: error %v, want ErrForeignHolder", err)
	}
	if _, err := UpdatedLease(leaseWith(func(l *coordinationv1.Lease) { l.DeletionTimestamp = new(metav1.Now()) }), testUpdate, "uid-1"); !errors.Is(err, ErrTerminating) {
		t.Errorf("being deleted: error %v, want ErrTerminating", err)
	}
}

func TestCeilSeconds_RoundsUpToAtLeastOne(t *testing.T) {
	for d, want := range map[time.Duration]int32{0: 1, time.Millisecond: 1, time.Second: 1, 1001 * time.Millisecond: 2, 40 * time.Second: 40} {
		if got := ceilSeconds(d); got != want {
			t.Errorf("ceilSeconds(%v) = %d, want %d", d, got, want)
		}
	}
}
