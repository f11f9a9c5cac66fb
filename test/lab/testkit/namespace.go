package testkit

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// cleanupTimeout bounds the removal of a namespace after its test.
const cleanupTimeout = 30 * time.Second

// Namespace creates a namespace for this test and returns its name. After the test it deletes the
// namespace with its Pods, Services, EndpointSlices, Endpoints and Leases, because the cluster has
// no controllers.
func Namespace(t testing.TB, kube kubernetes.Interface) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	namespace, err := kube.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("make a namespace: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := removeNamespace(ctx, kube, namespace.Name); err != nil {
			t.Errorf("remove namespace %s: %v", namespace.Name, err)
		}
	})
	return namespace.Name
}

func removeNamespace(ctx context.Context, kube kubernetes.Interface, name string) error {
	// A terminating namespace refuses new objects.
	err := kube.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err := errors.Join(err, emptyNamespace(ctx, kube, name)); err != nil {
		return err
	}
	return finalizeNamespace(ctx, kube, name)
}

func emptyNamespace(ctx context.Context, kube kubernetes.Interface, name string) error {
	var problems []error
	for what, deleteAll := range map[string]func(context.Context, metav1.DeleteOptions, metav1.ListOptions) error{
		"services":       servicesOf(kube, name).deleteAll,
		"pods":           kube.CoreV1().Pods(name).DeleteCollection,
		"endpoints":      kube.CoreV1().Endpoints(name).DeleteCollection,
		"endpointslices": kube.DiscoveryV1().EndpointSlices(name).DeleteCollection,
		"leases":         kube.CoordinationV1().Leases(name).DeleteCollection,
	} {
		if err := deleteAll(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, metav1.ListOptions{}); err != nil {
			problems = append(problems, fmt.Errorf("delete its %s: %w", what, err))
		}
	}
	return errors.Join(problems...)
}

// services deletes the Services of a namespace one by one, because its client has no
// DeleteCollection.
type services struct{ corev1client.ServiceInterface }

func servicesOf(kube kubernetes.Interface, namespace string) services {
	return services{kube.CoreV1().Services(namespace)}
}

func (s services) deleteAll(ctx context.Context, how metav1.DeleteOptions, which metav1.ListOptions) error {
	list, err := s.List(ctx, which)
	if err != nil {
		return err
	}
	for _, service := range list.Items {
		if err := s.Delete(ctx, service.Name, how); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// finalizeNamespace removes the finalizer, as the namespace controller does.
func finalizeNamespace(ctx context.Context, kube kubernetes.Interface, name string) error {
	namespace, err := kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get it: %w", err)
	}
	namespace.Spec.Finalizers = nil
	_, err = kube.CoreV1().Namespaces().Finalize(ctx, namespace, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("finalize it: %w", err)
	}
	return nil
}
