package evictioncontroller

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
)

func (r *run) record(action decisions.Action, node string, pod *corev1.Pod, message string) {
	r.Decisions.Record(decisions.Decision{
		Action: action, Node: node, Message: message, ResourceVersion: pod.ResourceVersion,
		Object: decisions.Object{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)},
	})
}

// recordScheduled records the Pods of a Node that became pending.
func (r *run) recordScheduled(node string, before, after eviction.NodeEvictions) {
	if r.Decisions == nil || len(after.Pending) == 0 {
		return
	}
	known := make(map[types.UID]bool, len(before.Pending))
	for i := range before.Pending {
		known[before.Pending[i].Pod.UID] = true
	}
	for i := range after.Pending {
		pending := &after.Pending[i]
		if known[pending.Pod.UID] {
			continue
		}
		r.record(decisions.EvictionScheduled, node, pending.Pod, fmt.Sprintf(
			"the taint %s evicts it in %v", pending.Taint.ToString(), max(pending.Due.Sub(r.now), 0).Round(time.Millisecond)))
	}
}
