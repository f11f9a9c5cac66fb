package baseline

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/planned"
)

func wanted() Service {
	return Service{ClusterIP: netip.MustParseAddr("10.0.0.1"), TargetPort: 6443}
}

// stored is the Service as a kube-apiserver stores it, with edits.
func stored(edits ...func(*corev1.Service)) *corev1.Service {
	service := wanted().object()
	service.UID = "uid"
	service.ResourceVersion = "7"
	service.Spec.ClusterIPs = []string{"10.0.0.1"}
	service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	for _, edit := range edits {
		edit(service)
	}
	return service
}

func TestPlanService_MissingServiceIsCreated(t *testing.T) {
	singleStack := corev1.IPFamilyPolicySingleStack
	want := []Change{{
		Verb: planned.Create,
		Object: &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Name:      "kubernetes",
				Namespace: "default",
				Labels:    map[string]string{"provider": "kubernetes", "component": "apiserver"},
			},
			Spec: corev1.ServiceSpec{
				Type:            corev1.ServiceTypeClusterIP,
				ClusterIP:       "10.0.0.1",
				IPFamilyPolicy:  &singleStack,
				SessionAffinity: corev1.ServiceAffinityNone,
				Ports: []corev1.ServicePort{{
					Name: "https", Protocol: corev1.ProtocolTCP, Port: 443, TargetPort: intstr.FromInt32(6443),
				}},
			},
		},
		Reason: ServiceMissing,
		Detail: "service default/kubernetes does not exist; its ClusterIP will be 10.0.0.1",
	}}
	if diff := cmp.Diff(want, PlanService(wanted(), nil)); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

func TestPlanService_DriftIsRepairedInPlace(t *testing.T) {
	cases := map[string]struct {
		edit   func(*corev1.Service)
		want   func(*corev1.Service)
		detail string
	}{
		"labels, keeping those of others": {
			edit:   func(s *corev1.Service) { s.Labels = map[string]string{"provider": "me", "team": "net"} },
			want:   func(s *corev1.Service) { s.Labels["team"] = "net" },
			detail: `label component "", want "apiserver"; label provider "me", want "kubernetes"`,
		},
		"target port": {
			edit:   func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(8443) },
			want:   func(*corev1.Service) {},
			detail: "ports [https 443/TCP→8443], want [https 443/TCP→6443]",
		},
		"a spell as ExternalName, which costs the ClusterIP": {
			edit: func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeExternalName
				s.Spec.ExternalName = "elsewhere.example"
				s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil
			},
			want:   func(s *corev1.Service) { s.Spec.ClusterIPs = nil },
			detail: "type ExternalName, want ClusterIP; no clusterIP, want 10.0.0.1",
		},
		"a selector": {
			edit:   func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "shop"} },
			want:   func(*corev1.Service) {},
			detail: "has a selector, want none: its endpoints are the apiservers",
		},
		"session affinity": {
			edit:   func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP },
			want:   func(*corev1.Service) {},
			detail: "sessionAffinity ClientIP, want None",
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			want := []Change{{
				Verb: planned.Update, Object: stored(test.want), Before: stored(test.edit), Reason: ServiceDrifted, Detail: test.detail,
			}}
			if diff := cmp.Diff(want, PlanService(wanted(), stored(test.edit)), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPlanService_ProblemsWithoutARepairAreReported(t *testing.T) {
	unknown := wanted()
	unknown.ClusterIP = netip.Addr{}
	cases := map[string]struct {
		want     Service
		existing *corev1.Service
		steps    []step
	}{
		"missing, and the range is unknown": {
			want:  unknown,
			steps: []step{{Verb: planned.Report, Name: "kubernetes", Reason: ClusterIPUnknown}},
		},
		"another ClusterIP": {
			want:     wanted(),
			existing: stored(func(s *corev1.Service) { s.Spec.ClusterIP = "10.0.0.9" }),
			steps:    []step{{Verb: planned.Report, Name: "kubernetes", Reason: ClusterIPDiffers}},
		},
		"headless": {
			want:     wanted(),
			existing: stored(func(s *corev1.Service) { s.Spec.ClusterIP = "None" }),
			steps:    []step{{Verb: planned.Report, Name: "kubernetes", Reason: ClusterIPDiffers}},
		},
		"another ClusterIP beside drift: the drift is repaired nevertheless": {
			want: wanted(),
			existing: stored(func(s *corev1.Service) {
				s.Spec.ClusterIP = "10.0.0.9"
				s.Labels = nil
			}),
			steps: []step{
				{Verb: planned.Report, Name: "kubernetes", Reason: ClusterIPDiffers},
				{Verb: planned.Update, Name: "kubernetes", Reason: ServiceDrifted},
			},
		},
		"no ClusterIP and the range is unknown: nothing is left to chance": {
			want: unknown,
			existing: stored(func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeExternalName
				s.Spec.ClusterIP = ""
			}),
			steps: []step{{Verb: planned.Report, Name: "kubernetes", Reason: ClusterIPUnknown}},
		},
		"any ClusterIP will do while the range is unknown": {
			want:     unknown,
			existing: stored(func(s *corev1.Service) { s.Spec.ClusterIP = "10.0.0.9" }),
		},
		"being deleted": {
			want: wanted(),
			existing: stored(func(s *corev1.Service) {
				s.DeletionTimestamp = &metav1.Time{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
				s.Labels = nil
			}),
			steps: []step{{Verb: planned.Report, Name: "kubernetes", Reason: ServiceTerminating}},
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.steps, steps(PlanService(test.want, test.existing))); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPlanService_OtherTextOfTheSameIPv6AddressIsNoDrift(t *testing.T) {
	want := wanted()
	want.ClusterIP = netip.MustParseAddr("fd00::1")
	existing := stored(func(s *corev1.Service) { s.Spec.ClusterIP = "fd00:0:0::1" })
	if changes := PlanService(want, existing); len(changes) != 0 {
		t.Errorf("plan = %v, want none", steps(changes))
	}
}

// A repair that releases a node port or a load balancer is planned and waits for an operator. The
// remaining drift is repaired without one.
func TestPlanService_NodePortsWaitForApproval(t *testing.T) {
	exposed := func(kind corev1.ServiceType) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.Type = kind
			s.Spec.Ports[0].NodePort = 30443
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		}
	}
	const waits = "; the repair releases "
	for name, test := range map[string]struct {
		existing *corev1.Service
		released string
		// safe is the detail of the part that needs no approval.
		safe string
	}{
		"a node port":     {existing: stored(exposed(corev1.ServiceTypeNodePort)), released: "node port 30443/TCP"},
		"a load balancer": {existing: stored(exposed(corev1.ServiceTypeLoadBalancer)), released: "node port 30443/TCP, its load balancer"},
		"a health check port": {
			existing: stored(exposed(corev1.ServiceTypeLoadBalancer), func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 30444 }),
			released: "node port 30443/TCP, health check node port 30444, its load balancer",
		},
		"a node port and other drift": {
			existing: stored(exposed(corev1.ServiceTypeNodePort), func(s *corev1.Service) {
				s.Spec.Ports[0].TargetPort = intstr.FromInt32(8443)
				s.Spec.Selector = map[string]string{"app": "shop"}
			}),
			released: "node port 30443/TCP",
			safe: "ports [https 443/TCP→8443:30443], want [https 443/TCP→6443:30443]; " +
				"has a selector, want none: its endpoints are the apiservers",
		},
	} {
		t.Run(name, func(t *testing.T) {
			changes := PlanService(wanted(), test.existing)
			want := []step{{Verb: planned.Report, Name: "kubernetes", Reason: NodePortsHeld}, {Verb: planned.Update, Name: "kubernetes", Reason: ServiceDrifted}}
			if diff := cmp.Diff(want, steps(changes)); diff != "" {
				t.Fatalf("plan (-want +got):\n%s", diff)
			}
			if !strings.Contains(changes[0].Detail, waits+test.released+" ") {
				t.Errorf("report = %q, want it to name %s", changes[0].Detail, test.released)
			}
			if diff := cmp.Diff(stored(), changes[1].Object); diff != "" {
				t.Errorf("the approved update makes (-want +got):\n%s", diff)
			}
			automatic := Automatic(Writes(changes))
			if test.safe == "" {
				if len(automatic) != 0 {
					t.Errorf("%v are written without approval", steps(automatic))
				}
				return
			}
			if len(automatic) != 1 || automatic[0].Detail != test.safe {
				t.Fatalf("%+v are written without approval, want one with %q", automatic, test.safe)
			}
			after := automatic[0].Object.(*corev1.Service)
			if after.Spec.Type != test.existing.Spec.Type || after.Spec.Ports[0].NodePort != 30443 {
				t.Errorf("type %s with node port %d, want both kept", after.Spec.Type, after.Spec.Ports[0].NodePort)
			}
			if again := Automatic(Writes(PlanService(wanted(), after))); len(again) != 0 {
				t.Errorf("after that %v are written without approval", steps(again))
			}
		})
	}
}

func TestPlanService_NodePortIsKeptWhereItIsWanted(t *testing.T) {
	want := wanted()
	want.NodePort = 30443
	existing := want.object()
	if changes := PlanService(want, existing); len(changes) != 0 {
		t.Errorf("plan = %v, want none", steps(changes))
	}
	existing.Spec.Ports[0].NodePort = 30444
	changes := []step{{Verb: planned.Report, Name: "kubernetes", Reason: NodePortsHeld}, {Verb: planned.Update, Name: "kubernetes", Reason: ServiceDrifted}}
	if diff := cmp.Diff(changes, steps(PlanService(want, existing))); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

func TestPlanService_ExtraPorts(t *testing.T) {
	want := wanted()
	want.ExtraPorts = []Port{{Name: "konnectivity", Protocol: corev1.ProtocolTCP, Port: 8132, TargetPort: 8091}}
	has := stored()
	changes := PlanService(want, has)
	const detail = "ports [https 443/TCP→6443], want [https 443/TCP→6443, konnectivity 8132/TCP→8091]"
	if len(changes) != 1 || changes[0].Detail != detail {
		t.Fatalf("plan = %v, want one with %q", changes, detail)
	}
	// An apiserver gives the ports of a NodePort Service numbers; those of extra ports stay
	// whatever they are.
	want.NodePort = 30443
	repaired := PlanService(want, has)[0].Object.(*corev1.Service)
	repaired.Spec.Ports[1].NodePort = 31234
	if changes := PlanService(want, repaired); len(changes) != 0 {
		t.Errorf("plan over a given node port = %v, want none", changes)
	}
	want.NodePort = 0
	for _, port := range Writes(PlanService(want, repaired))[0].Object.(*corev1.Service).Spec.Ports {
		if port.NodePort != 0 {
			t.Errorf("port %s of a ClusterIP Service has node port %d", port.Name, port.NodePort)
		}
	}
}

func TestPlanService_DualStack(t *testing.T) {
	both := []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	prefer, require := corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack
	preferring := func(s *corev1.Service) { s.Spec.IPFamilyPolicy = &prefer }
	dual := func(s *corev1.Service) {
		s.Spec.IPFamilyPolicy, s.Spec.IPFamilies, s.Spec.ClusterIPs = &require, both, []string{"10.0.0.1", "fd00::7"}
	}
	cases := map[string]struct {
		off      bool
		families []corev1.IPFamily
		existing *corev1.Service
		want     []string
	}{
		"a second family is wanted": {families: both, existing: stored(), want: []string{
			"update ipFamilyPolicy SingleStack, want PreferDualStack; ipFamilies IPv4, want IPv4, IPv6",
		}},
		"with unknown ranges, by the policy alone": {existing: stored(), want: []string{
			"update ipFamilyPolicy SingleStack, want PreferDualStack",
		}},
		"a cluster that got its second range later": {families: both, existing: stored(preferring), want: []string{
			"update ipFamilies IPv4, want IPv4, IPv6",
		}},
		"a cluster without a second range": {families: both[:1], existing: stored(preferring), want: []string{
			"report service default/kubernetes should have both families and has only IPv4: the cluster has no service range of the other",
		}},
		"it has both":                    {families: both, existing: stored(dual)},
		"it has both, and one is wanted": {off: true, families: both, existing: stored(dual)},
		"one is wanted":                  {off: true, families: both, existing: stored()},
		"headless": {families: both, existing: stored(func(s *corev1.Service) { s.Spec.ClusterIP = "None" }), want: []string{
			"report clusterIP None, want 10.0.0.1; it cannot be changed in place, and deleting the service would cut off every pod",
		}},
		"missing": {families: both, want: []string{
			"create service default/kubernetes does not exist; its ClusterIP will be 10.0.0.1",
		}},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			want := wanted()
			want.DualStack, want.Families = !test.off, test.families
			var got []string
			for _, c := range PlanService(want, test.existing) {
				got = append(got, string(c.Verb)+" "+c.Detail)
				if policy := c.Object.(*corev1.Service).Spec.IPFamilyPolicy; c.Verb == planned.Create && *policy != prefer {
					t.Errorf("created with policy %s, want %s", *policy, prefer)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFirstAddress(t *testing.T) {
	for serviceRange, want := range map[string]string{
		"10.0.0.0/24":   "10.0.0.1",
		"10.96.0.0/12":  "10.96.0.1",
		"10.0.0.77/24":  "10.0.0.1",
		"fd00:1::/108":  "fd00:1::1",
		"192.0.2.8/31":  "192.0.2.9",
		"192.0.2.8/32":  "",
		"255.0.0.0/8":   "255.0.0.1",
		"fd00::1:2/128": "",
	} {
		address, err := FirstAddress(netip.MustParsePrefix(serviceRange))
		switch {
		case want == "" && err == nil:
			t.Errorf("FirstAddress(%s) = %s, want an error", serviceRange, address)
		case want != "" && (err != nil || address.String() != want):
			t.Errorf("FirstAddress(%s) = %s, %v, want %s", serviceRange, address, err, want)
		}
	}
	if _, err := FirstAddress(netip.Prefix{}); err == nil {
		t.Error("FirstAddress of no range succeeded")
	}
}

func TestPlanService_AppliedLeavesNothingAndInputsStay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawWant(t)
		existing := drawService(t)
		before := existing.DeepCopy()
		changes := PlanService(want, existing)
		if diff := cmp.Diff(before, existing); diff != "" {
			t.Fatalf("the plan changed its input (-before +after):\n%s", diff)
		}
		for _, c := range Writes(changes) {
			existing = c.Object.(*corev1.Service)
		}
		if again := Writes(PlanService(want, existing)); len(again) != 0 {
			t.Fatalf("second plan writes %v: %s", steps(again), again[0].Detail)
		}
		if before != nil && len(existing.Spec.IPFamilies) < len(before.Spec.IPFamilies) {
			t.Fatalf("families %v became %v", before.Spec.IPFamilies, existing.Spec.IPFamilies)
		}
		if before != nil && before.Spec.ClusterIP != "" && existing.Spec.ClusterIP != before.Spec.ClusterIP {
			t.Fatalf("ClusterIP moved from %q to %q", before.Spec.ClusterIP, existing.Spec.ClusterIP)
		}
	})
}

func drawWant(t *rapid.T) Service {
	want := Service{
		TargetPort: rapid.Int32Range(1, 65535).Draw(t, "target port"),
		NodePort:   rapid.SampledFrom([]int32{0, 30443}).Draw(t, "node port"),
		DualStack:  rapid.Bool().Draw(t, "dual-stack"),
		Families:   rapid.SampledFrom([][]corev1.IPFamily{nil, {"IPv4"}, {"IPv6"}, {"IPv4", "IPv6"}, {"IPv6", "IPv4"}}).Draw(t, "families"),
	}
	if rapid.Bool().Draw(t, "has an extra port") {
		want.ExtraPorts = []Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: 8080}}
	}
	if rapid.Bool().Draw(t, "range known") {
		want.ClusterIP = netip.MustParseAddr(rapid.SampledFrom([]string{"10.0.0.1", "fd00::1"}).Draw(t, "cluster ip"))
	}
	return want
}

func drawService(t *rapid.T) *corev1.Service {
	if !rapid.Bool().Draw(t, "exists") {
		return nil
	}
	return stored(func(s *corev1.Service) {
		s.Labels = rapid.MapOf(
			rapid.SampledFrom([]string{"provider", "component", "team"}),
			rapid.SampledFrom([]string{"kubernetes", "apiserver", ""}),
		).Draw(t, "labels")
		s.Spec.Type = rapid.SampledFrom([]corev1.ServiceType{
			corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort,
			corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName,
		}).Draw(t, "type")
		s.Spec.ClusterIP = rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.9", "None", "fd00::1", ""}).Draw(t, "has ip")
		s.Spec.Ports = rapid.SliceOfN(rapid.Custom(drawPort), 0, 3).Draw(t, "ports")
		s.Spec.IPFamilyPolicy = rapid.SampledFrom([]*corev1.IPFamilyPolicy{
			nil, new(corev1.IPFamilyPolicySingleStack), new(corev1.IPFamilyPolicyPreferDualStack), new(corev1.IPFamilyPolicyRequireDualStack),
		}).Draw(t, "policy")
		s.Spec.IPFamilies = rapid.SampledFrom([][]corev1.IPFamily{nil, {"IPv4"}, {"IPv6"}, {"IPv6", "IPv4"}}).Draw(t, "has families")
		s.Spec.Selector = rapid.MapOf(rapid.Just("app"), rapid.Just("shop")).Draw(t, "selector")
		s.Spec.SessionAffinity = rapid.SampledFrom([]corev1.ServiceAffinity{"None", "ClientIP", ""}).Draw(t, "affinity")
	})
}

func drawPort(t *rapid.T) corev1.ServicePort {
	return corev1.ServicePort{
		Name:       rapid.SampledFrom([]string{"https", "http", ""}).Draw(t, "name"),
		Protocol:   rapid.SampledFrom([]corev1.Protocol{"TCP", "UDP"}).Draw(t, "protocol"),
		Port:       rapid.SampledFrom([]int32{443, 80}).Draw(t, "port"),
		TargetPort: intstr.FromInt32(rapid.SampledFrom([]int32{6443, 443}).Draw(t, "target")),
		NodePort:   rapid.SampledFrom([]int32{0, 30443}).Draw(t, "node port"),
	}
}

func TestFingerprint_IsThatOfObjectsAndVersions(t *testing.T) {
	changed := func(edit func(*Change)) Change {
		c := PlanService(wanted(), stored(func(s *corev1.Service) { s.Labels = nil }))[0]
		edit(&c)
		return c
	}
	same := changed(func(*Change) {})
	if Fingerprint([]Change{same}) != Fingerprint([]Change{changed(func(c *Change) { c.Detail = "in other words" })}) {
		t.Error("equal plans have different fingerprints")
	}
	for name, other := range map[string][]Change{
		"version": {changed(func(c *Change) { c.Object.SetResourceVersion("other") })},
		"uid":     {changed(func(c *Change) { c.Object.SetUID("other") })},
		"content": {changed(func(c *Change) { c.Object.SetLabels(map[string]string{"a": "b"}) })},
		"verb":    {changed(func(c *Change) { c.Verb = planned.Delete })},
		"twice":   {same, same},
		"none":    nil,
	} {
		if Fingerprint(other) == Fingerprint([]Change{same}) {
			t.Errorf("%s: different plans have the same fingerprint", name)
		}
	}
}
