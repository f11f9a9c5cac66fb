package mirroring

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// contentScenarios are about subsets, addresses and ports.
func contentScenarios() []scenario {
	return []scenario{
		{number: 7, name: "readiness", allowances: allowed[7], run: func(s *script) {
			s.step("ready and not ready", func(s *scene) {
				s.mirror("web", subset(http80, addresses("10.1.0.1", "10.1.0.2"), address("10.1.0.3")))
			})
			s.step("flip", func(s *scene) {
				s.resubset("web", subset(http80, addresses("10.1.0.1", "10.1.0.3"), address("10.1.0.2")))
			})
			s.step("both in one subset", func(s *scene) { s.resubset("web", subset(http80, addresses("10.1.0.1"), address("10.1.0.1"))) })
			s.step("both in two subsets", func(s *scene) {
				s.resubset("web", subset(http80, addresses("10.1.0.1")), subset(http80, nil, address("10.1.0.1")))
			})
			s.step("by port", func(s *scene) {
				s.resubset("web", subset(http80, addresses("10.1.0.1")), subset(ports("dns", 53), nil, address("10.1.0.1")))
			})
			s.step("none ready", func(s *scene) { s.resubset("web", subset(http80, nil, address("10.1.0.1"))) })
		}},
		{number: 8, name: "subsets", allowances: allowed[8], run: func(s *script) {
			other := ports("dns", 90)
			s.step("A:80 A:90", func(s *scene) { s.mirror("web", subset(http80, v4), subset(other, v4)) })
			s.step("AB:80 A:90", func(s *scene) {
				s.resubset("web", subset(http80, addresses("10.1.0.1", "10.1.0.2")), subset(other, v4))
			})
			s.step("A:80 B:80", func(s *scene) { s.resubset("web", subset(http80, v4), subset(http80, addresses("10.1.0.2"))) })
			s.step("one of two port sets goes", func(s *scene) { s.resubset("web", subset(http80, v4)) })
			s.step("no ports", func(s *scene) { s.resubset("web", subset(nil, v4)) })
			s.step("no ports and some", func(s *scene) { s.resubset("web", subset(nil, v4), subset(http80, v4)) })
			s.step("no subset", func(s *scene) { s.resubset("web") })
			s.step("again", func(s *scene) { s.resubset("web", subset(http80, v4)) })
			s.step("protocols of one number", func(s *scene) {
				udp := port("dns-udp", 53)
				udp.Protocol = corev1.ProtocolUDP
				sctp := port("dns-sctp", 53)
				sctp.Protocol = corev1.ProtocolSCTP
				s.resubset("web", subset([]corev1.EndpointPort{port("dns", 53), udp, sctp}, v4))
			})
			s.step("made without subsets", func(s *scene) { s.mirror("db") })
		}},
		{number: 9, name: "families", allowances: allowed[9], run: func(s *script) {
			s.step("dual stack", func(s *scene) { s.mirror("web", subset(http80, addresses("10.1.0.1", "fd00::1", "10.1.0.2"))) })
			s.step("IPv6 goes", func(s *scene) { s.resubset("web", subset(http80, addresses("10.1.0.1"))) })
			s.step("only IPv6 on an IPv4 Service", func(s *scene) { s.resubset("web", subset(http80, addresses("fd00::1", "FD00:0::2"))) })
			s.step("mapped", func(s *scene) { s.resubset("web", subset(http80, addresses("::ffff:10.1.0.3", "fd00::1"))) })
			s.step("zero-padded", func(s *scene) { s.resubset("web", subset(http80, addresses("010.001.000.004", "10.1.0.5"))) })
			s.step("one address in three spellings", func(s *scene) {
				s.resubset("web", subset(http80, addresses("10.1.0.4", "010.001.000.004"), address("::ffff:10.1.0.4")))
			})
			s.step("invalid in an old store", func(s *scene) {
				s.store(endpointsOf("web", subset(http80, addresses("10.1.0.4", "300.1.2.3", "web.example.com"), address("10.1.0"))))
			})
			s.step("only invalid", func(s *scene) { s.store(endpointsOf("web", subset(http80, addresses("300.1.2.3")))) })
			s.step("invalid and too many", func(s *scene) {
				s.store(endpointsOf("web", subset(http80, append(many(1, 1001), address("300.1.2.3"), address("0.1.2")))))
			})
		}},
		{number: 10, name: "fields", allowances: allowed[10], run: func(s *script) {
			full := func(change ...func(*corev1.EndpointAddress)) func(*scene) {
				a := pod("10.1.0.1", "web-0", "uid-0")
				a.Hostname, a.NodeName = "first", new(string)
				*a.NodeName = "node-1"
				a.TargetRef.ResourceVersion, a.TargetRef.FieldPath, a.TargetRef.APIVersion = "17", "spec.containers{app}", "v1"
				for _, apply := range change {
					apply(&a)
				}
				return func(s *scene) {
					s.resubset("web", subset([]corev1.EndpointPort{app("http", 80, "kubernetes.io/h2c")}, []corev1.EndpointAddress{a}))
				}
			}
			s.step("plain", func(s *scene) { s.mirror("web", subset(http80, v4)) })
			s.step("all fields", full())
			s.step("other node", full(func(a *corev1.EndpointAddress) { *a.NodeName = "node-2" }))
			s.step("other version of the target", full(func(a *corev1.EndpointAddress) { *a.NodeName, a.TargetRef.ResourceVersion = "node-2", "18" }))
			s.step("other target", full(func(a *corev1.EndpointAddress) { a.TargetRef.Name = "web-1" }))
			s.step("other field path", full(func(a *corev1.EndpointAddress) { a.TargetRef.Name, a.TargetRef.FieldPath = "web-1", "spec" }))
			s.step("other hostname", full(func(a *corev1.EndpointAddress) { a.Hostname = "second" }))
			s.step("target that is no Pod", full(func(a *corev1.EndpointAddress) {
				a.TargetRef = &corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "Machine", Name: "m1", UID: "uid-m"}
			}))
			s.step("no target", full(func(a *corev1.EndpointAddress) { a.TargetRef = nil }))
			s.step("other protocol", func(s *scene) {
				s.resubset("web", subset([]corev1.EndpointPort{app("http", 80, "example.com/x")}, v4))
			})
			s.step("no protocol", func(s *scene) { s.resubset("web", subset(http80, v4)) })
			s.step("no name of the port", func(s *scene) { s.resubset("web", subset(ports("", 80), v4)) })
		}},
		{number: 11, name: "twins", allowances: allowed[11], run: func(s *script) {
			s.step("UID differs", func(s *scene) {
				s.mirror("web", subset(http80, []corev1.EndpointAddress{pod("10.1.0.1", "web-0", "uid-0"), pod("10.1.0.1", "web-0", "uid-1")}))
			})
			s.step("UID and readiness differ", func(s *scene) {
				s.resubset("web", subset(http80, []corev1.EndpointAddress{pod("10.1.0.1", "web-0", "uid-1")}, pod("10.1.0.1", "web-0", "uid-0")))
			})
			s.step("UID and name differ", func(s *scene) {
				s.resubset("web", subset(http80, []corev1.EndpointAddress{pod("10.1.0.1", "web-0", "uid-0"), pod("10.1.0.1", "web-1", "uid-1")}))
			})
			s.step("name differs", func(s *scene) {
				s.resubset("web", subset(http80, []corev1.EndpointAddress{pod("10.1.0.1", "web-0", ""), pod("10.1.0.1", "web-1", "")}))
			})
			s.step("hostname differs", func(s *scene) {
				first, second := address("10.1.0.1"), address("10.1.0.1")
				first.Hostname, second.Hostname = "first", "second"
				s.resubset("web", subset(http80, []corev1.EndpointAddress{first, second}))
			})
			s.step("node differs in two subsets", func(s *scene) {
				first, second := address("10.1.0.1"), address("10.1.0.1")
				one, two := "node-1", "node-2"
				first.NodeName, second.NodeName = &one, &two
				s.resubset("web", subset(http80, []corev1.EndpointAddress{first}), subset(ports("dns", 53), []corev1.EndpointAddress{second}))
			})
		}},
		{number: 12, name: "limit", allowances: allowed[12], run: func(s *script) {
			s.step("1000", func(s *scene) { s.mirror("web", subset(http80, many(1, 1000))) })
			s.step("1001", func(s *scene) { s.resubset("web", subset(http80, many(1, 1001))) })
			s.step("500 ready 501 not", func(s *scene) { s.resubset("web", subset(http80, many(1, 500), many(0, 501)...)) })
			s.step("600 of each family", func(s *scene) { s.resubset("web", subset(http80, slices.Concat(many(1, 600), manyV6(600)))) })
			s.step("two port sets of 700", func(s *scene) {
				s.resubset("web", subset(http80, many(1, 700)), subset(ports("dns", 53), many(2, 700)))
			})
			s.step("two subsets of one port", func(s *scene) { s.resubset("web", subset(http80, many(1, 700)), subset(http80, many(2, 700))) })
			s.step("twins over the limit", func(s *scene) {
				var all []corev1.EndpointAddress
				for i := range 600 {
					for twin := range 2 {
						all = append(all, pod(fmt.Sprintf("10.1.%d.%d", i/250, i%250+1), fmt.Sprintf("web-%d", i), fmt.Sprintf("uid-%d-%d", i, twin)))
					}
				}
				s.resubset("web", subset(http80, all))
			})
			s.step("few", func(s *scene) { s.resubset("web", subset(http80, many(1, 2))) })
		}},
		{number: 23, name: "ports_of_one_name", allowances: allowed[23], run: func(s *script) {
			h2c := func(number int32) []corev1.EndpointPort {
				return []corev1.EndpointPort{app("http", number, "kubernetes.io/h2c")}
			}
			s.step("one name twice for one address", func(s *scene) { s.mirror("web", subset(http80, v4), subset(ports("http", 8080), v4)) })
			s.step("unnamed twice", func(s *scene) { s.mirror("plain", subset(ports("", 80), v4), subset(ports("", 8080), v4)) })
			s.step("one name twice in one subset", func(s *scene) {
				s.mirror("twice", subset([]corev1.EndpointPort{port("http", 80), port("http", 8080)}, v4))
			})
			s.step("one name for two addresses", func(s *scene) {
				s.mirror("db", subset(http80, v4), subset(ports("http", 8080), addresses("10.1.0.2")))
			})
			s.step("equal protocol in two subsets", func(s *scene) {
				s.mirror("app", subset(h2c(80), v4), subset(h2c(80), addresses("10.1.0.2")))
			})
			s.step("equal protocol and address in two subsets", func(s *scene) { s.resubset("app", subset(h2c(80), v4), subset(h2c(80), v4)) })
			s.step("equal protocol and 700 addresses in two subsets", func(s *scene) {
				s.resubset("app", subset(h2c(80), many(1, 700)), subset(h2c(80), many(2, 700)))
			})
		}},
	}
}
