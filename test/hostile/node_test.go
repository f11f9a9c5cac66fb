package hostile

import (
	"context"
	"fmt"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestNode_ObjectsOfAStolenKubeletHoldUpNoOther creates what a kubelet may write about its own
// Node.
func TestNode_ObjectsOfAStolenKubeletHoldUpNoOther(t *testing.T) {
	w := newWorld(t)
	for _, step := range []struct {
		name string
		run  func(*world)
	}{
		{"text", hostileNodeText},
		{"times", oddNodeTimes},
		{"many taints", manyTaints},
		{"Leases", oddLeases},
		{"zones", manyZones},
	} {
		t.Run(step.name, func(t *testing.T) {
			inner := *w
			inner.T = t
			step.run(&inner)
			t.Logf("the neighbour's worst latency is %v", inner.neighbourFollows())
			w.flips = inner.flips
		})
	}
	text := w.tenant + "-text"
	w.checkOutput([]string{"/v1/nodes?pageSize=1000", "/v1/zones?pageSize=1000", "/v1/leases?pageSize=1000", "/v1/nodes/" + text + ":explain", "/v1/decisions?pageSize=1000"},
		[]string{"nodes", "-o", "wide"}, []string{"explain", "node", text}, []string{"explain", "node", text, "-o", "json"}, []string{"events"}, []string{"zones"})
}

// hostileNodeText is what kube-apiserver admits in the fields of a Node.
func hostileNodeText(w *world) {
	w.makeNode("text", func(node *corev1.Node) {
		node.Labels["example.org/text"] = strings.Repeat("l", 63)
		node.Labels[corev1.LabelTopologyZone] = strings.Repeat("z", 63)
		node.Annotations["example.org/note"] = hostileText
		node.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: hostileText, Message: hostileText},
			{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionStatus(hostileText), Reason: hostileText, Message: hostileText},
			{Type: corev1.NodeConditionType(hostileText), Status: corev1.ConditionTrue, Message: hostileText},
		}
	})
}

// oddTimes are times that protobuf carries and JSON may not.
func oddTimes() []metav1.Time {
	return []metav1.Time{
		metav1.Unix(-62167219200, 0), // year 0
		metav1.Unix(-62135596799, 0), // year 1
		metav1.Unix(253402300799, 0), // year 9999
		metav1.Unix(253402300800, 0), // year 10000
		metav1.Unix(1<<40, 0),
		metav1.Unix(-(1 << 40), 0),
	}
}

func oddNodeTimes(w *world) {
	for i, at := range oddTimes() {
		w.makeNode(fmt.Sprint("time-", i), func(node *corev1.Node) {
			node.Spec.Taints = []corev1.Taint{{Key: "example.org/odd", Effect: corev1.TaintEffectNoExecute, TimeAdded: &at}}
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, LastTransitionTime: at, LastHeartbeatTime: at}}
		})
	}
}

func manyTaints(w *world) {
	w.makeNode("taints", func(node *corev1.Node) {
		for i := range 1000 {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: fmt.Sprintf("%s/t%d", strings.Repeat("a", 63), i), Value: strings.Repeat("v", 63), Effect: corev1.TaintEffectNoExecute})
		}
	})
}

// oddLeases are Leases in the namespace of the Nodes' Leases: of Nodes, and of none.
func oddLeases(w *world) {
	leases := w.kube.CoordinationV1().Leases("kube-node-lease")
	if _, err := w.kube.CoreV1().Namespaces().Get(w.Context(), "kube-node-lease", metav1.GetOptions{}); err != nil {
		w.Fatal(err)
	}
	names := []string{w.makeNode("lease", func(*corev1.Node) {}), w.tenant + "-ghost", w.tenant + ".ghost"}
	for i := range oddTimes() {
		names = append(names, w.makeNode(fmt.Sprint("lease-", i), func(*corev1.Node) {}))
	}
	for i, name := range names {
		at := metav1.NewMicroTime(oddTimes()[i%len(oddTimes())].Time)
		holder, seconds := hostileText, int32(1<<31-1)
		_, err := leases.Create(w.Context(), &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"example.org/note": hostileText}},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &at, AcquireTime: &at},
		}, metav1.CreateOptions{})
		w.must(err)
		w.whole.Cleanup(func() { _ = leases.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	}
	for _, seconds := range []int32{0, -1, -1 << 31} {
		_, err := leases.Patch(w.Context(), names[0], types.MergePatchType, []byte(fmt.Sprintf(`{"spec":{"leaseDurationSeconds":%d}}`, seconds)), metav1.PatchOptions{})
		if err == nil {
			w.Errorf("kube-apiserver admits a Lease of %d seconds", seconds)
		}
	}
}

// manyZones is one Node that changes its zone, which a kubelet may.
func manyZones(w *world) {
	zones := 50
	if *long {
		zones = 5000
	}
	node := w.makeNode("zones", func(*corev1.Node) {})
	for i := range zones {
		zone := fmt.Sprintf("%s-%d", strings.Repeat("z", 58), i)
		_, err := w.kube.CoreV1().Nodes().Patch(w.Context(), node, types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"topology.kubernetes.io/zone":"`+zone+`"}}}`), metav1.PatchOptions{})
		w.must(err)
	}
	for service := range w.admin {
		if most := w.mostSeries(service); most > 200 {
			w.Errorf("%s has a metric with %d series: a kubelet that changes its labels adds some each time", service, most)
		}
	}
}
