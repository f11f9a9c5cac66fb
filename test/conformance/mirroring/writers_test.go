package mirroring

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// writerScenarios are about what a controller writes, and what others write to its slices.
func writerScenarios() []scenario {
	return []scenario{
		{number: 14, name: "metadata", allowances: allowed[14], run: func(s *script) {
			annotate := func(annotations map[string]string) func(*scene) {
				return func(s *scene) { s.change("web", func(e *corev1.Endpoints) { e.Annotations = annotations }) }
			}
			label := func(labels map[string]string) func(*scene) {
				return func(s *scene) { s.change("web", func(e *corev1.Endpoints) { e.Labels = labels }) }
			}
			s.step("made", func(s *scene) {
				s.service("web")
				made := endpointsOf("web", subset(http80, v4))
				made.Labels, made.Annotations = map[string]string{"a": "1", "b": "2"}, map[string]string{"x": "1", "y": "2"}
				s.endpoints(made)
			})
			s.step("labels change", label(map[string]string{"a": "2", "c": "3"}))
			s.step("annotations change", annotate(map[string]string{"x": "2", "z": "3"}))
			s.step("reserved annotations", annotate(map[string]string{
				"x": "2", "z": "3", corev1.EndpointsLastChangeTriggerTime: "2026-01-01T00:00:00Z", corev1.LastAppliedConfigAnnotation: "{}",
			}))
			s.step("annotations go", annotate(nil))
			s.step("labels go", label(nil))
			s.step("label headless", label(map[string]string{corev1.IsHeadlessService: ""}))
			s.step("label managed-by of the endpoints controller", label(map[string]string{"endpoints.kubernetes.io/managed-by": "endpoint-controller"}))
			s.step("reserved labels", label(map[string]string{discoveryv1.LabelServiceName: "other", discoveryv1.LabelManagedBy: "another-manager"}))
			s.step("address with reserved labels", func(s *scene) { s.resubset("web", subset(http80, addresses("10.1.0.2"))) })
			s.step("nothing with reserved labels", annotate(map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-02T00:00:00Z"}))
		}},
		{number: 15, name: "slice_edited", allowances: allowed[15], run: func(s *script) {
			edit := func(change func(*discoveryv1.EndpointSlice)) func(*scene) {
				return func(s *scene) { s.edit("web", change) }
			}
			s.step("made", func(s *scene) {
				s.mirror("web", subset(http80, addresses("10.1.0.1", "10.1.0.2")))
				s.mirror("db", subset(http80, v4))
			})
			s.step("endpoints", edit(func(v *discoveryv1.EndpointSlice) { v.Endpoints[0].Addresses = []string{"10.6.6.6"} }))
			s.step("no endpoints", edit(func(v *discoveryv1.EndpointSlice) { v.Endpoints = nil }))
			s.step("conditions", edit(func(v *discoveryv1.EndpointSlice) { *v.Endpoints[0].Conditions.Ready = false }))
			s.step("serving", edit(func(v *discoveryv1.EndpointSlice) { v.Endpoints[0].Conditions.Serving = new(bool) }))
			s.step("zone", edit(func(v *discoveryv1.EndpointSlice) { zone := "a"; v.Endpoints[0].Zone = &zone }))
			s.step("one endpoint twice", edit(func(v *discoveryv1.EndpointSlice) { v.Endpoints[1] = v.Endpoints[0] }))
			s.step("then an address changes", func(s *scene) { s.resubset("web", subset(http80, addresses("10.1.0.1", "10.1.0.3"))) })
			s.step("ports", edit(func(v *discoveryv1.EndpointSlice) { *v.Ports[0].Port = 81 }))
			s.step("name of the port", edit(func(v *discoveryv1.EndpointSlice) { *v.Ports[0].Name = "other" }))
			s.step("label removed", edit(func(v *discoveryv1.EndpointSlice) { v.Labels["extra"] = "yes" }))
			s.step("hints", edit(func(v *discoveryv1.EndpointSlice) {
				v.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}}}
			}))
			s.step("annotation", edit(func(v *discoveryv1.EndpointSlice) { v.Annotations = map[string]string{"note": "keep"} }))
			s.step("finalizer and owner", edit(func(v *discoveryv1.EndpointSlice) {
				v.Finalizers = []string{"example.com/pin"}
				v.OwnerReferences = append(v.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "uid-c"})
			}))
			s.step("address changes", func(s *scene) { s.resubset("web", subset(http80, addresses("10.1.0.4"))) })
			s.step("owner removed", func(s *scene) { // of another slice: slicesvc yields to a writer that changes one slice again and again
				s.edit("db", func(v *discoveryv1.EndpointSlice) { v.OwnerReferences = nil })
			})
			s.step("finalizers removed", (*scene).unpin)
			s.step("address changes again", func(s *scene) { s.resubset("web", subset(http80, addresses("10.1.0.5"))) })
		}},
		{number: 16, name: "slice_deleted", allowances: allowed[16], run: func(s *script) {
			relabel := func(name, key, value string) func(*scene) {
				return func(s *scene) { s.edit(name, func(v *discoveryv1.EndpointSlice) { v.Labels[key] = value }) }
			}
			readdress := func(name, to string) func(*scene) {
				return func(s *scene) { s.resubset(name, subset(http80, addresses(to))) }
			}
			pin := func(v *discoveryv1.EndpointSlice) { v.Finalizers = []string{"example.com/pin"} }
			s.step("made", func(s *scene) {
				for _, name := range []string{"plain", "pinned", "manager", "service"} {
					s.mirror(name, subset(http80, v4))
				}
				s.mirror("two", subset(http80, v4), subset(ports("dns", 53), addresses("10.1.0.2")))
			})
			s.step("deleted", func(s *scene) { s.deleteSlice(s.one("plain").Name) })
			s.step("deleted, then an address changes", readdress("plain", "10.1.0.3"))
			s.step("held by a finalizer", func(s *scene) {
				s.edit("pinned", pin)
				s.deleteSlice(s.one("pinned").Name)
			})
			s.step("held, and an address changes", readdress("pinned", "10.1.0.2"))
			s.step("let go", (*scene).unpin)
			s.step("let go, then an address changes", readdress("pinned", "10.1.0.3"))
			s.step("other manager", relabel("manager", discoveryv1.LabelManagedBy, "another-manager"))
			s.step("other manager, then an address changes", readdress("manager", "10.1.0.4"))
			s.step("other Service", relabel("service", discoveryv1.LabelServiceName, "other"))
			s.step("other Service, then an address changes", readdress("service", "10.1.0.4"))
			s.step("own deletion held", func(s *scene) {
				all, err := s.mirrored(s.ctx(), s.namespace, "two")
				s.must(err)
				for _, slice := range all {
					s.editSlice(slice.Name, pin)
				}
				s.resubset("two", subset(http80, v4))
			})
			s.step("own deletion held, and an address changes", readdress("two", "10.1.0.7"))
			s.step("own deletion held, then let go", (*scene).unpin)
		}},
		{number: 17, name: "made_by_others", allowances: allowed[17], run: func(s *script) {
			foreign := func(name string, kind discoveryv1.AddressType, address string) *discoveryv1.EndpointSlice {
				portName, number, protocol, ready := "http", int32(80), corev1.ProtocolTCP, true
				return &discoveryv1.EndpointSlice{
					ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
						discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: mirrorManager,
					}},
					AddressType: kind,
					Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &number, Protocol: &protocol}},
					Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
				}
			}
			s.step("no Service", func(s *scene) { s.makeSlice(foreign("orphan", discoveryv1.AddressTypeIPv4, "10.1.0.1")) })
			s.step("made", func(s *scene) { s.mirror("web", subset(http80, v4)) })
			s.step("a duplicate", func(s *scene) { s.makeSlice(foreign("duplicate", discoveryv1.AddressTypeIPv4, "10.1.0.1")) })
			s.step("two others", func(s *scene) {
				s.makeSlice(foreign("second", discoveryv1.AddressTypeIPv4, "10.1.0.8"))
				s.makeSlice(foreign("third", discoveryv1.AddressTypeIPv4, "10.1.0.9"))
			})
			s.step("FQDN", func(s *scene) { s.makeSlice(foreign("named", discoveryv1.AddressTypeFQDN, "web.example.com")) })
			s.step("of another manager", func(s *scene) {
				made := foreign("foreign", discoveryv1.AddressTypeIPv4, "10.7.7.7")
				made.Labels[discoveryv1.LabelManagedBy] = "another-manager"
				s.makeSlice(made)
			})
			s.step("without a Service's name", func(s *scene) {
				made := foreign("nameless", discoveryv1.AddressTypeIPv4, "10.7.7.7")
				delete(made.Labels, discoveryv1.LabelServiceName)
				s.makeSlice(made)
			})
		}},
		{number: 18, name: "ports_change", allowances: allowed[18], run: func(s *script) {
			const dual = 12
			s.step("made", func(s *scene) {
				s.mirror("web", subset(http80, v4))
				for i := range dual {
					s.mirror(fmt.Sprintf("dual-%d", i), subset(http80, addresses("10.1.0.1", "fd00::1")))
				}
			})
			s.step("one family", func(s *scene) { s.resubset("web", subset(ports("http", 8080), v4)) })
			s.step("two families", func(s *scene) {
				for i := range dual {
					s.resubset(fmt.Sprintf("dual-%d", i), subset(ports("http", 8080), addresses("10.1.0.1", "fd00::1")))
				}
			})
			s.step("one port set more and another", func(s *scene) {
				s.resubset("web", subset(ports("dns", 53), v4), subset(ports("ntp", 123), addresses("10.1.0.2")))
			})
		}},
		{number: 21, name: "second_sync", allowances: allowed[21], run: func(s *script) {
			touch := func(value string) func(*scene) {
				return func(s *scene) {
					for _, name := range []string{"web", "plain"} {
						s.change(name, func(e *corev1.Endpoints) {
							e.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: value}
						})
					}
				}
			}
			s.step("made", func(s *scene) {
				s.mirror("web", subset(http80, addresses("10.1.0.1", "fd00::1"), pod("10.1.0.2", "web-1", "uid-1")), subset(ports("dns", 53), v4))
				s.mirror("plain", subset(nil, v4))
			})
			s.step("touched", touch("2026-01-01T00:00:00Z"))
			s.step("touched again", touch("2026-01-02T00:00:00Z"))
			s.step("order of addresses and ports", func(s *scene) {
				s.resubset("web", subset(ports("dns", 53), v4), subset(http80, addresses("fd00::1", "10.1.0.1"), pod("10.1.0.2", "web-1", "uid-1")))
			})
		}},
	}
}
