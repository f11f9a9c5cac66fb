package evictioncontroller_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// fakeCluster is a cluster in memory. Its cache is up to date unless frozen is set.
type fakeCluster struct {
	begin  time.Time
	synced chan struct{}
	broken chan struct{} // closing it ends the watch

	mu         sync.Mutex // guards what follows
	nodes      map[string]*corev1.Node
	pods       map[string]*corev1.Pod
	changed    map[string]struct{}
	frozen     map[string]*corev1.Node // what the watch says of Nodes instead
	unreliable nodehealth.Delay
	version    int                    // of the last Node
	answer     func(pod string) error // what an eviction is refused with
	slow       time.Duration          // what an answer takes
	frozenPods map[string]*corev1.Pod // what the watch says of Pods instead
	relists    int

	evictedAt map[string]time.Duration // when pods were evicted
	cancelled []string
	attempts  []string
	working   int
	most      int // evictions at the same time
}

func newFakeCluster() *fakeCluster {
	t := &fakeCluster{
		begin: time.Now(), synced: make(chan struct{}), broken: make(chan struct{}),
		nodes: map[string]*corev1.Node{}, pods: map[string]*corev1.Pod{}, changed: map[string]struct{}{},
		evictedAt: map[string]time.Duration{}, answer: func(string) error { return nil },
	}
	close(t.synced)
	return t
}

// node creates or replaces a Node with NoExecute taints. Its zone is the first letter of its name.
func (t *fakeCluster) node(name string, keys ...string) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("uid-of-" + name), Labels: map[string]string{corev1.LabelTopologyZone: name[:1]},
	}}
	for _, key := range keys {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute})
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.version++
	node.ResourceVersion = fmt.Sprint(t.version)
	t.nodes[name] = node
	t.changed[name] = struct{}{}
}

// pod puts a Pod on a Node that tolerates all taints for some seconds, or none if seconds is
// negative.
func (t *fakeCluster) pod(name, node string, seconds int64) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-of-" + name)},
		Spec:       corev1.PodSpec{NodeName: node},
	}
	if seconds >= 0 {
		pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists, TolerationSeconds: &seconds}}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.version++
	pod.ResourceVersion = fmt.Sprint(t.version)
	t.pods[name] = pod
	t.changed[node] = struct{}{}
}

// freeze keeps changes of Nodes from the cache.
func (t *fakeCluster) freeze() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.frozen = maps.Clone(t.nodes)
}

// thaw lets the cache catch up.
func (t *fakeCluster) thaw() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.frozen = nil
	for name := range t.nodes {
		t.changed[name] = struct{}{}
	}
}

// freezePods keeps changes of Pods from the cache until it is listed again.
func (t *fakeCluster) freezePods() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.frozenPods = maps.Clone(t.pods)
}

func (t *fakeCluster) Relist() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.relists++
	t.frozenPods = nil
	for name := range t.nodes {
		t.changed[name] = struct{}{}
	}
}

func (t *fakeCluster) setUnreliable(hold nodehealth.Delay) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unreliable = hold
}

func (t *fakeCluster) answerWith(answer func(pod string) error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answer = answer
}

// evicted returns after how long Pods were evicted.
func (t *fakeCluster) evicted() map[string]time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.evictedAt)
}

func (t *fakeCluster) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-t.broken:
		return errBroken
	}
}

func (t *fakeCluster) Synced() <-chan struct{} { return t.synced }

func (t *fakeCluster) Changed() map[string]struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed := t.changed
	t.changed = map[string]struct{}{}
	return changed
}

func (t *fakeCluster) Node(name string) *corev1.Node {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.frozen != nil {
		return t.frozen[name]
	}
	return t.nodes[name]
}

func (t *fakeCluster) Pods(node string) []*corev1.Pod {
	t.mu.Lock()
	defer t.mu.Unlock()
	var on []*corev1.Pod
	pods := t.pods
	if t.frozenPods != nil {
		pods = t.frozenPods
	}
	for _, pod := range pods {
		if pod.Spec.NodeName == node {
			on = append(on, pod)
		}
	}
	return on
}

func (t *fakeCluster) TaintHold() nodehealth.Delay {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.unreliable
}

func (t *fakeCluster) Evicted(*eviction.Eviction) {}

func (t *fakeCluster) EvictionCancelled(w eviction.PendingPod) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cancelled = append(t.cancelled, w.Pod.Name)
}

// fakeWriter is the Writer of the fake cluster. It is a type of its own, because its Node is
// another method.
type fakeWriter struct{ *fakeCluster }

func (c fakeWriter) LiveNode(ctx context.Context, name string) (*corev1.Node, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[name], nil
}

func (c fakeWriter) LivePod(_ context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if live := c.pods[pod.Name]; live != nil && live.UID == pod.UID {
		return live, nil
	}
	return nil, nil
}

func (c fakeWriter) Evict(ctx context.Context, e *eviction.Eviction) error {
	c.mu.Lock()
	c.working++
	c.most = max(c.most, c.working)
	slow, answer := c.slow, c.answer
	c.mu.Unlock()
	var err error
	select {
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(slow):
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.working--
	c.attempts = append(c.attempts, fmt.Sprintf("%s at %v", e.Pod.Name, time.Since(c.begin).Round(time.Second)))
	if err == nil {
		err = answer(e.Pod.Name)
	}
	if err != nil {
		return err
	}
	if live := c.pods[e.Pod.Name]; live == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, e.Pod.Name)
	} else if live.ResourceVersion != e.Pod.ResourceVersion {
		return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, e.Pod.Name, nil)
	}
	delete(c.pods, e.Pod.Name)
	c.changed[e.Node] = struct{}{}
	c.evictedAt[e.Pod.Name] = time.Since(c.begin)
	return nil
}
