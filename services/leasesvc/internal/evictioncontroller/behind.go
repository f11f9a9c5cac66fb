package evictioncontroller

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

const (
	// behindTolerance is how long the cache may lack a change before that is reported.
	behindTolerance = 5 * time.Second
	// relistAfter is how long the cache may lack a change before everything is listed again.
	relistAfter = time.Minute
)

// behindPods are Pods of which kube-apiserver has a newer version than the cache, or none.
type behindPods map[types.UID]behindPod

// behindPod is a Pod as it is cached.
type behindPod struct {
	pod   *corev1.Pod
	since monotonic.Instant
}

// note notes that a cached Pod is not the one in kube-apiserver.
func (b behindPods) note(now monotonic.Instant, cached *corev1.Pod) {
	if known, found := b[cached.UID]; !found || known.pod.ResourceVersion != cached.ResourceVersion {
		b[cached.UID] = behindPod{pod: cached, since: now}
	}
}

// prune drops Pods that the cache has in another version, or not any more.
func (b behindPods) prune(cached func(node string) []*corev1.Pod) {
	for uid, behind := range b {
		current := false
		for _, pod := range cached(behind.pod.Spec.NodeName) {
			current = current || pod.UID == uid && pod.ResourceVersion == behind.pod.ResourceVersion
		}
		if !current {
			delete(b, uid)
		}
	}
}

// oldest returns the Pod that has been behind for the longest time, and for how long.
func (b behindPods) oldest(now monotonic.Instant) (pod *corev1.Pod, lag time.Duration) {
	for _, behind := range b {
		if d := now.Sub(behind.since); pod == nil || d > lag {
			pod, lag = behind.pod, d
		}
	}
	return pod, lag
}

// reportBehind returns an error if the cache of Pods has been behind for behindTolerance. After
// relistAfter it lists everything again.
func (r *run) reportBehind() error {
	r.behind.prune(r.Cache.Pods)
	pod, lag := r.behind.oldest(r.now)
	if pod == nil || lag < behindTolerance {
		return nil
	}
	if lag >= relistAfter {
		r.Logger.Warn("the cache of Pods is behind, so all objects are listed anew", "for", lag, "pod", pod.Namespace+"/"+pod.Name)
		clear(r.behind)
		r.Cache.Relist()
	}
	return fmt.Errorf("the cache of Pods is behind for %v: pod %s/%s has changed since version %s",
		lag.Round(time.Second), pod.Namespace, pod.Name, pod.ResourceVersion)
}
