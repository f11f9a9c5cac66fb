package baseline

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trivet-dev/trivet/internal/planned"
)

const (
	// ServiceMissing: default/kubernetes does not exist.
	ServiceMissing Reason = "SERVICE_MISSING"
	// ServiceDrifted: default/kubernetes differs in an owned field.
	ServiceDrifted Reason = "SERVICE_DRIFTED"
	// ServiceTerminating: default/kubernetes is being deleted; it is created again afterwards.
	ServiceTerminating Reason = "SERVICE_TERMINATING"
	// ClusterIPDiffers: the ClusterIP of default/kubernetes is not the first address of the range.
	// It is immutable.
	ClusterIPDiffers Reason = "CLUSTER_IP_DIFFERS"
	// NodePortsHeld: default/kubernetes has another type or node ports than wanted. A repair would
	// release them, and clients may use them.
	NodePortsHeld Reason = "SERVICE_NODE_PORTS_HELD"
	// ClusterIPUnknown: default/kubernetes needs a ClusterIP, and the service range is unknown.
	ClusterIPUnknown Reason = "CLUSTER_IP_UNKNOWN"
	// SingleFamily: default/kubernetes should have both families, and the cluster has no secondary
	// range.
	SingleFamily Reason = "SERVICE_SINGLE_FAMILY"
)

const (
	// ServiceName is the name of the Service, of its Endpoints and of its EndpointSlice, in
	// namespace default.
	ServiceName = "kubernetes"
	// PortName is the name of the apiservers' own port, in the Service and in its endpoints.
	PortName = "https"

	servicePort = 443
)

// Service is what default/kubernetes must be.
type Service struct {
	// ClusterIP is the first address of the primary service range. If it is the zero Addr, the
	// range is unknown. Then an existing ClusterIP is accepted, and a missing Service is reported
	// instead of created.
	ClusterIP netip.Addr
	// TargetPort is the secure port of the apiservers.
	TargetPort int32
	// NodePort is kube-apiserver's --kubernetes-service-node-port. Unless it is 0, the type is
	// NodePort.
	NodePort int32
	// ExtraPorts follow the apiservers' own port, in their order.
	ExtraPorts []Port
	// DualStack asks for a ClusterIP of each family that the cluster has.
	DualStack bool
	// Families are those of the cluster's ready service ranges, the primary one first; empty if
	// they are unknown. Only these are written by name, because a kube-apiserver rejects an update
	// with another one.
	Families []corev1.IPFamily
}

// Port is a port of default/kubernetes beside the apiservers' own, such as that of a konnectivity
// server.
type Port struct {
	Name     string
	Protocol corev1.Protocol
	// Port is that of the Service, TargetPort that of the endpoints.
	Port, TargetPort int32
}

// IsOwnPort says whether a port conflicts with the apiservers' own.
func IsOwnPort(port Port) bool {
	return port.Name == PortName || port.Port == servicePort && port.Protocol == corev1.ProtocolTCP
}

// FirstAddress is the address of default/kubernetes in a service range: the one after the network's
// own.
func FirstAddress(serviceRange netip.Prefix) (netip.Addr, error) {
	first := serviceRange.Masked().Addr().Next()
	if !serviceRange.IsValid() || !serviceRange.Contains(first) {
		return netip.Addr{}, fmt.Errorf("service range %s is too small for the address of service default/kubernetes", serviceRange)
	}
	return first, nil
}

// FamiliesOf returns the families of service ranges, in their order.
func FamiliesOf(ranges []netip.Prefix) []corev1.IPFamily {
	var families []corev1.IPFamily
	for _, serviceRange := range ranges {
		family := corev1.IPv6Protocol
		if serviceRange.Addr().Unmap().Is4() {
			family = corev1.IPv4Protocol
		}
		families = append(families, family)
	}
	return families
}

// PlanService plans how default/kubernetes must change. existing is nil if it does not exist.
func PlanService(want Service, existing *corev1.Service) []Change {
	switch {
	case existing == nil && !want.ClusterIP.IsValid():
		return []Change{report(want.object(), ClusterIPUnknown,
			"service default/kubernetes is missing and the service range is unknown; set --service-cluster-ip-range")}
	case existing == nil:
		return []Change{{
			Verb:   planned.Create,
			Object: want.object(),
			Reason: ServiceMissing,
			Detail: "service default/kubernetes does not exist; its ClusterIP will be " + want.ClusterIP.String(),
		}}
	case existing.DeletionTimestamp != nil:
		return []Change{report(existing.DeepCopy(), ServiceTerminating,
			"service default/kubernetes is being deleted; it is created again afterwards")}
	default:
		return planExisting(want, existing)
	}
}

func planExisting(want Service, existing *corev1.Service) []Change {
	var changes []Change
	switch has := existing.Spec.ClusterIP; {
	case has == "" && !want.ClusterIP.IsValid():
		// With any update, the kube-apiserver would allocate a random ClusterIP, which is
		// immutable.
		return []Change{report(existing.DeepCopy(), ClusterIPUnknown,
			"service default/kubernetes has no ClusterIP and the service range is unknown; set --service-cluster-ip-range")}
	case has != "" && want.ClusterIP.IsValid() && !isAddress(has, want.ClusterIP):
		changes = append(changes, report(existing.DeepCopy(), ClusterIPDiffers, fmt.Sprintf(
			"clusterIP %s, want %s; it cannot be changed in place, and deleting the service would cut off every pod",
			has, want.ClusterIP)))
	}
	changes = append(changes, planFamilies(want, existing)...)
	update := planUpdate(existing, func(service *corev1.Service) []string { return repair(service, want) })
	if update == nil {
		return changes
	}
	updated, _ := update.Object.(*corev1.Service)
	if released := releasedBy(existing, updated); released != "" {
		changes = append(changes, report(existing.DeepCopy(), NodePortsHeld, fmt.Sprintf(
			"service default/kubernetes is of type %s, want %s; the repair releases %s and waits until an operator applies the plan",
			existing.Spec.Type, want.kind(), released)))
		update.NeedsApproval = true
		update.Safe = planUpdate(existing, func(service *corev1.Service) []string { return repairSafely(service, want) })
	}
	return append(changes, *update)
}

// planUpdate returns the update that repair makes; nil if repair finds no difference.
func planUpdate(existing *corev1.Service, repair func(*corev1.Service) []string) *Change {
	repaired := existing.DeepCopy()
	differences := repair(repaired)
	if len(differences) == 0 {
		return nil
	}
	return &Change{
		Verb: planned.Update, Object: repaired, Before: existing.DeepCopy(), Reason: ServiceDrifted, Detail: strings.Join(differences, "; "),
	}
}

// releasedBy names what an update releases for other Services: node ports and a load balancer.
func releasedBy(before, after *corev1.Service) string {
	var released []string
	for _, port := range before.Spec.Ports {
		isKept := func(kept corev1.ServicePort) bool {
			return kept.NodePort == port.NodePort && kept.Protocol == port.Protocol
		}
		if port.NodePort != 0 && !slices.ContainsFunc(after.Spec.Ports, isKept) {
			released = append(released, fmt.Sprintf("node port %d/%s", port.NodePort, port.Protocol))
		}
	}
	if port := before.Spec.HealthCheckNodePort; port != 0 && after.Spec.HealthCheckNodePort != port {
		released = append(released, fmt.Sprintf("health check node port %d", port))
	}
	if before.Spec.Type == corev1.ServiceTypeLoadBalancer && after.Spec.Type != corev1.ServiceTypeLoadBalancer {
		released = append(released, "its load balancer")
	}
	return strings.Join(released, ", ")
}

func planFamilies(want Service, existing *corev1.Service) []Change {
	if !asksForBoth(want, existing) || len(existing.Spec.ClusterIPs) != 1 || len(want.Families) != 1 {
		return nil
	}
	return []Change{report(existing.DeepCopy(), SingleFamily, fmt.Sprintf(
		"service default/kubernetes should have both families and has only %s: the cluster has no service range of the other",
		familiesText(existing.Spec.IPFamilies)))}
}

// asksForBoth is false for a headless Service, which has no ClusterIP; it is reported already.
func asksForBoth(want Service, existing *corev1.Service) bool {
	return want.DualStack && existing.Spec.ClusterIP != corev1.ClusterIPNone
}

// isAddress compares by value: an IPv6 address has many texts. "None" is not an address.
func isAddress(text string, want netip.Addr) bool {
	address, err := netip.ParseAddr(text)
	return err == nil && address.Unmap() == want.Unmap()
}

func report(object Object, reason Reason, detail string) Change {
	return Change{Verb: planned.Report, Object: object, Reason: reason, Detail: detail}
}

func (s Service) object() *corev1.Service {
	policy := corev1.IPFamilyPolicySingleStack
	if s.DualStack {
		policy = corev1.IPFamilyPolicyPreferDualStack
	}
	created := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name:      ServiceName,
			Namespace: metav1.NamespaceDefault,
			Labels:    serviceLabels(),
		},
		Spec: corev1.ServiceSpec{
			Type:            s.kind(),
			IPFamilyPolicy:  &policy,
			Ports:           s.ports(nil),
			SessionAffinity: corev1.ServiceAffinityNone,
		},
	}
	if s.ClusterIP.IsValid() {
		created.Spec.ClusterIP = s.ClusterIP.String()
	}
	return created
}

func serviceLabels() map[string]string {
	return map[string]string{"component": "apiserver", "provider": "kubernetes"}
}

func (s Service) kind() corev1.ServiceType {
	if s.NodePort != 0 {
		return corev1.ServiceTypeNodePort
	}
	return corev1.ServiceTypeClusterIP
}

// ports are the wanted ports. A NodePort Service keeps the existing node ports of extra ports.
func (s Service) ports(has []corev1.ServicePort) []corev1.ServicePort {
	ports := []corev1.ServicePort{{
		Name:       PortName,
		Protocol:   corev1.ProtocolTCP,
		Port:       servicePort,
		TargetPort: intstr.FromInt32(s.TargetPort),
		NodePort:   s.NodePort,
	}}
	for _, extra := range s.ExtraPorts {
		port := corev1.ServicePort{
			Name: extra.Name, Protocol: extra.Protocol, Port: extra.Port, TargetPort: intstr.FromInt32(extra.TargetPort),
		}
		if s.NodePort != 0 {
			port.NodePort = nodePortOf(has, extra)
		}
		ports = append(ports, port)
	}
	return ports
}

func nodePortOf(has []corev1.ServicePort, extra Port) int32 {
	for _, port := range has {
		if port.Name == extra.Name && port.Protocol == extra.Protocol {
			return port.NodePort
		}
	}
	return 0
}

// repair sets every owned field of service to the wanted value. It returns each difference as one
// phrase.
func repair(service *corev1.Service, want Service) []string {
	return slices.Concat(
		repairLabels(service), repairType(service, want), repairClusterIP(service, want), repairFamilies(service, want),
		repairPorts(service, want), repairSelector(service), repairAffinity(service),
	)
}

// repairSafely is repair without a change of type or node ports.
func repairSafely(service *corev1.Service, want Service) []string {
	return slices.Concat(
		repairLabels(service), repairClusterIP(service, want), repairFamilies(service, want),
		repairTargetPorts(service, want), repairSelector(service), repairAffinity(service),
	)
}

// repairTargetPorts repairs the ports that the Service has and should have.
func repairTargetPorts(service *corev1.Service, want Service) []string {
	before := portsText(service.Spec.Ports)
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		for _, wanted := range want.ports(nil) {
			if port.Port == wanted.Port && port.Protocol == wanted.Protocol {
				port.Name, port.TargetPort = wanted.Name, wanted.TargetPort
			}
		}
	}
	if after := portsText(service.Spec.Ports); after != before {
		return []string{fmt.Sprintf("ports %s, want %s", before, after)}
	}
	return nil
}

func repairLabels(service *corev1.Service) []string {
	var differences []string
	want := serviceLabels()
	for _, key := range slices.Sorted(maps.Keys(want)) {
		has, found := service.Labels[key]
		if found && has == want[key] {
			continue
		}
		if service.Labels == nil {
			service.Labels = map[string]string{}
		}
		service.Labels[key] = want[key]
		differences = append(differences, fmt.Sprintf("label %s %q, want %q", key, has, want[key]))
	}
	return differences
}

// repairType also clears the fields that only the old type may have. Otherwise the kube-apiserver
// rejects the update.
func repairType(service *corev1.Service, want Service) []string {
	has := service.Spec.Type
	if has == want.kind() {
		return nil
	}
	spec := &service.Spec
	spec.Type = want.kind()
	spec.ExternalName = ""
	spec.HealthCheckNodePort = 0
	spec.AllocateLoadBalancerNodePorts = nil
	spec.LoadBalancerClass = nil
	spec.LoadBalancerIP = ""
	spec.LoadBalancerSourceRanges = nil
	if want.NodePort == 0 {
		spec.ExternalTrafficPolicy = ""
	}
	return []string{fmt.Sprintf("type %s, want %s", has, want.kind())}
}

// repairClusterIP sets a missing ClusterIP, such as that of a former ExternalName service. The plan
// reports another ClusterIP and does not change it.
func repairClusterIP(service *corev1.Service, want Service) []string {
	if service.Spec.ClusterIP != "" || !want.ClusterIP.IsValid() {
		return nil
	}
	service.Spec.ClusterIP = want.ClusterIP.String()
	service.Spec.ClusterIPs = nil
	return []string{"no clusterIP, want " + want.ClusterIP.String()}
}

func repairPorts(service *corev1.Service, want Service) []string {
	has := service.Spec.Ports
	wanted := want.ports(has)
	if reflect.DeepEqual(has, wanted) {
		return nil
	}
	service.Spec.Ports = wanted
	return []string{fmt.Sprintf("ports %s, want %s", portsText(has), portsText(wanted))}
}

func repairSelector(service *corev1.Service) []string {
	if len(service.Spec.Selector) == 0 {
		return nil
	}
	service.Spec.Selector = nil
	return []string{"has a selector, want none: its endpoints are the apiservers"}
}

func repairAffinity(service *corev1.Service) []string {
	has := service.Spec.SessionAffinity
	if has == corev1.ServiceAffinityNone {
		return nil
	}
	service.Spec.SessionAffinity = corev1.ServiceAffinityNone
	service.Spec.SessionAffinityConfig = nil
	return []string{fmt.Sprintf("sessionAffinity %s, want %s", has, corev1.ServiceAffinityNone)}
}

// portsText writes ports as "https 443/TCP→6443", and ":30443" after it where there is a node port.
func portsText(ports []corev1.ServicePort) string {
	texts := make([]string, 0, len(ports))
	for _, port := range ports {
		text := fmt.Sprintf("%s %d/%s→%s", port.Name, port.Port, port.Protocol, port.TargetPort.String())
		if port.NodePort != 0 {
			text += ":" + strconv.Itoa(int(port.NodePort))
		}
		texts = append(texts, text)
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// repairFamilies adds the second family and never removes one: that would release an address that
// may be in use. The kube-apiserver allocates the second ClusterIP if the policy allows it. If the
// policy allowed it before the second range existed, the family must also be named.
func repairFamilies(service *corev1.Service, want Service) []string {
	if !asksForBoth(want, service) {
		return nil
	}
	var differences []string
	if policy := service.Spec.IPFamilyPolicy; policy == nil || *policy == corev1.IPFamilyPolicySingleStack {
		prefer := corev1.IPFamilyPolicyPreferDualStack
		service.Spec.IPFamilyPolicy = &prefer
		differences = append(differences, fmt.Sprintf("ipFamilyPolicy %s, want %s", policyText(policy), prefer))
	}
	has := service.Spec.IPFamilies
	if len(has) == 1 && len(want.Families) == 2 && slices.Contains(want.Families, has[0]) {
		for _, family := range want.Families {
			if family != has[0] {
				service.Spec.IPFamilies = []corev1.IPFamily{has[0], family}
			}
		}
		differences = append(differences, fmt.Sprintf("ipFamilies %s, want %s", familiesText(has), familiesText(service.Spec.IPFamilies)))
	}
	return differences
}

func policyText(policy *corev1.IPFamilyPolicy) string {
	if policy == nil {
		return "not set"
	}
	return string(*policy)
}

func familiesText(families []corev1.IPFamily) string {
	texts := make([]string, 0, len(families))
	for _, family := range families {
		texts = append(texts, string(family))
	}
	return strings.Join(texts, ", ")
}
