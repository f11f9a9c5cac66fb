package evictor

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
)

// byNode is the index of pods by the Node they are on.
const byNode = "node"

// Watch is a cache of Nodes and the pods on them, stripped of what eviction does not need. Its methods are safe for concurrent
// use; Run is called once. What it returns is shared and must not be written to.
type Watch struct {
	logger *slog.Logger
	nodes  cache.SharedIndexInformer
	pods   cache.SharedIndexInformer
	synced chan struct{} // closed by Run

	mu      sync.Mutex // guards changed
	changed map[string]struct{}
}

// NewWatch returns an empty Watch that reads once Run is called.
func NewWatch(kube kubernetes.Interface, logger *slog.Logger) (*Watch, error) {
	w := &Watch{
		logger: logger, synced: make(chan struct{}), changed: map[string]struct{}{},
		nodes: coreinformers.NewNodeInformer(kube, 0, cache.Indexers{}),
		pods: coreinformers.NewFilteredPodInformer(kube, metav1.NamespaceAll, 0, cache.Indexers{byNode: nodeOfPod}, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
		}),
	}
	for kind, informer := range map[string]cache.SharedIndexInformer{"nodes": w.nodes, "pods": w.pods} {
		if err := w.install(informer); err != nil {
			return nil, fmt.Errorf("watch %s: %w", kind, err)
		}
	}
	return w, nil
}

func nodeOfPod(object any) ([]string, error) {
	if pod, ok := object.(*corev1.Pod); ok {
		return []string{pod.Spec.NodeName}, nil
	}
	return nil, nil
}

// install strips what an informer keeps, and has it note which Nodes change.
func (w *Watch) install(informer cache.SharedIndexInformer) error {
	if err := informer.SetTransform(strip); err != nil {
		return err
	}
	err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, cause error) {
		w.logger.Debug("watch interrupted", "error", cause)
	})
	if err != nil {
		return err
	}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    w.note,
		UpdateFunc: func(_, object any) { w.note(object) },
		DeleteFunc: w.note,
	})
	return err
}

func (w *Watch) note(object any) {
	if deleted, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = deleted.Obj
	}
	var name string
	switch typed := object.(type) {
	case *corev1.Node:
		name = typed.Name
	case *corev1.Pod:
		name = typed.Spec.NodeName
	default:
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed[name] = struct{}{}
}

// strip returns a new object with what eviction needs. What is neither Node nor pod passes unchanged.
func strip(object any) (any, error) {
	switch typed := object.(type) {
	case *corev1.Node:
		return stripNode(typed), nil
	case *corev1.Pod:
		return stripPod(typed), nil
	}
	return object, nil
}

func stripNode(node *corev1.Node) *corev1.Node {
	stripped := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion}}
	for _, taint := range node.Spec.Taints {
		if taint.Effect == corev1.TaintEffectNoExecute {
			stripped.Spec.Taints = append(stripped.Spec.Taints, taint)
		}
	}
	if len(stripped.Spec.Taints) == 0 {
		return stripped
	}
	stripped.ManagedFields = eviction.TaintWriters(node.ManagedFields)
	for _, label := range []string{corev1.LabelTopologyRegion, corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaRegion, corev1.LabelFailureDomainBetaZone} {
		if value, has := node.Labels[label]; has {
			metav1.SetMetaDataLabel(&stripped.ObjectMeta, label, value)
		}
	}
	return stripped
}

func stripPod(pod *corev1.Pod) *corev1.Pod {
	stripped := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			Generation: pod.Generation, DeletionTimestamp: pod.DeletionTimestamp,
		},
		Spec:   corev1.PodSpec{NodeName: pod.Spec.NodeName, Tolerations: slices.Clone(pod.Spec.Tolerations)},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled || c.Type == corev1.DisruptionTarget {
			stripped.Status.Conditions = append(stripped.Status.Conditions, corev1.PodCondition{
				Type: c.Type, Status: c.Status, Reason: c.Reason, LastTransitionTime: c.LastTransitionTime,
			})
		}
	}
	return stripped
}

// Run watches until ctx ends and its goroutines have returned.
func (w *Watch) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	for _, informer := range []cache.SharedIndexInformer{w.nodes, w.pods} {
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	for _, informer := range []cache.SharedIndexInformer{w.nodes, w.pods} {
		select {
		case <-ctx.Done():
			return nil
		case <-informer.HasSyncedChecker().Done():
		}
	}
	close(w.synced)
	<-ctx.Done()
	return nil
}

// Synced is closed once everything has been listed.
func (w *Watch) Synced() <-chan struct{} { return w.synced }

// Changed returns the names of the Nodes that were changed, or a pod on them, since the last call.
func (w *Watch) Changed() map[string]struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed := w.changed
	w.changed = map[string]struct{}{}
	return changed
}

// Node returns a Node as last seen, with its NoExecute taints only, or nil.
func (w *Watch) Node(name string) *corev1.Node {
	object, _, err := w.nodes.GetStore().GetByKey(name)
	node, ok := object.(*corev1.Node)
	if err != nil || !ok {
		return nil
	}
	return node
}

// Pods returns the pods on a Node, in no order.
func (w *Watch) Pods(node string) []*corev1.Pod {
	objects, err := w.pods.GetIndexer().ByIndex(byNode, node)
	if err != nil {
		return nil // there is such an index
	}
	pods := make([]*corev1.Pod, 0, len(objects))
	for _, object := range objects {
		if pod, ok := object.(*corev1.Pod); ok {
			pods = append(pods, pod)
		}
	}
	return pods
}
