package explain_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trivet-dev/trivet/internal/evidence"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/explain"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

var update = flag.Bool("update", false, "write the chains to testdata")

func now() time.Time { return slicetest.CreationTime().Add(2 * time.Hour) }

// fixture is Pod web-1 in Service web, whose slice has web-0 to web-2.
type fixture struct {
	service func(*corev1.Service)
	// before changes the Pod before its slice is written, after changes it later.
	before, after func(*corev1.Pod)
	// node changes what is known of the Pod's Node.
	node func(*desired.Candidate)
	// slice changes the slice, facts anything else.
	slice func(*discoveryv1.EndpointSlice)
	facts func(*explain.Facts)
}

func (s fixture) explain() (explain.Facts, explain.Chain) {
	service := slicetest.Service("web", apply(s.service), func(service *corev1.Service) { service.ResourceVersion = "40" })
	candidates := slicetest.Pods(0, 3)
	apply(s.before)(candidates[1].Pod)
	candidates[1].Pod.ResourceVersion = "41"
	slice := slicetest.Slice(service, "web-x7k2p", candidates, apply(s.slice))
	candidates[1].Pod = candidates[1].Pod.DeepCopy()
	apply(s.after)(candidates[1].Pod)
	apply(s.node)(&candidates[1])
	facts := explain.Facts{
		Now: now(), Service: service, Candidate: candidates[1], Slices: []*discoveryv1.EndpointSlice{slice}, Held: true,
	}
	apply(s.facts)(&facts)
	return facts, explain.Explain(facts)
}

func apply[T any](change func(T)) func(T) {
	if change == nil {
		return func(T) {}
	}
	return change
}

func withoutSlices(f *explain.Facts) { f.Slices = nil }

func dual(service *corev1.Service) {
	service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
}

func near(mode string) func(*corev1.Service) {
	return func(service *corev1.Service) { service.Spec.TrafficDistribution = &mode }
}

func fixtures() map[string]fixture {
	return map[string]fixture{
		"included":         {},
		"label differs":    {after: func(pod *corev1.Pod) { pod.Labels["app"] = "api" }, facts: withoutSlices},
		"label is missing": {after: func(pod *corev1.Pod) { delete(pod.Labels, "app") }, facts: func(f *explain.Facts) { f.Pending = true }},
		"two labels": {
			service: func(service *corev1.Service) {
				service.Spec.Selector = map[string]string{"app": "web", "tier": "front"}
			},
			after: func(pod *corev1.Pod) { pod.Labels["tier"] = "back" },
			facts: withoutSlices,
		},
		"no selector": {service: func(service *corev1.Service) { service.Spec.Selector = nil }},
		"external name": {
			service: func(service *corev1.Service) { service.Spec.Type = corev1.ServiceTypeExternalName },
			facts:   withoutSlices,
		},
		"service is deleted": {service: deleted},
		"has ended": {
			after: func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed },
			facts: func(f *explain.Facts) { f.Pending = true },
		},
		"no address yet": {
			after: func(pod *corev1.Pod) { pod.Status.PodIPs, pod.Status.Phase = nil, corev1.PodPending },
			facts: withoutSlices,
		},
		"special address": {
			after: func(pod *corev1.Pod) { pod.Status.PodIPs = []corev1.PodIP{{IP: "169.254.169.254"}} },
			facts: withoutSlices,
		},
		"only the other family": {
			service: func(service *corev1.Service) { service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} },
			facts:   withoutSlices,
		},
		"dual stack, one address": {service: dual},
		"family no longer served": {
			slice: func(slice *discoveryv1.EndpointSlice) { slice.AddressType = discoveryv1.AddressTypeIPv6 },
		},
		"not bound": {
			after: func(pod *corev1.Pod) { pod.Spec.NodeName, pod.Status.PodIPs = "", nil },
			node:  func(c *desired.Candidate) { c.NodeKnown, c.Zone = false, "" },
			facts: withoutSlices,
		},
		"node does not exist": {
			node:  func(c *desired.Candidate) { c.NodeKnown, c.Zone = false, "" },
			facts: withoutSlices,
		},
		"node does not exist, published": {
			service: func(service *corev1.Service) { service.Spec.PublishNotReadyAddresses = true },
			node:    func(c *desired.Candidate) { c.NodeKnown, c.Zone = false, "" },
		},
		"not ready":        {before: slicetest.Unready},
		"no readiness yet": {before: func(pod *corev1.Pod) { pod.Status.Conditions = nil }},
		"not ready, published": {
			service: func(service *corev1.Service) { service.Spec.PublishNotReadyAddresses = true },
			before:  slicetest.Unready,
		},
		"just became ready": {before: slicetest.Unready, after: func(pod *corev1.Pod) {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}, facts: func(f *explain.Facts) { f.Pending = true }},
		"terminating": {before: slicetest.Terminating},
		"terminating, not written yet": {
			after: slicetest.Terminating,
			facts: func(f *explain.Facts) { f.Held = false },
		},
		"one port is missing": {service: func(service *corev1.Service) {
			service.Spec.Ports = append(service.Spec.Ports, slicetest.Port("admin", 90, intstr.FromString("admin")))
		}},
		"no such port": {service: func(service *corev1.Service) {
			service.Spec.Ports = []corev1.ServicePort{slicetest.Port("http", 80, intstr.FromString("web"))}
		}},
		"service without ports": {service: func(service *corev1.Service) { service.Spec.Ports, service.Spec.ClusterIP = nil, corev1.ClusterIPNone }},
		"not in a slice yet":    {facts: func(f *explain.Facts) { f.Slices = nil }},
		"in two slices": {facts: func(f *explain.Facts) {
			second := f.Slices[0].DeepCopy()
			second.Name = "web-b"
			f.Slices, f.Pending = append(f.Slices, second), true
		}},
		"earlier pod of that name": {after: func(pod *corev1.Pod) { pod.UID = "uid-of-another" }},
		"zone hint":                {service: near("PreferClose")},
		"node hint":                {service: near("PreferSameNode")},
		"node hint without a zone": {
			service: near("PreferSameNode"),
			node:    func(c *desired.Candidate) { c.Zone = "" },
			facts: func(f *explain.Facts) {
				f.Slices[0].Endpoints[1].Zone, f.Slices[0].Endpoints[1].Hints.ForZones = nil, nil
			},
		},
		"hints without a zone": {
			service: near("PreferSameZone"),
			facts: func(f *explain.Facts) {
				f.Slices[0].Endpoints[1].Hints = nil
				f.Slices[0].Endpoints[1].Zone = nil
			},
			node: func(c *desired.Candidate) { c.Zone = "" },
		},
		"address without a pod": {facts: func(f *explain.Facts) { f.Candidate, f.Address = desired.Candidate{}, "10.9.9.9" }},
		"address without a pod, in a slice": {
			service: dual,
			facts:   func(f *explain.Facts) { f.Candidate, f.Address, f.Pending = desired.Candidate{}, "10.1.0.2", true },
		},
		"address without a selector": {
			service: func(service *corev1.Service) { service.Spec.Selector = nil },
			facts:   func(f *explain.Facts) { f.Candidate, f.Address, f.Slices = desired.Candidate{}, "fd00::7", nil },
		},
		"mirrored":                                   mirrored(nil, nil),
		"mirrored, not ready":                        mirrored(func(e *corev1.Endpoints) { notReady(&e.Subsets[0]) }, nil),
		"mirrored, ready for one port":               mirrored(addSubset(notReady), nil),
		"mirrored, ready for one subset of the port": mirrored(addSubset(notReady, func(subset *corev1.EndpointSubset) { subset.Ports[0].Name, subset.Ports[0].Port = "http", 8080 }), nil),
		"mirrored for two ports":                     mirrored(addSubset(), nil),
		"mirrored, in no subset":                     mirrored(func(e *corev1.Endpoints) { e.Subsets[0].Addresses = e.Subsets[0].Addresses[1:] }, func(f *explain.Facts) { f.Mirror.Slices = nil }),
		"mirrored, over the limit": mirrored(nil, func(f *explain.Facts) {
			f.Mirror.Limits.PerSubset, f.Address, f.Mirror.Slices = 2, "10.0.0.3", nil
		}),
		"mirrored, with an invalid address": mirrored(func(e *corev1.Endpoints) { e.Subsets[0].Addresses[1].IP = "not\xff an address" }, func(f *explain.Facts) {
			f.Mirror.Pending = true
		}),
		"mirrored, without ports": mirrored(func(e *corev1.Endpoints) { e.Subsets[0].Ports = nil }, nil),
		"mirrored, skip label":    mirrored(nil, reason(mirror.SkipMirrorLabel)),
		"mirrored, leader":        mirrored(nil, reason(mirror.LeaderAnnotation)),
		"mirrored, content of the Endpoints is unknown": mirrored(nil, func(f *explain.Facts) {
			reason(mirror.SkipMirrorLabel)(f)
			f.Mirror.ContentKnown, f.Mirror.Endpoints.Subsets = false, nil
		}),
		"mirrored, no Endpoints": mirrored(nil, func(f *explain.Facts) {
			reason(mirror.NoEndpoints)(f)
			f.Mirror.Endpoints, f.Mirror.ContentKnown = nil, false
		}),
		"mirrored, no Service": mirrored(nil, func(f *explain.Facts) {
			reason(mirror.NoService)(f)
			f.Service = nil
		}),
		"mirrored, ExternalName": mirrored(nil, func(f *explain.Facts) { f.Service.Spec.Type = corev1.ServiceTypeExternalName }),
		"mirrored, IPv6":         mirrored(func(e *corev1.Endpoints) { e.Subsets[0].Addresses[0].IP = "fd00::1" }, func(f *explain.Facts) { f.Address = "fd00::1" }),
		"mirrored, not written":  mirrored(nil, func(f *explain.Facts) { f.Mirror.Slices, f.Mirror.Pending = nil, true }),
		"mirrored, drifted": mirrored(nil, func(f *explain.Facts) {
			for _, endpoint := range f.Mirror.Slices[0].Endpoints {
				*endpoint.Conditions.Ready = false
			}
		}),
		"mirrored, being deleted": mirrored(func(e *corev1.Endpoints) { e.DeletionTimestamp = &metav1.Time{Time: now()} }, nil),
		"mirrored, and of the former selector": mirrored(nil, func(f *explain.Facts) {
			former := f.Mirror.Slices[0].DeepCopy()
			former.Name = "db-former"
			f.Slices = []*discoveryv1.EndpointSlice{former}
		}),
		"mirrored, only of the former selector": mirrored(nil, func(f *explain.Facts) {
			f.Slices, f.Mirror.Slices, f.Mirror.Endpoints.Subsets = f.Mirror.Slices, nil, nil
		}),
		"mirrored, a pod": mirrored(nil, func(f *explain.Facts) {
			f.Address, f.Candidate = "", slicetest.Candidate(slicetest.Pod("db-0", "10.1.0.1"))
		}),
		"mirrored, a pod that is not listed": mirrored(nil, func(f *explain.Facts) {
			f.Address, f.Candidate = "", slicetest.Candidate(slicetest.Pod("web-1", "10.1.0.1"))
		}),
		"mirrored, a pod without an address": mirrored(nil, func(f *explain.Facts) {
			f.Address, f.Candidate = "", slicetest.Candidate(slicetest.Pod("web-1", "", func(pod *corev1.Pod) { pod.Status.PodIPs = nil }))
		}),
		"address without a pod, Endpoints not mirrored": {facts: func(f *explain.Facts) {
			f.Candidate, f.Address = desired.Candidate{}, "10.0.0.1"
			f.Mirror = &explain.MirrorFacts{Namespace: "shop", Name: "web", Endpoints: endpoints(), Reason: mirror.HasSelector}
		}},
		"hints impossible": {
			service: func(service *corev1.Service) {
				service.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"}
			},
			facts: func(f *explain.Facts) { f.TopologyProblem = "3 endpoints are too few for 4 zones" },
		},
	}
}

// endpoints has the addresses 10.0.0.1 of Pod db-0, 10.0.0.2 and 10.0.0.3.
func endpoints() *corev1.Endpoints {
	node := "node-a"
	return &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", UID: "uid-of-endpoints", ResourceVersion: "50"},
		Subsets: []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{
				{IP: "10.0.0.1", NodeName: &node, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "db-0"}}, {IP: "10.0.0.2"}, {IP: "10.0.0.3"},
			},
			Ports: []corev1.EndpointPort{{Name: "http", Port: 8080, Protocol: corev1.ProtocolTCP}},
		}},
	}
}

// mirrored is address 10.0.0.1 of a mirrored Endpoints object, whose slices are up to date before
// facts changes them.
func mirrored(object func(*corev1.Endpoints), facts func(*explain.Facts)) fixture {
	return fixture{
		service: func(service *corev1.Service) { service.Name, service.Spec.Selector = "db", nil },
		facts: func(f *explain.Facts) {
			m := &explain.MirrorFacts{
				Namespace: "shop", Name: "db", Endpoints: endpoints(), ContentKnown: true,
				Limits: mirror.Limits{PerSubset: 1000}, Writer: "kubectl-create",
			}
			apply(object)(m.Endpoints)
			for _, family := range mirror.Resolve(m.Endpoints, m.Limits).Families {
				for _, group := range family.Groups {
					slice := slicetest.Slice(f.Service, fmt.Sprintf("db-%d", len(m.Slices)), nil, func(slice *discoveryv1.EndpointSlice) {
						slice.AddressType, slice.Ports = family.AddressType, group.Ports
					})
					for i := range group.Endpoints {
						slice.Endpoints = append(slice.Endpoints, group.Endpoints[i].Object())
					}
					m.Slices = append(m.Slices, slice)
				}
			}
			f.Candidate, f.Address, f.Mirror, f.Slices = desired.Candidate{}, "10.0.0.1", m, nil
			apply(facts)(f)
		},
	}
}

func reason(reason mirror.Reason) func(*explain.Facts) {
	return func(f *explain.Facts) { f.Mirror.Reason, f.Mirror.Slices = reason, nil }
}

// addSubset adds a subset with the same addresses, on port admin.
func addSubset(changes ...func(*corev1.EndpointSubset)) func(*corev1.Endpoints) {
	return func(e *corev1.Endpoints) {
		subset := e.Subsets[0].DeepCopy()
		subset.Ports[0].Name, subset.Ports[0].Port = "admin", 9090
		for _, change := range changes {
			change(subset)
		}
		e.Subsets = append(e.Subsets, *subset)
	}
}

func notReady(subset *corev1.EndpointSubset) {
	subset.Addresses, subset.NotReadyAddresses = nil, subset.Addresses
}

func deleted(service *corev1.Service) {
	pod := &corev1.Pod{}
	slicetest.Terminating(pod)
	service.DeletionTimestamp = pod.DeletionTimestamp
}

// Each fixture has a golden file, in the form that users see.
func TestExplain_Chains(t *testing.T) {
	for name, fixture := range fixtures() {
		t.Run(name, func(t *testing.T) {
			_, chain := fixture.explain()
			got := render(chain)
			path := filepath.Join("testdata", strings.NewReplacer(" ", "-", ",", "").Replace(name)+".txt")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("chain (-want +got):\n%s", diff)
			}
		})
	}
}

func render(c explain.Chain) string {
	var b strings.Builder
	fmt.Fprintf(&b, "included %v, settled %v, first failed %d\n", c.Included, c.Settled, c.Broken())
	for _, l := range c.Links {
		fmt.Fprintf(&b, "\n%s %v, from %s", l.Code, l.Result, l.Source)
		if l.Object.Kind != "" {
			fmt.Fprintf(&b, " %s %s", l.Object.Kind, strings.Trim(l.Object.Namespace+"/"+l.Object.Name, "/"))
		}
		fmt.Fprintf(&b, " at version %q, %s\n  %s\n", l.Version, l.Time.Format(time.TimeOnly), l.Message)
		if l.Next != "" {
			fmt.Fprintf(&b, "  -> %s\n", l.Next)
		}
	}
	return b.String()
}

// Every chain has all links in order, and Broken returns the first failed link.
func TestExplain_ChainIsComplete(t *testing.T) {
	for name, fixture := range fixtures() {
		_, chain := fixture.explain()
		var codes []string
		first := -1
		for i, l := range chain.Links {
			if len(codes) == 0 || codes[len(codes)-1] != l.Code {
				codes = append(codes, l.Code)
			}
			if first < 0 && l.Result == evidence.Failed {
				first = i
			}
			if l.Message == "" || l.Result == 0 || l.Time.IsZero() || l.Source == "" {
				t.Errorf("%s: link %s is incomplete: %+v", name, l.Code, l)
			}
		}
		codes = slices.DeleteFunc(codes, func(code string) bool { return code == "ENDPOINTS" }) // not for Services with a selector
		want := []string{"SERVICE", "SELECTOR", "PHASE", "ADDRESS", "NODE", "READINESS", "TERMINATION", "PORTS", "SLICE", "HINTS"}
		if diff := cmp.Diff(want, codes); diff != "" {
			t.Errorf("%s: codes (-want +got):\n%s", name, diff)
		}
		if first != chain.Broken() {
			t.Errorf("%s: broken_index is %d, want %d", name, chain.Broken(), first)
		}
	}
}

func TestExplain_IsPure(t *testing.T) {
	for name, fixture := range fixtures() {
		facts, chain := fixture.explain()
		before := facts
		before.Service, before.Candidate.Pod = facts.Service.DeepCopy(), facts.Candidate.Pod.DeepCopy() // nil stays nil
		if facts.Mirror != nil {
			copied := *facts.Mirror
			copied.Endpoints = facts.Mirror.Endpoints.DeepCopy()
			before.Mirror = &copied
		}
		before.Slices = nil
		for _, slice := range facts.Slices {
			before.Slices = append(before.Slices, slice.DeepCopy())
		}
		if diff := cmp.Diff(chain, explain.Explain(facts)); diff != "" {
			t.Errorf("%s: the same facts give another chain:\n%s", name, diff)
		}
		if diff := cmp.Diff(before, facts); diff != "" {
			t.Errorf("%s: facts were changed:\n%s", name, diff)
		}
	}
}

// Objects may contain any text. A message is one line of bounded length.
func TestExplain_AcceptsAnyObject(t *testing.T) {
	long := strings.Repeat("ä\n", 5000)
	for name, facts := range map[string]explain.Facts{
		"empty": {Service: &corev1.Service{}, Candidate: desired.Candidate{Pod: &corev1.Pod{}}, Slices: []*discoveryv1.EndpointSlice{{Endpoints: make([]discoveryv1.Endpoint, 3)}}},
		"hostile": {
			Now: now(), TopologyProblem: long,
			Service: slicetest.Service("web", near("PreferClose"), func(service *corev1.Service) {
				service.Spec.Selector = map[string]string{long: long}
				service.Spec.Ports = nil
				for i := range 50 {
					service.Spec.Ports = append(service.Spec.Ports, slicetest.Port(fmt.Sprint(i), 1, intstr.FromString(long)))
				}
			}),
			Candidate: desired.Candidate{Pod: slicetest.Pod("web-1", "not an address", func(pod *corev1.Pod) {
				pod.Labels[long], pod.Status.Phase, pod.Spec.NodeName = "other", corev1.PodPhase(long), long
			})},
		},
	} {
		for _, l := range explain.Explain(facts).Links {
			if len(l.Message) > 500 || strings.ContainsAny(l.Message, "\n\x00") {
				t.Errorf("%s: %s is %d bytes: %.100q", name, l.Code, len(l.Message), l.Message)
			}
		}
	}
}
