package clusterstate

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/internal/backoff"
)

const (
	// probeLabel marks probe Services.
	probeLabel = "trivet.dev/migration-probe"
	// probePause is the pause between two looks at the slices of a probe Service.
	probePause = 300 * time.Millisecond
	// probeCleanup limits the removal of a probe Service, also after an interrupt.
	probeCleanup = 10 * time.Second
	// probeMaxAge is the age of a probe Service whose command is gone.
	probeMaxAge = 10 * time.Minute
)

// SliceProbe is which programs created slices of a new Service without Pods.
type SliceProbe struct {
	Began            time.Time
	Watched          time.Duration
	Upstream, Trivet int
}

// ProbeSlices creates a headless Service whose selector selects no Pod, and watches for a time
// which programs create its slice. It ends early when enough says so. It removes the Service and
// its slices, also if ctx ends.
func (k *Kube) ProbeSlices(ctx context.Context, namespace string, window time.Duration, enough func(SliceProbe) bool) (result SliceProbe, err error) {
	if err := k.removeExpiredProbes(ctx, namespace); err != nil {
		return SliceProbe{}, err
	}
	service, err := k.Client.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "trivet-migration-probe-", Labels: map[string]string{probeLabel: "true"}},
		Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{probeLabel: "selects-no-pod"}, Ports: []corev1.ServicePort{{Port: 80}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return SliceProbe{}, fmt.Errorf("create a probe Service in namespace %s: %w", namespace, err)
	}
	defer func() {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeCleanup)
		defer cancel()
		if failed := k.removeProbe(cleanup, namespace, service.Name); failed != nil {
			err = errors.Join(err, fmt.Errorf("remove Service %s/%s: %w; delete it by hand", namespace, service.Name, failed))
		}
	}()
	result.Began = time.Now()
	for {
		result.Watched = time.Since(result.Began) // before the read, so that it is not too long
		if result.Upstream, result.Trivet, err = k.creators(ctx, namespace, service.Name); err != nil {
			return result, err
		}
		if result.Watched >= window || enough(result) {
			return result, nil
		}
		if !backoff.Sleep(ctx, probePause) {
			return result, ctx.Err()
		}
	}
}

func slicesOf(service string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service}
}

// creators returns how many slices of a Service each side has written.
func (k *Kube) creators(ctx context.Context, namespace, service string) (upstream, trivet int, err error) {
	page, err := k.metadata.Resource(discoveryv1.SchemeGroupVersion.WithResource("endpointslices")).Namespace(namespace).List(ctx, slicesOf(service))
	if err != nil {
		return 0, 0, err
	}
	var writes diagnosis.Writes
	for i := range page.Items {
		addWrites(&writes, &page.Items[i].ObjectMeta, managerName, func(metav1.ManagedFieldsEntry) bool { return true })
	}
	return len(writes.Upstream), len(writes.Trivet), nil
}

// removeProbe also deletes the slices, because no program may be left that does.
func (k *Kube) removeProbe(ctx context.Context, namespace, service string) error {
	if err := k.Client.CoreV1().Services(namespace).Delete(ctx, service, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return k.Client.DiscoveryV1().EndpointSlices(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, slicesOf(service))
}

// removeExpiredProbes removes probe Services of commands that were killed.
func (k *Kube) removeExpiredProbes(ctx context.Context, namespace string) error {
	services, err := k.Client.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{LabelSelector: probeLabel + "=true"})
	if err != nil {
		return fmt.Errorf("list probe Services in namespace %s: %w", namespace, err)
	}
	for _, service := range services.Items {
		if time.Since(service.CreationTimestamp.Time) > probeMaxAge {
			if err := k.removeProbe(ctx, namespace, service.Name); err != nil {
				return fmt.Errorf("remove Service %s/%s: %w", namespace, service.Name, err)
			}
		}
	}
	return nil
}
