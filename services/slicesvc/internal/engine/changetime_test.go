package engine_test

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func turnedUnready(at time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		slicetest.Unready(pod)
		pod.Status.Conditions[0].LastTransitionTime = metav1.NewTime(at)
	}
}

func writtenAt(at time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &metav1.Time{Time: at}}}
	}
}

func TestRun_SlicesSayWhenTheChangeCameAbout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, held := shop(t)
		expect := func(when, want string) {
			t.Helper()
			settle(10 * time.Second)
			if got := api.only(t).Annotations[corev1.EndpointsLastChangeTriggerTime]; got != want {
				t.Errorf("%s: change time is %q, want %q", when, got, want)
			}
		}
		expect("a new Service", "2026-03-01T12:00:00Z")

		first, second := slicetest.CreationTime().Add(time.Hour), slicetest.CreationTime().Add(2*time.Hour)
		e.PutPod(slicetest.Pod("web-0", "10.1.0.1", turnedUnready(first)))
		expect("a pod that is not ready any more", "2026-03-01T13:00:00Z")

		e.DeletePod(slicetest.Pod("web-0", "10.1.0.1"))
		expect("a pod that went, at a time nobody told", "")

		e.PutPod(slicetest.Pod("web-1", "10.1.0.9", writtenAt(second)))
		expect("a pod with another address", "2026-03-01T14:00:00Z")

		now := time.Now().UTC().Format(time.RFC3339Nano)
		e.DeletePod(slicetest.Pod("web-1", "10.1.0.9", func(pod *corev1.Pod) { pod.CreationTimestamp = metav1.NewTime(slicetest.CreationTime()) }))
		expect("a pod that was seen to go", now)

		e.PutPod(slicetest.Pod("web-1", "10.1.0.2"))
		settle(10 * time.Second)
		api.refuseWith(func(pack.Change) error { return errBusy })
		e.PutPod(slicetest.Pod("web-1", "10.1.0.2", turnedUnready(first)))
		settle(10 * time.Second)
		e.PutPod(slicetest.Pod("web-2", "10.1.0.3", turnedUnready(second)))
		settle(10 * time.Second)
		api.refuseWith(nil)
		settle(time.Minute)
		expect("two changes while nothing could be written", "2026-03-01T13:00:00Z")

		held.end()
		e.PutPod(slicetest.Pod("web-3", "10.1.0.4", turnedUnready(second)))
		lead(t, e)
		expect("a change found at the beginning of a term", "")
	})
}
