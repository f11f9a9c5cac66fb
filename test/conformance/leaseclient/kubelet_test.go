package leaseclient

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

	"github.com/trivet-dev/trivet/internal/testkit"
	"github.com/trivet-dev/trivet/test/conformance/internal/ward"
)

const (
	kubeletPace    = 100 * time.Millisecond
	kubeletSeconds = 40
)

func TestMain(m *testing.M) { testkit.Main(m) }

// kubelet is upstream's lease client, set up as a kubelet does it.
type kubelet struct {
	lease.Controller
	failures atomic.Int32 // renewals that failed again and again
}

// newKubelet renews the Lease of a Node for a holder, which is the Node's name where all is well. Its clock is ahead.
func newKubelet(kube kubernetes.Interface, node *corev1.Node, holder string, ahead time.Duration) *kubelet {
	k := &kubelet{}
	own := func(l *coordinationv1.Lease) error {
		if len(l.OwnerReferences) == 0 {
			l.OwnerReferences = []metav1.OwnerReference{ownedBy(node)}
		}
		return nil
	}
	k.Controller = lease.NewController(aheadClock{ahead: ahead}, kube, holder, kubeletSeconds,
		func() { k.failures.Add(1) }, kubeletPace, node.Name, ward.LeaseNamespace, own)
	return k
}

// run renews until the test ends or stop is called; nothing is deleted then, as when a kubelet dies.
func (k *kubelet) run(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.Run(ctx)
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

func ownedBy(node *corev1.Node) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
}

// aheadClock is a clock that goes wrong.
type aheadClock struct {
	clock.RealClock
	ahead time.Duration
}

func (c aheadClock) Now() time.Time { return time.Now().Add(c.ahead) }
