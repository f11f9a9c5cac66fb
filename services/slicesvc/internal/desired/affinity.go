package desired

import (
	"hash/fnv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// templateHash is set by ReplicaSets of a Deployment, revisionHash by StatefulSets and DaemonSets.
	templateHash = "pod-template-hash"
	revisionHash = "controller-revision-hash"
)

// AffinityOf gives pods that are likely to come and go together the same
// number: those of one revision of a workload, else those of one controller. It
// is 0 for a pod of which neither is known. Two kinds of pods have the same
// number by chance about never, and it does no harm.
func AffinityOf(pod *corev1.Pod) uint32 {
	for _, label := range []string{templateHash, revisionHash} {
		if value := pod.Labels[label]; value != "" {
			return hashed(value)
		}
	}
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		return hashed(string(owner.UID))
	}
	return 0
}

func hashed(text string) uint32 {
	hash := fnv.New32a()
	hash.Write([]byte(text))
	return hash.Sum32()
}
