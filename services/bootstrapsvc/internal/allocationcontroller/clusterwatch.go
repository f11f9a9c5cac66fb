package allocationcontroller

import (
	"context"
	"fmt"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/trivet-dev/trivet/internal/kubewatch"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
)

// Kind is a kind of watched objects.
type Kind string

// The kinds of objects.
const (
	KindServices     Kind = "services"
	KindIPAddresses  Kind = "ipaddresses"
	KindServiceCIDRs Kind = "servicecidrs"
)

// ObjectChange is one watch event, or a list of all objects of a kind.
type ObjectChange struct {
	Kind Kind
	// List reports that the change has all objects of the kind. Changes since the previous one may
	// have been missed.
	List bool
	// Put are the added or updated objects.
	Put Objects
	// Deleted are the names of the deleted objects.
	Deleted []types.NamespacedName
	// Version is the resourceVersion of the change, empty if unknown.
	Version string
}

// Objects are objects of one kind.
type Objects struct {
	Services     []allocation.Service
	IPAddresses  []allocation.IPAddress
	ServiceCIDRs []allocation.CIDR
}

// ObjectHandler receives what Watch reads. Watch calls its methods from one goroutine for each
// kind, and reads no more of that kind while they block.
type ObjectHandler interface {
	// OnChange receives a list of each kind first, and then its changes.
	OnChange(change ObjectChange)
	// OnError receives why a list or watch of a kind failed, and nil when it works again.
	OnError(kind Kind, err error)
	// OnHeard receives the version that the watch of a kind has reached, after each event and each
	// bookmark. It must not block.
	OnHeard(kind Kind, version string)
}

// Watch calls handler with all objects of the kinds and then with their changes, until ctx ends. It
// restarts a watch that fails or is silent.
func (k *KubeCluster) Watch(ctx context.Context, kinds []Kind, handler ObjectHandler) {
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(k.logger.Handler()))
	var watching sync.WaitGroup
	defer watching.Wait()
	for _, kind := range kinds {
		store := &forwarder{kind: kind, handler: handler, known: map[types.NamespacedName]struct{}{}}
		reflector := cache.NewReflectorWithOptions(k.listWatch(kind, handler), nil, store, cache.ReflectorOptions{
			Name: "bootstrapsvc " + string(kind), TypeDescription: string(kind),
		})
		watching.Go(func() { reflector.RunWithContext(ctx) })
	}
}

func (k *KubeCluster) listWatch(kind Kind, handler ObjectHandler) cache.ListerWatcher {
	cfg := kubewatch.Config{
		Kind: objectKind(kind), SilenceLimit: k.silenceLimit, Metrics: k.watches,
		OnAnswer: func(err error) {
			if err != nil {
				err = fmt.Errorf("list and watch %s: %w", kind, guarded.Classify(err))
			}
			handler.OnError(kind, err)
		},
	}
	switch kind {
	case KindServices:
		return kubewatch.New(k.kube.CoreV1().Services(metav1.NamespaceAll), k.kube, cfg)
	case KindIPAddresses:
		return kubewatch.New(k.kube.NetworkingV1().IPAddresses(), k.kube, cfg)
	default:
		return kubewatch.New(k.kube.NetworkingV1().ServiceCIDRs(), k.kube, cfg)
	}
}

// forwarder is the store of a reflector. It forwards the objects of one kind to the handler and
// keeps only their names. One goroutine uses it.
type forwarder struct {
	kind    Kind
	handler ObjectHandler
	known   map[types.NamespacedName]struct{}
}

var (
	_ cache.TransformingStore      = (*forwarder)(nil)
	_ cache.ResourceVersionUpdater = (*forwarder)(nil)
)

// UpdateResourceVersion is called after each event and each bookmark.
func (f *forwarder) UpdateResourceVersion(version string) { f.handler.OnHeard(f.kind, version) }

// Transformer drops the fields that do not matter while a streamed list is incomplete.
func (f *forwarder) Transformer() cache.TransformFunc {
	return func(object any) (any, error) {
		if service, ok := object.(*corev1.Service); ok {
			service.ManagedFields, service.Annotations, service.Labels = nil, nil, nil
			service.Spec.Selector, service.Status = nil, corev1.ServiceStatus{}
		}
		if address, ok := object.(*networkingv1.IPAddress); ok {
			address.ManagedFields, address.Annotations = nil, nil
		}
		return object, nil
	}
}

func (f *forwarder) Add(object any) error { return f.Update(object) }

func (f *forwarder) Update(object any) error {
	change := ObjectChange{Kind: f.kind}
	key, err := change.put(object)
	if err != nil {
		return err
	}
	f.known[key] = struct{}{}
	f.handler.OnChange(change)
	return nil
}

func (f *forwarder) Delete(object any) error {
	change := ObjectChange{Kind: f.kind}
	key, err := change.put(object)
	if err != nil {
		return err
	}
	delete(f.known, key)
	f.handler.OnChange(ObjectChange{Kind: f.kind, Deleted: []types.NamespacedName{key}, Version: change.Version})
	return nil
}

func (f *forwarder) Replace(objects []any, resourceVersion string) error {
	change := ObjectChange{Kind: f.kind, List: true}
	listed := make(map[types.NamespacedName]struct{}, len(objects))
	for at, object := range objects {
		objects[at] = nil // frees the object before the whole list is converted
		key, err := change.put(object)
		if err != nil {
			return err
		}
		listed[key] = struct{}{}
	}
	for key := range f.known {
		if _, exists := listed[key]; !exists {
			change.Deleted = append(change.Deleted, key)
		}
	}
	f.known, change.Version = listed, resourceVersion
	f.handler.OnChange(change)
	return nil
}

// Resync does nothing: the handler keeps every object.
func (f *forwarder) Resync() error { return nil }

func (c *ObjectChange) put(object any) (types.NamespacedName, error) {
	var meta metav1.ObjectMeta
	switch typed := object.(type) {
	case *corev1.Service:
		c.Put.Services, meta = append(c.Put.Services, serviceOf(typed)), typed.ObjectMeta
	case *networkingv1.IPAddress:
		c.Put.IPAddresses, meta = append(c.Put.IPAddresses, addressOf(typed)), typed.ObjectMeta
	case *networkingv1.ServiceCIDR:
		c.Put.ServiceCIDRs, meta = append(c.Put.ServiceCIDRs, cidrOf(typed)), typed.ObjectMeta
	default:
		return types.NamespacedName{}, fmt.Errorf("%T is not a watched kind", object)
	}
	c.Version = meta.ResourceVersion
	return types.NamespacedName{Namespace: meta.Namespace, Name: meta.Name}, nil
}
