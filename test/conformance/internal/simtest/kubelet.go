package simtest

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/utils/clock"
)

// KubeletSeconds is the duration of the Leases that kubelets write.
const KubeletSeconds = 40

// KubeletConfig is how a kubelet renews the Lease of its Node.
type KubeletConfig struct {
	Kube kubernetes.Interface
	Node *corev1.Node
	// Holder is the holder that the Lease names; empty: the Node.
	Holder string
	// Pace is the time between two renewals.
	Pace time.Duration
	// Ahead is by how much the kubelet's clock is wrong.
	Ahead time.Duration
}

// Kubelet is upstream's lease client, set up as a kubelet does it. Stop, of the client, ends it and
// deletes the Lease.
type Kubelet struct {
	lease.Controller
	failures atomic.Int32
}

// StartKubelet lets a kubelet renew until the test ends or stop is called. Nothing is deleted then,
// as when a machine dies.
func StartKubelet(t *testing.T, cfg KubeletConfig) (k *Kubelet, stop func()) {
	t.Helper()
	k = &Kubelet{}
	if cfg.Holder == "" {
		cfg.Holder = cfg.Node.Name
	}
	own := func(l *coordinationv1.Lease) error {
		if len(l.OwnerReferences) == 0 {
			l.OwnerReferences = []metav1.OwnerReference{OwnedBy(cfg.Node)}
		}
		return nil
	}
	k.Controller = lease.NewController(aheadClock{ahead: cfg.Ahead}, cfg.Kube, cfg.Holder, KubeletSeconds,
		func() { k.failures.Add(1) }, cfg.Pace, cfg.Node.Name, LeaseNamespace, own)
	return k, inBackground(t, "kubelet of "+cfg.Node.Name, func(ctx context.Context) error {
		k.Run(ctx)
		return nil
	})
}

// Failures is how often a renewal has failed again and again.
func (k *Kubelet) Failures() int { return int(k.failures.Load()) }

// OwnedBy is the reference by which a Lease belongs to a Node.
func OwnedBy(node *corev1.Node) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
}

// aheadClock is a clock that goes wrong.
type aheadClock struct {
	clock.RealClock
	ahead time.Duration
}

// Now implements clock.PassiveClock.
func (c aheadClock) Now() time.Time { return time.Now().Add(c.ahead) }
