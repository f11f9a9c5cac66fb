package leaseclient

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/test/conformance/internal/simtest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// history is every state of one Lease since the watch began.
type history struct {
	mu     sync.Mutex // guards events
	events []watch.Event
}

// follow watches the Lease of a Node until the test ends.
func follow(t *testing.T, kube kubernetes.Interface, node string) *history {
	t.Helper()
	watcher, err := kube.CoordinationV1().Leases(simtest.LeaseNamespace).Watch(t.Context(), metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, node).String(),
	})
	if err != nil {
		t.Fatal(err)
	}
	h := &history{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range watcher.ResultChan() {
			h.mu.Lock()
			h.events = append(h.events, event)
			h.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		watcher.Stop()
		<-done
	})
	return h
}

func (h *history) read() []watch.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]watch.Event(nil), h.events...)
}

// last is the Lease as it was last seen.
func (h *history) last(t *testing.T) *coordinationv1.Lease {
	t.Helper()
	events := h.read()
	if len(events) == 0 {
		t.Fatal("the Lease was never seen")
	}
	return leaseIn(t, events[len(events)-1])
}

// awaitWrites waits for so many further writes by the client or by leasesvc, as the recorded
// managers tell.
func (h *history) awaitWrites(t *testing.T, writer writer, count int) {
	t.Helper()
	from := len(h.read())
	testkit.Eventually(t, 30*time.Second, func() error {
		found := 0
		for _, event := range h.read()[from:] {
			if writerOf(leaseIn(t, event)) == writer {
				found++
			}
		}
		if found < count {
			return fmt.Errorf("%d writes by the %s, want %d", found, writer, count)
		}
		return nil
	})
}

// writer is the program that renewed a Lease last.
type writer string

const (
	byClient   writer = "client"
	byLeasesvc writer = "leasesvc"
)

// writerOf returns the program that changed renewTime last, by the owner of the field in
// managedFields.
func writerOf(l *coordinationv1.Lease) writer {
	for _, entry := range l.ManagedFields {
		if entry.FieldsV1 != nil && bytes.Contains(entry.FieldsV1.GetRawBytes(), []byte(`"f:renewTime"`)) && entry.Manager == "trivet-leasesvc" {
			return byLeasesvc
		}
	}
	return byClient
}

func leaseIn(t *testing.T, event watch.Event) *coordinationv1.Lease {
	t.Helper()
	l, ok := event.Object.(*coordinationv1.Lease)
	if !ok {
		t.Fatalf("the watch of the Lease sent %v", event)
	}
	return l
}

// expectSafe checks what must be true of the Lease of a Node for every writer: it is never deleted,
// belongs to the Node alone, names its holder, and its renewTime grows with every write.
func (h *history) expectSafe(t *testing.T, node *corev1.Node) {
	t.Helper()
	events := h.read()
	var before *coordinationv1.Lease
	for _, event := range events {
		l := leaseIn(t, event)
		if event.Type == watch.Deleted {
			t.Fatalf("the Lease was deleted after %d events", len(events))
		}
		if diff := cmp.Diff([]metav1.OwnerReference{simtest.OwnedBy(node)}, l.OwnerReferences); diff != "" {
			t.Errorf("owners after a write by the %s (-want +got):\n%s", writerOf(l), diff)
		}
		if holder := l.Spec.HolderIdentity; holder == nil || *holder != node.Name {
			t.Errorf("holder after a write by the %s is %v, want %s", writerOf(l), holder, node.Name)
		}
		if before != nil {
			expectLater(t, before, l)
		}
		before = l
	}
}

func expectLater(t *testing.T, before, after *coordinationv1.Lease) {
	t.Helper()
	if after.UID != before.UID {
		t.Errorf("the Lease was made anew by the %s", writerOf(after))
	}
	if !after.Spec.RenewTime.After(before.Spec.RenewTime.Time) {
		t.Errorf("renewTime goes from %v by the %s to %v by the %s", before.Spec.RenewTime, writerOf(before), after.Spec.RenewTime, writerOf(after))
	}
}
