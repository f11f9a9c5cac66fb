package simulate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/agent/nodelease"
)

// The methods of this file use no state of the fleet. They are safe for concurrent use, also with
// Churn.

// Zones returns the names of the Nodes of each zone.
func (f *Fleet) Zones() map[string][]string {
	zones := map[string][]string{}
	for i := range f.state.cfg.Nodes {
		zones[zoneName(i)] = append(zones[zoneName(i)], nodeName(i))
	}
	return zones
}

// Services returns the Services with Pods, and those of them with a ClusterIP, as namespace/name.
func (f *Fleet) Services() (all, withClusterIP []string) {
	for i := range f.state.cfg.Services {
		s := service(f.namespace(), i)
		name := s.Namespace + "/" + s.Name
		all = append(all, name)
		if s.Spec.ClusterIP != corev1.ClusterIPNone {
			withClusterIP = append(withClusterIP, name)
		}
	}
	return all, withClusterIP
}

// KeepNodesReady reports, once a period until ctx ends, that each simulated Node is ready whose
// Ready condition says something else, as a kubelet that lives does. Silent Nodes report nothing. A
// Node that cannot be written is logged and tried again.
func (f *Fleet) KeepNodesReady(ctx context.Context, period time.Duration, isSilent func(node string) bool) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		nodes, err := f.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: Label + "=true", ResourceVersion: "0"})
		if err != nil {
			f.logger.Warn("cannot list simulated Nodes", "error", err)
			continue
		}
		for i := range nodes.Items {
			node := &nodes.Items[i]
			if isReady(node) || isSilent(node.Name) {
				continue
			}
			if err := f.reportReady(ctx, node.Name); err != nil && ctx.Err() == nil {
				f.logger.Warn("cannot report the status of a simulated Node", "node", node.Name, "error", err)
			}
		}
	}
}

// RenewLease renews the Lease of a simulated Node as its kubelet would. It is an
// agent.Config.Unacknowledged.
func (f *Fleet) RenewLease(ctx context.Context, h agent.Holder) error {
	return nodelease.NewWriter(f.kube).Renew(ctx, h)
}

func isReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (f *Fleet) reportReady(ctx context.Context, name string) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		found, err := f.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		found.Status.Conditions = node(0, time.Now()).Status.Conditions
		_, err = f.kube.CoreV1().Nodes().UpdateStatus(ctx, found, metav1.UpdateOptions{})
		return err
	})
}

// duplicateSuffix ends the name of a Service that has the ClusterIP of another one.
const duplicateSuffix = "-duplicate"

// DeleteAddress deletes the IPAddress of a Service's ClusterIP and returns the address.
func (f *Fleet) DeleteAddress(ctx context.Context, serviceName string) (address string, err error) {
	s, err := f.serviceOf(ctx, serviceName)
	if err != nil {
		return "", err
	}
	err = f.kube.NetworkingV1().IPAddresses().Delete(ctx, s.Spec.ClusterIP, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("delete IPAddress %s: %w", s.Spec.ClusterIP, err)
	}
	return s.Spec.ClusterIP, nil
}

// duplicateTries is how often a duplicate is tried: kube-apiserver may restore the address that was
// deleted for it.
const duplicateTries = 5

// DuplicateAddress makes a second Service with the ClusterIP of a Service and returns the address.
// kube-apiserver allows that, because it deletes the IPAddress first.
func (f *Fleet) DuplicateAddress(ctx context.Context, serviceName string) (address string, err error) {
	s, err := f.serviceOf(ctx, serviceName)
	if err != nil {
		return "", err
	}
	duplicate := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name + duplicateSuffix, Labels: labels()},
		Spec:       corev1.ServiceSpec{ClusterIP: s.Spec.ClusterIP, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
	for range duplicateTries {
		if _, err := f.DeleteAddress(ctx, serviceName); err != nil {
			return "", err
		}
		_, err = f.kube.CoreV1().Services(s.Namespace).Create(ctx, duplicate, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) {
			return s.Spec.ClusterIP, nil
		}
		if !apierrors.IsInvalid(err) {
			break
		}
	}
	return "", fmt.Errorf("create Service %s: %w", duplicate.Name, err)
}

// RestoreAddress undoes DeleteAddress and DuplicateAddress.
func (f *Fleet) RestoreAddress(ctx context.Context, serviceName string) error {
	s, err := f.serviceOf(ctx, serviceName)
	if err != nil {
		return err
	}
	err = f.kube.CoreV1().Services(s.Namespace).Delete(ctx, s.Name+duplicateSuffix, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete Service %s: %w", s.Name+duplicateSuffix, err)
	}
	wanted := ipAddress(s)
	addresses := f.kube.NetworkingV1().IPAddresses()
	found, err := addresses.Get(ctx, wanted.Name, metav1.GetOptions{})
	switch {
	case err == nil && found.Spec.ParentRef != nil && *found.Spec.ParentRef == *wanted.Spec.ParentRef:
		return nil
	case err == nil:
		// A parent cannot be changed.
		if err := addresses.Delete(ctx, wanted.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(found.UID))}); err != nil {
			return fmt.Errorf("delete IPAddress %s: %w", wanted.Name, err)
		}
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("read IPAddress %s: %w", wanted.Name, err)
	}
	if _, err := addresses.Create(ctx, wanted, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create IPAddress %s: %w", wanted.Name, err)
	}
	return nil
}

// ipAddress returns the IPAddress that kube-apiserver creates for a Service.
func ipAddress(s *corev1.Service) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: s.Spec.ClusterIP, Labels: map[string]string{
			networkingv1.LabelIPAddressFamily: string(s.Spec.IPFamilies[0]), networkingv1.LabelManagedBy: "ipallocator.k8s.io",
		}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: s.Namespace, Name: s.Name}},
	}
}

// serviceOf reads a Service with a ClusterIP.
func (f *Fleet) serviceOf(ctx context.Context, serviceName string) (*corev1.Service, error) {
	namespace, name, _ := strings.Cut(serviceName, "/")
	s, err := f.kube.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, fmt.Errorf("read Service %s: %w", serviceName, err)
	case s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone || len(s.Spec.IPFamilies) == 0:
		return nil, fmt.Errorf("no ClusterIP of Service %s", serviceName)
	default:
		return s, nil
	}
}

// restoreAddresses undoes the duplicates of an earlier run that was killed.
func (f *Fleet) restoreAddresses(ctx context.Context) error {
	found, err := f.kube.CoreV1().Services(f.namespace()).List(ctx, metav1.ListOptions{LabelSelector: Label + "=true"})
	if err != nil {
		return fmt.Errorf("list simulated Services: %w", err)
	}
	var errs []error
	for i := range found.Items {
		if name, isDuplicate := strings.CutSuffix(found.Items[i].Name, duplicateSuffix); isDuplicate {
			errs = append(errs, f.RestoreAddress(ctx, f.namespace()+"/"+name))
		}
	}
	return errors.Join(errs...)
}

// SetPodsReady sets the readiness of all Pods of a Service and returns their names. A Pod that was
// deleted meanwhile is ignored. One that another writer has changed meanwhile is read again.
func (f *Fleet) SetPodsReady(ctx context.Context, serviceName string, ready bool) ([]string, error) {
	namespace, name, _ := strings.Cut(serviceName, "/")
	pods, err := f.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: appLabel + "=" + name})
	if err != nil {
		return nil, fmt.Errorf("list the Pods of Service %s: %w", serviceName, err)
	}
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	var names []string
	var errs []error
	for i := range pods.Items {
		p := &pods.Items[i]
		names = append(names, p.Name)
		if err := f.setPodReady(ctx, p, status); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("report the status of Pod %s: %w", p.Name, err))
		}
	}
	return names, errors.Join(errs...)
}

func (f *Fleet) setPodReady(ctx context.Context, p *corev1.Pod, status corev1.ConditionStatus) error {
	pods, uid := f.kube.CoreV1().Pods(p.Namespace), p.UID
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		for j := range p.Status.Conditions {
			condition := &p.Status.Conditions[j]
			if (condition.Type == corev1.PodReady || condition.Type == corev1.ContainersReady) && condition.Status != status {
				condition.Status, condition.LastTransitionTime = status, metav1.Now()
			}
		}
		_, err := pods.UpdateStatus(ctx, p, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) {
			return err
		}
		read, readErr := pods.Get(ctx, p.Name, metav1.GetOptions{})
		if readErr != nil {
			return readErr
		}
		if read.UID != uid {
			return nil // the Pod was deleted; the new one has no fault
		}
		p = read
		return err // try again with what was read
	})
}
