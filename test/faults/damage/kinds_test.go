package damage

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
)

// fate is what is promised of a damage.
type outcome int

const (
	repairedAtOnce     outcome = iota // at once, without asking
	repairedAfterGrace                // only after it was certain for longer than a minute
	needsDecision                     // a person must decide
)

// injury is damage that was done.
type damage struct {
	subject
	outcome outcome
	// or is what may be found instead, when kube-apiserver's own repairer has been at it first.
	or subject
	// used are subjects that Services use and that the allocator must refuse afterwards.
	used []string
	// reseated tells that mending frees the subject for a moment: an IPAddress cannot be given to another parent.
	freedByRepair bool
	// mend takes away what a person must decide about.
	resolve func()
}

func address(code bootstrapv1.Finding_Code, text string) subject {
	return subject{code: code, store: bootstrapv1.Finding_STORE_IP_ADDRESSES, text: text}
}

func port(code bootstrapv1.Finding_Code, number int32) subject {
	return subject{code: code, store: bootstrapv1.Finding_STORE_NODE_PORTS, text: fmt.Sprint(number)}
}

// kinds are all kinds of damage that a cluster survives.
func damageKinds() map[string]func(*injector) damage {
	return map[string]func(*injector) damage{
		"address deleted through the API": func(inj *injector) damage {
			ip := inj.createService(plain).Spec.ClusterIP
			inj.deleteAddress(ip)
			return damage{subject: address(bootstrapv1.Finding_CODE_NOT_ALLOCATED, ip), used: []string{ip}}
		},
		"address deleted in etcd": func(inj *injector) damage {
			ip := inj.createService(withPorts).Spec.ClusterIP
			inj.deleteAddressInEtcd(ip)
			return damage{subject: address(bootstrapv1.Finding_CODE_NOT_ALLOCATED, ip), used: []string{ip}}
		},
		"bit of a port cleared": func(inj *injector) damage {
			number := inj.createService(withPorts).Spec.Ports[0].NodePort
			inj.setPortBit(number, 0)
			return damage{subject: port(bootstrapv1.Finding_CODE_NOT_ALLOCATED, number), used: []string{fmt.Sprint(number)}}
		},
		"bit of a port of two protocols cleared": func(inj *injector) damage {
			number := inj.createService(twoProtocols).Spec.Ports[0].NodePort
			inj.setPortBit(number, 0)
			return damage{subject: port(bootstrapv1.Finding_CODE_NOT_ALLOCATED, number), used: []string{fmt.Sprint(number)}}
		},
		"bit of a health check's port cleared": func(inj *injector) damage {
			number := inj.createService(balanced).Spec.HealthCheckNodePort
			inj.setPortBit(number, 0)
			return damage{subject: port(bootstrapv1.Finding_CODE_NOT_ALLOCATED, number), used: []string{fmt.Sprint(number)}}
		},
		"bit of a port set":       leakedPort,
		"address of nobody":       orphanedAddress,
		"address of another":      wrongParent(asProtobuf),
		"address of another, too": wrongParent(asJSON),
		"address of a Service that is gone": func(inj *injector) damage {
			ip := inj.createService(plain).Spec.ClusterIP
			inj.replaceAddress(ip, func(a *networkingv1.IPAddress) { a.Spec.ParentRef.Name = "nobody" }, asProtobuf)
			return damage{
				subject: address(bootstrapv1.Finding_CODE_WRONG_REFERENCE, ip), or: address(bootstrapv1.Finding_CODE_NOT_ALLOCATED, ip),
				used: []string{ip}, freedByRepair: true,
			}
		},
		"address with the wrong family": func(inj *injector) damage {
			ip := inj.createService(plain).Spec.ClusterIP
			inj.replaceAddress(ip, func(a *networkingv1.IPAddress) { a.Labels[networkingv1.LabelIPAddressFamily] = "IPv6" }, asProtobuf)
			// kube-apiserver's own repairer, if it is first, deletes it and makes it anew.
			return damage{subject: address(bootstrapv1.Finding_CODE_WRONG_LABELS, ip), used: []string{ip}, freedByRepair: true}
		},
		"two Services with one address": func(inj *injector) damage {
			first := inj.createService(plain)
			duplicate := inj.duplicateService(first, func(*corev1.ServiceSpec) {}, asProtobuf)
			return damage{
				subject: address(bootstrapv1.Finding_CODE_DUPLICATE_OWNER, first.Spec.ClusterIP), outcome: needsDecision,
				used: []string{first.Spec.ClusterIP}, resolve: func() { inj.deleteService(duplicate) },
			}
		},
		"two Services with one port": func(inj *injector) damage {
			first, other := inj.createService(withPorts), inj.createService(plain)
			duplicate := inj.duplicateService(other, func(spec *corev1.ServiceSpec) {
				*spec = *first.Spec.DeepCopy()
				spec.ClusterIP, spec.ClusterIPs, spec.Ports = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}, spec.Ports[:1]
			}, asJSON)
			number := first.Spec.Ports[0].NodePort
			return damage{
				subject: port(bootstrapv1.Finding_CODE_DUPLICATE_OWNER, number), outcome: needsDecision,
				used: []string{fmt.Sprint(number)}, resolve: func() { inj.deleteService(duplicate) },
			}
		},
		"address outside of all ranges": func(inj *injector) damage {
			duplicate := inj.duplicateService(inj.createService(plain), func(spec *corev1.ServiceSpec) {
				spec.ClusterIP, spec.ClusterIPs = "172.31.255.77", []string{"172.31.255.77"}
			}, asProtobuf)
			return damage{
				subject: address(bootstrapv1.Finding_CODE_OUT_OF_RANGE, "172.31.255.77"), outcome: needsDecision,
				resolve: func() { inj.deleteService(duplicate) },
			}
		},
		"port outside of the range": func(inj *injector) damage {
			duplicate := inj.duplicateService(inj.createService(withPorts), func(spec *corev1.ServiceSpec) {
				spec.ClusterIP, spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
				spec.Ports = spec.Ports[:1]
				spec.Ports[0].NodePort = 40000
			}, asJSON)
			return damage{
				subject: port(bootstrapv1.Finding_CODE_OUT_OF_RANGE, 40000), outcome: needsDecision,
				resolve: func() { inj.deleteService(duplicate) },
			}
		},
		"address that is none": func(inj *injector) damage {
			duplicate := inj.duplicateService(inj.createService(plain), func(spec *corev1.ServiceSpec) {
				spec.ClusterIP, spec.ClusterIPs = "10.0.0.999", []string{"10.0.0.999"}
			}, asJSON)
			return damage{
				subject: address(bootstrapv1.Finding_CODE_INVALID, duplicate.Namespace+"/"+duplicate.Name), outcome: needsDecision,
				resolve: func() { inj.deleteService(duplicate) },
			}
		},
	}
}

// leakedPort is a bit that nobody's Service asks for, as a crash in the middle of a creation leaves it.
func leakedPort(inj *injector) damage {
	number := inj.freePort()
	inj.setPortBit(number, 1)
	return damage{subject: port(bootstrapv1.Finding_CODE_LEAKED, number), outcome: repairedAfterGrace}
}

// orphanedAddress is an IPAddress whose Service is not there.
func orphanedAddress(inj *injector) damage {
	ip := inj.freeAddress()
	inj.allocate(ip, &networkingv1.ParentReference{Resource: "services", Namespace: inj.namespace, Name: "nobody"})
	return damage{subject: address(bootstrapv1.Finding_CODE_ORPHAN, ip), outcome: repairedAfterGrace}
}

// misattributed is the IPAddress of one Service in the name of another, which does not use it.
func wrongParent(how encoding) func(*injector) damage {
	return func(inj *injector) damage {
		ip, other := inj.createService(plain).Spec.ClusterIP, inj.createService(plain)
		inj.replaceAddress(ip, func(a *networkingv1.IPAddress) { a.Spec.ParentRef = parentOf(other) }, how)
		return damage{
			subject: address(bootstrapv1.Finding_CODE_WRONG_REFERENCE, ip), or: address(bootstrapv1.Finding_CODE_NOT_ALLOCATED, ip),
			used: []string{ip}, freedByRepair: true,
		}
	}
}
