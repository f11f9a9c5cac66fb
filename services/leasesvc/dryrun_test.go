package leasesvc_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/shadow"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// awaitDifferences waits until the differences of the fixture's Nodes are as wanted, since a moment
// after the call.
func (f *nodeFixture) awaitDifferences(tracker *shadow.Tracker, want ...string) {
	f.t.Helper()
	began := time.Now()
	testkit.Eventually(f.t, slack+relist, func() error {
		found := tracker.Comparison(1000)
		if found.Undetermined != "" || found.Ended.Sub(found.Since) < found.Settle || found.Ended.Sub(began) < 2*found.Settle {
			return fmt.Errorf("the comparison holds since %v, undetermined %q", found.Since, found.Undetermined)
		}
		var got []string
		for _, difference := range found.Differences {
			if !slices.Contains(f.names, strings.TrimPrefix(difference.Subject, "nodes/")) {
				continue
			}
			for _, field := range difference.Fields {
				got = append(got, fmt.Sprintf("%s %s %s: %s -> %s", difference.Kind, difference.Reason, field.Path, field.Before, field.After))
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("differences (-want +got):\n%s", diff)
		}
		return nil
	})
}

// The test writes as upstream's controller would.
func TestDryRun_ComparesNodesAndWritesNothing(t *testing.T) {
	t.Parallel()
	cfg := shadow.DefaultConfig(leasesvc.NodeHealthLoop)
	cfg.Loops, cfg.Settle = []string{leasesvc.NodeHealthLoop}, time.Second
	trackers, err := shadow.New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	tracker := trackers.Tracker(leasesvc.NodeHealthLoop)
	writes := &testkit.RefusedWrites{}
	config := testkit.Cluster(t).RESTConfig()
	config.Wrap(writes.Wrap)
	f := newShadowNodeFixture(t, config, 4, func(*leasesvc.Config) {}, trackers)
	label := `metadata  metadata.labels["beta.kubernetes.io/os"]:  -> "linux"`
	taint := `taint  spec.taints["node.kubernetes.io/not-ready:NoSchedule"]: {"effect":"NoSchedule","key":"node.kubernetes.io/not-ready"} -> `
	f.awaitDifferences(tracker, label, taint, label, taint, label, taint, label, taint)
	for _, name := range f.names {
		f.update(name, func(node *corev1.Node) {
			node.Labels["beta.kubernetes.io/os"] = "linux"
			node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == corev1.TaintNodeNotReady })
		})
	}
	f.awaitDifferences(tracker)

	silent := f.names[0]
	f.silence(silent)
	f.awaitDifferences(tracker, `condition EARLIER_VERDICT status.conditions["Ready"].status: "True" -> "Unknown"`)
	f.markUnknown(silent)
	f.awaitDifferences(tracker,
		`taint  spec.taints["node.kubernetes.io/unreachable:NoExecute"]:  -> {"effect":"NoExecute","key":"node.kubernetes.io/unreachable"}`,
		`taint  spec.taints["node.kubernetes.io/unreachable:NoSchedule"]:  -> {"effect":"NoSchedule","key":"node.kubernetes.io/unreachable"}`)
	f.update(silent, func(node *corev1.Node) {
		for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: effect})
		}
	})
	f.awaitDifferences(tracker)
	found := tracker.Comparison(1)
	if found.Both != 1 || found.Earlier != 1 || len(found.Verdicts) != 1 || found.Verdicts[0].Node != silent || found.Verdicts[0].Lead() <= 0 {
		t.Errorf("verdicts = %+v (%d, %d earlier), want that of %s, which the loop found first", found.Verdicts, found.Both, found.Earlier, silent)
	}

	// A Node that lives is marked.
	f.markUnknown(f.names[1])
	f.update(f.names[1], func(node *corev1.Node) {
		for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: effect})
		}
	})
	f.awaitDifferences(tracker, `condition  status.conditions["Ready"].status: "Unknown" -> `)
	if seen := writes.All(); len(seen) > 0 {
		t.Errorf("written: %s", strings.Join(seen, ", "))
	}
}

// A Pod that the loop would have deleted is found while it is there, and none is deleted.
func TestDryRun_FindsPodsThatAreNotEvictedAndWritesNothing(t *testing.T) {
	t.Parallel()
	cfg := shadow.DefaultConfig(leasesvc.TaintEvictionLoop)
	cfg.Loops, cfg.Settle = []string{leasesvc.TaintEvictionLoop}, time.Second
	trackers, err := shadow.New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	tracker := trackers.Tracker(leasesvc.TaintEvictionLoop)
	writes := &testkit.RefusedWrites{}
	config := testkit.Cluster(t).RESTConfig()
	config.Wrap(writes.Wrap)
	f := newShadowEvictionFixture(t, config, func(f *evictionFixture) {
		f.pod("due", f.nodes[0], "maintenance", 0)
		f.pod("later", f.nodes[0], "maintenance", 3000)
		f.pod("tolerating", f.nodes[0], "maintenance", -1)
		f.pod("elsewhere", f.nodes[1], "maintenance", 0)
	}, trackers)
	await := func(want ...string) {
		t.Helper()
		began := time.Now()
		f.eventually(func() error {
			found := tracker.Comparison(1000)
			if found.Undetermined != "" || found.Ended.Sub(found.Since) < found.Settle || found.Ended.Sub(began) < 2*found.Settle {
				return fmt.Errorf("the comparison holds since %v, undetermined %q", found.Since, found.Undetermined)
			}
			var got []string
			for _, difference := range found.Differences {
				got = append(got, fmt.Sprintf("%s %s %s", difference.Kind, strings.TrimPrefix(difference.Subject, "pods/"+f.namespace+"/"), difference.Message))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				return fmt.Errorf("differences (-want +got):\n%s", diff)
			}
			return nil
		})
	}
	await()
	f.taint(f.nodes[0], nil, "maintenance")
	await("unwanted due the pod does not tolerate the taint maintenance:NoExecute of its node any longer")
	if leaving := f.leaving(); len(leaving) > 0 {
		t.Errorf("%v are being deleted", leaving)
	}
	if err := f.admin.CoreV1().Pods(f.namespace).Delete(t.Context(), "due", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await() // it is being deleted
	f.taint(f.nodes[1], nil, "maintenance")
	await("unwanted elsewhere the pod does not tolerate the taint maintenance:NoExecute of its node any longer")
	f.taint(f.nodes[1], nil)
	await()
	if seen := writes.All(); len(seen) > 0 {
		t.Errorf("written: %s", strings.Join(seen, ", "))
	}
}

// A hand-over of node health needs no restart.
func TestDryRun_NodeHealthWritesWhileItIsSwitchedOn(t *testing.T) {
	t.Parallel()
	cfg := shadow.DefaultConfig(leasesvc.NodeHealthLoop)
	cfg.Loops, cfg.Settle = []string{leasesvc.NodeHealthLoop}, time.Second
	trackers, err := shadow.New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	f := newShadowNodeFixture(t, testkit.Cluster(t).RESTConfig(), 2, func(*leasesvc.Config) {}, trackers)
	label := `metadata  metadata.labels["beta.kubernetes.io/os"]:  -> "linux"`
	taint := `taint  spec.taints["node.kubernetes.io/not-ready:NoSchedule"]: {"effect":"NoSchedule","key":"node.kubernetes.io/not-ready"} -> `
	f.awaitDifferences(trackers.Tracker(leasesvc.NodeHealthLoop), label, taint, label, taint)
	f.service.Loops().SetSwitched([]string{leasesvc.NodeHealthLoop})
	for _, name := range f.names {
		f.awaitTaints(name, "example.org/gpu:NoSchedule")
	}
	f.service.Loops().SetSwitched(nil)
	testkit.Eventually(t, slack, func() error {
		for _, status := range f.service.Loops().Status() {
			if status.Name == leasesvc.NodeHealthLoop && !status.DryRun {
				return fmt.Errorf("the loop is switched off: %+v", status)
			}
		}
		return nil
	})
	f.update(f.names[0], func(node *corev1.Node) {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule})
	})
	f.awaitDifferences(trackers.Tracker(leasesvc.NodeHealthLoop), taint)
}

// update changes a Node.
func (f *nodeFixture) update(name string, change func(*corev1.Node)) {
	f.t.Helper()
	node := f.node(name)
	change(node)
	if _, err := f.admin.CoreV1().Nodes().Update(f.t.Context(), node, metav1.UpdateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

// markUnknown marks a Node as upstream's controller does.
func (f *nodeFixture) markUnknown(name string) {
	f.t.Helper()
	node := f.node(name)
	for i := range node.Status.Conditions {
		if condition := &node.Status.Conditions[i]; condition.Type != "example.org/Fan" {
			condition.Status, condition.Reason, condition.LastTransitionTime = corev1.ConditionUnknown, "NodeStatusUnknown", metav1.Now()
		}
	}
	if _, err := f.admin.CoreV1().Nodes().UpdateStatus(f.t.Context(), node, metav1.UpdateOptions{FieldManager: "kube-controller-manager"}); err != nil {
		f.t.Fatal(err)
	}
}
