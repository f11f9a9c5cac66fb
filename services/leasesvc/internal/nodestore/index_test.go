package nodestore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/trivet-dev/trivet/internal/testkit"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
)

func TestUID_TellsUnknownFromMissing(t *testing.T) {
	kube := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1"}})
	index, err := nodestore.NewNodeIndex(kube)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"n1", "n2"} {
		if _, err := index.UID(name); !errors.Is(err, nodestore.ErrNodesNotListed) {
			t.Errorf("%s before the first list: error %v, want ErrNodesNotListed", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- index.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}()
	testkit.Eventually(t, 10*time.Second, index.Check)
	if uid, err := index.UID("n1"); err != nil || uid != "u1" {
		t.Errorf("n1: UID %q, error %v; want u1", uid, err)
	}
	if _, err := index.UID("n2"); !errors.Is(err, nodestore.ErrNodeMissing) {
		t.Errorf("n2: error %v, want ErrNodeMissing", err)
	}
	if uid, err := index.Confirm(t.Context(), "n1"); err != nil || uid != "u1" {
		t.Errorf("confirm n1: UID %q, error %v; want u1", uid, err)
	}
	if _, err := index.Confirm(t.Context(), "n2"); !errors.Is(err, nodestore.ErrNodeMissing) {
		t.Errorf("confirm n2: error %v, want ErrNodeMissing", err)
	}
}
