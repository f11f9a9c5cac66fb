package nodestore_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/testkit"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// place is a Node, its Lease and a pod on it, on the real kube-apiserver. Nothing here is fenced: leasesvc's own tests are.
type place struct {
	t         *testing.T
	kube      kubernetes.Interface
	namespace string
	config    nodestore.Config
	writer    *nodestore.Writer
	watch     *nodestore.Cache
	node      *corev1.Node
	pod       *corev1.Pod
}

func newPlace(t *testing.T) *place {
	t.Helper()
	p := &place{t: t, kube: testkit.Kube(t)}
	p.namespace = testkit.Namespace(t, p.kube)
	p.config = nodestore.Config{Namespace: p.namespace, Labels: []string{nodehealth.ExcludeDisruptionLabel}, Logger: slog.New(slog.DiscardHandler)}
	p.makeNode()
	p.makePod()
	_, err := p.kube.CoordinationV1().Leases(p.namespace).Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: p.namespace}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &p.namespace, RenewTime: renewed()},
	}, metav1.CreateOptions{})
	p.must(err)
	p.writer = nodestore.NewWriter(p.kube, p.config)
	p.watch, err = nodestore.NewCache(p.kube, p.config)
	p.must(err)
	p.run()
	return p
}

func renewed() *metav1.MicroTime {
	at := metav1.NewMicroTime(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC))
	return &at
}

func (p *place) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) makeNode() {
	node, err := p.kube.CoreV1().Nodes().Create(p.t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: p.namespace, Labels: map[string]string{
			corev1.LabelTopologyZone: "z", "example.org/rack": "7", nodehealth.ExcludeDisruptionLabel: "",
		}, Annotations: map[string]string{"example.org/note": "keep"}},
		Spec: corev1.NodeSpec{PodCIDR: "10.1.0.0/24", Taints: []corev1.Taint{{Key: "example.org/gpu", Effect: corev1.TaintEffectNoSchedule}}},
	}, metav1.CreateOptions{})
	p.must(err)
	p.t.Cleanup(func() {
		p.must(p.kube.CoreV1().Nodes().Delete(context.Background(), node.Name, metav1.DeleteOptions{}))
	})
	node.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Kubelet"},
		{Type: "example.org/Fan", Status: corev1.ConditionTrue, Reason: "Spins"},
	}
	node.Status.NodeInfo.KubeletVersion = "v1.37.1"
	p.node, err = p.kube.CoreV1().Nodes().UpdateStatus(p.t.Context(), node, metav1.UpdateOptions{})
	p.must(err)
}

func (p *place) makePod() {
	pods := p.kube.CoreV1().Pods(p.namespace)
	pod, err := pods.Create(p.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: p.node.Name, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	p.must(err)
	pod.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, Reason: "Probed"}, {Type: "example.org/Warm", Status: corev1.ConditionTrue},
	}
	p.pod, err = pods.UpdateStatus(p.t.Context(), pod, metav1.UpdateOptions{})
	p.must(err)
	_, err = pods.Create(p.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "nowhere"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	p.must(err)
}

func (p *place) run() {
	ctx, cancel := context.WithCancel(p.t.Context())
	ran := make(chan error, 1)
	go func() { ran <- p.watch.Run(ctx) }()
	p.t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			p.t.Error(err)
		}
	})
	select {
	case <-p.watch.Synced():
	case <-time.After(20 * time.Second):
		p.t.Fatal("not listed within 20 s")
	}
}

func TestWatch_KeepsWhatDecisionsAreMadeFromAndNothingElse(t *testing.T) {
	p := newPlace(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: p.node.Name, UID: p.node.UID, ResourceVersion: p.node.ResourceVersion, CreationTimestamp: p.node.CreationTimestamp,
		Labels: map[string]string{corev1.LabelTopologyZone: "z", nodehealth.ExcludeDisruptionLabel: ""},
	}}
	node.Spec.Taints = p.node.Spec.Taints
	node.Status.Conditions = p.node.Status.Conditions[:1]
	if got := p.watch.Node(p.node.Name); !equality.Semantic.DeepEqual(node, got) {
		t.Errorf("node (-want +got):\n%s", cmp.Diff(node, got))
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "web", Namespace: p.namespace, UID: p.pod.UID, ResourceVersion: p.pod.ResourceVersion,
	}}
	pod.Spec.NodeName = p.node.Name
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if got := p.watch.Pods(p.node.Name); !equality.Semantic.DeepEqual([]*corev1.Pod{pod}, got) {
		t.Errorf("pods (-want +got):\n%s", cmp.Diff([]*corev1.Pod{pod}, got))
	}
	if got := p.watch.Pods(""); len(got) != 0 {
		t.Errorf("pods that are nowhere yet are kept: %v", got)
	}
	if got := p.watch.Lease(p.node.Name); !got.RenewTime.Equal(renewed().Time) || got.Version == "" {
		t.Errorf("lease %v, want one renewed at %v", got, renewed())
	}
	if got, want := p.watch.Lease("nobody"), (nodehealth.Lease{}); got != want || p.watch.Node("nobody") != nil {
		t.Errorf("of nobody there is a Lease %v and a Node %v", got, p.watch.Node("nobody"))
	}
}

// Whoever renewed a Lease last stands in its managed fields, so every replica knows the echo of a session, whoever keeps it.
func TestWatch_KnowsWhoRenewedALease(t *testing.T) {
	p := newPlace(t)
	renew := func(manager string) {
		t.Helper()
		lease, err := p.kube.CoordinationV1().Leases(p.namespace).Get(t.Context(), p.node.Name, metav1.GetOptions{})
		p.must(err)
		lease.Spec.RenewTime = &metav1.MicroTime{Time: lease.Spec.RenewTime.Add(time.Second)}
		lease, err = p.kube.CoordinationV1().Leases(p.namespace).Update(t.Context(), lease, metav1.UpdateOptions{FieldManager: manager})
		p.must(err)
		for begin := time.Now(); p.watch.Lease(p.node.Name).Version != lease.ResourceVersion; time.Sleep(10 * time.Millisecond) {
			if time.Since(begin) > 10*time.Second {
				t.Fatal("the watch does not have the renewal after 10 s")
			}
		}
	}
	for _, step := range []struct {
		manager string
		ours    bool
	}{{writeback.FieldManager, true}, {"kubelet", false}, {writeback.FieldManager, true}} {
		if renew(step.manager); p.watch.Lease(p.node.Name).RenewedByUs != step.ours {
			t.Errorf("after a renewal by %s ours is %t, want %t", step.manager, !step.ours, step.ours)
		}
	}
}

func TestWatch_NamesWhatChanged(t *testing.T) {
	p := newPlace(t)
	await := func(what string) {
		t.Helper()
		testkit.Eventually(t, 20*time.Second, func() error {
			if _, named := p.watch.Changed()[p.node.Name]; !named {
				return errNotNamed
			}
			return nil
		})
		if _, again := p.watch.Changed()[p.node.Name]; again {
			t.Errorf("after %s the node is named twice", what)
		}
	}
	await("the list")
	_, err := p.kube.CoreV1().Nodes().Patch(t.Context(), p.node.Name, types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
	p.must(err)
	await("a change of the node")
	p.must(p.kube.CoordinationV1().Leases(p.namespace).Delete(t.Context(), p.node.Name, metav1.DeleteOptions{}))
	await("the end of the lease")
}

var errNotNamed = errors.New("the node is not among the changed")

func TestWrite_ChangesWhatTheStepSaysAndNothingElse(t *testing.T) {
	p := newPlace(t)
	unknown := corev1.NodeCondition{
		Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", LastTransitionTime: metav1.Unix(1_700_000_000, 0),
	}
	stripped, err := p.writer.Write(t.Context(), nodehealth.Step{Kind: nodehealth.MarkUnknown, Node: p.node, Conditions: []corev1.NodeCondition{unknown}})
	p.must(err)
	want := p.node.DeepCopy()
	want.Status.Conditions[0] = unknown
	p.expect(want)

	added := metav1.Unix(1_700_000_001, 0)
	taints := []corev1.Taint{p.node.Spec.Taints[0], {Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute, TimeAdded: &added}}
	stripped, err = p.writer.Write(t.Context(), nodehealth.Step{
		Kind: nodehealth.AddNoExecute, Node: stripped, Taints: &taints, Labels: map[string]string{nodehealth.LabelBetaOS: "linux"},
	})
	p.must(err)
	want.Spec.Taints = taints
	want.Labels[nodehealth.LabelBetaOS] = "linux"
	p.expect(want)

	none := []corev1.Taint{}
	_, err = p.writer.Write(t.Context(), nodehealth.Step{Kind: nodehealth.RemoveNoExecute, Node: stripped, Taints: &none})
	p.must(err)
	want.Spec.Taints = nil
	p.expect(want)
}

func (p *place) expect(want *corev1.Node) {
	p.t.Helper()
	got, err := p.kube.CoreV1().Nodes().Get(p.t.Context(), want.Name, metav1.GetOptions{})
	p.must(err)
	want.ResourceVersion, want.ManagedFields, got.ManagedFields = got.ResourceVersion, nil, nil
	if !equality.Semantic.DeepEqual(want, got) {
		p.t.Errorf("node (-want +got):\n%s", cmp.Diff(want, got))
	}
}

func TestWrite_IsGuardedByVersionAndUID(t *testing.T) {
	p := newPlace(t)
	none := []corev1.Taint{}
	older, other := p.node.DeepCopy(), p.node.DeepCopy()
	_, err := p.kube.CoreV1().Nodes().Patch(t.Context(), p.node.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
	p.must(err)
	now, err := p.kube.CoreV1().Nodes().Get(t.Context(), p.node.Name, metav1.GetOptions{})
	p.must(err)
	other.ResourceVersion, other.UID = now.ResourceVersion, "another"
	unknown := []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	for name, step := range map[string]nodehealth.Step{
		"taints, older":         {Kind: nodehealth.RemoveNoExecute, Node: older, Taints: &none},
		"taints, another node":  {Kind: nodehealth.RemoveNoExecute, Node: other, Taints: &none},
		"declare, older":        {Kind: nodehealth.MarkUnknown, Node: older, Conditions: unknown},
		"declare, another node": {Kind: nodehealth.MarkUnknown, Node: other, Conditions: unknown},
	} {
		if _, err := p.writer.Write(t.Context(), step); !refused(err) {
			t.Errorf("%s: error %v, want a refusal", name, err)
		}
	}
	p.expect(now)
}

// refused tells whether a guard held: the kube-apiserver calls another version a conflict, and the same version of another UID
// a field that cannot be changed.
func refused(err error) bool { return apierrors.IsConflict(err) || apierrors.IsInvalid(err) }

func TestMarkUnready_ChangesOneConditionOfThePodItMeans(t *testing.T) {
	p := newPlace(t)
	at := metav1.Unix(1_700_000_000, 0)
	other := p.pod.DeepCopy()
	other.UID = "another"
	if err := p.writer.MarkPodNotReady(t.Context(), other, at); !refused(err) {
		t.Errorf("another pod of that name: error %v, want a refusal", err)
	}
	p.must(p.writer.MarkPodNotReady(t.Context(), p.watch.Pods(p.node.Name)[0], at)) // of which less is known than the pod has
	got, err := p.kube.CoreV1().Pods(p.namespace).Get(t.Context(), "web", metav1.GetOptions{})
	p.must(err)
	want := p.pod.DeepCopy()
	want.Status.Conditions[0].Status, want.Status.Conditions[0].LastTransitionTime = corev1.ConditionFalse, at
	want.ResourceVersion, want.ManagedFields, got.ManagedFields = got.ResourceVersion, nil, nil
	if !equality.Semantic.DeepEqual(want, got) {
		t.Errorf("pod (-want +got):\n%s", cmp.Diff(want, got))
	}
	if err := p.writer.MarkPodNotReady(t.Context(), p.pod, at); !apierrors.IsConflict(err) {
		t.Errorf("an older version: error %v, want a conflict", err)
	}
	gone := p.pod.DeepCopy()
	gone.Name = "gone"
	if err := p.writer.MarkPodNotReady(t.Context(), gone, at); err != nil {
		t.Errorf("a pod that is gone: error %v", err)
	}
}

func TestCompare_ReadsPastTheCache(t *testing.T) {
	p := newPlace(t)
	lease, err := p.kube.CoordinationV1().Leases(p.namespace).Get(t.Context(), p.node.Name, metav1.GetOptions{})
	p.must(err)
	samples := []nodehealth.Sample{{Node: p.node.Name, LeaseVersion: lease.ResourceVersion}, {Node: "nobody"}}
	newer, err := p.writer.NewerLeases(t.Context(), samples)
	if err != nil || newer != nil {
		t.Errorf("newer Leases %v, error %v; want neither", newer, err)
	}
	lease, err = p.kube.CoordinationV1().Leases(p.namespace).Update(t.Context(), lease, metav1.UpdateOptions{})
	p.must(err)
	lease.Spec.LeaseTransitions = new(int32)
	lease, err = p.kube.CoordinationV1().Leases(p.namespace).Update(t.Context(), lease, metav1.UpdateOptions{})
	p.must(err)
	newer, err = p.writer.NewerLeases(t.Context(), samples)
	if diff := cmp.Diff([]nodehealth.Sample{{Node: p.node.Name, LeaseVersion: lease.ResourceVersion}}, newer); err != nil || diff != "" {
		t.Errorf("error %v, newer Leases (-want +got):\n%s", err, diff)
	}
	if newer, err = p.writer.NewerLeases(t.Context(), nil); err != nil || newer != nil {
		t.Errorf("without samples: newer Leases %v, error %v; want neither", newer, err)
	}
}
