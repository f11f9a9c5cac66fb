package allocationcontroller

import (
	"context"
	"fmt"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubewatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/errorclass"
)

// Kind is one kind of what is watched.
type Kind string

// The kinds.
const (
	KindServices     Kind = "services"
	KindIPAddresses  Kind = "ipaddresses"
	KindServiceCIDRs Kind = "servicecidrs"
)

// ObjectChange is one object, or all objects of a kind, as they are now.
type ObjectChange struct {
	Kind Kind
	// List tells that these are all objects of the kind, after a list: what happened to them between the change before and
	// this one is not known. Otherwise it is one object, after one change.
	List bool
	// Put are the objects that there are, of the change's kind.
	Put Objects
	// Deleted are the names of those that are not there any more.
	Deleted []types.NamespacedName
	// Version is the resourceVersion that the kind was read at; empty where it is not known.
	Version string
}

// Objects are those of one kind.
type Objects struct {
	Services     []allocation.Service
	IPAddresses  []allocation.IPAddress
	ServiceCIDRs []allocation.CIDR
}

// ObjectHandler takes in what Watch sees. Its methods are called from one goroutine for each kind; while they block, nothing more of
// that kind is read.
type ObjectHandler interface {
	// OnChange is called with all objects of each kind first.
	OnChange(change ObjectChange)
	// OnError tells why a kind could not be listed or watched; nil when it is again.
	OnError(kind Kind, err error)
}

// Watch tells sink of all objects of the kinds, and of their changes, until ctx ends. What breaks begins anew by itself.
func (i *KubeCluster) Watch(ctx context.Context, kinds []Kind, sink ObjectHandler) {
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(i.logger.Handler()))
	var watching sync.WaitGroup
	defer watching.Wait()
	for _, kind := range kinds {
		store := &intake{kind: kind, sink: sink, known: map[types.NamespacedName]struct{}{}}
		reflector := cache.NewReflectorWithOptions(i.observed(kind, sink), nil, store, cache.ReflectorOptions{
			Name: "bootstrapsvc " + string(kind), TypeDescription: string(kind),
		})
		watching.Go(func() { reflector.RunWithContext(ctx) })
	}
}

// source lists and watches one kind.
type source struct {
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (kubewatch.Interface, error)
}

func (i *KubeCluster) source(kind Kind) source {
	switch kind {
	case KindServices:
		return from(i.kube.CoreV1().Services(metav1.NamespaceAll))
	case KindIPAddresses:
		return from(i.kube.NetworkingV1().IPAddresses())
	default:
		return from(i.kube.NetworkingV1().ServiceCIDRs())
	}
}

type lister[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (kubewatch.Interface, error)
}

func from[L runtime.Object](client lister[L]) source {
	return source{
		list: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, options)
		},
		watch: client.Watch,
	}
}

// observed is a source that tells how its calls fare.
func (i *KubeCluster) observed(kind Kind, sink ObjectHandler) cache.ListerWatcher {
	source := i.source(kind)
	tell := func(err error) {
		if err != nil {
			err = fmt.Errorf("list and watch %s: %w", kind, errorclass.Classify(err))
		}
		sink.OnError(kind, err)
	}
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := source.list(ctx, options)
			tell(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (kubewatch.Interface, error) {
			events, err := source.watch(ctx, options)
			tell(err)
			return events, err
		},
	}, i.kube)
}

// intake takes the objects of one kind from a reflector and passes them on; it remembers their names. One goroutine uses it.
type intake struct {
	kind  Kind
	sink  ObjectHandler
	known map[types.NamespacedName]struct{}
}

var _ cache.TransformingStore = (*intake)(nil)

// Transformer has a streamed list keep of each object what matters, until it is whole.
func (t *intake) Transformer() cache.TransformFunc {
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

// Add tells of an object.
func (t *intake) Add(object any) error { return t.Update(object) }

// Update tells of an object.
func (t *intake) Update(object any) error {
	change := ObjectChange{Kind: t.kind}
	key, err := change.put(object)
	if err != nil {
		return err
	}
	t.known[key] = struct{}{}
	t.sink.OnChange(change)
	return nil
}

// Delete tells that an object is gone.
func (t *intake) Delete(object any) error {
	change := ObjectChange{Kind: t.kind}
	key, err := change.put(object)
	if err != nil {
		return err
	}
	delete(t.known, key)
	t.sink.OnChange(ObjectChange{Kind: t.kind, Deleted: []types.NamespacedName{key}, Version: change.Version})
	return nil
}

// Replace tells of all objects that there are.
func (t *intake) Replace(objects []any, resourceVersion string) error {
	change := ObjectChange{Kind: t.kind, List: true}
	there := make(map[types.NamespacedName]struct{}, len(objects))
	for at, object := range objects {
		objects[at] = nil // so that it does not stay until all have been read
		key, err := change.put(object)
		if err != nil {
			return err
		}
		there[key] = struct{}{}
	}
	for key := range t.known {
		if _, is := there[key]; !is {
			change.Deleted = append(change.Deleted, key)
		}
	}
	t.known, change.Version = there, resourceVersion
	t.sink.OnChange(change)
	return nil
}

// Resync is asked for by nobody: nothing here forgets.
func (t *intake) Resync() error { return nil }

// put adds what a client returned.
func (c *ObjectChange) put(object any) (types.NamespacedName, error) {
	var of metav1.ObjectMeta
	switch typed := object.(type) {
	case *corev1.Service:
		c.Put.Services, of = append(c.Put.Services, serviceOf(typed)), typed.ObjectMeta
	case *networkingv1.IPAddress:
		c.Put.IPAddresses, of = append(c.Put.IPAddresses, addressOf(typed)), typed.ObjectMeta
	case *networkingv1.ServiceCIDR:
		c.Put.ServiceCIDRs, of = append(c.Put.ServiceCIDRs, cidrOf(typed)), typed.ObjectMeta
	default:
		return types.NamespacedName{}, fmt.Errorf("%T is not watched", object)
	}
	c.Version = of.ResourceVersion
	return types.NamespacedName{Namespace: of.Namespace, Name: of.Name}, nil
}
