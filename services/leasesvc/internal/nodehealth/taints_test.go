package nodehealth_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

func TestPlan_NoScheduleTaintsFollowConditions(t *testing.T) {
	for name, c := range map[string]struct {
		alter func(*corev1.Node)
		want  []string
	}{
		"nothing wrong":       {func(*corev1.Node) {}, nil},
		"memory":              {status(corev1.NodeMemoryPressure, corev1.ConditionTrue), []string{"node.kubernetes.io/memory-pressure:NoSchedule"}},
		"memory unknown":      {status(corev1.NodeMemoryPressure, corev1.ConditionUnknown), nil},
		"disk":                {status(corev1.NodeDiskPressure, corev1.ConditionTrue), []string{"node.kubernetes.io/disk-pressure:NoSchedule"}},
		"processes":           {status(corev1.NodePIDPressure, corev1.ConditionTrue), []string{"node.kubernetes.io/pid-pressure:NoSchedule"}},
		"network":             {status(corev1.NodeNetworkUnavailable, corev1.ConditionTrue), []string{"node.kubernetes.io/network-unavailable:NoSchedule"}},
		"network not unknown": {status(corev1.NodeNetworkUnavailable, corev1.ConditionUnknown), nil},
		"foreign condition":   {status("example.org/Fan", corev1.ConditionTrue), nil},
		"cordoned":            {func(n *corev1.Node) { n.Spec.Unschedulable = true }, []string{"node.kubernetes.io/unschedulable:NoSchedule"}},
		"set by hand":         {tainted(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule), nil},
		"uncordoned":          {tainted(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule), nil},
		"of others":           {tainted("example.org/gpu", corev1.TaintEffectNoSchedule), []string{"example.org/gpu:NoSchedule"}},
		"of others, our key":  {tainted(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoExecute), []string{"node.kubernetes.io/disk-pressure:NoExecute"}},
		"preferred, our key":  {tainted(corev1.TaintNodeNotReady, corev1.TaintEffectPreferNoSchedule), []string{"node.kubernetes.io/not-ready:PreferNoSchedule"}},
		"condition twice": {func(n *corev1.Node) {
			status(corev1.NodeDiskPressure, corev1.ConditionTrue)(n)
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue})
		}, []string{"node.kubernetes.io/disk-pressure:NoSchedule"}},
		"nonsense status": {status(corev1.NodeReady, "Perhaps"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, 3)
			w.change("n0", c.alter)
			w.pass()
			w.expectTaints("n0", c.want...)
		})
	}
}

// status returns a change that sets or adds a condition.
func status(kind corev1.NodeConditionType, to corev1.ConditionStatus) func(*corev1.Node) {
	return func(n *corev1.Node) {
		for i := range n.Status.Conditions {
			if n.Status.Conditions[i].Type == kind {
				n.Status.Conditions[i].Status = to
				return
			}
		}
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: kind, Status: to})
	}
}

func tainted(key string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: effect}) }
}

func TestPlan_OtherTaintsKeepValueAndOrder(t *testing.T) {
	w := newFixture(t, 3)
	added := metav1.NewTime(epoch().Add(-time.Hour))
	theirs := corev1.Taint{Key: "example.org/gpu", Value: "a100", Effect: corev1.TaintEffectNoExecute, TimeAdded: &added}
	w.change("n0", func(n *corev1.Node) {
		tainted(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)(n)
		n.Spec.Taints = append(n.Spec.Taints, theirs)
	})
	w.report("n0", corev1.ConditionFalse)
	w.pass()
	now := metav1.NewTime(wall(w.now))
	want := []corev1.Taint{
		theirs,
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule, TimeAdded: &now},
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute, TimeAdded: &now},
	}
	if diff := cmp.Diff(want, w.nodes["n0"].Spec.Taints); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
}

func TestPlan_LabelsFollowTheStableOnes(t *testing.T) {
	for name, c := range map[string]struct{ labels, want map[string]string }{
		"none":        {nil, nil},
		"no stable":   {map[string]string{nodehealth.LabelBetaOS: "linux"}, nil},
		"missing":     {map[string]string{corev1.LabelOSStable: "linux"}, map[string]string{nodehealth.LabelBetaOS: "linux"}},
		"different":   {map[string]string{corev1.LabelArchStable: "arm64", nodehealth.LabelBetaArch: "amd64"}, map[string]string{nodehealth.LabelBetaArch: "arm64"}},
		"in line":     {map[string]string{corev1.LabelArchStable: "arm64", nodehealth.LabelBetaArch: "arm64"}, nil},
		"empty value": {map[string]string{corev1.LabelOSStable: ""}, map[string]string{nodehealth.LabelBetaOS: ""}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, 3)
			w.change("n0", func(n *corev1.Node) { n.Labels = c.labels })
			plan := w.plan()
			if c.want == nil {
				if len(plan.Steps) != 0 {
					t.Errorf("steps %v, want none", plan.Steps)
				}
				return
			}
			want := []nodehealth.Step{{
				Kind: nodehealth.SyncTaints, NeedsShard: true, Node: w.nodes["n0"], Labels: c.want, Reason: "labels follow the stable ones, as Ready is True",
			}}
			if diff := cmp.Diff(want, plan.Steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPlan_MostUrgentStepsComeFirst(t *testing.T) {
	w := newFixture(t, 12)
	w.report("n1", corev1.ConditionFalse)
	w.pass()
	w.run(49900*time.Millisecond, w.names[1:]...)
	w.report("n1", corev1.ConditionTrue)
	w.report("n2", corev1.ConditionFalse)
	w.label("n3", corev1.LabelOSStable, "linux")
	w.now = w.now.Add(200 * time.Millisecond)
	plan, memory := w.rules.Plan(nodehealth.Moment{Instant: w.now, Wall: wall(w.now)}, w.cluster, w.observe(), nodehealth.Authority{MaxSteps: 3, HoldsZones: true})
	var got []string
	for _, step := range plan.Steps {
		got = append(got, step.Kind.String()+" "+step.Node.Name)
	}
	if diff := cmp.Diff([]string{"remove-no-execute n1", "mark-unknown n0", "add-no-execute n2"}, got); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	// A step beyond MaxSteps does not use the rate of its zone.
	if plan, _ = w.rules.Plan(nodehealth.Moment{Instant: w.now, Wall: wall(w.now)}, w.cluster, w.observe(), nodehealth.Authority{MaxSteps: 2, HoldsZones: true}); len(plan.Steps) != 2 {
		t.Errorf("%d steps, want 2", len(plan.Steps))
	}
	w.cluster = memory
}

func TestReadyOnUnreadyNode(t *testing.T) {
	at := func(seconds int) metav1.Time {
		return metav1.NewTime(epoch().Add(time.Duration(seconds) * time.Second))
	}
	node := func(ready corev1.ConditionStatus) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0"}}
		if ready != "" {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, LastTransitionTime: at(10)}}
		}
		return n
	}
	pod := func(ready corev1.ConditionStatus, since int) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n0"}}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, LastTransitionTime: at(since)}}
		return p
	}
	for name, c := range map[string]struct {
		node *corev1.Node
		pod  *corev1.Pod
		want bool
	}{
		"node ready":                     {node(corev1.ConditionTrue), pod(corev1.ConditionTrue, 1), false},
		"node has not said":              {node(""), pod(corev1.ConditionTrue, 1), false},
		"node unknown":                   {node(corev1.ConditionUnknown), pod(corev1.ConditionTrue, 1), true},
		"node unknown, pod's clock":      {node(corev1.ConditionUnknown), pod(corev1.ConditionTrue, 1000), true},
		"node unknown, pod not ready":    {node(corev1.ConditionUnknown), pod(corev1.ConditionFalse, 1), false},
		"node not ready":                 {node(corev1.ConditionFalse), pod(corev1.ConditionTrue, 9), true},
		"node not ready, pod's clock":    {node(corev1.ConditionFalse), pod(corev1.ConditionTrue, 1000), true},
		"pod has no Ready condition":     {node(corev1.ConditionUnknown), &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n0"}}, false},
		"pod of another node of the way": {node(corev1.ConditionUnknown), &corev1.Pod{Status: pod(corev1.ConditionTrue, 1).Status}, false},
	} {
		if got := nodehealth.ReadyOnUnreadyNode(c.node, c.pod); got != c.want {
			t.Errorf("%s: ready on a node that is not is %v, want %v", name, got, c.want)
		}
	}
	want := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: at(99)}
	if diff := cmp.Diff(want, nodehealth.NotReadyCondition(pod(corev1.ConditionTrue, 1), at(99))); diff != "" {
		t.Errorf("condition (-want +got):\n%s", diff)
	}
}

func TestZoneOf_PrefersTheBetaLabels(t *testing.T) {
	for name, c := range map[string]struct {
		labels map[string]string
		want   string
	}{
		"nothing":      {nil, ""},
		"zone":         {map[string]string{corev1.LabelTopologyZone: "z"}, ":\x00:z"},
		"region":       {map[string]string{corev1.LabelTopologyRegion: "r"}, "r:\x00:"},
		"both":         {map[string]string{corev1.LabelTopologyRegion: "r", corev1.LabelTopologyZone: "z"}, "r:\x00:z"},
		"beta is old":  {map[string]string{corev1.LabelFailureDomainBetaZone: "old", corev1.LabelTopologyZone: "new"}, ":\x00:old"},
		"beta, region": {map[string]string{corev1.LabelFailureDomainBetaRegion: "old", corev1.LabelTopologyRegion: "new"}, "old:\x00:"},
	} {
		if got := nodehealth.ZoneOf(c.labels); got != c.want {
			t.Errorf("%s: zone %q, want %q", name, got, c.want)
		}
	}
}

func TestNewer_ComparesNumbers(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"10", "9", true}, {"9", "10", false}, {"10", "10", false}, {"1", "", true}, {"", "1", false}, {"", "", false},
		{"18446744073709551616", "9", true},
	} {
		if got := nodehealth.Newer(c.a, c.b); got != c.want {
			t.Errorf("Newer(%q, %q) is %v", c.a, c.b, got)
		}
	}
}
