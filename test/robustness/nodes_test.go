package robustness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/agent/nodelease"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

// nodePrefix is that of the Nodes of package simulate.
const nodePrefix = "sim-node-"

// simulatedNodes keeps nodes alive: the first ones by an agent, which renews their Leases while its
// beats are not acknowledged, the others by a kubelet that renews its Lease.
type simulatedNodes struct {
	*world
	nodes  []*simulatedNode
	leases *nodelease.Writer
	// clockStep is how far the clocks of the kubelets are ahead, in nanoseconds.
	clockStep atomic.Int64
}

// clock returns the time of the kubelets.
func (f *simulatedNodes) clock() time.Time { return time.Now().Add(time.Duration(f.clockStep.Load())) }

type simulatedNode struct {
	name    string
	kubelet bool
	boots   int

	mu      sync.Mutex // guards the following fields
	agent   *agent.Agent
	life    int           // index of the present life in the record
	renewed time.Duration // the kubelet's last renewal
	end     context.CancelFunc
	ended   chan struct{}
}

func newSimulatedNodes(w *world) *simulatedNodes {
	f := &simulatedNodes{world: w, leases: nodelease.NewWriter(w.direct)}
	for i := range *agents + *kubelets {
		f.nodes = append(f.nodes, &simulatedNode{name: fmt.Sprintf("%s%04d", nodePrefix, i), kubelet: i >= *agents})
	}
	return f
}

func (f *simulatedNodes) start(ctx context.Context) {
	for _, n := range f.nodes {
		f.live(ctx, n)
	}
}

// live begins a life of a node.
func (f *simulatedNodes) live(ctx context.Context, n *simulatedNode) {
	ctx, end := context.WithCancel(ctx)
	ended := make(chan struct{})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.end, n.ended = end, ended
	n.boots++
	run := func() { f.renew(ctx, n) }
	if !n.kubelet {
		a, err := f.newAgent(n)
		if err != nil {
			f.note(err)
		}
		n.agent = a
		run = func() {
			if err := a.Run(ctx); err != nil && ctx.Err() == nil {
				f.note(fmt.Errorf("agent of %s: %w", n.name, err))
			}
		}
	}
	f.mu.Lock()
	n.life = len(f.record.Lives)
	f.record.Lives = append(f.record.Lives, history.Life{Node: n.name, Kubelet: n.kubelet, From: f.now()})
	f.mu.Unlock()
	f.background.Go(func() {
		defer close(ended)
		run()
	})
}

func (f *simulatedNodes) newAgent(n *simulatedNode) (*agent.Agent, error) {
	var targets []string
	for _, s := range f.replicasOf(history.Leasesvc) {
		targets = append(targets, s.Calls.Addr())
	}
	return agent.New(agent.Config{
		Targets: targets, Cluster: clusterName, Name: "robustness", Logger: slog.New(slog.DiscardHandler),
		Dial: func(target string) (*grpc.ClientConn, error) {
			return f.pki.Dial(target, history.Leasesvc, n.name, certs.NodeLeaf(n.name))
		},
		Holders: []agent.Holder{{Class: "node", Name: n.name, BootID: fmt.Sprintf("boot-%d", n.boots)}},
		Unacknowledged: func(ctx context.Context, h agent.Holder) error {
			err := f.leases.Renew(ctx, h)
			f.miss(err)
			return err
		},
	})
}

// renew renews the Lease of a node as a kubelet does.
func (f *simulatedNodes) renew(ctx context.Context, n *simulatedNode) {
	for ctx.Err() == nil {
		if err := f.renewOnce(ctx, n.name); err == nil {
			n.mu.Lock()
			n.renewed = f.now()
			n.mu.Unlock()
		} else if ctx.Err() == nil {
			f.miss(fmt.Errorf("renew the Lease of %s: %w", n.name, err))
		}
		testkit.Pause(ctx, kubeletPace)
	}
}

func (f *simulatedNodes) renewOnce(ctx context.Context, name string) error {
	leases := f.direct.CoordinationV1().Leases(nodeLeases)
	seconds, now := int32(leaseDuration/time.Second), metav1.NewMicroTime(f.clock())
	lease, err := leases.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &now},
		}, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &name, &seconds, &now
	_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	return err
}

// crash ends the life of a node without a word, as a power cut does.
func (f *simulatedNodes) crash(n *simulatedNode) {
	n.mu.Lock()
	end, ended := n.end, n.ended
	n.mu.Unlock()
	end()
	<-ended
	n.mu.Lock()
	defer n.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.record.Lives[n.life].To = f.now()
	if n.kubelet {
		f.record.Lives[n.life].To = max(n.renewed, f.record.Lives[n.life].From)
	}
	n.agent = nil
}

// restart starts a node again, whose kubelet says at once that it is ready.
func (f *simulatedNodes) restart(ctx context.Context, n *simulatedNode) {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := f.direct.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		now := metav1.NewTime(f.clock())
		node.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Simulated", LastHeartbeatTime: now, LastTransitionTime: now,
		}}
		_, err = f.direct.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		f.miss(fmt.Errorf("restart %s: %w", n.name, err))
	}
	f.live(ctx, n)
}

const (
	// A node that comes and goes lives for shortLife, and one comes each shortLifePace.
	shortLife     = 12 * time.Second
	shortLifePace = 3 * time.Second
)

// addAndRemove adds nodes and removes them, until ctx ends.
func (f *simulatedNodes) addAndRemove(ctx context.Context) {
	for number := len(f.nodes); ctx.Err() == nil; number++ {
		n := &simulatedNode{name: fmt.Sprintf("%s%04d", nodePrefix, number), kubelet: true}
		f.background.Go(func() {
			if err := f.liveShortly(ctx, n); err != nil && ctx.Err() == nil {
				f.miss(fmt.Errorf("%s comes and goes: %w", n.name, err))
			}
		})
		testkit.Pause(ctx, shortLifePace)
	}
}

// liveShortly is the life of a node that leaves in order.
func (f *simulatedNodes) liveShortly(ctx context.Context, n *simulatedNode) error {
	now := metav1.Now()
	made, err := f.direct.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	f.live(ctx, n)
	made.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Simulated", LastHeartbeatTime: now, LastTransitionTime: now,
	}}
	_, err = f.direct.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{})
	if err == nil || apierrors.IsConflict(err) { // leasesvc may have changed it first.
		testkit.Pause(ctx, shortLife)
	}
	if ctx.Err() != nil {
		return nil
	}
	f.crash(n)
	return errors.Join(f.direct.CoreV1().Nodes().Delete(ctx, n.name, metav1.DeleteOptions{}),
		f.direct.CoordinationV1().Leases(nodeLeases).Delete(ctx, n.name, metav1.DeleteOptions{}))
}

// oneOfEachKind returns an agent's node and a kubelet's, others in each step.
func (f *simulatedNodes) oneOfEachKind(step int) []*simulatedNode {
	var out []*simulatedNode
	for _, kubelet := range []bool{false, true} {
		of := slices.DeleteFunc(slices.Clone(f.nodes), func(n *simulatedNode) bool { return n.kubelet != kubelet })
		if len(of) > 1 {
			out = append(out, of[step%len(of)])
		}
	}
	return out
}

// registered returns an error unless each agent has registered its node.
func (f *simulatedNodes) registered() error {
	for _, n := range f.nodes {
		n.mu.Lock()
		a := n.agent
		n.mu.Unlock()
		if a != nil && a.Status().Registered != 1 {
			return fmt.Errorf("%s is not registered: %s", n.name, a.Status().LastError)
		}
	}
	return nil
}
