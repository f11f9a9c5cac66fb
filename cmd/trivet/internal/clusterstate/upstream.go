package clusterstate

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
)

const (
	// sliceManager and mirrorManager are upstream's values of the managed-by label, which slicesvc
	// has by default, too.
	sliceManager  = "endpointslice-controller.k8s.io"
	mirrorManager = "endpointslicemirroring-controller.k8s.io"
	// The managers in managed fields. Trivet's servers have the manager of their user agent.
	managerName   = "kube-controller-manager"
	apiServerName = "kube-apiserver"
	trivetName    = "trivet"
	// pageSize and maxObjects bound a list of objects, which are read without spec and status.
	pageSize   = 500
	maxObjects = 20_000
	// identitySilence is the age of the last renewal after which a kube-apiserver does not run. It
	// renews every ten seconds.
	identitySilence = 30 * time.Second
)

func decodeJSON(body []byte, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("answer of kube-apiserver: %w", err)
	}
	return nil
}

// Manager returns what the cluster shows about kube-controller-manager.
func (k *Kube) Manager(ctx context.Context) (diagnosis.Manager, error) {
	var m diagnosis.Manager
	lease, err := k.Client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, managerName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return m, err
	default:
		m.LeaseFound = true
		if lease.Spec.HolderIdentity != nil {
			m.Holder = *lease.Spec.HolderIdentity
		}
		if lease.Spec.AcquireTime != nil {
			m.Acquired = lease.Spec.AcquireTime.Time
		}
		if lease.Spec.RenewTime != nil {
			m.Renewed = lease.Spec.RenewTime.Time
		}
	}
	m.Programs, m.NotRunning, err = k.programs(ctx, managerName, "--controllers")
	return m, err
}

// programs returns the static Pods of a component that run, as kubeadm labels and names them, with
// the values of a flag, and the names of those that do not run.
func (k *Kube) programs(ctx context.Context, component, flag string) (programs []diagnosis.Program, notRunning []string, err error) {
	pods, err := k.Client.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: "component=" + component})
	if apierrors.IsForbidden(err) {
		return nil, nil, nil // the flags are only a part of the evidence
	}
	if err != nil {
		return nil, nil, err
	}
	for _, pod := range pods.Items {
		if pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil {
			notRunning = append(notRunning, pod.Name)
			continue
		}
		program := diagnosis.Program{Pod: pod.Name, Node: pod.Spec.NodeName}
		for _, status := range pod.Status.ContainerStatuses {
			if status.State.Running != nil && status.State.Running.StartedAt.After(program.Started) {
				program.Started = status.State.Running.StartedAt.Time
			}
		}
		var values []string
		for _, container := range pod.Spec.Containers {
			if container.Name != component && len(pod.Spec.Containers) > 1 {
				continue
			}
			for _, arg := range slices.Concat(container.Command, container.Args) {
				if value, found := strings.CutPrefix(arg, flag+"="); found {
					values = append(values, value)
				}
			}
		}
		program.Flag, program.Given = strings.Join(values, ","), len(values) > 0
		programs = append(programs, program)
	}
	return programs, notRunning, nil
}

// UpstreamOf returns whether upstream's controller of a duty of kube-controller-manager is on.
func (k *Kube) UpstreamOf(ctx context.Context, duty diagnosis.Duty, m diagnosis.Manager) (diagnosis.Observation, error) {
	switch duty {
	case diagnosis.Slices:
		writes, err := k.sliceWrites(ctx, sliceManager)
		return diagnosis.UpstreamSlices(writes, m, time.Now()), err
	case diagnosis.Mirroring:
		writes, err := k.sliceWrites(ctx, mirrorManager)
		return diagnosis.UpstreamMirroring(writes, m, time.Now()), err
	case diagnosis.Nodes:
		found, err := k.nodeFacts(ctx)
		observation := diagnosis.UpstreamNodes(found, m, time.Now())
		observation.Nodes = found.Nodes
		return observation, err
	default:
		return diagnosis.UpstreamEvictions(m, time.Now()), nil
	}
}

// sliceWrites returns the last writes of the EndpointSlices with a value of the managed-by label.
func (k *Kube) sliceWrites(ctx context.Context, managedBy string) (diagnosis.Writes, error) {
	resource := schema.GroupVersionResource{Group: discoveryv1.GroupName, Version: "v1", Resource: "endpointslices"}
	selector := discoveryv1.LabelManagedBy + "=" + managedBy
	return k.writes(ctx, resource, selector, managerName, func(metav1.ManagedFieldsEntry) bool { return true })
}

// writes lists objects without spec and status and returns the last writes of both sides.
func (k *Kube) writes(ctx context.Context, resource schema.GroupVersionResource, selector, upstream string, counts func(metav1.ManagedFieldsEntry) bool) (diagnosis.Writes, error) {
	var writes diagnosis.Writes
	options := metav1.ListOptions{LabelSelector: selector, Limit: pageSize}
	for {
		page, err := k.metadata.Resource(resource).List(ctx, options)
		if err != nil {
			return writes, err
		}
		for i := range page.Items {
			writes.Objects++
			addWrites(&writes, &page.Items[i].ObjectMeta, upstream, counts)
		}
		options.Continue = page.Continue
		if page.Continue == "" || writes.Objects >= maxObjects {
			writes.Incomplete = page.Continue != ""
			return writes, nil
		}
	}
}

func addWrites(writes *diagnosis.Writes, object *metav1.ObjectMeta, upstream string, counts func(metav1.ManagedFieldsEntry) bool) {
	name := strings.TrimPrefix(object.Namespace+"/"+object.Name, "/")
	for _, entry := range object.ManagedFields {
		if entry.Time == nil || !counts(entry) {
			continue
		}
		write := diagnosis.Write{Object: name, Time: entry.Time.Time}
		switch entry.Manager {
		case upstream:
			writes.Upstream = append(writes.Upstream, write)
		case trivetName:
			writes.Trivet = append(writes.Trivet, write)
		}
	}
}

// Nodes returns the names of all Nodes.
func (k *Kube) Nodes(ctx context.Context) ([]string, error) {
	var names []string
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := k.metadata.Resource(corev1.SchemeGroupVersion.WithResource("nodes")).List(ctx, options)
		if err != nil {
			return nil, err
		}
		for _, node := range page.Items {
			names = append(names, node.Name)
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return names, nil
		}
	}
}

// nodeFacts returns what Nodes and Events show about the loop of node health.
func (k *Kube) nodeFacts(ctx context.Context) (diagnosis.NodeFacts, error) {
	var f diagnosis.NodeFacts
	var err error
	f.Writes, err = k.writes(ctx, corev1.SchemeGroupVersion.WithResource("nodes"), "", managerName, writesHealth)
	if err != nil {
		return f, err
	}
	f.Nodes = f.Writes.Objects
	events, err := k.Client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"reason": "RegisteredNode", "source": "node-controller"}.String(), Limit: maxObjects,
	})
	if apierrors.IsForbidden(err) {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	f.EventsRead = true
	for _, event := range events.Items {
		at := event.LastTimestamp.Time
		if isBy(&event.ObjectMeta, managerName) && at.After(f.Registered.Time) {
			f.Registered = diagnosis.Write{Object: event.InvolvedObject.Name, Time: at}
		}
	}
	return f, nil
}

// writesHealth reports whether an entry has taints or conditions. Other controllers of
// kube-controller-manager write other fields of Nodes.
func writesHealth(entry metav1.ManagedFieldsEntry) bool {
	if entry.FieldsV1 == nil {
		return false
	}
	owned := entry.FieldsV1.GetRawString()
	return strings.Contains(owned, `"f:taints"`) || strings.Contains(owned, `"f:conditions"`)
}

func isBy(object *metav1.ObjectMeta, manager string) bool {
	return slices.ContainsFunc(object.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool { return entry.Manager == manager })
}

// EndpointFacts returns what kube-apiserver shows about the endpoints of default/kubernetes. The
// keys of reconcilers are in etcd only.
func (k *Kube) EndpointFacts(ctx context.Context) (diagnosis.EndpointFacts, error) {
	const name = "kubernetes"
	var f diagnosis.EndpointFacts
	all := func(metav1.ManagedFieldsEntry) bool { return true }
	for _, resource := range []schema.GroupVersionResource{
		corev1.SchemeGroupVersion.WithResource("endpoints"), discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
	} {
		object, err := k.metadata.Resource(resource).Namespace(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return f, err
		}
		f.Writes.Objects++
		addWrites(&f.Writes, &object.ObjectMeta, apiServerName, all)
	}
	var err error
	f.Programs, _, err = k.programs(ctx, apiServerName, "--endpoint-reconciler-type")
	return f, err
}

// APIServers returns the host names of the kube-apiservers that run, by their identity Leases, and
// of those that ended within the last hour. One that stops in good order deletes its Lease.
func (k *Kube) APIServers(ctx context.Context) (running, ended []string, err error) {
	leases, err := k.Client.CoordinationV1().Leases(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity=" + apiServerName})
	if err != nil {
		return nil, nil, err
	}
	for _, lease := range leases.Items {
		name := cmp.Or(lease.Labels[corev1.LabelHostname], lease.Name)
		if renewed := lease.Spec.RenewTime; renewed != nil && time.Since(renewed.Time) < identitySilence {
			running = append(running, name)
		} else {
			ended = append(ended, name)
		}
	}
	return running, ended, nil
}

// clusterUID returns the UID of Service default/kubernetes, by which an etcd is recognised.
func (k *Kube) clusterUID(ctx context.Context) (string, error) {
	service, err := k.Client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return string(service.UID), nil
}
