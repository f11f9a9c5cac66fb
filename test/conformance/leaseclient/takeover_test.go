package leaseclient

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/testkit"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/test/conformance/internal/ward"
)

// bed is one Node, leasesvc, and every state of the Node's Lease.
type bed struct {
	kube kubernetes.Interface
	node *corev1.Node
	*ward.Leasesvc
	*history
}

// newBed has a leasesvc that writes a Lease as often as beats come, so that tests see many writes.
func newBed(t *testing.T, name string) *bed {
	t.Helper()
	cfg := leasesvc.DefaultConfig()
	class := &cfg.Classes[0]
	class.HeartbeatInterval, class.RenewInterval = 200*time.Millisecond, 200*time.Millisecond
	cfg.Writes.Policy = leasesvc.WriteMirror
	b := &bed{kube: testkit.Kube(t)}
	b.node = ward.CreateNode(t, b.kube, name)
	b.history = follow(t, b.kube, name)
	b.Leasesvc = ward.StartLeasesvc(t, testkit.Cluster(t), name, cfg)
	return b
}

func TestClient_GoesOnWithTheLeaseThatLeasesvcWrote(t *testing.T) {
	b := newBed(t, "back-to-kubelet")
	silence := b.Beat(b.node.Name)
	b.awaitWrites(t, byLeasesvc, 3)
	silence()

	client := newKubelet(b.kube, b.node, b.node.Name, 0)
	client.run(t)
	b.awaitWrites(t, byClient, 5)
	b.expectSafe(t, b.node)
	if seconds := *b.last(t).Spec.LeaseDurationSeconds; seconds != kubeletSeconds {
		t.Errorf("the client's Lease lasts %d s, want %d", seconds, kubeletSeconds)
	}
	if n := client.failures.Load(); n != 0 {
		t.Errorf("the client failed again and again %d times", n)
	}
}

func TestLeasesvc_GoesOnWithTheLeaseThatTheClientWrote(t *testing.T) {
	b := newBed(t, "from-kubelet")
	stop := newKubelet(b.kube, b.node, b.node.Name, 0).run(t)
	b.awaitWrites(t, byClient, 3)
	stop()

	b.Beat(b.node.Name)
	b.awaitWrites(t, byLeasesvc, 5)
	b.expectSafe(t, b.node)
}

// A kubelet may have gone by a clock that was an hour ahead. Readers take any later renewTime for a sign of life, and an
// earlier one for none, so leasesvc goes on from there in the smallest steps.
func TestLeasesvc_GoesOnFromTheTimeOfAClientWhoseClockWasAhead(t *testing.T) {
	b := newBed(t, "ahead")
	stop := newKubelet(b.kube, b.node, b.node.Name, time.Hour).run(t)
	b.awaitWrites(t, byClient, 3)
	stop()

	b.Beat(b.node.Name)
	b.awaitWrites(t, byLeasesvc, 5)
	b.expectSafe(t, b.node)
	if ahead := time.Until(b.last(t).Spec.RenewTime.Time); ahead < 50*time.Minute || ahead > time.Hour {
		t.Errorf("the Lease is %v ahead, want what is left of the hour", ahead)
	}
}

func TestBoth_WriteOneLeaseAndDoNoHarm(t *testing.T) {
	b := newBed(t, "both")
	client := newKubelet(b.kube, b.node, b.node.Name, 0)
	client.run(t)
	b.Beat(b.node.Name)
	b.awaitWrites(t, byClient, 10)
	b.awaitWrites(t, byLeasesvc, 10)
	b.awaitWrites(t, byClient, 10)
	b.expectSafe(t, b.node)
	if n := client.failures.Load(); n != 0 {
		t.Errorf("the client failed again and again %d times", n)
	}
	b.AwaitWritten(b.node.Name, time.Now())
}

// Start and Stop of the client delete the Lease, as a component does that leaves for good.
func TestLeasesvc_MakesTheLeaseAnewThatTheClientDeleted(t *testing.T) {
	b := newBed(t, "deleted")
	client := newKubelet(b.kube, b.node, b.node.Name, 0)
	stop := client.run(t)
	b.awaitWrites(t, byClient, 3)
	b.Beat(b.node.Name)
	b.awaitWrites(t, byLeasesvc, 3)
	old := b.last(t)
	stop()
	client.Stop()

	testkit.Eventually(t, 30*time.Second, func() error {
		l, err := b.kube.CoordinationV1().Leases(ward.LeaseNamespace).Get(t.Context(), b.node.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if l.UID == old.UID || len(l.OwnerReferences) != 1 || l.OwnerReferences[0] != ownedBy(b.node) {
			return fmt.Errorf("the Lease is %v", l)
		}
		return nil
	})
}

func TestLeasesvc_LeavesALeaseAloneThatNamesAnotherHolder(t *testing.T) {
	b := newBed(t, "foreign")
	newKubelet(b.kube, b.node, "somebody-else", 0).run(t)
	b.awaitWrites(t, byClient, 3)

	b.Beat(b.node.Name)
	testkit.Eventually(t, 30*time.Second, func() error {
		session, err := b.Session(t.Context(), b.node.Name)
		if err != nil {
			return err
		}
		if session.GetWrite().GetFailures() == 0 {
			return errors.New("leasesvc has not yet found that it may not write the Lease: " + session.GetWrite().String())
		}
		return nil
	})
	b.awaitWrites(t, byClient, 3)
	for _, event := range b.read() {
		if l := leaseIn(t, event); writerOf(l) == byLeasesvc || *l.Spec.HolderIdentity != "somebody-else" {
			t.Fatalf("leasesvc has written the Lease: %v", l)
		}
	}
}
