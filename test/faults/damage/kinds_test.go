package damage

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
)

// outcome is the promised handling of a damage.
type outcome int

const (
	repairedAtOnce     outcome = iota // at once, without a request
	repairedAfterGrace                // after a grace period of more than a minute
	needsDecision                     // after a decision by an operator
)

// damage is an injected damage.
type damage struct {
	subject
	outcome outcome
	// alternative is the finding that replaces the subject if kube-apiserver's own repairer is
	// faster.
	alternative subject
	// used has the subjects that Services use. The allocator must refuse them after the repair.
	used []string
	// freedByRepair reports whether the repair frees the subject for a moment, because the parent
	// of an IPAddress is immutable.
	freedByRepair bool
	// resolve applies the decision of an operator.
	resolve func()
}

func address(code string, text string) subject {
	return subject{code: code, store: bootstrapv1.Store_STORE_IP_ADDRESSES, text: text}
}

func port(code string, number int32) subject {
	return subject{code: code, store: bootstrapv1.Store_STORE_NODE_PORTS, text: fmt.Sprint(number)}
}

// damageKinds returns every kind of damage that a cluster survives.
func damageKinds() map[string]func(*injector) damage {
	return map[string]func(*injector) damage{
		"address deleted through the API": func(inj *injector) damage {
			ip := inj.createService(plain).Spec.ClusterIP
			inj.deleteAddress(ip)
			return damage{subject: address("NOT_ALLOCATED", ip), used: []string{ip}}
		},
		"address deleted in etcd": func(inj *injector) damage {
			ip := inj.createService(withPorts).Spec.ClusterIP
			inj.deleteAddressInEtcd(ip)
			return damage{subject: address("NOT_ALLOCATED", ip), used: []string{ip}}
		},
		"bit of a port cleared": func(inj *injector) damage {
			number := inj.createService(withPorts).Spec.Ports[0].NodePort
			inj.setPortBit(number, 0)
			return damage{subject: port("NOT_ALLOCATED", number), used: []string{fmt.Sprint(number)}}
		},
		"bit of a port of two protocols cleared": func(inj *injector) damage {
			number := inj.createService(twoProtocols).Spec.Ports[0].NodePort
			inj.setPortBit(number, 0)
			return damage{subject: port("NOT_ALLOCATED", number), used: []string{fmt.Sprint(number)}}
		},
		"bit of a health check's port cleared": func(inj *injector) damage {
			number := inj.createService(balanced).Spec.HealthCheckNodePort
			inj.setPortBit(number, 0)
			return damage{subject: port("NOT_ALLOCATED", number), used: []string{fmt.Sprint(number)}}
		},
		"bit of an unused port set":               leakedPort,
		"orphaned address":                        orphanedAddress,
		"address with the wrong parent, protobuf": wrongParent(asProtobuf),
		"address with the wrong parent, JSON":     wrongParent(asJSON),
		"address with a missing parent": func(inj *injector) damage {
			ip := inj.createService(plain).Spec.ClusterIP
			inj.replaceAddress(ip, func(a *networkingv1.IPAddress) { a.Spec.ParentRef.Name = "missing" }, asProtobuf)
			return damage{
				subject: address("WRONG_REFERENCE", ip), alternative: address("NOT_ALLOCATED", ip),
				used: []string{ip}, freedByRepair: true,
			}
		},
		"address with the wrong family": func(inj *injector) damage {
			ip := inj.createService(plain).Spec.ClusterIP
			inj.replaceAddress(ip, func(a *networkingv1.IPAddress) { a.Labels[networkingv1.LabelIPAddressFamily] = "IPv6" }, asProtobuf)
			// kube-apiserver's own repairer, if faster, deletes and recreates it.
			return damage{
				subject: address("WRONG_LABELS", ip), alternative: address("NOT_ALLOCATED", ip),
				used: []string{ip}, freedByRepair: true,
			}
		},
		"two Services with one address": func(inj *injector) damage {
			first := inj.createService(plain)
			duplicate := inj.duplicateService(first, func(*corev1.ServiceSpec) {}, asProtobuf)
			return damage{
				subject: address("DUPLICATE_OWNER", first.Spec.ClusterIP), outcome: needsDecision,
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
				subject: port("DUPLICATE_OWNER", number), outcome: needsDecision,
				used: []string{fmt.Sprint(number)}, resolve: func() { inj.deleteService(duplicate) },
			}
		},
		"address outside all ranges": func(inj *injector) damage {
			duplicate := inj.duplicateService(inj.createService(plain), func(spec *corev1.ServiceSpec) {
				spec.ClusterIP, spec.ClusterIPs = "172.31.255.77", []string{"172.31.255.77"}
			}, asProtobuf)
			return damage{
				subject: address("OUT_OF_RANGE", "172.31.255.77"), outcome: needsDecision,
				resolve: func() { inj.deleteService(duplicate) },
			}
		},
		"port outside the range": func(inj *injector) damage {
			duplicate := inj.duplicateService(inj.createService(withPorts), func(spec *corev1.ServiceSpec) {
				spec.ClusterIP, spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
				spec.Ports = spec.Ports[:1]
				spec.Ports[0].NodePort = 40000
			}, asJSON)
			return damage{
				subject: port("OUT_OF_RANGE", 40000), outcome: needsDecision,
				resolve: func() { inj.deleteService(duplicate) },
			}
		},
		"invalid address": func(inj *injector) damage {
			duplicate := inj.duplicateService(inj.createService(plain), func(spec *corev1.ServiceSpec) {
				spec.ClusterIP, spec.ClusterIPs = "10.0.0.999", []string{"10.0.0.999"}
			}, asJSON)
			return damage{
				subject: address("INVALID", duplicate.Namespace+"/"+duplicate.Name), outcome: needsDecision,
				resolve: func() { inj.deleteService(duplicate) },
			}
		},
	}
}

// leakedPort sets the bit of a port that no Service uses, as a crash during a creation does.
func leakedPort(inj *injector) damage {
	number := inj.freePort()
	inj.setPortBit(number, 1)
	return damage{subject: port("LEAKED", number), outcome: repairedAfterGrace}
}

// orphanedAddress creates an IPAddress whose Service does not exist.
func orphanedAddress(inj *injector) damage {
	ip := inj.freeAddress()
	inj.allocate(ip, &networkingv1.ParentReference{Resource: "services", Namespace: inj.namespace, Name: "missing"})
	return damage{subject: address("ORPHAN", ip), outcome: repairedAfterGrace}
}

// wrongParent gives the IPAddress of one Service the name of another Service, which does not use
// it.
func wrongParent(how encoding) func(*injector) damage {
	return func(inj *injector) damage {
		ip, other := inj.createService(plain).Spec.ClusterIP, inj.createService(plain)
		inj.replaceAddress(ip, func(a *networkingv1.IPAddress) { a.Spec.ParentRef = parentOf(other) }, how)
		return damage{
			subject: address("WRONG_REFERENCE", ip), alternative: address("NOT_ALLOCATED", ip),
			used: []string{ip}, freedByRepair: true,
		}
	}
}
