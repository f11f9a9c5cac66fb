package baselinecontroller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
)

const (
	// rewatchPause is the pause before a watch that ended starts again.
	rewatchPause = time.Second
	// watchTimeout bounds one watch, so that a watch that went silent is replaced.
	watchTimeout = 5 * time.Minute
)

// errUnguarded: an update or delete without its guard would hit whatever version exists.
var errUnguarded = errors.New("the plan does not say which version of the object it means")

// KubeObjects reads and writes the baseline's objects in one cluster. It is safe for concurrent
// use. Its methods block until the kube-apiserver answers or ctx ends.
type KubeObjects struct {
	kube   kubernetes.Interface
	writes *prometheus.CounterVec
}

// NewKubeObjects registers its metrics; a nil registerer leaves them unregistered.
func NewKubeObjects(kube kubernetes.Interface, registerer prometheus.Registerer) *KubeObjects {
	return &KubeObjects{kube: kube, writes: promauto.With(registerer).NewCounterVec(prometheus.CounterOpts{
		Name: "trivet_bootstrap_writes_total",
		Help: "Writes of the baseline to Kubernetes, by kind, verb (create, update, delete) and result (ok, conflict, error).",
	}, []string{"kind", "verb", "result"})}
}

// Namespaces returns the named namespaces that exist.
func (o *KubeObjects) Namespaces(ctx context.Context, names []string) ([]*corev1.Namespace, error) {
	var existing []*corev1.Namespace
	for _, name := range names {
		namespace, err := get(ctx, o.kube.CoreV1().Namespaces().Get, name)
		if err != nil {
			return nil, fmt.Errorf("get namespace %s: %w", name, err)
		}
		if namespace != nil {
			existing = append(existing, namespace)
		}
	}
	return existing, nil
}

// Service returns default/kubernetes, nil if it does not exist.
func (o *KubeObjects) Service(ctx context.Context) (*corev1.Service, error) {
	service, err := get(ctx, o.kube.CoreV1().Services(metav1.NamespaceDefault).Get, baseline.ServiceName)
	if err != nil {
		return nil, fmt.Errorf("get service default/kubernetes: %w", err)
	}
	return service, nil
}

// Endpoints returns default/kubernetes, nil if it does not exist.
func (o *KubeObjects) Endpoints(ctx context.Context) (*corev1.Endpoints, error) {
	endpoints, err := get(ctx, o.kube.CoreV1().Endpoints(metav1.NamespaceDefault).Get, baseline.ServiceName)
	if err != nil {
		return nil, fmt.Errorf("get endpoints default/kubernetes: %w", err)
	}
	return endpoints, nil
}

// EndpointSlices returns the slices that are labelled as those of default/kubernetes, and the
// slices with one of its slices' names. It needs the right to list slices and no other.
func (o *KubeObjects) EndpointSlices(ctx context.Context) ([]*discoveryv1.EndpointSlice, error) {
	found, err := o.listSlices(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + baseline.ServiceName})
	if err != nil {
		return nil, fmt.Errorf("list endpointslices of default/kubernetes: %w", err)
	}
	for _, name := range apiservers.SliceNames() {
		if slices.ContainsFunc(found, func(slice *discoveryv1.EndpointSlice) bool { return slice.Name == name }) {
			continue
		}
		unlabelled, err := o.listSlices(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil {
			return nil, fmt.Errorf("look for endpointslice default/%s: %w", name, err)
		}
		found = append(found, unlabelled...)
	}
	return found, nil
}

func (o *KubeObjects) listSlices(ctx context.Context, options metav1.ListOptions) ([]*discoveryv1.EndpointSlice, error) {
	list, err := o.kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, options)
	if err != nil {
		return nil, guarded.Classify(err)
	}
	found := make([]*discoveryv1.EndpointSlice, 0, len(list.Items))
	for i := range list.Items {
		found = append(found, &list.Items[i])
	}
	return found, nil
}

// ServiceCIDR returns the default ServiceCIDR.
func (o *KubeObjects) ServiceCIDR(ctx context.Context) (baseline.ServiceCIDR, error) {
	found, err := o.kube.NetworkingV1().ServiceCIDRs().Get(ctx, baseline.ServiceName, metav1.GetOptions{})
	switch {
	case isUnknownKind(err):
		return baseline.ServiceCIDR{}, nil
	case apierrors.IsNotFound(err):
		return baseline.ServiceCIDR{Served: true}, nil
	case err != nil:
		return baseline.ServiceCIDR{}, fmt.Errorf("get servicecidr kubernetes: %w", guarded.Classify(err))
	default:
		return baseline.ServiceCIDR{Served: true, Object: found}, nil
	}
}

// isUnknownKind says whether the kube-apiserver does not serve the kind at all. It then answers
// with a bare page instead of a status, which the client marks.
func isUnknownKind(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

func get[T any](ctx context.Context, read func(context.Context, string, metav1.GetOptions) (*T, error), name string) (*T, error) {
	object, err := read(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, guarded.Classify(err)
	}
	return object, nil
}

// WatchEndpointSlice calls changed after each write of the EndpointSlice that is named after the
// Service, and at each start of a watch, because writes may have been missed before. It blocks
// until ctx ends and restarts a watch that ends. changed must not block. The calls are hints: a
// caller must also look periodically.
func (o *KubeObjects) WatchEndpointSlice(ctx context.Context, changed func()) {
	wait.UntilWithContext(ctx, func(ctx context.Context) { o.watchOnce(ctx, changed) }, rewatchPause)
}

func (o *KubeObjects) watchOnce(ctx context.Context, changed func()) {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	watch, err := o.kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + baseline.ServiceName,
	})
	if err != nil {
		return
	}
	defer watch.Stop()
	changed()
	for range watch.ResultChan() {
		changed()
	}
}

// Apply writes one change under its guard; a report writes nothing.
func (o *KubeObjects) Apply(ctx context.Context, step baseline.Change) error {
	if !step.IsWrite() {
		return nil
	}
	kind := step.Kind().Kind
	err := o.writeObject(ctx, step)
	o.writes.WithLabelValues(kind, string(step.Verb), resultLabel(err)).Inc()
	if err != nil {
		return fmt.Errorf("%s %s %s: %w", step.Verb, kind, step.Object.GetName(), err)
	}
	return nil
}

func resultLabel(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, guarded.ErrConflict):
		return "conflict"
	default:
		return "error"
	}
}

func (o *KubeObjects) writeObject(ctx context.Context, step baseline.Change) error {
	switch object := step.Object.(type) {
	case *corev1.Namespace:
		return write(ctx, o.kube.CoreV1().Namespaces(), step.Verb, object)
	case *corev1.Service:
		return write(ctx, o.kube.CoreV1().Services(object.Namespace), step.Verb, object)
	case *corev1.Endpoints:
		return write(ctx, o.kube.CoreV1().Endpoints(object.Namespace), step.Verb, object)
	case *discoveryv1.EndpointSlice:
		return write(ctx, o.kube.DiscoveryV1().EndpointSlices(object.Namespace), step.Verb, object)
	default:
		return fmt.Errorf("%T is not a kind of the baseline", step.Object)
	}
}

// client has the methods that the typed clients of all kinds share.
type client[T any] interface {
	Create(ctx context.Context, object T, opts metav1.CreateOptions) (T, error)
	Update(ctx context.Context, object T, opts metav1.UpdateOptions) (T, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

func write[T baseline.Object](ctx context.Context, to client[T], verb planned.Verb, object T) error {
	version, uid := object.GetResourceVersion(), object.GetUID()
	var err error
	switch {
	case verb == planned.Create:
		_, err = to.Create(ctx, object, metav1.CreateOptions{})
	case version == "" || uid == "":
		return errUnguarded
	case verb == planned.Update:
		_, err = to.Update(ctx, object, metav1.UpdateOptions{})
	case verb == planned.Delete:
		err = to.Delete(ctx, object.GetName(), metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version},
		})
	default:
		return fmt.Errorf("unknown verb %q", verb)
	}
	return guarded.Classify(err)
}
