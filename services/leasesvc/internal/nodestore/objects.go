package nodestore

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// slimmer makes cached objects, which have only the fields that decisions need.
type slimmer struct {
	cfg    Config
	labels []string

	mu sync.Mutex // guards what follows
	// tolerations are equal lists by their text. Most Pods of a cluster share a few lists.
	tolerations map[string][]corev1.Toleration
	// byOther are the Leases that another writer renewed, by name: of two versions in a row a user
	// of the cache may see the last one only.
	byOther map[string]nodehealth.LeaseRenewedByOther
}

// maxTolerationLists bounds the lists that are remembered.
const maxTolerationLists = 1024

func newSlimmer(cfg Config) *slimmer {
	return &slimmer{cfg: cfg, labels: append(nodehealth.RequiredLabels(), cfg.Labels...), tolerations: map[string][]corev1.Toleration{}, byOther: map[string]nodehealth.LeaseRenewedByOther{}}
}

// slim is a cache.TransformFunc.
func (s *slimmer) slim(object any) (any, error) {
	switch typed := object.(type) {
	case *corev1.Node:
		return s.node(typed), nil
	case *coordinationv1.Lease:
		return s.lease(typed), nil
	case *corev1.Pod:
		return s.pod(typed), nil
	}
	return object, nil
}

func (s *slimmer) node(node *corev1.Node) *corev1.Node {
	slim := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion}}
	noExecute := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool { return t.Effect != corev1.TaintEffectNoExecute })
	switch {
	case s.cfg.NodeHealth:
		slim.CreationTimestamp = node.CreationTimestamp
		slim.Spec = corev1.NodeSpec{Unschedulable: node.Spec.Unschedulable, Taints: slices.Clone(node.Spec.Taints)}
		for _, condition := range node.Status.Conditions {
			if slices.Contains(cachedConditions(), condition.Type) {
				slim.Status.Conditions = append(slim.Status.Conditions, condition)
			}
		}
	case s.cfg.Eviction:
		slim.Spec.Taints = noExecute
	default:
		return slim
	}
	for _, label := range s.labels {
		if value, has := node.Labels[label]; has {
			metav1.SetMetaDataLabel(&slim.ObjectMeta, label, value)
		}
	}
	if s.cfg.Eviction && len(noExecute) > 0 {
		slim.ManagedFields = eviction.TaintManagers(node.ManagedFields)
	}
	return slim
}

func cachedConditions() []corev1.NodeConditionType {
	return []corev1.NodeConditionType{
		corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeNetworkUnavailable,
	}
}

// cachedLease is the cached form of a Lease.
type cachedLease struct {
	// ObjectMeta has names and version only, which informers need.
	metav1.ObjectMeta
	lease nodehealth.Lease
}

func (s *slimmer) lease(object *coordinationv1.Lease) *cachedLease {
	slim := &cachedLease{
		ObjectMeta: metav1.ObjectMeta{Name: object.Name, Namespace: object.Namespace, ResourceVersion: object.ResourceVersion},
		lease:      s.liveLease(object),
	}
	if !slim.lease.RenewedByUs {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.byOther[object.Name] = slim.lease.ByOther
	}
	return slim
}

// liveLease returns a Lease that was read beside the watch, which may deliver it later.
func (s *slimmer) liveLease(object *coordinationv1.Lease) nodehealth.Lease {
	lease := nodehealth.Lease{Version: object.ResourceVersion, RenewedByUs: s.cfg.RenewedByUs(object)}
	if renewTime := object.Spec.RenewTime; renewTime != nil {
		lease.RenewTime = renewTime.Time
	}
	if seconds := object.Spec.LeaseDurationSeconds; seconds != nil {
		lease.Duration = time.Duration(max(*seconds, 0)) * time.Second
	}
	if holder := object.Spec.HolderIdentity; holder != nil {
		lease.Holder = *holder
	}
	if !lease.RenewedByUs {
		lease.ByOther = nodehealth.LeaseRenewedByOther{Version: lease.Version, RenewTime: lease.RenewTime, Duration: lease.Duration}
		return lease
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	lease.ByOther = s.byOther[object.Name]
	return lease
}

// forgetLease forgets a deleted Lease.
func (s *slimmer) forgetLease(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byOther, name)
}

// cachedPod is the cached form of a Pod. It takes a third of the memory of a Pod with the same
// fields.
type cachedPod struct {
	metav1.ObjectMeta
	node  string
	ready corev1.ConditionStatus // "" without a Ready condition

	// What follows is for eviction only.
	phase       corev1.PodPhase
	tolerations []corev1.Toleration
	scheduled   time.Time // of the PodScheduled condition, or zero
	disrupted   bool
}

func (s *slimmer) pod(pod *corev1.Pod) *cachedPod {
	slim := &cachedPod{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion},
		node:       pod.Spec.NodeName,
	}
	if ready := nodehealth.PodReadyCondition(pod); ready != nil {
		slim.ready = ready.Status
	}
	if !s.cfg.Eviction {
		return slim
	}
	slim.Generation, slim.DeletionTimestamp = pod.Generation, pod.DeletionTimestamp
	slim.phase, slim.tolerations, slim.disrupted = pod.Status.Phase, s.shared(pod.Spec.Tolerations), disrupted(pod)
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			slim.scheduled = c.LastTransitionTime.Time
		}
	}
	return slim
}

// pod returns the Pod with the fields that are cached.
func (p *cachedPod) pod() *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: p.ObjectMeta,
		Spec:       corev1.PodSpec{NodeName: p.node, Tolerations: p.tolerations},
		Status:     corev1.PodStatus{Phase: p.phase},
	}
	if p.ready != "" {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: p.ready})
	}
	if !p.scheduled.IsZero() {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(p.scheduled),
		})
	}
	if p.disrupted {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: disruptionReason,
		})
	}
	return pod
}

// shared returns an equal list that other Pods share.
func (s *slimmer) shared(tolerations []corev1.Toleration) []corev1.Toleration {
	if len(tolerations) == 0 {
		return nil
	}
	text := textOf(tolerations)
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, found := s.tolerations[text]; found {
		return known
	}
	if len(s.tolerations) == maxTolerationLists {
		clear(s.tolerations)
	}
	known := slices.Clone(tolerations)
	s.tolerations[text] = known
	return known
}

func textOf(tolerations []corev1.Toleration) string {
	var text strings.Builder
	for i := range tolerations {
		t := &tolerations[i]
		fmt.Fprintf(&text, "%q %q %q %q ", t.Key, t.Operator, t.Value, t.Effect)
		if t.TolerationSeconds != nil {
			fmt.Fprint(&text, *t.TolerationSeconds)
		}
		text.WriteByte('\n')
	}
	return text.String()
}
