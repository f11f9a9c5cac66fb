package eviction_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// The cases of upstream's tests for created and updated Pods and Nodes.
func TestObserve_PendingPods(t *testing.T) {
	schedule := corev1.Taint{Key: "a", Effect: corev1.TaintEffectNoSchedule}
	terminating := newPod("p")
	terminating.DeletionTimestamp = &metav1.Time{Time: wall(0)}
	finished := newPod("p")
	finished.Status.Phase = corev1.PodSucceeded
	plain, brief, patient := newPod("p"), newPod("p", tolerates("a", 10)), newPod("p", tolerates("a"))
	empty := observed{node: newNode()}
	for name, c := range map[string]struct {
		looks []observed
		want  map[string]float64
	}{
		"a node without taints":     {looks: []observed{empty, {at: 5 * seconds, node: newNode(), pods: pods(plain)}}},
		"taints of other effects":   {looks: []observed{empty, {at: 5 * seconds, node: newNode(schedule), pods: pods(plain)}}},
		"a taint comes":             {looks: []observed{{node: newNode(), pods: pods(plain)}, {at: 5 * seconds, node: newNode(noExecute("a")), pods: pods(plain)}}, want: map[string]float64{"p": 5}},
		"a tolerated taint comes":   {looks: []observed{{node: newNode(), pods: pods(brief)}, {at: 5 * seconds, node: newNode(noExecute("a")), pods: pods(brief)}}, want: map[string]float64{"p": 15}},
		"one of two is tolerated":   {looks: []observed{empty, {at: 5 * seconds, node: newNode(noExecute("a"), noExecute("b")), pods: pods(patient)}}, want: map[string]float64{"p": 5}},
		"a pod comes":               {looks: []observed{empty, {at: 5 * seconds, node: newNode(noExecute("a"))}, {at: 9 * seconds, node: newNode(noExecute("a")), pods: pods(plain)}}, want: map[string]float64{"p": 9}},
		"a pod that tolerates":      {looks: []observed{empty, {at: 5 * seconds, node: newNode(noExecute("a"))}, {at: 9 * seconds, node: newNode(noExecute("a")), pods: pods(brief)}}, want: map[string]float64{"p": 19}},
		"one that always tolerates": {looks: []observed{empty, {at: 5 * seconds, node: newNode(noExecute("a")), pods: pods(patient)}}},
		"nothing changes": {
			looks: []observed{empty, {at: 5 * seconds, node: newNode(noExecute("a")), pods: pods(brief)}, {at: 9 * seconds, node: newNode(noExecute("a")), pods: pods(brief)}},
			want:  map[string]float64{"p": 15},
		},
		"the taint goes": {looks: []observed{empty, {at: 5 * seconds, node: newNode(noExecute("a")), pods: pods(brief)}, {at: 9 * seconds, node: newNode(), pods: pods(brief)}}},
		"the taint goes and comes": {
			looks: []observed{
				empty, {at: 5 * seconds, node: newNode(noExecute("a")), pods: pods(brief)}, {at: 9 * seconds, node: newNode(), pods: pods(brief)},
				{at: 12 * seconds, node: newNode(noExecute("a")), pods: pods(brief)},
			},
			want: map[string]float64{"p": 22},
		},
		"the toleration is taken away": {
			looks: []observed{empty, {at: 5 * seconds, node: newNode(noExecute("a")), pods: pods(brief)}, {at: 9 * seconds, node: newNode(noExecute("a")), pods: pods(plain)}},
			want:  map[string]float64{"p": 5},
		},
		"the toleration is made longer": {
			looks: []observed{empty, {at: 5 * seconds, node: newNode(noExecute("a")), pods: pods(brief)}, {at: 9 * seconds, node: newNode(noExecute("a")), pods: pods(newPod("p", tolerates("a", 100)))}},
			want:  map[string]float64{"p": 105},
		},
		"the toleration loses its end": {
			looks: []observed{empty, {at: 5 * seconds, node: newNode(noExecute("a")), pods: pods(brief)}, {at: 9 * seconds, node: newNode(noExecute("a")), pods: pods(patient)}},
		},
		"a second taint is tolerated for less long": {
			looks: []observed{
				empty, {at: 5 * seconds, node: newNode(noExecute("a")), pods: pods(newPod("p", tolerates("a", 100), tolerates("b", 10)))},
				{at: 20 * seconds, node: newNode(noExecute("a"), noExecute("b")), pods: pods(newPod("p", tolerates("a", 100), tolerates("b", 10)))},
			},
			want: map[string]float64{"p": 30},
		},
		"only the taint that was tolerated for a time goes": {
			looks: []observed{
				empty, {at: 5 * seconds, node: newNode(noExecute("a"), noExecute("b")), pods: pods(newPod("p", tolerates("a"), tolerates("b", 10)))},
				{at: 9 * seconds, node: newNode(noExecute("a")), pods: pods(newPod("p", tolerates("a"), tolerates("b", 10)))},
			},
		},
		"a pod that stayed for one taint meets another": {
			looks: []observed{
				empty, {at: 5 * seconds, node: newNode(noExecute("a")), pods: pods(newPod("p", tolerates("a"), tolerates("b", 10)))},
				{at: 9 * seconds, node: newNode(noExecute("a"), noExecute("b")), pods: pods(newPod("p", tolerates("a"), tolerates("b", 10)))},
				{at: 11 * seconds, node: newNode(noExecute("a"), noExecute("b")), pods: pods(newPod("p", tolerates("a"), tolerates("b", 10)))},
			},
			want: map[string]float64{"p": 19},
		},
		"many pods, each by its own": {
			looks: []observed{empty, {at: 5 * seconds, node: newNode(noExecute("a")), pods: pods(
				newPod("x", tolerates("a", 30)), newPod("y"), newPod("z", tolerates("a")), newPod("w", tolerates("a", 1)),
			)}},
			want: map[string]float64{"x": 35, "y": 5, "w": 6},
		},
		"one that is being deleted":                {looks: []observed{empty, {at: 5 * seconds, node: newNode(noExecute("a")), pods: pods(terminating)}}},
		"one that has finished":                    {looks: []observed{empty, {at: 5 * seconds, node: newNode(noExecute("a")), pods: pods(finished)}}, want: map[string]float64{"p": 5}},
		"the node is another one of the same name": {looks: []observed{{node: newNode(noExecute("a")), pods: pods(brief)}, {at: 9 * seconds, node: anotherNode(noExecute("a")), pods: pods(brief)}}, want: map[string]float64{"p": 19}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.want == nil {
				c.want = map[string]float64{}
			}
			if diff := cmp.Diff(c.want, dues(after(t, c.looks...))); diff != "" {
				t.Errorf("due (-want +got):\n%s", diff)
			}
		})
	}
}

func anotherNode(taints ...corev1.Taint) *corev1.Node {
	node := newNode(taints...)
	node.UID = "another"
	return node
}

func TestObserve_ReplacedHealthTaintContinuesToCount(t *testing.T) {
	const down, gone = corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable
	for name, c := range map[string]struct {
		tolerations []corev1.Toleration
		due         float64
	}{
		"both for the same time":                 {tolerations: []corev1.Toleration{tolerates(down, 300), tolerates(gone, 300)}, due: 310},
		"the second for less":                    {tolerations: []corev1.Toleration{tolerates(down, 300), tolerates(gone, 20)}, due: 120},
		"the second for more":                    {tolerations: []corev1.Toleration{tolerates(down, 100), tolerates(gone, 600)}, due: 110},
		"the first without an end":               {tolerations: []corev1.Toleration{tolerates(down), tolerates(gone, 300)}, due: 400},
		"the second, which stands, not at all":   {tolerations: []corev1.Toleration{tolerates(down, 300)}, due: 100},
		"the second, which stands, without end":  {tolerations: []corev1.Toleration{tolerates(down, 300), tolerates(gone)}},
		"neither, so it was due with the first":  {due: 10},
		"the first for so long that it is later": {tolerations: []corev1.Toleration{tolerates(down, 900), tolerates(gone, 300)}, due: 400},
	} {
		t.Run(name, func(t *testing.T) {
			on := pods(newPod("p", c.tolerations...))
			looks := []observed{
				{node: newNode(), pods: on}, {at: 10 * seconds, node: newNode(noExecute(down)), pods: on}, {at: 100 * seconds, node: newNode(noExecute(gone)), pods: on},
			}
			want := map[string]float64{"p": c.due}
			if c.due == 0 {
				delete(want, "p")
			}
			if diff := cmp.Diff(want, dues(after(t, looks...))); diff != "" {
				t.Errorf("due (-want +got):\n%s", diff)
			}
			// With both taints for a moment, as upstream writes them.
			looks = append(looks[:2:2], observed{at: 100 * seconds, node: newNode(noExecute(down), noExecute(gone)), pods: on}, observed{at: 101 * seconds, node: newNode(noExecute(gone)), pods: on})
			if diff := cmp.Diff(want, dues(after(t, looks...))); diff != "" {
				t.Errorf("due after both (-want +got):\n%s", diff)
			}
		})
	}
}

func TestObserve_FlappingHealthTaintsKeepNoPodForever(t *testing.T) {
	on := pods(newPod("p", tolerates(corev1.TaintNodeNotReady, 300), tolerates(corev1.TaintNodeUnreachable, 300)))
	state := after(t, observed{node: newNode(), pods: on})
	for i := range 20 {
		key := []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable}[i%2]
		at := 10*seconds + 100*seconds*monotonic.Instant(i)
		state = state.Observe(at, wall(at), newNode(added(key, at)), on)
	}
	if diff := cmp.Diff(map[string]float64{"p": 310}, dues(state)); diff != "" {
		t.Errorf("due (-want +got):\n%s", diff)
	}
}

// A new term knows the past only from the objects.
func TestObserve_NewTermContinuesToCount(t *testing.T) {
	const now = 1000 * seconds
	tolerance := eviction.ClockTolerance.Seconds()
	owned := newNode(noExecute("a"))
	owned.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "kubectl-label", Time: &metav1.Time{Time: wall(990 * seconds)}, FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{}}}`)},
		{Manager: "kubectl-taint", Time: &metav1.Time{Time: wall(800 * seconds)}, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:taints":{}}}`)},
		{Manager: "kubelet", Time: &metav1.Time{Time: wall(999 * seconds)}, Subresource: "status", FieldsV1: metav1.NewFieldsV1(`{"f:status":{}}`)},
		{Manager: "odd"},
	}
	old := added("a", 0)
	old.TimeAdded = &metav1.Time{Time: time.Date(1, 1, 1, 0, 0, 0, 1, time.UTC)}
	waiting := scheduled(newPod("p", tolerates("a", 300)), 0)
	for name, c := range map[string]struct {
		node *corev1.Node
		pod  *corev1.Pod
		due  float64
	}{
		"from when the taint was added":              {node: newNode(added("a", 800*seconds)), pod: waiting, due: 1100 + tolerance},
		"what is over is due at once":                {node: newNode(added("a", 100*seconds)), pod: waiting, due: 400 + tolerance},
		"a taint of just now":                        {node: newNode(added("a", 995*seconds)), pod: waiting, due: 1300},
		"a clock that is ahead":                      {node: newNode(added("a", 5000*seconds)), pod: waiting, due: 1300},
		"a taint that says nothing":                  {node: newNode(noExecute("a")), pod: waiting, due: 1300},
		"a taint whose list was written before":      {node: owned, pod: waiting, due: 1100 + tolerance},
		"a pod that came later than the taint":       {node: newNode(added("a", 100*seconds)), pod: scheduled(newPod("p", tolerates("a", 300)), 900*seconds), due: 1200 + tolerance},
		"a pod that does not say when it came":       {node: newNode(added("a", 100*seconds)), pod: newPod("p", tolerates("a", 300)), due: 1300},
		"a pod that does not tolerate the old taint": {node: newNode(added("a", 100*seconds)), pod: scheduled(newPod("p"), 0), due: 100 + tolerance},
	} {
		t.Run(name, func(t *testing.T) {
			state := after(t, observed{at: now, node: c.node, pods: pods(c.pod)})
			if diff := cmp.Diff(map[string]float64{"p": c.due}, dues(state)); diff != "" {
				t.Errorf("due (-want +got):\n%s", diff)
			}
			again := state.Observe(now+50*seconds, wall(now+50*seconds), c.node, pods(c.pod))
			if diff := cmp.Diff(dues(state), dues(again)); diff != "" {
				t.Errorf("due after a second look (-first +second):\n%s", diff)
			}
		})
	}
	if got := dues(after(t, observed{at: now, node: newNode(old), pods: pods(waiting)})); got["p"] > 1000 {
		t.Errorf("a taint of the year 1 is due at %v", got["p"])
	}
}

func TestObserve_ObservedTaintCountsByTheTimeOfTheProcess(t *testing.T) {
	for name, taint := range map[string]corev1.Taint{
		"its clock is behind": added("a", -1000*seconds),
		"its clock is ahead":  added("a", 9000*seconds),
	} {
		pod := scheduled(newPod("p", tolerates("a", 300)), -5000*seconds)
		got := dues(after(t, observed{node: newNode(), pods: pods(pod)}, observed{at: 10 * seconds, node: newNode(taint), pods: pods(pod)}))
		if diff := cmp.Diff(map[string]float64{"p": 310}, got); diff != "" {
			t.Errorf("%s: due (-want +got):\n%s", name, diff)
		}
	}
}

func TestObserve_TaintAddedAgainIsANewOne(t *testing.T) {
	on := pods(newPod("p", tolerates("a", 300)))
	got := dues(after(t,
		observed{node: newNode(), pods: on}, observed{at: 10 * seconds, node: newNode(added("a", 10*seconds)), pods: on},
		observed{at: 200 * seconds, node: newNode(added("a", 150*seconds)), pods: on},
	))
	if diff := cmp.Diff(map[string]float64{"p": 500}, got); diff != "" {
		t.Errorf("due (-want +got):\n%s", diff)
	}
}

func TestCancelled_PodsThatMayStay(t *testing.T) {
	terminating := newPod("deleted")
	terminating.DeletionTimestamp = &metav1.Time{Time: wall(0)}
	before := after(t, observed{node: newNode()}, observed{at: seconds, node: newNode(noExecute("a")), pods: pods(
		newPod("freed", tolerates("a", 60)), newPod("deleted"), newPod("gone"), newPod("kept"),
	)})
	left := pods(newPod("freed", tolerates("a")), terminating, newPod("kept"))
	cancelled := before.Cancelled(before.Observe(2*seconds, wall(2*seconds), newNode(noExecute("a")), left), left)
	if len(cancelled) != 1 || cancelled[0].Pod.Name != "freed" {
		t.Errorf("cancelled are %v, want only freed", cancelled)
	}
}

func TestTaintManagers_KeepTheTimeOfTheLastWrite(t *testing.T) {
	node := newNode()
	node.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "kubelet", Time: &metav1.Time{Time: wall(9)}, FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{}}`)},
		{Manager: "kubectl-taint", Time: &metav1.Time{Time: wall(5)}, FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{},"f:spec":{"f:taints":{}}}`)},
	}
	want := eviction.LastTaintWrite(node)
	node.ManagedFields = eviction.TaintManagers(node.ManagedFields)
	if got := eviction.LastTaintWrite(node); !got.Equal(want) || !got.Equal(wall(5)) || len(node.ManagedFields) != 1 {
		t.Errorf("last write %v of %d writers, want %v of one", got, len(node.ManagedFields), want)
	}
}
