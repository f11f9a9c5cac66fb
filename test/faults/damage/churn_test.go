package damage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// concurrency is the number of Services that exist at the same time.
const concurrency = 8

// churn creates, changes and deletes Services as fast as kube-apiserver allows.
type churn struct {
	kube      kubernetes.Interface
	namespace string
	made      atomic.Int64
	stop      context.CancelFunc
	workers   sync.WaitGroup
	mu        sync.Mutex // guards errs
	errs      []error
}

// startChurn starts to create count Services from several workers. It stops after the last one or
// with the test.
func startChurn(t *testing.T, kube kubernetes.Interface, namespace string, count int) *churn {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	c := &churn{kube: kube, namespace: namespace, stop: stop}
	var next atomic.Int64
	for worker := range concurrency {
		random := rand.New(rand.NewPCG(uint64(worker), 0)) // The sequence of kinds is the same in every run.
		c.workers.Go(func() {
			for ctx.Err() == nil {
				n := next.Add(1)
				if n > int64(count) {
					return
				}
				if err := c.runService(ctx, fmt.Sprintf("churn-%d", n), random); err != nil && ctx.Err() == nil {
					c.mu.Lock()
					c.errs = append(c.errs, err)
					c.mu.Unlock()
				}
			}
		})
	}
	t.Cleanup(func() {
		stop()
		c.workers.Wait()
	})
	return c
}

// runService creates a Service, changes it in one of three cases, and deletes it.
func (c *churn) runService(ctx context.Context, name string, random *rand.Rand) error {
	services := c.kube.CoreV1().Services(c.namespace)
	if _, err := services.Create(ctx, serviceOfKind(name, random.IntN(serviceKinds)), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	c.made.Add(1)
	if random.IntN(3) == 0 {
		if err := c.changeType(ctx, name, random); err != nil {
			return err
		}
	}
	testkit.Pause(ctx, time.Duration(random.IntN(40))*time.Millisecond)
	if err := services.Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return nil
}

// changeType changes the type of the Service. The change allocates or frees ports and, for
// ExternalName, frees the address.
func (c *churn) changeType(ctx context.Context, name string, random *rand.Rand) error {
	services := c.kube.CoreV1().Services(c.namespace)
	service, err := services.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get %s: %w", name, err)
	}
	if service.Spec.ClusterIP == corev1.ClusterIPNone {
		return nil // A headless Service cannot get an address.
	}
	switch random.IntN(3) {
	case 0:
		service.Spec.Type = corev1.ServiceTypeNodePort
	case 1:
		service.Spec.Type, service.Spec.ExternalTrafficPolicy, service.Spec.HealthCheckNodePort = corev1.ServiceTypeClusterIP, "", 0
		service.Spec.AllocateLoadBalancerNodePorts = nil
		for i := range service.Spec.Ports {
			service.Spec.Ports[i].NodePort = 0
		}
	case 2:
		service.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "external.example.com"}
	}
	_, err = services.Update(ctx, service, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsInvalid(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("change %s to %s: %w", name, service.Spec.Type, err)
	}
	return nil
}

// end waits for all Services and reports their errors.
func (c *churn) end(t *testing.T) {
	t.Helper()
	c.workers.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	t.Logf("%d Services were created", c.made.Load())
	if err := errors.Join(c.errs...); err != nil {
		t.Errorf("errors of Services without damage: %v", err)
	}
}

// serviceKinds is the number of kinds of serviceOfKind.
const serviceKinds = 6

// serviceOfKind returns a Service of a kind. Some kinds allocate node ports.
func serviceOfKind(name string, kind int) *corev1.Service {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}}
	service.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "more", Port: 81}}
	switch kind {
	case 1, 2:
		service.Spec.Type = corev1.ServiceTypeNodePort
	case 3:
		service.Spec.Type, service.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
	case 4:
		service.Spec.Type = corev1.ServiceTypeNodePort
		// The allocator gives both protocols the same port.
		service.Spec.Ports = []corev1.ServicePort{
			{Name: "dns", Port: 53, Protocol: corev1.ProtocolTCP}, {Name: "dns-udp", Port: 53, Protocol: corev1.ProtocolUDP},
		}
	case 5:
		service.Spec.ClusterIP = corev1.ClusterIPNone
	}
	return service
}
