package nodehealthcontroller_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var errDown = errors.New("connection refused")

// view is a state of the cluster: live in kube-apiserver, or cached.
type view struct {
	nodes  map[string]*corev1.Node
	leases map[string]nodehealth.Lease
	pods   map[string]*corev1.Pod
}

func newView() view {
	return view{nodes: map[string]*corev1.Node{}, leases: map[string]nodehealth.Lease{}, pods: map[string]*corev1.Pod{}}
}

// fakeCluster is kube-apiserver, the caches that follow it, and the kubelets, in memory.
type fakeCluster struct {
	mu       sync.Mutex // guards what follows
	live     view
	cached   view
	changed  map[string]struct{}
	replicas []*replica
	version  int
	// frozen caches get no changes. If down, kube-apiserver does not answer.
	frozen, down bool
	// hangs is until when kube-apiserver answers no request.
	hangs time.Time
	// unreadable Leases fail with this error. slowRead is how long each read of Leases takes.
	unreadable error
	// unwritable Leases fail with this error.
	unwritable error
	slowRead   time.Duration
	// forbidden makes kube-apiserver reject every write.
	forbidden bool
	// stuck nodes are those whose writes hang.
	stuck map[string]bool
	// stubborn nodes have a kubelet that marks its Pods ready again at once.
	stubborn map[string]bool
	writes   []string
	events   []string
	// decisions are those of the controller that run runs.
	decisions *decisions.Log
	// onEvent is called for each Event, by the goroutine that sends it.
	onEvent func()
	// onCompare is called before Leases are read, by the goroutine that reads.
	onCompare func(samples []nodehealth.Sample)
	synced    chan struct{}
	relists   int
}

// newFakeCluster has ready nodes n0 to n<count-1> with Leases, and one ready Pod on each.
func newFakeCluster(count int) *fakeCluster {
	f := &fakeCluster{
		live: newView(), cached: newView(), changed: map[string]struct{}{}, stuck: map[string]bool{},
		stubborn: map[string]bool{}, synced: make(chan struct{}),
		onEvent: func() {}, onCompare: func([]nodehealth.Sample) {},
	}
	for i := range count {
		f.add(fmt.Sprintf("n%d", i))
	}
	return f
}

func (f *fakeCluster) add(name string) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + f.next())}}
	node.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(), LastHeartbeatTime: metav1.Now(),
	}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod-" + name, UID: types.UID("uid-" + f.next())}}
	pod.Spec.NodeName = name
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	f.putNode(node)
	f.putPod(pod)
	f.renew(name)
}

func (f *fakeCluster) next() string {
	f.version++
	return strconv.Itoa(f.version)
}

// The put methods store the next version of an object. The caller holds mu.
func (f *fakeCluster) putNode(node *corev1.Node) *corev1.Node {
	node.ResourceVersion = f.next()
	f.live.nodes[node.Name] = node
	f.deliver(node.Name)
	return node
}

func (f *fakeCluster) putPod(pod *corev1.Pod) {
	pod.ResourceVersion = f.next()
	f.live.pods[pod.Name] = pod
	f.deliver(pod.Spec.NodeName)
}

func (f *fakeCluster) renew(name string) {
	f.live.leases[name] = nodehealth.Lease{Version: f.next(), RenewTime: time.Now()}
	f.deliver(name)
}

func (f *fakeCluster) deliver(name string) {
	if f.frozen {
		return
	}
	f.cached = view{nodes: maps.Clone(f.live.nodes), leases: maps.Clone(f.live.leases), pods: maps.Clone(f.live.pods)}
	f.changed[name] = struct{}{}
	for _, r := range f.replicas {
		r.changed[name] = struct{}{}
	}
}

// change changes the cluster under its lock.
func (f *fakeCluster) change(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// thaw lets the caches catch up.
func (f *fakeCluster) thaw() {
	f.change(func() {
		f.frozen = false
		for name := range f.live.nodes {
			f.deliver(name)
		}
	})
}

// beat has kubelets renew every ten seconds for a while, all but the silent ones.
func (f *fakeCluster) beat(d time.Duration, silent ...string) {
	for ; d > 0; d -= 10 * time.Second {
		f.change(func() {
			for name := range f.live.nodes {
				if !f.down && !slices.Contains(silent, name) {
					f.renew(name)
				}
			}
		})
		time.Sleep(min(d, 10*time.Second))
	}
}

// report is a status update of a kubelet.
func (f *fakeCluster) report(name string, ready corev1.ConditionStatus) {
	f.change(func() {
		node := f.live.nodes[name].DeepCopy()
		for i := range node.Status.Conditions {
			if c := &node.Status.Conditions[i]; c.Type == corev1.NodeReady {
				c.Status, c.LastHeartbeatTime, c.LastTransitionTime = ready, metav1.Now(), metav1.Now()
			}
		}
		f.putNode(node)
	})
}

// The methods of Cache.

func (f *fakeCluster) Run(ctx context.Context) error {
	close(f.synced)
	<-ctx.Done()
	return nil
}

func (f *fakeCluster) Synced() <-chan struct{} { return f.synced }

func (f *fakeCluster) Relist() { f.change(func() { f.relists++ }) }

func (f *fakeCluster) Changed() map[string]struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := f.changed
	f.changed = map[string]struct{}{}
	return changed
}

func (f *fakeCluster) Node(name string) *corev1.Node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cached.nodes[name]
}

func (f *fakeCluster) Lease(name string) nodehealth.Lease {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cached.leases[name]
}

func (f *fakeCluster) Pods(node string) []*corev1.Pod {
	f.mu.Lock()
	defer f.mu.Unlock()
	var pods []*corev1.Pod
	for _, pod := range f.cached.pods {
		if pod.Spec.NodeName == node {
			pods = append(pods, pod)
		}
	}
	return pods
}

// The methods of Writer.

func (f *fakeCluster) arrive(ctx context.Context, name string) error {
	f.mu.Lock()
	stuck, down, hangs := f.stuck[name], f.down, f.hangs
	f.mu.Unlock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Until(hangs)):
	}
	if stuck {
		<-ctx.Done()
		return ctx.Err()
	}
	if down {
		return errDown
	}
	return nil
}

func conflict(name string) error {
	return apierrors.NewConflict(corev1.Resource("nodes"), name, errors.New("the object has been modified"))
}

func (f *fakeCluster) Write(ctx context.Context, step nodehealth.Step) (*corev1.Node, error) {
	name := step.Node.Name
	if err := f.arrive(ctx, name); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.forbidden {
		return nil, apierrors.NewForbidden(corev1.Resource("nodes"), name, errors.New("no role"))
	}
	node := f.live.nodes[name]
	if node == nil || node.UID != step.Node.UID || node.ResourceVersion != step.Node.ResourceVersion {
		return nil, conflict(name)
	}
	node = node.DeepCopy()
	for _, c := range step.Conditions {
		node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(old corev1.NodeCondition) bool { return old.Type == c.Type })
		node.Status.Conditions = append(node.Status.Conditions, c)
	}
	if step.Taints != nil {
		node.Spec.Taints = *step.Taints
	}
	f.writes = append(f.writes, step.Kind.String()+" "+name)
	return f.putNode(node), nil
}

func (f *fakeCluster) MarkPodNotReady(ctx context.Context, pod *corev1.Pod, at metav1.Time) error {
	if err := f.arrive(ctx, pod.Name); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	live := f.live.pods[pod.Name]
	if live == nil {
		return nil
	}
	if live.ResourceVersion != pod.ResourceVersion {
		return conflict(pod.Name)
	}
	live = live.DeepCopy()
	live.Status.Conditions = []corev1.PodCondition{nodehealth.NotReadyCondition(pod, at)}
	f.writes = append(f.writes, "unready "+pod.Name)
	f.putPod(live)
	if f.stubborn[pod.Spec.NodeName] {
		restored := live.DeepCopy()
		restored.Status.Conditions = slices.Clone(pod.Status.Conditions) // as it was, with the old time of transition
		f.putPod(restored)
	}
	return nil
}

func (f *fakeCluster) NewerLeases(ctx context.Context, samples []nodehealth.Sample) ([]nodehealth.LiveLease, error) {
	if err := f.arrive(ctx, ""); err != nil {
		return nil, err
	}
	f.mu.Lock()
	onCompare, unreadable, slowRead := f.onCompare, f.unreadable, f.slowRead
	f.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(slowRead):
	}
	if unreadable != nil {
		return nil, unreadable
	}
	onCompare(samples)
	f.mu.Lock()
	defer f.mu.Unlock()
	var newer []nodehealth.LiveLease
	for _, sample := range samples {
		if live := f.live.leases[sample.Node]; live.Renews(sample) {
			newer = append(newer, nodehealth.LiveLease{Node: sample.Node, Lease: live})
		}
	}
	return newer, nil
}

func (f *fakeCluster) RenewCheckLease(ctx context.Context, _ int) error {
	if err := f.arrive(ctx, ""); err != nil {
		return err
	}
	f.mu.Lock()
	unwritable := f.unwritable
	f.mu.Unlock()
	return cmp.Or(unwritable, ctx.Err())
}

// The methods of Events.

func (f *fakeCluster) event(event string) {
	f.change(func() { f.events = append(f.events, event) })
	f.onEvent()
}

func (f *fakeCluster) NodeRegistered(node *corev1.Node) { f.event("registered " + node.Name) }
func (f *fakeCluster) NodeRemoved(node *corev1.Node)    { f.event("removed " + node.Name) }
func (f *fakeCluster) NodeNotReady(node *corev1.Node)   { f.event("not ready " + node.Name) }
func (f *fakeCluster) PodNotReady(pod *corev1.Pod)      { f.event("not ready " + pod.Name) }

func (f *fakeCluster) LiveNode(_ context.Context, name string) (*corev1.Node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.live.nodes[name], nil
}

// noEvictions is taint eviction that does not run.
type noEvictions struct{}

func (noEvictions) Holds() map[string]nodehealth.Delay { return nil }
