package shadow_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/shadow/difference"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/shadow"
)

func node(ready corev1.ConditionStatus, taints ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	if ready != "" {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	}
	for i := 0; i < len(taints); i += 2 {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: taints[i], Effect: corev1.TaintEffect(taints[i+1])})
	}
	return n
}

const (
	unreachable = corev1.TaintNodeUnreachable
	notReady    = corev1.TaintNodeNotReady
)

// marked returns a Node as both programs leave one that is silent.
func marked() *corev1.Node {
	return node(corev1.ConditionUnknown, unreachable, "NoSchedule", unreachable, "NoExecute")
}

func TestCompare(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1"}, Spec: corev1.PodSpec{NodeName: "n1"},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	labelled := node(corev1.ConditionTrue)
	labelled.Labels = map[string]string{corev1.LabelOSStable: "linux", nodehealth.LabelBetaOS: "windows"}
	one := nodehealth.Zone{Size: 10, NotReady: 1, Waiting: 1, Rate: 0.1}
	three := nodehealth.Zone{Size: 10, NotReady: 3, Waiting: 3, Rate: 0.1}
	untainted := node(corev1.ConditionUnknown, unreachable, "NoSchedule")
	for name, test := range map[string]struct {
		in   shadow.Node
		want []string
	}{
		"alive and ready":           {shadow.Node{Object: node(corev1.ConditionTrue), Health: nodehealth.Alive}, nil},
		"dead and marked":           {shadow.Node{Object: marked(), Health: nodehealth.Dead}, nil},
		"silent, not confirmed yet": {shadow.Node{Object: node(corev1.ConditionTrue), Health: nodehealth.Silent}, nil},
		"silent, and upstream waits": {
			shadow.Node{Object: node(corev1.ConditionTrue), Health: nodehealth.Silent, Judged: true, JudgedFor: 29 * time.Second},
			[]string{`condition EARLIER_VERDICT status.conditions["Ready"].status: "True" -> "Unknown"`},
		},
		"silent, and upstream never marks it": {
			shadow.Node{Object: node(corev1.ConditionTrue), Health: nodehealth.Silent, Judged: true, JudgedFor: shadow.UpstreamDelay},
			[]string{`condition  status.conditions["Ready"].status: "True" -> "Unknown"`},
		},
		"judged, and alive again": {shadow.Node{Object: node(corev1.ConditionTrue), Health: nodehealth.Alive, Judged: true}, nil},
		"marked and alive":        {shadow.Node{Object: marked(), Health: nodehealth.Alive}, []string{`condition  status.conditions["Ready"].status: "Unknown" -> `}},
		"no condition yet":        {shadow.Node{Object: node(""), Health: nodehealth.Starting}, nil},
		"NoSchedule taints": {
			shadow.Node{Object: node(corev1.ConditionTrue, notReady, "NoSchedule"), Health: nodehealth.Alive},
			[]string{`taint  spec.taints["node.kubernetes.io/not-ready:NoSchedule"]: {"effect":"NoSchedule","key":"node.kubernetes.io/not-ready"} -> `},
		},
		"no NoExecute taint": {
			shadow.Node{Object: untainted, Health: nodehealth.Dead, Zone: one, UnreadyFor: time.Second},
			[]string{`taint  spec.taints["node.kubernetes.io/unreachable:NoExecute"]:  -> {"effect":"NoExecute","key":"node.kubernetes.io/unreachable"}`},
		},
		"no NoExecute taint, and others wait": {
			shadow.Node{Object: untainted, Health: nodehealth.Dead, Zone: three, UnreadyFor: 30 * time.Second},
			[]string{`taint TAINT_RATE spec.taints["node.kubernetes.io/unreachable:NoExecute"]:  -> {"effect":"NoExecute","key":"node.kubernetes.io/unreachable"}`},
		},
		"no NoExecute taint for too long": {
			shadow.Node{Object: untainted, Health: nodehealth.Dead, Zone: three, UnreadyFor: time.Hour},
			[]string{`taint  spec.taints["node.kubernetes.io/unreachable:NoExecute"]:  -> {"effect":"NoExecute","key":"node.kubernetes.io/unreachable"}`},
		},
		"no NoExecute taint in a zone without a rate": {
			shadow.Node{Object: untainted, Health: nodehealth.Dead, UnreadyFor: time.Hour},
			[]string{`taint TAINT_RATE spec.taints["node.kubernetes.io/unreachable:NoExecute"]:  -> {"effect":"NoExecute","key":"node.kubernetes.io/unreachable"}`},
		},
		"no NoExecute taint while all zones are down": {shadow.Node{Object: untainted, Health: nodehealth.Dead, AllDown: true}, nil},
		"a NoExecute taint while all zones are down": {
			shadow.Node{Object: marked(), Health: nodehealth.Dead, AllDown: true},
			[]string{`taint ALL_ZONES_DOWN spec.taints["node.kubernetes.io/unreachable:NoExecute"]: {"effect":"NoExecute","key":"node.kubernetes.io/unreachable"} -> `},
		},
		"labels": {
			shadow.Node{Object: labelled, Health: nodehealth.Alive},
			[]string{`metadata  metadata.labels["beta.kubernetes.io/os"]: "windows" -> "linux"`},
		},
		"a ready pod on a dead node": {
			shadow.Node{Object: marked(), Health: nodehealth.Dead, ReadyPods: []*corev1.Pod{pod}},
			[]string{`condition  status.conditions["Ready"].status: "True" -> "False"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, lines(shadow.Compare(test.in))); diff != "" {
				t.Errorf("differences (-want +got):\n%s", diff)
			}
		})
	}
}

func lines(found []difference.Difference) []string {
	var all []string
	for _, d := range found {
		for _, field := range d.Fields {
			all = append(all, string(d.Kind)+" "+d.Reason+" "+field.Path+": "+field.Before+" -> "+field.After)
		}
	}
	return all
}

func TestCompare_NamesTheWriterOfTheFieldThatDiffers(t *testing.T) {
	n := marked()
	fields := func(manager, raw string, seconds int64) metav1.ManagedFieldsEntry {
		at := metav1.Unix(seconds, 0)
		f := &metav1.FieldsV1{}
		f.SetRawBytes([]byte(raw))
		return metav1.ManagedFieldsEntry{Manager: manager, Time: &at, FieldsV1: f}
	}
	n.ManagedFields = []metav1.ManagedFieldsEntry{
		fields("kube-controller-manager", `{"f:status":{"f:conditions":{"k:{\"type\":\"Ready\"}":{"f:status":{}}}}}`, 1),
		fields("kubelet", `{"f:status":{"f:images":{}}}`, 2),
	}
	found := shadow.Compare(shadow.Node{Object: n, Health: nodehealth.Alive})
	if len(found) != 1 || found[0].Writer != "kube-controller-manager" {
		t.Errorf("found %+v, want the manager of the Ready condition", found)
	}
}
