package leasesvc_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/shadow"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// evictionFixture is a service with taint eviction and three nodes on the real kube-apiserver,
// behind the fence.
type evictionFixture struct {
	*fixture
	admin     kubernetes.Interface
	namespace string
	nodes     []string
}

// newEvictionFixture creates the nodes and starts the service after prepare has returned.
func newEvictionFixture(t *testing.T, prepare func(*evictionFixture)) *evictionFixture {
	t.Helper()
	return newShadowEvictionFixture(t, testkit.Cluster(t).RESTConfig(), prepare, nil)
}

// newShadowEvictionFixture is newEvictionFixture with a client configuration and dry runs.
func newShadowEvictionFixture(t *testing.T, config *rest.Config, prepare func(*evictionFixture), trackers *shadow.Trackers) *evictionFixture {
	t.Helper()
	c := &evictionFixture{fixture: &fixture{t: t}, admin: testkit.Kube(t)}
	c.namespace = testkit.Namespace(t, c.admin)
	fenced, err := kubernetes.NewForConfig(kubeconn.Fence(testkit.ObjectsOf(config, c.namespace)))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		name := fmt.Sprintf("%s-%d", c.namespace, i)
		c.nodes = append(c.nodes, name)
		if _, err := c.admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: testkit.NodeLabels(c.namespace)}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.admin.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		})
	}
	prepare(c)
	c.fixture = newFixture(t, setup{kube: fenced, shadow: trackers, loops: []string{leasesvc.TaintEvictionLoop}, config: func(cfg *leasesvc.Config) {
		cfg.Shards = 2
		cfg.Classes[0].Namespace = c.namespace
	}})
	return c
}

// taint replaces the taints of a node by NoExecute taints. added may be nil, as with kubectl.
func (c *evictionFixture) taint(node string, added *metav1.Time, names ...string) {
	c.t.Helper()
	c.eventually(func() error {
		object, err := c.admin.CoreV1().Nodes().Get(c.t.Context(), node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		object.Spec.Taints = nil
		for _, name := range names {
			object.Spec.Taints = append(object.Spec.Taints, corev1.Taint{Key: name, Effect: corev1.TaintEffectNoExecute, TimeAdded: added})
		}
		_, err = c.admin.CoreV1().Nodes().Update(c.t.Context(), object, metav1.UpdateOptions{})
		return err
	})
}

// pod creates a pod that tolerates a taint, or all if it is empty, for some seconds; without limit
// if seconds is negative.
func (c *evictionFixture) pod(name, node, taint string, seconds int64) {
	c.t.Helper()
	toleration := corev1.Toleration{Key: taint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	if seconds >= 0 {
		toleration.TolerationSeconds = &seconds
	}
	pods := c.admin.CoreV1().Pods(c.namespace)
	pod, err := pods.Create(c.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}, Tolerations: []corev1.Toleration{toleration}},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	// The pod was scheduled long ago, so that only the age of the taint counts.
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour)),
	}}
	if _, err = pods.UpdateStatus(c.t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// leaving returns the names of the pods that are being deleted. There is no kubelet, so they remain
// in this state.
func (c *evictionFixture) leaving() []string {
	c.t.Helper()
	list, err := c.admin.CoreV1().Pods(c.namespace).List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	names := []string{}
	for _, pod := range list.Items {
		marked := slices.ContainsFunc(pod.Status.Conditions, func(p corev1.PodCondition) bool {
			return p.Type == corev1.DisruptionTarget && p.Status == corev1.ConditionTrue && p.Reason == "DeletionByTaintManager"
		})
		if pod.DeletionTimestamp != nil {
			names = append(names, pod.Name)
			if !marked {
				c.t.Errorf("pod %s is being deleted without the condition: %v", pod.Name, pod.Status.Conditions)
			}
		}
	}
	slices.Sort(names)
	return names
}

// awaitLeaving waits until exactly these pods are being deleted, and returns the time.
func (c *evictionFixture) awaitLeaving(want ...string) time.Time {
	c.t.Helper()
	c.eventually(func() error {
		if diff := cmp.Diff(want, c.leaving()); diff != "" {
			return errors.New("leaving (-want +got):\n" + diff)
		}
		return nil
	})
	return time.Now()
}

func TestTaintEviction_PodsAreEvictedWhenTheirTolerationsEnd(t *testing.T) {
	t.Parallel()
	c := newEvictionFixture(t, func(c *evictionFixture) {
		c.pod("0-stays", c.nodes[0], "maintenance", -1)
		c.pod("0-soon", c.nodes[0], "maintenance", 3)
		c.pod("0-other", c.nodes[0], "other", -1)
		c.pod("1-soon", c.nodes[1], "maintenance", 3)
		c.pod("2-other", c.nodes[2], "other", 3)
		c.pod("2-soon", c.nodes[2], "", 3)
	})
	begin := time.Now()
	c.taint(c.nodes[0], nil, "maintenance")
	c.awaitLeaving("0-other") // it has no toleration
	c.taint(c.nodes[1], nil, "maintenance")
	c.awaitWaiting(2)        // 0-soon and 1-soon
	c.taint(c.nodes[1], nil) // before 1-soon is due
	at := c.awaitLeaving("0-other", "0-soon")
	if after := at.Sub(begin); after < 3*time.Second {
		t.Errorf("a pod that tolerates the taint for 3 s left within %v", after)
	} else {
		t.Logf("a pod that tolerates the taint for 3 s left within %v", after)
	}
	c.taint(c.nodes[2], nil, "maintenance", "other")
	c.awaitLeaving("0-other", "0-soon", "2-other")
	c.awaitLeaving("0-other", "0-soon", "2-other", "2-soon") // 1-soon would be evicted before 2-soon
	c.awaitEvent("0-soon")
	c.awaitEvent("1-soon") // the cancellation
}

// awaitWaiting waits until a number of pods wait for their eviction.
func (c *evictionFixture) awaitWaiting(want float64) {
	c.t.Helper()
	c.eventually(func() error {
		families, err := c.registry.Gather()
		if err != nil {
			return err
		}
		for _, family := range families {
			for _, m := range family.Metric {
				if family.GetName() == "trivet_taint_eviction_pods" && m.Label[0].GetValue() == "waiting" && m.GetGauge().GetValue() == want {
					return nil
				}
			}
		}
		return fmt.Errorf("not %v pods wait", want)
	})
}

func (c *evictionFixture) awaitEvent(pod string) {
	c.t.Helper()
	c.eventually(func() error {
		events, err := c.admin.CoreV1().Events(c.namespace).List(c.t.Context(), metav1.ListOptions{
			FieldSelector: fields.Set{"involvedObject.name": pod, "reason": "TaintManagerEviction"}.String(),
		})
		if err == nil && len(events.Items) == 0 {
			err = fmt.Errorf("no Event of pod %s", pod)
		}
		return err
	})
}

// The taints are older than the service, which allows for a clock difference of 10 s.
func TestTaintEviction_NewTermEvictsNoPodEarly(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	c := newEvictionFixture(t, func(c *evictionFixture) {
		c.taint(c.nodes[0], &metav1.Time{Time: begin.Add(-100 * time.Second)}, "maintenance")
		c.pod("0-due", c.nodes[0], "maintenance", 85)
		c.pod("0-soon", c.nodes[0], "maintenance", 106)
		c.pod("0-later", c.nodes[0], "maintenance", 300)
		c.taint(c.nodes[1], &metav1.Time{Time: begin.Add(time.Hour)}, "maintenance")
		c.pod("1-ahead", c.nodes[1], "maintenance", 20)
	})
	if at := c.awaitLeaving("0-due"); at.Sub(begin) > 16*time.Second {
		t.Skipf("the service started after %v, too late for the test", at.Sub(begin))
	}
	c.candidate.Lose()
	c.candidate.Regain()
	c.awaitLeading()
	at := c.awaitLeaving("0-due", "0-soon")
	if after := at.Sub(begin); after < 16*time.Second-time.Second || after > 25*time.Second { // a second for the cut of timeAdded
		t.Errorf("the pod left %v after the first term began, want 16 s: 106 of its taint of 100, and 10 for clocks", after)
	}
}

// Both loops together: the pods of a silent node are evicted when their tolerations end.
func TestTaintEviction_PodsOfASilentNodeAreEvicted(t *testing.T) {
	t.Parallel()
	w := newNodeFixture(t, 4, leasesvc.TaintEvictionLoop)
	c := &evictionFixture{fixture: w.fixture, admin: w.admin, namespace: w.namespace, nodes: w.names}
	for _, node := range w.names {
		c.pod("on-"+node, node, corev1.TaintNodeUnreachable, 2)
	}
	c.pod("stays", w.names[0], corev1.TaintNodeUnreachable, -1)
	w.silence(w.names[0])
	marked := w.awaitUnknown(w.names[0])
	testkit.Eventually(t, slack+grace, func() error {
		if diff := cmp.Diff([]string{"on-" + w.names[0]}, c.leaving()); diff != "" {
			return errors.New("leaving (-want +got):\n" + diff)
		}
		return nil
	})
	w.mu.Lock()
	after := time.Since(w.last[w.names[0]])
	w.mu.Unlock()
	if least := grace + 2*time.Second; after < least {
		t.Errorf("the pod left %v after the node's last renewal, want at least %v", after, least)
	}
	t.Logf("marked as unknown %v after the last renewal; the pod left within %v", marked, after)
	w.expectReady(w.names[1:]...)
}

func TestTaintEviction_InvalidRatesAreRefused(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{"0": true, "0.5": true, "1000": true, "-1": false, "1001": false, "NaN": false, "+Inf": false} {
		cfg := leasesvc.DefaultConfig()
		cfg.FillTime = time.Nanosecond
		flags := pflag.NewFlagSet("leasesvc", pflag.ContinueOnError)
		cfg.RegisterFlags(flags)
		if err := flags.Parse([]string{"--taint-eviction-qps=" + text}); err != nil {
			t.Fatal(err)
		}
		problems := cfg.Validate()
		if named := len(problems) == 1 && strings.Contains(problems[0].Error(), "--taint-eviction-qps"); ok && len(problems) > 0 || !ok && !named {
			t.Errorf("--taint-eviction-qps=%s: problems %v", text, problems)
		}
	}
}

func TestTaintEviction_IsDisabledByDefault(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	for _, l := range f.service.Loops().Status() {
		if l.Name == leasesvc.TaintEvictionLoop && l.State.String() != "disabled" {
			t.Errorf("loop %s is %v by default", l.Name, l.State)
		}
	}
}
