package nodestore_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestWriter_WriteChangesOnlyWhatTheStepSays(t *testing.T) {
	f := newFixture(t, forHealth)
	unknown := corev1.NodeCondition{
		Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", LastTransitionTime: metav1.Unix(1_700_000_000, 0),
	}
	stripped, err := f.writer.Write(t.Context(), nodehealth.Step{Kind: nodehealth.MarkUnknown, Node: f.node, Conditions: []corev1.NodeCondition{unknown}})
	f.must(err)
	want := f.node.DeepCopy()
	want.Status.Conditions[0] = unknown
	f.expectNode(want)

	added := metav1.Unix(1_700_000_001, 0)
	taints := []corev1.Taint{f.node.Spec.Taints[0], f.node.Spec.Taints[1], {Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute, TimeAdded: &added}}
	stripped, err = f.writer.Write(t.Context(), nodehealth.Step{
		Kind: nodehealth.AddNoExecute, Node: stripped, Taints: &taints, Labels: map[string]string{nodehealth.LabelBetaOS: "linux"},
	})
	f.must(err)
	want.Spec.Taints = taints
	want.Labels[nodehealth.LabelBetaOS] = "linux"
	f.expectNode(want)

	none := []corev1.Taint{}
	_, err = f.writer.Write(t.Context(), nodehealth.Step{Kind: nodehealth.RemoveNoExecute, Node: stripped, Taints: &none})
	f.must(err)
	want.Spec.Taints = nil
	f.expectNode(want)
}

func TestWriter_WriteIsGuardedByVersionAndUID(t *testing.T) {
	f := newFixture(t, forHealth)
	none := []corev1.Taint{}
	older, other := f.node.DeepCopy(), f.node.DeepCopy()
	_, err := f.kube.CoreV1().Nodes().Patch(t.Context(), f.node.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
	f.must(err)
	now, err := f.kube.CoreV1().Nodes().Get(t.Context(), f.node.Name, metav1.GetOptions{})
	f.must(err)
	other.ResourceVersion, other.UID = now.ResourceVersion, "another"
	unknown := []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	for name, step := range map[string]nodehealth.Step{
		"taints, older":              {Kind: nodehealth.RemoveNoExecute, Node: older, Taints: &none},
		"taints, another node":       {Kind: nodehealth.RemoveNoExecute, Node: other, Taints: &none},
		"mark unknown, older":        {Kind: nodehealth.MarkUnknown, Node: older, Conditions: unknown},
		"mark unknown, another node": {Kind: nodehealth.MarkUnknown, Node: other, Conditions: unknown},
	} {
		if _, err := f.writer.Write(t.Context(), step); !guardHeld(err) {
			t.Errorf("%s: error %v, want a conflict", name, err)
		}
	}
	f.expectNode(now)
}

// guardHeld returns whether a guard held. kube-apiserver returns a conflict for another version,
// and Invalid for another UID.
func guardHeld(err error) bool { return apierrors.IsConflict(err) || apierrors.IsInvalid(err) }

func TestWriter_MarkPodNotReadyChangesOneCondition(t *testing.T) {
	f := newFixture(t, forHealth)
	at := metav1.Unix(1_700_000_000, 0)
	other := f.pod.DeepCopy()
	other.UID = "another"
	if err := f.writer.MarkPodNotReady(t.Context(), other, at); !guardHeld(err) {
		t.Errorf("another pod of that name: error %v, want a conflict", err)
	}
	f.must(f.writer.MarkPodNotReady(t.Context(), f.cache.Pods(f.node.Name)[0], at))
	got, err := f.kube.CoreV1().Pods(f.namespace).Get(t.Context(), "web", metav1.GetOptions{})
	f.must(err)
	want := f.pod.DeepCopy()
	want.Status.Conditions[0].Status, want.Status.Conditions[0].LastTransitionTime = corev1.ConditionFalse, at
	want.ResourceVersion, want.ManagedFields, got.ManagedFields = got.ResourceVersion, nil, nil
	expectEqual(t, "pod", want, got)
	if err := f.writer.MarkPodNotReady(t.Context(), f.pod, at); !apierrors.IsConflict(err) {
		t.Errorf("an older version: error %v, want a conflict", err)
	}
	deleted := f.pod.DeepCopy()
	deleted.Name = "deleted"
	if err := f.writer.MarkPodNotReady(t.Context(), deleted, at); err != nil {
		t.Errorf("a pod that was deleted: error %v", err)
	}
}

func TestWriter_LivePodReadsPastTheCache(t *testing.T) {
	f := newFixture(t, forEviction)
	old := f.pod.DeepCopy()
	metav1.SetMetaDataAnnotation(&f.pod.ObjectMeta, "example.org/note", "new")
	changed, err := f.kube.CoreV1().Pods(f.namespace).Update(t.Context(), f.pod, metav1.UpdateOptions{})
	f.must(err)
	if live, err := f.writer.LivePod(t.Context(), old); err != nil || live == nil || live.ResourceVersion != changed.ResourceVersion {
		t.Errorf("read %v, error %v; want version %s", live, err, changed.ResourceVersion)
	}
	for name, change := range map[string]func(*corev1.Pod){
		"missing":  func(pod *corev1.Pod) { pod.Name = "missing" },
		"replaced": func(pod *corev1.Pod) { pod.UID = "another" },
	} {
		other := old.DeepCopy()
		change(other)
		if live, err := f.writer.LivePod(t.Context(), other); err != nil || live != nil {
			t.Errorf("%s: read %v, error %v; want neither", name, live, err)
		}
	}
}

func TestWriter_NewerLeasesReadsPastTheCache(t *testing.T) {
	f := newFixture(t, forHealth)
	lease, err := f.kube.CoordinationV1().Leases(f.namespace).Get(t.Context(), f.node.Name, metav1.GetOptions{})
	f.must(err)
	samples := []nodehealth.Sample{{Node: f.node.Name, LeaseVersion: lease.ResourceVersion}, {Node: "missing"}}
	newer, err := f.writer.NewerLeases(t.Context(), samples)
	if err != nil || newer != nil {
		t.Errorf("newer Leases %v, error %v; want neither", newer, err)
	}
	lease, err = f.kube.CoordinationV1().Leases(f.namespace).Update(t.Context(), lease, metav1.UpdateOptions{})
	f.must(err)
	lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Unix(1_800_000_000, 0)}
	lease, err = f.kube.CoordinationV1().Leases(f.namespace).Update(t.Context(), lease, metav1.UpdateOptions{})
	f.must(err)
	newer, err = f.writer.NewerLeases(t.Context(), samples)
	renewed := lease.Spec.RenewTime.Time
	live := nodehealth.Lease{Version: lease.ResourceVersion, RenewTime: renewed, Holder: f.node.Name}
	live.ByOther = nodehealth.LeaseRenewedByOther{Version: live.Version, RenewTime: renewed}
	if diff := cmp.Diff([]nodehealth.LiveLease{{Node: f.node.Name, Lease: live}}, newer); err != nil || diff != "" {
		t.Errorf("error %v, newer Leases (-want +got):\n%s", err, diff)
	}
	if newer, err = f.writer.NewerLeases(t.Context(), nil); err != nil || newer != nil {
		t.Errorf("without samples: newer Leases %v, error %v; want neither", newer, err)
	}
}

// eviction returns an eviction of the Pod as it is cached.
func (f *fixture) eviction() *eviction.Eviction {
	f.t.Helper()
	pods := f.cache.Pods(f.node.Name)
	if len(pods) != 1 {
		f.t.Fatalf("the cache has the pods %v", pods)
	}
	return &eviction.Eviction{Node: f.node.Name, Pod: pods[0], Cause: eviction.Cause{Taint: f.node.Spec.Taints[1]}}
}

func TestWriter_EvictMarksAPodAndDeletesIt(t *testing.T) {
	f := newFixture(t, forEviction)
	f.must(f.writer.Evict(t.Context(), f.eviction()))
	pod := f.livePod()
	if pod.DeletionTimestamp == nil {
		t.Error("the pod is not being deleted")
	}
	var got []string
	for _, c := range pod.Status.Conditions {
		got = append(got, fmt.Sprintf("%s %s %s", c.Type, c.Status, c.Reason))
		if c.Type == corev1.DisruptionTarget && (c.LastTransitionTime.IsZero() || c.Message == "" || c.ObservedGeneration != f.pod.Generation) {
			t.Errorf("condition %+v lacks its time, message or generation", c)
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"DisruptionTarget True DeletionByTaintManager", "PodScheduled True ", "Ready True Probed", "example.org/Warm True "}, got); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	testkit.Eventually(t, time.Minute, func() error {
		if f.cache.Pods(f.node.Name)[0].DeletionTimestamp == nil {
			return errors.New("the watch does not know that the pod is being deleted")
		}
		return nil
	})
}

func TestWriter_EvictDeletesAFinishedPodUnmarked(t *testing.T) {
	f := newFixture(t, forEviction)
	f.pod.Status.Phase = corev1.PodFailed
	pod, err := f.kube.CoreV1().Pods(f.pod.Namespace).UpdateStatus(t.Context(), f.pod, metav1.UpdateOptions{})
	f.must(err)
	e := f.eviction()
	e.Pod = pod
	f.must(f.writer.Evict(t.Context(), e))
	if _, err := f.kube.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get the pod: error %v, want not found", err)
	}
}

// The first eviction marked the Pod and could not delete it.
func TestWriter_EvictMarksAPodOnce(t *testing.T) {
	f := newFixture(t, forEviction)
	client := f.writer
	stale := f.eviction()
	f.pod.Status.Conditions = append(f.pod.Status.Conditions, corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager", Message: "from the first try",
	})
	marked, err := f.kube.CoreV1().Pods(f.pod.Namespace).UpdateStatus(t.Context(), f.pod, metav1.UpdateOptions{})
	f.must(err)
	if err := client.Evict(t.Context(), stale); !apierrors.IsConflict(err) {
		t.Errorf("an older version of the pod: error %v, want a conflict", err)
	}
	e := f.eviction()
	e.Pod = marked
	f.must(client.Evict(t.Context(), e))
	for _, c := range f.livePod().Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Message != "from the first try" {
			t.Errorf("it was marked again: %+v", c)
		}
	}
}

func TestWriter_EvictIsGuardedByVersionAndUID(t *testing.T) {
	f := newFixture(t, forEviction)
	e := f.eviction()
	e.Pod = e.Pod.DeepCopy()
	e.Pod.UID, e.Pod.ResourceVersion = "another", f.pod.ResourceVersion
	for _, phase := range []corev1.PodPhase{corev1.PodRunning, corev1.PodSucceeded} { // marked first, and deleted at once
		e.Pod.Status.Phase = phase
		// A patch with another UID is invalid, a deletion a conflict.
		if err := f.writer.Evict(t.Context(), e); !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) {
			t.Errorf("a pod of another UID that is %s: error %v, want a conflict", phase, err)
		}
	}
	if pod := f.livePod(); pod.DeletionTimestamp != nil || pod.ResourceVersion != f.pod.ResourceVersion {
		t.Error("the other pod was written to")
	}
}

func TestWriter_NodeReadsPastTheCache(t *testing.T) {
	f := newFixture(t, forEviction)
	client := f.writer
	node, err := client.LiveNode(t.Context(), f.node.Name)
	if err != nil || node == nil || node.UID != f.node.UID {
		t.Errorf("node is %v, error %v", node, err)
	}
	if node, err := client.LiveNode(t.Context(), "no-such-node"); node != nil || err != nil {
		t.Errorf("a node that does not exist is %v, error %v", node, err)
	}
}

// A Lease of the service is created, renewed with the verb of kubelets, and followed when something
// else changes or deletes it. One that something else owns stays as it is.
func TestWriter_RenewCheckLeaseShowsWhetherLeasesCanBeWritten(t *testing.T) {
	f := newFixture(t, forHealth)
	leases, name := f.kube.CoordinationV1().Leases(f.namespace), nodestore.CheckLeaseName(3)
	renew := func() *coordinationv1.Lease {
		t.Helper()
		if err := f.writer.RenewCheckLease(t.Context(), 3); err != nil {
			t.Fatal(err)
		}
		lease, err := leases.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	created := renew()
	renewed := renew()
	if !renewed.Spec.RenewTime.After(created.Spec.RenewTime.Time) || renewed.Labels[nodestore.CheckLeaseLabel] == "" {
		t.Errorf("renewed %+v", renewed)
	}
	renewed.Annotations = map[string]string{"a": "b"}
	if _, err := leases.Update(t.Context(), renewed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if kept := renew(); kept.Annotations["a"] != "b" {
		t.Errorf("after another writer: %+v", kept)
	}
	if err := leases.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	anew := renew()
	anew.Labels = nil
	foreign, err := leases.Update(t.Context(), anew, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.writer.RenewCheckLease(t.Context(), 3); err == nil || !strings.Contains(err.Error(), "something else owns it") {
		t.Errorf("a Lease of something else: %v", err)
	}
	if now, err := leases.Get(t.Context(), name, metav1.GetOptions{}); err != nil || now.ResourceVersion != foreign.ResourceVersion {
		t.Errorf("a Lease of something else was written: %+v, %v", now, err)
	}
}
