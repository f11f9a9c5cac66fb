package recording

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Kinds of observed objects.
const (
	KindNode          = "Node"
	KindLease         = "Lease"
	KindPod           = "Pod"
	KindService       = "Service"
	KindEndpoints     = "Endpoints"
	KindEndpointSlice = "EndpointSlice"
	KindEvent         = "Event"
)

// FieldExists is the field that every object has while it exists.
const FieldExists = "exists"

// AppLabel is the label of Pods that names their role.
const AppLabel = "app"

// View is what is recorded of an object.
type View struct {
	Kind string
	// Name is unique among the recorded objects of the kind.
	Name   string
	Fields map[string]string
	// Renewal is the time of a Lease's last renewal. Renewals are counted, not listed.
	Renewal string

	// role is the stem of the role of an object whose name differs in each run; empty: the name is
	// the same in each run.
	role string
	// node is the Node of a Pod, which orders Pods of one role.
	node string
	// owner is the ReplicaSet of a Pod, whose name differs in each run, too.
	owner string
	// addresses of a Node or Pod become roles, too.
	addresses []string
}

// Of returns the view of a Kubernetes object; ok is false for a kind that is not recorded.
func Of(object any) (view View, ok bool) {
	switch o := object.(type) {
	case *corev1.Node:
		return ofNode(o), true
	case *coordinationv1.Lease:
		return ofLease(o), true
	case *corev1.Pod:
		return ofPod(o), true
	case *corev1.Service:
		return ofService(o), true
	case *corev1.Endpoints:
		return ofEndpoints(o), true
	case *discoveryv1.EndpointSlice:
		return ofSlice(o), true
	case *corev1.Event:
		return ofEvent(o), true
	default:
		return View{}, false
	}
}

func newView(kind string, meta metav1.ObjectMeta) View {
	return View{Kind: kind, Name: meta.Name, Fields: map[string]string{FieldExists: "yes"}}
}

// ofNode leaves out heartbeat times, capacities and images, which no controller here writes.
func ofNode(node *corev1.Node) View {
	v := newView(KindNode, node.ObjectMeta)
	for _, c := range node.Status.Conditions {
		v.Fields["condition "+string(c.Type)] = condition(string(c.Status), c.Reason, c.Message)
	}
	for _, t := range node.Spec.Taints {
		v.Fields["taint "+t.Key+":"+string(t.Effect)] = "present" + prefixed(" with value ", t.Value)
	}
	for key, value := range node.Labels {
		if domain, _, _ := strings.Cut(key, "/"); strings.HasSuffix(domain, "kubernetes.io") {
			v.Fields["label "+key] = cmp.Or(value, "(empty)")
		}
	}
	if node.Spec.Unschedulable {
		v.Fields["unschedulable"] = "yes"
	}
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			v.addresses = append(v.addresses, a.Address)
		}
	}
	return v
}

func ofLease(lease *coordinationv1.Lease) View {
	v := newView(KindLease, lease.ObjectMeta)
	if lease.Spec.HolderIdentity != nil {
		v.Fields["holder"] = *lease.Spec.HolderIdentity
	}
	if lease.Spec.LeaseDurationSeconds != nil {
		v.Fields["duration"] = strconv.Itoa(int(*lease.Spec.LeaseDurationSeconds)) + " seconds"
	}
	for _, owner := range lease.OwnerReferences {
		v.Fields["owner"] = owner.Kind + " " + owner.Name
	}
	if lease.Spec.RenewTime != nil {
		v.Renewal = lease.Spec.RenewTime.UTC().Format("15:04:05.000000")
	}
	return v
}

func ofPod(pod *corev1.Pod) View {
	v := newView(KindPod, pod.ObjectMeta)
	v.role, v.node = cmp.Or(pod.Labels[AppLabel], "pod"), pod.Spec.NodeName
	set(v.Fields, "node", pod.Spec.NodeName)
	set(v.Fields, "phase", string(pod.Status.Phase))
	set(v.Fields, "reason", pod.Status.Reason)
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady || c.Type == corev1.DisruptionTarget {
			v.Fields["condition "+string(c.Type)] = condition(string(c.Status), c.Reason, c.Message)
		}
	}
	if pod.DeletionTimestamp != nil {
		v.Fields["deletion"] = "requested"
		if pod.DeletionGracePeriodSeconds != nil {
			v.Fields["deletion"] = fmt.Sprintf("requested with grace of %d seconds", *pod.DeletionGracePeriodSeconds)
		}
	}
	for _, ip := range pod.Status.PodIPs {
		v.addresses = append(v.addresses, ip.IP)
	}
	if owner := metav1.GetControllerOf(pod); owner != nil {
		v.owner = owner.Name
	}
	return v
}

func ofService(service *corev1.Service) View {
	v := newView(KindService, service.ObjectMeta)
	v.Fields["type"] = string(service.Spec.Type)
	set(v.Fields, "selector", labels(service.Spec.Selector))
	for _, p := range service.Spec.Ports {
		v.Fields["port "+cmp.Or(p.Name, "(unnamed)")] = fmt.Sprintf("%d %s to %s", p.Port, p.Protocol, p.TargetPort.String())
	}
	return v
}

func ofEndpoints(endpoints *corev1.Endpoints) View {
	v := newView(KindEndpoints, endpoints.ObjectMeta)
	for _, subset := range endpoints.Subsets {
		var ports []string
		for _, p := range subset.Ports {
			ports = append(ports, fmt.Sprintf("%s %d %s", cmp.Or(p.Name, "(unnamed)"), p.Port, p.Protocol))
		}
		for _, a := range subset.Addresses {
			v.Fields["address "+a.IP] = "ready on " + strings.Join(ports, ", ")
		}
		for _, a := range subset.NotReadyAddresses {
			v.Fields["address "+a.IP] = "not ready on " + strings.Join(ports, ", ")
		}
	}
	return v
}

func ofSlice(slice *discoveryv1.EndpointSlice) View {
	v := newView(KindEndpointSlice, slice.ObjectMeta)
	service := cmp.Or(slice.Labels[discoveryv1.LabelServiceName], "no service")
	if slice.Name != service { // default/kubernetes has a fixed name
		v.role = service + "-slice"
	}
	set(v.Fields, "managed by", slice.Labels[discoveryv1.LabelManagedBy])
	v.Fields["service"] = service
	v.Fields["address type"] = string(slice.AddressType)
	for _, owner := range slice.OwnerReferences {
		v.Fields["owner"] = owner.Kind + " " + owner.Name
	}
	for _, p := range slice.Ports {
		v.Fields["port "+cmp.Or(value(p.Name), "(unnamed)")] = fmt.Sprintf("%d %s", value(p.Port), value(p.Protocol))
	}
	for _, e := range slice.Endpoints {
		words := []string{}
		for name, state := range map[string]*bool{"ready": e.Conditions.Ready, "serving": e.Conditions.Serving, "terminating": e.Conditions.Terminating} {
			if state != nil && *state {
				words = append(words, name)
			}
		}
		slices.Sort(words)
		text := cmp.Or(strings.Join(words, ", "), "not ready")
		if e.NodeName != nil {
			text += " on " + *e.NodeName
		}
		if e.Hints != nil {
			for _, hint := range e.Hints.ForZones {
				text += " for zone " + hint.Name
			}
		}
		for _, address := range e.Addresses {
			v.Fields["endpoint "+address] = text
		}
	}
	return v
}

// ofEvent reads both APIs of events, which are two forms of one object.
func ofEvent(event *corev1.Event) View {
	source := cmp.Or(event.ReportingController, event.Source.Component, "no source")
	return View{
		Kind: KindEvent, Name: event.InvolvedObject.Kind + " " + event.InvolvedObject.Name,
		Fields: map[string]string{event.Reason: event.Type + " from " + source + ": " + event.Message},
	}
}

func condition(status, reason, message string) string {
	return status + prefixed(" ", reason) + prefixed(": ", message)
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

func set(fields map[string]string, field, value string) {
	if value != "" {
		fields[field] = value
	}
}

func labels(all map[string]string) string {
	var words []string
	for key, value := range all {
		words = append(words, key+"="+value)
	}
	slices.Sort(words)
	return strings.Join(words, ",")
}

func value[T any](pointer *T) T {
	var zero T
	if pointer == nil {
		return zero
	}
	return *pointer
}
