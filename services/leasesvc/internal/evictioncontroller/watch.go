package evictioncontroller

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// byNode is the index of pods by the Node they are on.
const byNode = "node"

// Watch is a cache of Nodes and the pods on them, stripped of what eviction does not need. Its methods are safe for concurrent
// use; Run is called once. Nodes that it returns are shared and must not be written to; pods are made anew by every call, for
// most pods are on Nodes that nobody asks about.
type PodCache struct {
	logger *slog.Logger
	nodes  cache.SharedIndexInformer
	pods   cache.SharedIndexInformer
	synced chan struct{} // closed by Run

	mu      sync.Mutex // guards changed
	changed map[string]struct{}
}

// NewWatch returns an empty Watch that reads once Run is called.
func NewPodCache(kube kubernetes.Interface, logger *slog.Logger) (*PodCache, error) {
	w := &PodCache{
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
	if pod, ok := object.(*tenant); ok {
		return []string{pod.node}, nil
	}
	return nil, nil
}

// install strips what an informer keeps, and has it note which Nodes change.
func (w *PodCache) install(informer cache.SharedIndexInformer) error {
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

func (w *PodCache) note(object any) {
	if deleted, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = deleted.Obj
	}
	var name string
	switch typed := object.(type) {
	case *corev1.Node:
		name = typed.Name
	case *tenant:
		name = typed.node
	default:
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed[name] = struct{}{}
}

// Run watches until ctx ends and its goroutines have returned.
func (w *PodCache) Run(ctx context.Context) error {
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
func (w *PodCache) Synced() <-chan struct{} { return w.synced }

// Changed returns the names of the Nodes that were changed, or a pod on them, since the last call.
func (w *PodCache) Changed() map[string]struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed := w.changed
	w.changed = map[string]struct{}{}
	return changed
}

// Node returns a Node as last seen, with its NoExecute taints only, or nil.
func (w *PodCache) Node(name string) *corev1.Node {
	object, _, err := w.nodes.GetStore().GetByKey(name)
	node, ok := object.(*corev1.Node)
	if err != nil || !ok {
		return nil
	}
	return node
}

// Pods returns the pods on a Node, in no order.
func (w *PodCache) Pods(node string) []*corev1.Pod {
	objects, err := w.pods.GetIndexer().ByIndex(byNode, node)
	if err != nil {
		return nil // there is such an index
	}
	pods := make([]*corev1.Pod, 0, len(objects))
	for _, object := range objects {
		if pod, ok := object.(*tenant); ok {
			pods = append(pods, pod.pod())
		}
	}
	return pods
}
