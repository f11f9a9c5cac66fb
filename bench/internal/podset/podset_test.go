package podset

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestSet_IdealCountsEachService(t *testing.T) {
	s := &Set{services: 3, pods: make([]*corev1.Pod, 7)} // 3, 2 and 2 Pods
	for i := range s.pods {
		s.pods[i] = &corev1.Pod{}
	}
	if got := s.Ideal(2); got != 4 {
		t.Errorf("ideal is %d slices, want 4", got)
	}
	s.pods = make([]*corev1.Pod, 3)
	if got := s.Ideal(2); got != 3 {
		t.Errorf("without Pods ideal is %d slices, want one for each Service", got)
	}
}
