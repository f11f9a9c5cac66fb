package leaseclient

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/test/conformance/internal/simtest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// bed is one Node, leasesvc, and every state of the Node's Lease.
type bed struct {
	kube kubernetes.Interface
	node *corev1.Node
	*simtest.Leasesvc
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
	b.node = simtest.CreateNode(t, b.kube, name)
	b.history = follow(t, b.kube, name)
	b.Leasesvc = simtest.StartLeasesvc(t, testkit.Cluster(t), name, cfg)
	return b
}

// startKubelet renews the Lease of the Node ten times a second.
func (b *bed) startKubelet(t *testing.T, cfg simtest.KubeletConfig) (client *simtest.Kubelet, stop func()) {
	t.Helper()
	cfg.Kube, cfg.Node, cfg.Pace = b.kube, b.node, 100*time.Millisecond
	return simtest.StartKubelet(t, cfg)
}

func TestClient_GoesOnWithTheLeaseThatLeasesvcWrote(t *testing.T) {
	b := newBed(t, "back-to-kubelet")
	silence := b.Beat(b.node.Name)
	b.awaitWrites(t, byLeasesvc, 3)
	silence()

	client, _ := b.startKubelet(t, simtest.KubeletConfig{})
	b.awaitWrites(t, byClient, 5)
	b.expectSafe(t, b.node)
	if seconds := *b.last(t).Spec.LeaseDurationSeconds; seconds != simtest.KubeletSeconds {
		t.Errorf("the client's Lease lasts %d s, want %d", seconds, simtest.KubeletSeconds)
	}
	if n := client.Failures(); n != 0 {
		t.Errorf("the client failed again and again %d times", n)
	}
}

func TestLeasesvc_GoesOnWithTheLeaseThatTheClientWrote(t *testing.T) {
	b := newBed(t, "from-kubelet")
	_, stop := b.startKubelet(t, simtest.KubeletConfig{})
	b.awaitWrites(t, byClient, 3)
	stop()

	b.Beat(b.node.Name)
	b.awaitWrites(t, byLeasesvc, 5)
	b.expectSafe(t, b.node)
}

// A kubelet may have gone by a clock that was an hour ahead. Readers take any later renewTime for a
// sign of life, and an earlier one for none, so leasesvc goes on from there in the smallest steps.
func TestLeasesvc_GoesOnFromTheTimeOfAClientWhoseClockWasAhead(t *testing.T) {
	b := newBed(t, "ahead")
	_, stop := b.startKubelet(t, simtest.KubeletConfig{Ahead: time.Hour})
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
	client, _ := b.startKubelet(t, simtest.KubeletConfig{})
	b.Beat(b.node.Name)
	b.awaitWrites(t, byClient, 10)
	b.awaitWrites(t, byLeasesvc, 10)
	b.awaitWrites(t, byClient, 10)
	b.expectSafe(t, b.node)
	if n := client.Failures(); n != 0 {
		t.Errorf("the client failed again and again %d times", n)
	}
	b.awaitWritten(t, time.Now())
}

// Start and Stop of the client delete the Lease, as a component does that leaves for good.
func TestLeasesvc_MakesTheLeaseAnewThatTheClientDeleted(t *testing.T) {
	b := newBed(t, "deleted")
	client, stop := b.startKubelet(t, simtest.KubeletConfig{})
	b.awaitWrites(t, byClient, 3)
	b.Beat(b.node.Name)
	b.awaitWrites(t, byLeasesvc, 3)
	old := b.last(t)
	stop()
	client.Stop()

	testkit.Eventually(t, 30*time.Second, func() error {
		l, err := b.kube.CoordinationV1().Leases(simtest.LeaseNamespace).Get(t.Context(), b.node.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if l.UID == old.UID || len(l.OwnerReferences) != 1 || l.OwnerReferences[0] != simtest.OwnedBy(b.node) {
			return fmt.Errorf("the Lease is %v", l)
		}
		return nil
	})
}

func TestLeasesvc_LeavesALeaseAloneThatNamesAnotherHolder(t *testing.T) {
	b := newBed(t, "foreign")
	b.startKubelet(t, simtest.KubeletConfig{Holder: "another-holder"})
	b.awaitWrites(t, byClient, 3)

	b.Beat(b.node.Name)
	testkit.Eventually(t, 30*time.Second, func() error {
		session, err := b.Session(t.Context(), b.node.Name)
		if err != nil {
			return err
		}
		if session.GetWrite().GetFailureCount() == 0 {
			return errors.New("leasesvc has not yet found that it may not write the Lease: " + session.GetWrite().String())
		}
		return nil
	})
	b.awaitWrites(t, byClient, 3)
	for _, event := range b.read() {
		if l := leaseIn(t, event); writerOf(l) == byLeasesvc || *l.Spec.HolderIdentity != "another-holder" {
			t.Fatalf("leasesvc has written the Lease: %v", l)
		}
	}
}

// awaitWritten waits until leasesvc has written the Lease after a time, and says that it stands as
// written.
func (b *bed) awaitWritten(t *testing.T, after time.Time) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() error {
		session, err := b.Session(t.Context(), b.node.Name)
		if err != nil {
			return err
		}
		write := session.GetWrite()
		if write.GetState() != leasev1.Lease_Write_STATE_WRITTEN || !write.GetWriteTime().AsTime().After(after) {
			return errors.New("the Lease is not written: " + write.String())
		}
		return nil
	})
}
