package baselinecontroller

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/refusal"
)

// Apply writes one change; a Report writes nothing.
func (c *Cluster) Apply(ctx context.Context, step baseline.Change) error {
	if !step.Writes() {
		return nil
	}
	kind := step.Kind().Kind
	err := c.write(ctx, step)
	c.writes.WithLabelValues(kind, string(step.Verb), result(err)).Inc()
	if err != nil {
		return fmt.Errorf("%s %s %s: %w", step.Verb, kind, step.Object.GetName(), err)
	}
	return nil
}

func result(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, ErrConflict):
		return "conflict"
	default:
		return "error"
	}
}

func (c *Cluster) write(ctx context.Context, step baseline.Change) error {
	switch object := step.Object.(type) {
	case *corev1.Namespace:
		return write(ctx, c.kube.CoreV1().Namespaces(), step.Verb, object)
	case *corev1.Service:
		return write(ctx, c.kube.CoreV1().Services(object.Namespace), step.Verb, object)
	case *corev1.Endpoints:
		return write(ctx, c.kube.CoreV1().Endpoints(object.Namespace), step.Verb, object)
	case *discoveryv1.EndpointSlice:
		return write(ctx, c.kube.DiscoveryV1().EndpointSlices(object.Namespace), step.Verb, object)
	default:
		return fmt.Errorf("%T is no kind of the baseline", step.Object)
	}
}

// client is what the typed clients of all kinds have in common.
type client[T any] interface {
	Create(ctx context.Context, object T, opts metav1.CreateOptions) (T, error)
	Update(ctx context.Context, object T, opts metav1.UpdateOptions) (T, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// errUnguarded: an update or delete would hit whatever is there, instead of what the plan was made from.
var errUnguarded = errors.New("the plan does not say which version of the object it means")

func write[T baseline.Object](ctx context.Context, to client[T], verb baseline.Verb, object T) error {
	version, uid := object.GetResourceVersion(), object.GetUID()
	var err error
	switch {
	case verb == baseline.Create:
		_, err = to.Create(ctx, object, metav1.CreateOptions{})
	case version == "" || uid == "":
		return errUnguarded
	case verb == baseline.Update:
		_, err = to.Update(ctx, object, metav1.UpdateOptions{})
	case verb == baseline.Delete:
		err = to.Delete(ctx, object.GetName(), metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version},
		})
	default:
		return fmt.Errorf("verb %q is unknown", verb)
	}
	return refusal.Classified(err)
}
