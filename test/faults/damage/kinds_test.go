package damage

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
)

// fate is what is promised of a damage.
type fate int

const (
	mended fate = iota // at once, without asking
	ripens             // only after it was certain for longer than a minute
	stays              // a person must decide
)

// injury is damage that was done.
type injury struct {
	subject
	fate fate
	// or is what may be found instead, when kube-apiserver's own repairer has been at it first.
	or subject
	// used are subjects that Services use and that the allocator must refuse afterwards.
	used []string
	// reseated tells that mending frees the subject for a moment: an IPAddress cannot be given to another parent.
	reseated bool
	// mend takes away what a person must decide about.
	mend func()
}

func address(code bootstrapv1.Finding_Code, text string) subject {
	return subject{code: code, store: bootstrapv1.Finding_STORE_IP_ADDRESSES, text: text}
}

func port(code bootstrapv1.Finding_Code, number int32) subject {
	return subject{code: code, store: bootstrapv1.Finding_STORE_NODE_PORTS, text: fmt.Sprint(number)}
}

// kinds are all kinds of damage that a cluster survives.
func kinds() map[string]func(*hand) injury {
	return map[string]func(*hand) injury{
		"address deleted through the API": func(h *hand) injury {
			ip := h.service(plain).Spec.ClusterIP
			h.loseAddress(ip)
			return injury{subject: address(bootstrapv1.Finding_CODE_NOT_ALLOCATED, ip), used: []string{ip}}
		},
		"address deleted in etcd": func(h *hand) injury {
			ip := h.service(withPorts).Spec.ClusterIP
			h.loseAddressInEtcd(ip)
			return injury{subject: address(bootstrapv1.Finding_CODE_NOT_ALLOCATED, ip), used: []string{ip}}
		},
		"bit of a port cleared": func(h *hand) injury {
			number := h.service(withPorts).Spec.Ports[0].NodePort
			h.setPort(number, 0)
			return injury{subject: port(bootstrapv1.Finding_CODE_NOT_ALLOCATED, number), used: []string{fmt.Sprint(number)}}
		},
		"bit of a port of two protocols cleared": func(h *hand) injury {
			number := h.service(twoProtocols).Spec.Ports[0].NodePort
			h.setPort(number, 0)
			return injury{subject: port(bootstrapv1.Finding_CODE_NOT_ALLOCATED, number), used: []string{fmt.Sprint(number)}}
		},
		"bit of a health check's port cleared": func(h *hand) injury {
			number := h.service(balanced).Spec.HealthCheckNodePort
			h.setPort(number, 0)
			return injury{subject: port(bootstrapv1.Finding_CODE_NOT_ALLOCATED, number), used: []string{fmt.Sprint(number)}}
		},
		"bit of a port set":       leakedPort,
		"address of nobody":       orphanedAddress,
		"address of another":      misattributed(asProtobuf),
		"address of another, too": misattributed(asJSON),
		"address of a Service that is gone": func(h *hand) injury {
			ip := h.service(plain).Spec.ClusterIP
			h.rename(ip, func(a *networkingv1.IPAddress) { a.Spec.ParentRef.Name = "nobody" }, asProtobuf)
			return injury{
				subject: address(bootstrapv1.Finding_CODE_WRONG_REFERENCE, ip), or: address(bootstrapv1.Finding_CODE_NOT_ALLOCATED, ip),
				used: []string{ip}, reseated: true,
			}
		},
		"address with the wrong family": func(h *hand) injury {
			ip := h.service(plain).Spec.ClusterIP
			h.rename(ip, func(a *networkingv1.IPAddress) { a.Labels[networkingv1.LabelIPAddressFamily] = "IPv6" }, asProtobuf)
			// kube-apiserver's own repairer, if it is first, deletes it and makes it anew.
			return injury{subject: address(bootstrapv1.Finding_CODE_WRONG_LABELS, ip), used: []string{ip}, reseated: true}
		},
		"two Services with one address": func(h *hand) injury {
			first := h.service(plain)
			twin := h.twin(first, func(*corev1.ServiceSpec) {}, asProtobuf)
			return injury{
				subject: address(bootstrapv1.Finding_CODE_DUPLICATE_OWNER, first.Spec.ClusterIP), fate: stays,
				used: []string{first.Spec.ClusterIP}, mend: func() { h.remove(twin) },
			}
		},
		"two Services with one port": func(h *hand) injury {
			first, other := h.service(withPorts), h.service(plain)
			twin := h.twin(other, func(spec *corev1.ServiceSpec) {
				*spec = *first.Spec.DeepCopy()
				spec.ClusterIP, spec.ClusterIPs, spec.Ports = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}, spec.Ports[:1]
			}, asJSON)
			number := first.Spec.Ports[0].NodePort
			return injury{
				subject: port(bootstrapv1.Finding_CODE_DUPLICATE_OWNER, number), fate: stays,
				used: []string{fmt.Sprint(number)}, mend: func() { h.remove(twin) },
			}
		},
		"address outside of all ranges": func(h *hand) injury {
			twin := h.twin(h.service(plain), func(spec *corev1.ServiceSpec) {
				spec.ClusterIP, spec.ClusterIPs = "172.31.255.77", []string{"172.31.255.77"}
			}, asProtobuf)
			return injury{
				subject: address(bootstrapv1.Finding_CODE_OUT_OF_RANGE, "172.31.255.77"), fate: stays,
				mend: func() { h.remove(twin) },
			}
		},
		"port outside of the range": func(h *hand) injury {
			twin := h.twin(h.service(withPorts), func(spec *corev1.ServiceSpec) {
				spec.ClusterIP, spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
				spec.Ports = spec.Ports[:1]
				spec.Ports[0].NodePort = 40000
			}, asJSON)
			return injury{
				subject: port(bootstrapv1.Finding_CODE_OUT_OF_RANGE, 40000), fate: stays,
				mend: func() { h.remove(twin) },
			}
		},
		"address that is none": func(h *hand) injury {
			twin := h.twin(h.service(plain), func(spec *corev1.ServiceSpec) {
				spec.ClusterIP, spec.ClusterIPs = "10.0.0.999", []string{"10.0.0.999"}
			}, asJSON)
			return injury{
				subject: address(bootstrapv1.Finding_CODE_INVALID, twin.Namespace+"/"+twin.Name), fate: stays,
				mend: func() { h.remove(twin) },
			}
		},
	}
}

// leakedPort is a bit that nobody's Service asks for, as a crash in the middle of a creation leaves it.
func leakedPort(h *hand) injury {
	number := h.freePort()
	h.setPort(number, 1)
	return injury{subject: port(bootstrapv1.Finding_CODE_LEAKED, number), fate: ripens}
}

// orphanedAddress is an IPAddress whose Service is not there.
func orphanedAddress(h *hand) injury {
	ip := h.freeAddress()
	h.allocate(ip, &networkingv1.ParentReference{Resource: "services", Namespace: h.namespace, Name: "nobody"})
	return injury{subject: address(bootstrapv1.Finding_CODE_ORPHAN, ip), fate: ripens}
}

// misattributed is the IPAddress of one Service in the name of another, which does not use it.
func misattributed(how encoding) func(*hand) injury {
	return func(h *hand) injury {
		ip, other := h.service(plain).Spec.ClusterIP, h.service(plain)
		h.rename(ip, func(a *networkingv1.IPAddress) { a.Spec.ParentRef = parentOf(other) }, how)
		return injury{
			subject: address(bootstrapv1.Finding_CODE_WRONG_REFERENCE, ip), or: address(bootstrapv1.Finding_CODE_NOT_ALLOCATED, ip),
			used: []string{ip}, reseated: true,
		}
	}
}
