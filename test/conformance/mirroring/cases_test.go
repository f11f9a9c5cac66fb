package mirroring

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func scenarios() []scenario {
	all := slices.Concat(objectScenarios(), contentScenarios(), writerScenarios(), restartScenarios())
	slices.SortFunc(all, func(a, b scenario) int { return a.number - b.number })
	return all
}

// Each case of the specification has the same outcome with both controllers, but for what the
// promises allow.
func TestCases_HaveUpstreamsOutcome(t *testing.T) {
	sides := startSides(t)
	for _, on := range sides {
		on.start(t, setup{})
	}
	t.Run("together", func(t *testing.T) {
		for _, c := range scenarios() {
			if c.alone {
				continue
			}
			t.Run(fmt.Sprintf("%02d_%s", c.number, c.name), func(t *testing.T) {
				t.Parallel()
				runScenario(t, sides, c)
			})
		}
	})
	for _, on := range sides {
		on.stop()
	}
	for _, c := range scenarios() {
		if c.alone {
			t.Run(fmt.Sprintf("%02d_%s", c.number, c.name), func(t *testing.T) { runScenario(t, sides, c) })
			for _, on := range sides {
				on.stop()
			}
		}
	}
}

// What most cases need. Nothing changes them.
var (
	http80 = ports("http", 80)
	v4     = addresses("10.1.0.1")
)

// objectScenarios are about the objects that there are.
func objectScenarios() []scenario {
	return []scenario{
		{number: 1, name: "create_update_delete", allowances: allowed[1], run: func(s *script) {
			s.step("create", func(s *scene) { s.mirror("web", subset(http80, addresses("10.1.2.3"))) })
			s.step("update", func(s *scene) { s.resubset("web", subset(ports("http", 9090), addresses("10.2.3.4"))) })
			s.step("further address", func(s *scene) { s.resubset("web", subset(ports("http", 9090), addresses("10.2.3.4", "10.2.3.5"))) })
			s.step("delete", func(s *scene) { s.deleteEndpoints("web") })
		}},
		{number: 2, name: "order_of_creation", allowances: allowed[2], run: func(s *script) {
			s.step("Endpoints first", func(s *scene) { s.endpoints(endpointsOf("web", subset(http80, addresses("10.1.0.1")))) })
			s.step("then the Service", func(s *scene) { s.service("web") })
			s.step("Service first", func(s *scene) { s.service("db") })
			s.step("then Endpoints", func(s *scene) { s.endpoints(endpointsOf("db", subset(http80, addresses("10.1.0.2")))) })
		}},
		{number: 3, name: "selector", allowances: allowed[3], run: func(s *script) {
			selector := map[string]string{"app": "web"}
			s.step("none", func(s *scene) { s.mirror("web", subset(http80, addresses("10.1.0.1"))) })
			s.step("set", func(s *scene) { s.changeService("web", func(v *corev1.Service) { v.Spec.Selector = selector }) })
			s.step("Endpoints change", func(s *scene) { s.resubset("web", subset(http80, addresses("10.1.0.2"))) })
			s.step("none again", func(s *scene) { s.changeService("web", func(v *corev1.Service) { v.Spec.Selector = nil }) })
			s.step("empty", func(s *scene) {
				s.changeService("web", func(v *corev1.Service) { v.Spec.Selector = map[string]string{} })
			})
			s.step("made with an empty one", func(s *scene) {
				s.service("db", func(v *corev1.Service) { v.Spec.Selector = map[string]string{} })
				s.endpoints(endpointsOf("db", subset(http80, addresses("10.1.0.3"))))
			})
			s.step("made with one", func(s *scene) {
				s.service("cache", func(v *corev1.Service) { v.Spec.Selector = selector })
				s.endpoints(endpointsOf("cache", subset(http80, addresses("10.1.0.4"))))
			})
		}},
		{number: 4, name: "service_deleted", allowances: allowed[4], run: func(s *script) {
			s.step("made", func(s *scene) { s.mirror("web", subset(http80, addresses("10.1.0.1"))) })
			s.step("Service deleted", func(s *scene) { s.deleteService("web") })
			s.step("Endpoints change", func(s *scene) { s.resubset("web", subset(http80, addresses("10.1.0.2"))) })
			s.step("Service back", func(s *scene) { s.service("web") })
			s.step("Service recreated", func(s *scene) {
				s.deleteService("web")
				s.service("web")
			})
		}},
		{number: 5, name: "not_to_be_mirrored", allowances: allowed[5], run: func(s *script) {
			label := func(value string) func(*scene) {
				return func(s *scene) {
					s.change("web", func(e *corev1.Endpoints) { e.Labels = map[string]string{discoveryv1.LabelSkipMirror: value} })
				}
			}
			s.step("made with the label", func(s *scene) {
				s.service("web")
				made := endpointsOf("web", subset(http80, addresses("10.1.0.1")))
				made.Labels = map[string]string{discoveryv1.LabelSkipMirror: "true"}
				s.endpoints(made)
			})
			s.step("false", label("false"))
			s.step("true", label("true"))
			s.step("TRUE", label("TRUE"))
			s.step("removed", func(s *scene) { s.change("web", func(e *corev1.Endpoints) { e.Labels = nil }) })
			s.step("leader", func(s *scene) {
				s.change("web", func(e *corev1.Endpoints) { e.Annotations = map[string]string{leaderAnnotation: ""} })
			})
			s.step("leader removed", func(s *scene) { s.change("web", func(e *corev1.Endpoints) { e.Annotations = nil }) })
			s.step("deleted with the label", func(s *scene) {
				label("true")(s)
				s.deleteEndpoints("web")
			})
		}},
		{number: 6, name: "kinds_of_services", allowances: allowed[6], run: func(s *script) {
			s.step("ExternalName", func(s *scene) {
				s.service("away", func(v *corev1.Service) {
					v.Spec.Type, v.Spec.ExternalName = corev1.ServiceTypeExternalName, "away.example.com"
				})
				s.endpoints(endpointsOf("away", subset(http80, addresses("10.1.0.1"))))
			})
			s.step("headless", func(s *scene) {
				s.service("plain", func(v *corev1.Service) { v.Spec.ClusterIP = corev1.ClusterIPNone })
				s.endpoints(endpointsOf("plain", subset(nil, addresses("10.1.0.2"))))
			})
			s.step("not ready addresses published", func(s *scene) {
				s.changeService("plain", func(v *corev1.Service) { v.Spec.PublishNotReadyAddresses = true })
				s.resubset("plain", subset(nil, nil, address("10.1.0.2")))
			})
			s.step("other ports and labels of the Service", func(s *scene) {
				s.changeService("plain", func(v *corev1.Service) {
					v.Spec.Ports, v.Labels = []corev1.ServicePort{{Name: "other", Port: 81}}, map[string]string{"a": "b"}
				})
			})
			s.step("default/kubernetes", func(s *scene) {
				_, err := s.kube.CoreV1().Endpoints(metav1.NamespaceDefault).Create(s.ctx(), &corev1.Endpoints{
					ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"}},
					Subsets:    []corev1.EndpointSubset{subset(ports("https", 6443), addresses("10.1.0.9"))},
				}, metav1.CreateOptions{})
				s.must(err)
			})
			s.each(func(s *scene) {
				if found, err := s.mirrored(s.ctx(), metav1.NamespaceDefault, "kubernetes"); err != nil || len(found) > 0 {
					s.t.Errorf("%s: default/kubernetes has %d mirrored slices, %v", s.name, len(found), err)
				}
			})
		}},
		{number: 20, name: "terminating", allowances: allowed[20], run: func(s *script) {
			pinned := func(s *scene) {
				s.service("web")
				made := endpointsOf("web", subset(http80, addresses("10.1.0.1")))
				made.Finalizers = []string{"example.com/pin"}
				s.endpoints(made)
			}
			s.step("made", pinned)
			s.step("Endpoints terminating", func(s *scene) { s.deleteEndpoints("web") })
			s.step("address changes", func(s *scene) { s.resubset("web", subset(http80, addresses("10.1.0.2"))) })
			s.step("further port set", func(s *scene) {
				s.resubset("web", subset(http80, addresses("10.1.0.2")), subset(ports("dns", 53), addresses("10.1.0.3")))
			})
			s.step("slice deleted", func(s *scene) {
				all, err := s.mirrored(s.ctx(), s.namespace, "web")
				s.must(err)
				for _, slice := range all {
					s.deleteSlice(slice.Name)
				}
			})
			s.step("Endpoints gone", func(s *scene) { s.change("web", func(e *corev1.Endpoints) { e.Finalizers = nil }) })
			s.step("before the namespace goes", func(s *scene) { s.mirror("db", subset(http80, addresses("10.1.0.4"))) })
			s.step("namespace terminating", func(s *scene) {
				s.must(s.kube.CoreV1().Namespaces().Delete(s.ctx(), s.namespace, metav1.DeleteOptions{}))
				s.resubset("db", subset(http80, addresses("10.1.0.5")))
			})
			s.step("further port set in it", func(s *scene) {
				s.resubset("db", subset(http80, addresses("10.1.0.6")), subset(ports("dns", 53), addresses("10.1.0.3")))
			})
			s.step("Endpoints deleted in it", func(s *scene) { s.deleteEndpoints("db") })
		}},
	}
}

const leaderAnnotation = "control-plane.alpha.kubernetes.io/leader"
