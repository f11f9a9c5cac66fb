package nodestore

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coordinationinformers "k8s.io/client-go/informers/coordination/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// byNode is the index of pods by the Node they are on.
const byNode = "node"

// Config is what a Watch is made of.
type Config struct {
	// Namespace is where the Leases of Nodes are.
	Namespace string
	// Labels of Nodes to keep, beside those that nodehealth needs always.
	Labels []string
	Logger *slog.Logger
}

// Watch is a cache of Nodes, Leases and pods. Its methods are safe for concurrent use; Run is called once. What it returns is
// shared and must not be written to.
type Cache struct {
	cfg    Config
	nodes  cache.SharedIndexInformer
	leases cache.SharedIndexInformer
	pods   cache.SharedIndexInformer
	listed chan struct{} // closed by Run once all Nodes have been listed
	synced chan struct{} // closed by Run once everything has

	mu      sync.Mutex // guards changed
	changed map[string]struct{}
}

// NewWatch returns an empty Watch that reads once Run is called.
func NewCache(kube kubernetes.Interface, cfg Config) (*Cache, error) {
	w := &Cache{
		cfg:     cfg,
		listed:  make(chan struct{}),
		synced:  make(chan struct{}),
		changed: map[string]struct{}{},
		nodes:   coreinformers.NewNodeInformer(kube, 0, cache.Indexers{}),
		leases:  coordinationinformers.NewLeaseInformer(kube, cfg.Namespace, 0, cache.Indexers{}),
		pods: coreinformers.NewFilteredPodInformer(kube, metav1.NamespaceAll, 0, cache.Indexers{byNode: nodeOfPod}, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
		}),
	}
	labels := append(nodehealth.RequiredLabels(), cfg.Labels...)
	for kind, install := range map[string]error{
		"nodes":  w.install(w.nodes, stripping(func(n *corev1.Node) *corev1.Node { return stripNode(n, labels) }), true),
		"leases": w.install(w.leases, stripping(stripLease), true),
		"pods":   w.install(w.pods, stripping(stripPod), false),
	} {
		if install != nil {
			return nil, fmt.Errorf("watch %s: %w", kind, install)
		}
	}
	return w, nil
}

func nodeOfPod(object any) ([]string, error) {
	if kept, ok := object.(*pod); ok {
		return []string{kept.node}, nil
	}
	return nil, nil
}

// install strips what an informer keeps, and has it note the names of what changes.
func (w *Cache) install(informer cache.SharedIndexInformer, strip cache.TransformFunc, noted bool) error {
	if err := informer.SetTransform(strip); err != nil {
		return err
	}
	err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, cause error) {
		w.cfg.Logger.Debug("watch interrupted", "error", cause)
	})
	if err != nil || !noted {
		return err
	}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    w.note,
		UpdateFunc: func(_, object any) { w.note(object) },
		DeleteFunc: w.note,
	})
	return err
}

func (w *Cache) note(object any) {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object)
	if err != nil {
		return // no object has no name
	}
	_, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed[name] = struct{}{}
}

// Run watches until ctx ends and its goroutines have returned.
func (w *Cache) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	for _, informer := range []cache.SharedIndexInformer{w.nodes, w.leases, w.pods} {
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	for _, informer := range []cache.SharedIndexInformer{w.nodes, w.leases, w.pods} {
		select {
		case <-ctx.Done():
			return nil
		case <-informer.HasSyncedChecker().Done():
		}
		if informer == w.nodes {
			close(w.listed)
		}
	}
	close(w.synced)
	<-ctx.Done()
	return nil
}

// Synced is closed once everything has been listed.
func (w *Cache) Synced() <-chan struct{} { return w.synced }

// Changed returns the names of the Nodes that were changed, with their Leases, since the last call; in no order.
func (w *Cache) Changed() map[string]struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed := w.changed
	w.changed = map[string]struct{}{}
	return changed
}

// Node returns a Node as last seen, or nil.
func (w *Cache) Node(name string) *corev1.Node {
	object, _, err := w.nodes.GetStore().GetByKey(name)
	node, ok := object.(*corev1.Node)
	if err != nil || !ok {
		return nil
	}
	return node
}

// Lease returns what the Lease of a Node says; the zero Lease when there is none.
func (w *Cache) Lease(name string) nodehealth.Lease {
	if kept := w.lease(name); kept != nil {
		return kept.said
	}
	return nodehealth.Lease{}
}

// LeaseHolder returns who the Lease of a Node says holds it; empty when it says nothing, or there is none.
func (w *Cache) LeaseHolder(name string) string {
	if kept := w.lease(name); kept != nil {
		return kept.holder
	}
	return ""
}

func (w *Cache) lease(name string) *lease {
	object, _, err := w.leases.GetStore().GetByKey(w.cfg.Namespace + "/" + name)
	kept, ok := object.(*lease)
	if err != nil || !ok {
		return nil
	}
	return kept
}

// Pods returns the pods on a Node, in no order: their names and versions, and whether they are ready.
func (w *Cache) Pods(node string) []*corev1.Pod {
	objects, err := w.pods.GetIndexer().ByIndex(byNode, node)
	if err != nil {
		return nil // there is such an index
	}
	pods := make([]*corev1.Pod, 0, len(objects))
	for _, object := range objects {
		if kept, ok := object.(*pod); ok {
			pods = append(pods, kept.object())
		}
	}
	return pods
}
