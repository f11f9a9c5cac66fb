package allocationcontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/kubewatch"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
)

// KubeCluster implements Cluster with a Kubernetes client. It is safe for concurrent use. Its
// methods block until kube-apiserver answers or their context ends.
//
// Every write is guarded. A create succeeds only if the object does not exist, a relabel only over
// the planned resourceVersion, and a delete only for the planned UID and resourceVersion. Otherwise
// the error wraps guarded.ErrConflict. The client rejects writes without a term.
type KubeCluster struct {
	kube    kubernetes.Interface
	logger  *slog.Logger
	watches *kubewatch.Metrics
	// silenceLimit is that of the watches; 0 means kubewatch.DefaultSilenceLimit.
	silenceLimit time.Duration
}

// NewKubeCluster returns the cluster behind kube. watches may be nil.
func NewKubeCluster(kube kubernetes.Interface, logger *slog.Logger, watches *kubewatch.Metrics) *KubeCluster {
	return &KubeCluster{kube: kube, logger: logger, watches: watches}
}

// lastBitmapMinor is the last minor version of Kubernetes that writes bitmaps of ClusterIPs. Later
// versions leave them outdated.
const lastBitmapMinor = 33

// Stores returns where the cluster stores its allocations.
func (k *KubeCluster) Stores(ctx context.Context) (Stores, error) {
	stores := Stores{Present: []allocation.Store{allocation.NodePorts}}
	has, err := k.hasIPAddresses(ctx, networkingv1.SchemeGroupVersion.String())
	if err != nil {
		return Stores{}, err
	}
	if has {
		stores.Present = append([]allocation.Store{allocation.IPAddresses}, stores.Present...)
	} else if beta, err := k.hasIPAddresses(ctx, networkingv1beta1.SchemeGroupVersion.String()); err != nil {
		return Stores{}, err
	} else if beta {
		stores.Problems = map[allocation.Store]string{
			allocation.IPAddresses: "kube-apiserver serves IPAddress objects as " + networkingv1beta1.SchemeGroupVersion.String() + " only, which is not audited",
		}
	}
	version, err := k.kube.Discovery().ServerVersionWithContext(ctx)
	if err != nil {
		return Stores{}, fmt.Errorf("ask kube-apiserver for its version: %w", guarded.Classify(err))
	}
	minor, err := strconv.Atoi(strings.TrimRight(version.Minor, "+"))
	if err != nil {
		return Stores{}, fmt.Errorf("kube-apiserver says it is version %q.%q", version.Major, version.Minor)
	}
	if version.Major == "1" && minor <= lastBitmapMinor {
		stores.Present = append(stores.Present, allocation.ClusterIPs, allocation.SecondaryClusterIPs)
	}
	return stores, nil
}

// hasIPAddresses reports whether kube-apiserver serves IPAddress objects in a version of their
// group.
func (k *KubeCluster) hasIPAddresses(ctx context.Context, groupVersion string) (bool, error) {
	resources, err := k.kube.Discovery().ServerResourcesForGroupVersionWithContext(ctx, groupVersion)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask kube-apiserver for its resources: %w", guarded.Classify(err))
	}
	return slices.ContainsFunc(resources.APIResources, func(of metav1.APIResource) bool { return of.Name == "ipaddresses" }), nil
}

// Service returns a Service, nil if it does not exist.
func (k *KubeCluster) Service(ctx context.Context, key allocation.Key) (*allocation.Service, error) {
	service, err := k.kube.CoreV1().Services(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get service %s: %w", key, guarded.Classify(err))
	}
	found := serviceOf(service)
	return &found, nil
}

// Identity returns the identity of the cluster, nil if the Service default/kubernetes does not
// exist.
func (k *KubeCluster) Identity(ctx context.Context) (*rangestore.ClusterIdentity, error) {
	service, err := k.kube.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get service default/kubernetes: %w", guarded.Classify(err))
	}
	return &rangestore.ClusterIdentity{UID: string(service.UID), ResourceVersion: service.ResourceVersion}, nil
}

// listPage is the page size of a list.
const listPage = 2000

// Services returns all Services at one revision that is not older than the call.
func (k *KubeCluster) Services(ctx context.Context) ([]allocation.Service, error) {
	var all []allocation.Service
	options := metav1.ListOptions{Limit: listPage}
	for {
		page, err := k.kube.CoreV1().Services(metav1.NamespaceAll).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list services: %w", guarded.Classify(err))
		}
		for at := range page.Items {
			all = append(all, serviceOf(&page.Items[at]))
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return all, nil
		}
	}
}

// IPAddress returns an IPAddress, nil if it does not exist.
func (k *KubeCluster) IPAddress(ctx context.Context, name string) (*allocation.IPAddress, error) {
	address, err := k.kube.NetworkingV1().IPAddresses().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get ipaddress %s: %w", name, guarded.Classify(err))
	}
	found := addressOf(address)
	return &found, nil
}

// ServiceCIDRs returns all ServiceCIDRs.
func (k *KubeCluster) ServiceCIDRs(ctx context.Context) ([]allocation.CIDR, error) {
	list, err := k.kube.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list servicecidrs: %w", guarded.Classify(err))
	}
	var all []allocation.CIDR
	for at := range list.Items {
		all = append(all, cidrOf(&list.Items[at]))
	}
	return all, nil
}

// Create creates an IPAddress that does not exist.
func (k *KubeCluster) Create(ctx context.Context, wanted allocation.IPAddress) error {
	if _, err := k.kube.NetworkingV1().IPAddresses().Create(ctx, addressObject(wanted), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create ipaddress %s: %w", wanted.Name, guarded.Classify(err))
	}
	return nil
}

// CanCreate returns why kube-apiserver would not create an IPAddress, nil if only its existence is
// in the way. It writes nothing: admission precedes the check for existence.
func (k *KubeCluster) CanCreate(ctx context.Context, wanted allocation.IPAddress) error {
	_, err := k.kube.NetworkingV1().IPAddresses().Create(ctx, addressObject(wanted), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create ipaddress %s in a dry run: %w", wanted.Name, guarded.Classify(err))
	}
	return nil
}

func addressObject(wanted allocation.IPAddress) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: wanted.Name, Labels: map[string]string{
			networkingv1.LabelManagedBy:       wanted.ManagedBy,
			networkingv1.LabelIPAddressFamily: wanted.Family,
		}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Group: wanted.Parent.Group, Resource: wanted.Parent.Resource, Namespace: wanted.Parent.Namespace, Name: wanted.Parent.Name,
		}},
	}
}

// Relabel sets the allocator's labels on exactly one version of an IPAddress. Its other labels
// stay.
func (k *KubeCluster) Relabel(ctx context.Context, wanted allocation.IPAddress, guard allocation.Guard) error {
	client := k.kube.NetworkingV1().IPAddresses()
	address, err := client.Get(ctx, wanted.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get ipaddress %s: %w", wanted.Name, guarded.Classify(err))
	}
	if string(address.UID) != guard.UID || address.ResourceVersion != guard.ResourceVersion {
		return fmt.Errorf("relabel ipaddress %s: %w", wanted.Name, guarded.ErrConflict)
	}
	if address.Labels == nil {
		address.Labels = map[string]string{}
	}
	address.Labels[networkingv1.LabelManagedBy] = wanted.ManagedBy
	address.Labels[networkingv1.LabelIPAddressFamily] = wanted.Family
	if _, err := client.Update(ctx, address, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("relabel ipaddress %s: %w", wanted.Name, guarded.Classify(err))
	}
	return nil
}

// errUnguarded: without a guard, a delete would delete any version of the object.
var errUnguarded = errors.New("the plan does not say which version of the object it means")

// Delete deletes exactly one version of an IPAddress.
func (k *KubeCluster) Delete(ctx context.Context, name string, guard allocation.Guard) error {
	if guard.UID == "" || guard.ResourceVersion == "" {
		return fmt.Errorf("delete ipaddress %s: %w", name, errUnguarded)
	}
	uid := types.UID(guard.UID)
	err := k.kube.NetworkingV1().IPAddresses().Delete(ctx, name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &guard.ResourceVersion},
	})
	if err != nil {
		return fmt.Errorf("delete ipaddress %s: %w", name, guarded.Classify(err))
	}
	return nil
}

func serviceOf(s *corev1.Service) allocation.Service {
	of := allocation.Service{
		Key: allocation.Key{Namespace: s.Namespace, Name: s.Name}, UID: string(s.UID), Type: allocation.ServiceType(s.Spec.Type),
		ClusterIPs: s.Spec.ClusterIPs, HealthCheckNodePort: s.Spec.HealthCheckNodePort,
		Created: s.CreationTimestamp.Time, Deleting: s.DeletionTimestamp != nil,
	}
	if len(of.ClusterIPs) == 0 && s.Spec.ClusterIP != "" {
		of.ClusterIPs = []string{s.Spec.ClusterIP}
	}
	for _, port := range s.Spec.Ports {
		if port.NodePort != 0 {
			of.Ports = append(of.Ports, allocation.Port{Number: port.NodePort, Protocol: string(port.Protocol)})
		}
	}
	return of
}

func addressOf(a *networkingv1.IPAddress) allocation.IPAddress {
	of := allocation.IPAddress{
		Name: a.Name, UID: string(a.UID), ResourceVersion: a.ResourceVersion,
		Created: a.CreationTimestamp.Time, Deleting: a.DeletionTimestamp != nil,
		Finalizers: a.Finalizers, ManagedBy: a.Labels[networkingv1.LabelManagedBy], Family: a.Labels[networkingv1.LabelIPAddressFamily],
	}
	if parent := a.Spec.ParentRef; parent != nil {
		of.Parent = allocation.Parent{Group: parent.Group, Resource: parent.Resource, Namespace: parent.Namespace, Name: parent.Name}
	}
	return of
}

func cidrOf(c *networkingv1.ServiceCIDR) allocation.CIDR {
	return allocation.CIDR{Name: c.Name, Prefixes: c.Spec.CIDRs, Ready: baseline.IsReady(c)}
}
