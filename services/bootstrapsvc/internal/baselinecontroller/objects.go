package baselinecontroller

import (
	"context"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/refusal"
)

// name is that of the Service, of its Endpoints, of the default ServiceCIDR, and the label value of its slices.
const name = "kubernetes"

// Cluster is one Kubernetes cluster. It is safe for concurrent use; its methods block until the apiserver answers or
// their context ends.
type Cluster struct {
	kube   kubernetes.Interface
	writes *prometheus.CounterVec
}

// New returns the cluster behind kube and registers its metrics; a nil registerer leaves them unregistered.
func New(kube kubernetes.Interface, registerer prometheus.Registerer) (*Cluster, error) {
	writes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "trivet_bootstrap_writes_total",
		Help: "Writes of the baseline to Kubernetes, by kind, verb (create, update, delete) and result (ok, conflict, error).",
	}, []string{"kind", "verb", "result"})
	if registerer != nil {
		if err := registerer.Register(writes); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return &Cluster{kube: kube, writes: writes}, nil
}

// Namespaces returns those of the named namespaces that exist.
func (c *Cluster) Namespaces(ctx context.Context, names []string) ([]*corev1.Namespace, error) {
	var existing []*corev1.Namespace
	for _, name := range names {
		namespace, err := get(ctx, c.kube.CoreV1().Namespaces().Get, name)
		if err != nil {
			return nil, fmt.Errorf("get namespace %s: %w", name, err)
		}
		if namespace != nil {
			existing = append(existing, namespace)
		}
	}
	return existing, nil
}

// Service returns default/kubernetes, nil if there is none.
func (c *Cluster) Service(ctx context.Context) (*corev1.Service, error) {
	service, err := get(ctx, c.kube.CoreV1().Services(metav1.NamespaceDefault).Get, name)
	if err != nil {
		return nil, fmt.Errorf("get service default/kubernetes: %w", err)
	}
	return service, nil
}

// Endpoints returns default/kubernetes, nil if there is none.
func (c *Cluster) Endpoints(ctx context.Context) (*corev1.Endpoints, error) {
	endpoints, err := get(ctx, c.kube.CoreV1().Endpoints(metav1.NamespaceDefault).Get, name)
	if err != nil {
		return nil, fmt.Errorf("get endpoints default/kubernetes: %w", err)
	}
	return endpoints, nil
}

// EndpointSlices returns the slices of default/kubernetes, and those that are kept for it even without its label: their names
// are taken all the same. It needs the right to list slices and no other.
func (c *Cluster) EndpointSlices(ctx context.Context) ([]*discoveryv1.EndpointSlice, error) {
	found, err := c.slices(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name})
	if err != nil {
		return nil, fmt.Errorf("list endpointslices of default/kubernetes: %w", err)
	}
	for _, name := range apiservers.SliceNames() {
		if slices.ContainsFunc(found, func(slice *discoveryv1.EndpointSlice) bool { return slice.Name == name }) {
			continue
		}
		unlabelled, err := c.slices(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil {
			return nil, fmt.Errorf("look for endpointslice default/%s: %w", name, err)
		}
		found = append(found, unlabelled...)
	}
	return found, nil
}

func (c *Cluster) slices(ctx context.Context, which metav1.ListOptions) ([]*discoveryv1.EndpointSlice, error) {
	list, err := c.kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, which)
	if err != nil {
		return nil, refusal.Classified(err)
	}
	found := make([]*discoveryv1.EndpointSlice, 0, len(list.Items))
	for i := range list.Items {
		found = append(found, &list.Items[i])
	}
	return found, nil
}

// ServiceCIDR returns the default ServiceCIDR.
func (c *Cluster) ServiceCIDR(ctx context.Context) (baseline.ServiceCIDR, error) {
	found, err := c.kube.NetworkingV1().ServiceCIDRs().Get(ctx, name, metav1.GetOptions{})
	switch {
	case isUnknownKind(err):
		return baseline.ServiceCIDR{}, nil
	case apierrors.IsNotFound(err):
		return baseline.ServiceCIDR{Served: true}, nil
	case err != nil:
		return baseline.ServiceCIDR{}, fmt.Errorf("get servicecidr kubernetes: %w", refusal.Classified(err))
	default:
		return baseline.ServiceCIDR{Served: true, Object: found}, nil
	}
}

// isUnknownKind tells an apiserver that does not serve the kind from one that has no such object: the former answers with a
// bare page instead of a status, which the client marks.
func isUnknownKind(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// get makes of NotFound a nil object.
func get[T any](ctx context.Context, read func(context.Context, string, metav1.GetOptions) (*T, error), name string) (*T, error) {
	object, err := read(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, refusal.Classified(err)
	}
	return object, nil
}
