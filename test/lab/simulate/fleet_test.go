package simulate

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func podNames(t *testing.T, kube kubernetes.Interface, namespace string) []string {
	t.Helper()
	pods, err := kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range pods.Items {
		names = append(names, p.Name)
	}
	return names
}

func TestCreate_TwiceOnARealAPIServerIsOneFleet(t *testing.T) {
	kube := testkit.Kube(t)
	cfg := Config{Nodes: 2, Services: 4, Pods: 6, Namespace: testkit.Namespace(t, kube), Seed: 1}
	// An earlier run that ended between two writes left a Node without a status.
	half := node(0, metav1.Now().Time)
	half.Status = corev1.NodeStatus{}
	if _, err := kube.CoreV1().Nodes().Create(t.Context(), half, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteNodes(t, kube, cfg) })
	for range 2 {
		if err := New(cfg, kube, slog.New(slog.DiscardHandler)).Create(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"app-000-00000", "app-000-00004", "app-001-00001", "app-001-00005", "app-002-00002", "app-003-00003"}
	if diff := cmp.Diff(want, podNames(t, kube, cfg.Namespace)); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	if outside, err := kube.CoreV1().Endpoints(cfg.Namespace).Get(t.Context(), outsideName, metav1.GetOptions{}); err != nil || len(outside.Subsets) != 1 {
		t.Errorf("Endpoints %s: %v, %v; want one subset", outsideName, outside, err)
	}
	for i := range cfg.Nodes {
		made, err := kube.CoreV1().Nodes().Get(t.Context(), nodeName(i), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(made.Status.Conditions) != 1 || len(made.Spec.Taints) != 0 {
			t.Errorf("Node %s has conditions %v and taints %v, want it ready and untainted", made.Name, made.Status.Conditions, made.Spec.Taints)
		}
	}
}

func deleteNodes(t *testing.T, kube kubernetes.Interface, cfg Config) {
	for i := range cfg.Nodes {
		if err := kube.CoreV1().Nodes().Delete(context.WithoutCancel(t.Context()), nodeName(i), metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
}

func TestCreate_RefusesForeignNodes(t *testing.T) {
	foreign := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(0)}}
	kube := fake.NewClientset(foreign)
	if err := New(Config{Nodes: 1, Namespace: "demo"}, kube, slog.New(slog.DiscardHandler)).Create(t.Context()); err == nil {
		t.Error("a Node that is not simulated was adopted")
	}
	got, err := kube.CoreV1().Nodes().Get(t.Context(), foreign.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(foreign, got); diff != "" {
		t.Errorf("Node of another program (-before +after):\n%s", diff)
	}
}

func TestApply_FailedReplacementLeavesNoPod(t *testing.T) {
	for _, fails := range []string{"the status of the new pod", "the end of the old pod"} {
		t.Run(fails, func(t *testing.T) {
			kube := fake.NewClientset()
			fleet := New(Config{Nodes: 1, Services: 1, Pods: 1, Namespace: "demo"}, kube, slog.New(slog.DiscardHandler))
			if err := fleet.Create(t.Context()); err != nil {
				t.Fatal(err)
			}
			before := fleet.state.pods[0]
			refused := errors.New("refused")
			kube.PrependReactor("*", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
				gone, isDelete := action.(clienttesting.DeleteAction)
				switch {
				case isDelete && gone.GetName() == before.name && fails == "the end of the old pod",
					action.GetSubresource() == "status" && fails == "the status of the new pod":
					return true, nil, refused
				default:
					return false, nil, nil
				}
			})
			c := change{verb: replace, before: before, after: fleet.state.newPod(before.service, true)}
			if err := fleet.apply(t.Context(), c); !errors.Is(err, refused) {
				t.Errorf("apply = %v, want %v", err, refused)
			}
			if diff := cmp.Diff([]string{before.name}, podNames(t, kube, "demo")); diff != "" {
				t.Errorf("pods (-want +got):\n%s", diff)
			}
		})
	}
}
