package mirroring

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/deploy"
	"github.com/trivet-dev/trivet/internal/roles"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// start starts the controllers of all sides.
func (s *script) start(with setup) {
	s.t.Helper()
	s.each(func(s *scene) { s.start(s.t, with) })
}

func (s *script) stop() { s.each(func(s *scene) { s.stop() }) }

// restartScenarios stop and start controllers, or disturb their requests.
func restartScenarios() []scenario {
	return []scenario{
		{number: 12, name: "spill", alone: true, allowances: allowed[spillCase], run: func(s *script) {
			s.start(setup{spill: true})
			s.step("1001", func(s *scene) { s.mirror("web", subset(http80, many(1, 1001))) })
			s.step("2500", func(s *scene) { s.resubset("web", subset(http80, many(1, 2500))) })
			s.step("600 of each family", func(s *scene) { s.resubset("web", subset(http80, slices.Concat(many(1, 600), manyV6(600)))) })
			s.each(func(s *scene) {
				if s.name == ours {
					s.expectTotal("web", 1200)
				}
			})
			s.step("few", func(s *scene) { s.resubset("web", subset(http80, v4)) })
		}},
		{number: 13, name: "limit_lowered", alone: true, allowances: allowed[13], run: func(s *script) {
			s.start(setup{})
			s.step("made", func(s *scene) {
				s.mirror("web", subset(http80, many(1, 150)))
				s.mirror("dual", subset(http80, many(1, 60), manyV6(60)...))
			})
			s.stop()
			s.step("lowered", func(s *scene) { s.start(s.t, setup{perSubset: 100}) })
			s.step("one more", func(s *scene) { s.resubset("web", subset(http80, many(1, 151))) })
			s.stop()
			s.step("raised", func(s *scene) { s.start(s.t, setup{}) })
		}},
		{number: 19, name: "changes_while_down", alone: true, allowances: allowed[19], run: func(s *script) {
			s.start(setup{})
			names := []string{"recreated", "deleted", "orphan", "selected", "skipped", "changed", "kept", "edited", "emptied", "moved"}
			s.step("made", func(s *scene) {
				for _, name := range names {
					s.mirror(name, subset(http80, addresses("10.1.0.1", "fd00::1")))
				}
			})
			s.stop()
			s.step("changed while down", func(s *scene) {
				s.deleteEndpoints("recreated")
				s.endpoints(endpointsOf("recreated", subset(http80, addresses("10.1.0.1", "fd00::1"))))
				s.deleteEndpoints("deleted")
				s.deleteService("deleted")
				s.deleteService("orphan")
				s.changeService("selected", func(v *corev1.Service) { v.Spec.Selector = map[string]string{"app": "web"} })
				s.change("skipped", func(e *corev1.Endpoints) { e.Labels = map[string]string{discoveryv1.LabelSkipMirror: "true"} })
				s.resubset("changed", subset(http80, addresses("10.1.0.2", "fd00::1")))
				s.resubset("emptied")
				s.resubset("moved", subset(ports("dns", 53), v4))
				edited, err := s.mirrored(s.ctx(), s.namespace, "edited")
				s.must(err)
				for _, slice := range edited {
					s.editSlice(slice.Name, func(v *discoveryv1.EndpointSlice) { v.Endpoints[0].Conditions.Ready = new(bool) })
				}
				s.start(s.t, setup{})
			})
			s.stop()
			s.step("nothing changed while down", func(s *scene) { s.start(s.t, setup{}) })
		}},
		{number: 22, name: "faults", alone: true, allowances: allowed[22], run: runFaults},
		{number: 24, name: "rights", alone: true, allowances: allowed[24], run: func(s *script) {
			s.step("made", func(s *scene) {
				s.start(s.t, setup{kubeconfig: s.restricted()})
				s.mirror("web", subset(http80, many(1, 1001)))
			})
			s.step("changed", func(s *scene) { s.resubset("web", subset(http80, addresses("10.1.0.1", "fd00::1"))) })
			s.step("edited", func(s *scene) {
				all, err := s.mirrored(s.ctx(), s.namespace, "web")
				s.must(err)
				for _, slice := range all {
					s.deleteSlice(slice.Name)
				}
			})
			s.step("deleted", func(s *scene) { s.deleteEndpoints("web") })
		}},
		{number: 24, name: "metrics", alone: true, allowances: allowed[metricsCase], run: runMetrics},
		{number: 25, name: "adoption", alone: true, allowances: allowed[25], run: runAdoption},
	}
}

// runAdoption lets kube-controller-manager and the controller of the side follow each other.
// Upstream follows itself on its own side.
func runAdoption(s *script) {
	objects := func(prefix string) func(*scene) {
		return func(s *scene) {
			first := pod("10.1.0.1", "web-0", "uid-0")
			first.Hostname = "first"
			s.mirror(prefix+"-full", subset([]corev1.EndpointPort{app("http", 80, "kubernetes.io/h2c"), port("dns", 53)},
				[]corev1.EndpointAddress{first, address("fd00::1")}, address("10.1.0.2")))
			s.mirror(prefix+"-subsets", subset(http80, addresses("10.1.0.1", "10.1.0.2")), subset(ports("dns", 53), v4))
			s.mirror(prefix+"-plain", subset(nil, v4))
			s.mirror(prefix+"-many", subset(http80, many(1, 1001)))
			s.service(prefix + "-described")
			described := endpointsOf(prefix+"-described", subset(http80, v4))
			described.Labels, described.Annotations = map[string]string{"a": "b"}, map[string]string{"c": "d", corev1.EndpointsLastChangeTriggerTime: "2026-01-01T00:00:00Z"}
			s.endpoints(described)
		}
	}
	begin := func(controller string) func(*scene) {
		return func(s *scene) { s.start(s.t, setup{controller: controller}) }
	}
	s.start(setup{controller: upstream})
	s.step("made by upstream", objects("theirs"))
	s.stop()
	s.step("handed over", begin(""))
	s.step("made then", objects("own"))
	s.step("address changes", func(s *scene) { s.resubset("theirs-plain", subset(nil, addresses("10.1.0.2"))) })
	s.stop()
	s.step("handed back", begin(upstream))
	s.step("address changes again", func(s *scene) { s.resubset("own-plain", subset(nil, addresses("10.1.0.3"))) })
	s.stop()
	s.step("handed over again", begin(""))
}

// runFaults lets the controllers work behind proxies. What a proxy refuses is in no audit log.
func runFaults(s *script) {
	proxies := map[string]*faultproxy.KubeProxy{}
	s.each(func(s *scene) {
		proxies[s.name] = faultproxy.NewKube(s.t, s.cluster.RESTConfig())
		s.start(s.t, setup{kubeconfig: proxies[s.name].Kubeconfig(s.t)})
	})
	s.step("made", func(s *scene) {
		for _, name := range []string{"web", "gone", "busy"} {
			s.mirror(name, subset(http80, v4))
		}
	})
	sliceWatch, endpointsWatch := faultproxy.Resource("endpointslices", "watch"), faultproxy.Resource("endpoints", "watch")
	writes := faultproxy.Resource("endpointslices", "create", "update", "patch", "delete")
	s.step("slices are seen late", func(s *scene) {
		release := proxies[s.name].HoldEvents(sliceWatch)
		s.resubset("web", subset(http80, addresses("10.1.0.2")))
		s.awaitAddress("web", "10.1.0.2")
		s.resubset("web", subset(http80, addresses("10.1.0.3")))
		s.pass()
		release()
		s.awaitAddress("web", "10.1.0.3")
	})
	s.step("a slice is gone, and that is seen late", func(s *scene) {
		release := proxies[s.name].HoldEvents(sliceWatch)
		s.deleteSlice(s.one("gone").Name)
		s.resubset("gone", subset(http80, addresses("10.1.0.2")))
		s.pass()
		release()
		s.awaitAddress("gone", "10.1.0.2")
	})
	s.step("Endpoints are seen late", func(s *scene) {
		release := proxies[s.name].HoldEvents(endpointsWatch)
		s.resubset("web", subset(http80, addresses("10.1.0.4")))
		s.edit("web", func(v *discoveryv1.EndpointSlice) { v.Endpoints[0].Addresses = []string{"10.6.6.6"} })
		s.pass()
		release()
		s.awaitAddress("web", "10.1.0.4")
	})
	for _, refusal := range []struct {
		code   int
		reason metav1.StatusReason
	}{
		{http.StatusConflict, metav1.StatusReasonConflict},
		{http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests},
		{http.StatusInternalServerError, metav1.StatusReasonInternalError},
	} {
		s.step(fmt.Sprintf("%d", refusal.code), func(s *scene) {
			allow := proxies[s.name].Refuse(writes, refusal.code, refusal.reason)
			busy := fmt.Sprintf("10.2.1.%d", refusal.code%250)
			s.resubset("busy", subset(http80, addresses(busy)))
			s.pass()
			allow()
			s.awaitAddress("busy", busy)
		})
	}
	const crowd = 40
	name := func(i int) string { return fmt.Sprintf("crowd-%d", i) }
	s.step("many", func(s *scene) {
		if s.name == ours {
			s.start(s.t, setup{})
		}
		for i := range crowd {
			s.mirror(name(i), subset(http80, v4))
		}
	})
	s.step("killed between two writes", func(s *scene) {
		begun := time.Now()
		for i := range crowd {
			s.resubset(name(i), subset(http80, addresses("10.1.0.9")))
			if i == crowd/2 {
				s.awaitWrites(begun, 1)
				s.failOver()
			}
		}
	})
}

// expectTotal fails unless a Service has so many mirrored endpoints, each once.
func (s *scene) expectTotal(name string, want int) {
	s.t.Helper()
	found, err := s.mirrored(s.ctx(), s.namespace, name)
	s.must(err)
	seen := map[string]bool{}
	for _, slice := range found {
		for _, e := range slice.Endpoints {
			if seen[e.Addresses[0]] {
				s.t.Errorf("%s: %s is twice in the slices of %s", s.name, e.Addresses[0], name)
			}
			seen[e.Addresses[0]] = true
		}
	}
	if len(seen) != want {
		s.t.Errorf("%s: %s has %d endpoints, want %d", s.name, name, len(seen), want)
	}
}

// pass waits until a controller with a fault has tried more than once.
func (s *scene) pass() { time.Sleep(restTime) }

// failOver kills the controller. Of slicesvc another replica runs, which takes over. Of
// kube-controller-manager another one starts, as its leader election would have it.
func (s *scene) failOver() {
	if s.name == ours {
		s.killFirst()
		return
	}
	s.kill()
	s.start(s.t, setup{})
}

// awaitAddress waits until a Service has one slice with one address.
func (s *scene) awaitAddress(name, address string) {
	s.t.Helper()
	testkit.Eventually(s.t, patience, func() error {
		found, err := s.mirrored(s.ctx(), s.namespace, name)
		if err == nil && (len(found) != 1 || len(found[0].Endpoints) != 1 || found[0].Endpoints[0].Addresses[0] != address) {
			err = fmt.Errorf("%s: the slice of %s is not that of %s yet", s.name, name, address)
		}
		return err
	})
}

// awaitWrites waits for so many writes since then.
func (s *scene) awaitWrites(since time.Time, count int) {
	s.t.Helper()
	testkit.Eventually(s.t, patience, func() error {
		writes, err := s.audit.in(s.namespace, since)
		if err == nil && len(writes) < count {
			err = errors.New("not written yet")
		}
		return err
	})
}

// restricted writes a kubeconfig of a user with only the rights that the controller of the side
// ships with.
func (s *scene) restricted() string {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), "kubeconfig")
	if s.name == ours {
		s.must(roles.Apply(s.ctx(), s.cluster.RESTConfig(), deploy.Files(), "base", "components/endpointslice-mirroring"))
		user, groups := roles.User("slicesvc")
		s.must(s.cluster.WriteKubeconfig(path, user, groups...))
		return path
	}
	const user = "mirroring-controller"
	_, err := s.kube.RbacV1().ClusterRoleBindings().Create(s.ctx(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:controller:endpointslicemirroring-controller"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}, metav1.CreateOptions{})
	s.must(err)
	s.must(s.cluster.WriteKubeconfig(path, user))
	return path
}
