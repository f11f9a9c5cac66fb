package index_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// A pod that is not ready is in no hurry, unless its Service sends clients there all the same.
func TestPutPod_UnreadyIsUrgentWherePublished(t *testing.T) {
	for _, published := range []bool{false, true} {
		x := index.New(slicetest.ManagedBy, 1)
		x.PutService(slicetest.Service("web", func(service *corev1.Service) { service.Spec.PublishNotReadyAddresses = published }))
		want := index.Normal
		if published {
			want = index.Urgent
		}
		pod := slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready)
		if got := x.PutPod(pod).Urgency; got != want {
			t.Errorf("published %v: a pod that comes unready has urgency %d, want %d", published, got, want)
		}
		if got := x.DeletePod(pod).Urgency; got != want {
			t.Errorf("published %v: a pod that goes unready has urgency %d, want %d", published, got, want)
		}
	}
}
