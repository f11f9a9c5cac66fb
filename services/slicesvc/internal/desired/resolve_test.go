package desired_test

import (
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// one returns the endpoint of a single candidate in the Service's only family and port group.
func one(t *testing.T, service *corev1.Service, candidate desired.Candidate) desired.Endpoint {
	t.Helper()
	all := desired.Resolve(service, []desired.Candidate{candidate})
	if len(all.Families) != 1 || len(all.Families[0].Groups) != 1 || len(all.Families[0].Groups[0].Endpoints) != 1 {
		t.Fatalf("resolved to %+v, want one endpoint", all)
	}
	return all.Families[0].Groups[0].Endpoints[0]
}

func TestResolve_Endpoint(t *testing.T) {
	got := one(t, slicetest.Service("web"), slicetest.Candidate(slicetest.Pod("web-0", "10.1.0.1")))
	want := desired.Endpoint{
		Identity: desired.Identity{Addresses: "10.1.0.1", PodNamespace: "shop", PodName: "web-0"},
		Target:   "uid-of-web-0",
		Node:     "node-a",
		Zone:     "zone-a",
		Ready:    true,
		Serving:  true,
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("endpoint (-want +got):\n%s", diff)
	}
}

func TestResolve_Conditions(t *testing.T) {
	type conditions struct{ Ready, Serving, Terminating bool }
	noCondition := func(pod *corev1.Pod) { pod.Status.Conditions = nil }
	for name, c := range map[string]struct {
		publish bool
		pod     []func(*corev1.Pod)
		want    conditions
	}{
		"ready":                             {want: conditions{Ready: true, Serving: true}},
		"not ready":                         {pod: []func(*corev1.Pod){slicetest.Unready}, want: conditions{}},
		"no condition":                      {pod: []func(*corev1.Pod){noCondition}, want: conditions{}},
		"terminating":                       {pod: []func(*corev1.Pod){slicetest.Terminating}, want: conditions{Serving: true, Terminating: true}},
		"terminating and not ready":         {pod: []func(*corev1.Pod){slicetest.Unready, slicetest.Terminating}, want: conditions{Terminating: true}},
		"published, not ready":              {publish: true, pod: []func(*corev1.Pod){slicetest.Unready}, want: conditions{Ready: true}},
		"published, terminating":            {publish: true, pod: []func(*corev1.Pod){slicetest.Terminating}, want: conditions{Ready: true, Serving: true, Terminating: true}},
		"published, terminating, not ready": {publish: true, pod: []func(*corev1.Pod){slicetest.Unready, slicetest.Terminating}, want: conditions{Ready: true, Terminating: true}},
	} {
		t.Run(name, func(t *testing.T) {
			service := slicetest.Service("web", func(service *corev1.Service) { service.Spec.PublishNotReadyAddresses = c.publish })
			endpoint := one(t, service, slicetest.Candidate(slicetest.Pod("web-0", "10.1.0.1", c.pod...)))
			got := conditions{Ready: endpoint.Ready, Serving: endpoint.Serving, Terminating: endpoint.Terminating}
			if got != c.want {
				t.Errorf("conditions are %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestResolve_PodsWithoutAnEndpoint(t *testing.T) {
	unknown := func(candidate *desired.Candidate) { candidate.NodeKnown, candidate.Zone = false, "" }
	for name, c := range map[string]struct {
		publish   bool
		pod       func(*corev1.Pod)
		candidate func(*desired.Candidate)
		want      bool
		missing   []string
	}{
		"running":                  {want: true},
		"pending with an address":  {pod: func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodPending }, want: true},
		"failed":                   {pod: func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }},
		"succeeded":                {pod: func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded }},
		"failed though published":  {publish: true, pod: func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }},
		"without an address":       {pod: func(pod *corev1.Pod) { pod.Status.PodIPs = nil }},
		"of another family":        {pod: func(pod *corev1.Pod) { pod.Status.PodIPs[0].IP = "fd00::1" }},
		"with a broken address":    {pod: func(pod *corev1.Pod) { pod.Status.PodIPs[0].IP = "10.1.0" }},
		"on a missing node":        {candidate: unknown, missing: []string{"node-a"}},
		"published, missing node":  {publish: true, candidate: unknown, want: true, missing: []string{"node-a"}},
		"on no node":               {pod: func(pod *corev1.Pod) { pod.Spec.NodeName = "" }, candidate: unknown},
		"failed on a missing node": {pod: func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }, candidate: unknown},
	} {
		t.Run(name, func(t *testing.T) {
			service := slicetest.Service("web", func(service *corev1.Service) { service.Spec.PublishNotReadyAddresses = c.publish })
			candidate := slicetest.Candidate(slicetest.Pod("web-0", "10.1.0.1"))
			if c.pod != nil {
				c.pod(candidate.Pod)
			}
			if c.candidate != nil {
				c.candidate(&candidate)
			}
			all := desired.Resolve(service, []desired.Candidate{candidate})
			if got := len(all.Families[0].Groups) == 1; got != c.want {
				t.Errorf("has an endpoint: %t, want %t", got, c.want)
			}
			if diff := gocmp.Diff(c.missing, all.MissingNodes, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("missing nodes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestResolve_Hostname(t *testing.T) {
	for name, c := range map[string]struct{ hostname, subdomain, want string }{
		"of the Service":        {hostname: "db-0", subdomain: "web", want: "db-0"},
		"of another Service":    {hostname: "db-0", subdomain: "other"},
		"without a subdomain":   {hostname: "db-0"},
		"subdomain, no host":    {subdomain: "web"},
		"neither one nor other": {},
	} {
		t.Run(name, func(t *testing.T) {
			pod := slicetest.Pod("web-0", "10.1.0.1", func(pod *corev1.Pod) {
				pod.Spec.Hostname, pod.Spec.Subdomain = c.hostname, c.subdomain
			})
			if got := one(t, slicetest.Service("web"), slicetest.Candidate(pod)).Hostname; got != c.want {
				t.Errorf("hostname is %q, want %q", got, c.want)
			}
		})
	}
}

func TestResolve_Addresses(t *testing.T) {
	both := []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
	for name, c := range map[string]struct {
		families []corev1.IPFamily
		ips      []string
		want     map[discoveryv1.AddressType]string
	}{
		"IPv4":                     {families: both[1:], ips: []string{"10.1.0.1"}, want: map[discoveryv1.AddressType]string{"IPv4": "10.1.0.1"}},
		"both, IPv4 first":         {families: both, ips: []string{"fd00::1", "10.1.0.1"}, want: map[discoveryv1.AddressType]string{"IPv4": "10.1.0.1", "IPv6": "fd00::1"}},
		"one family of two served": {families: both[:1], ips: []string{"10.1.0.1", "fd00::1"}, want: map[discoveryv1.AddressType]string{"IPv6": "fd00::1"}},
		"several of one family":    {families: both[1:], ips: []string{"10.1.0.1", "10.1.0.2"}, want: map[discoveryv1.AddressType]string{"IPv4": "10.1.0.1,10.1.0.2"}},
		"leading zeros":            {families: both[1:], ips: []string{"010.001.000.00"}, want: map[discoveryv1.AddressType]string{"IPv4": "10.1.0.0"}},
		"long IPv6":                {families: both[:1], ips: []string{"FD00:0:0::01"}, want: map[discoveryv1.AddressType]string{"IPv6": "fd00::1"}},
		"IPv4 in IPv6":             {families: both, ips: []string{"::ffff:10.1.0.1"}, want: map[discoveryv1.AddressType]string{"IPv4": "10.1.0.1"}},
		"a zone is no address":     {families: both, ips: []string{"fe80::1%eth0"}, want: map[discoveryv1.AddressType]string{}},
		"special":                  {families: both, ips: []string{"127.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "::1", "fe80::1", "::", "ff02::1"}, want: map[discoveryv1.AddressType]string{}},
		"special among others":     {families: both, ips: []string{"::ffff:127.0.0.1", "10.1.0.1", "239.1.1.1"}, want: map[discoveryv1.AddressType]string{"IPv4": "10.1.0.1,239.1.1.1"}},
		"invalid":                  {families: both, ips: []string{"", "a.b.c.d", "1.2.3.4.5", "256.1.1.1"}, want: map[discoveryv1.AddressType]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			service := slicetest.Service("web", func(service *corev1.Service) { service.Spec.IPFamilies = c.families })
			pod := slicetest.Pod("web-0", "", func(pod *corev1.Pod) {
				pod.Status.PodIPs = nil
				for _, ip := range c.ips {
					pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
				}
			})
			got := map[discoveryv1.AddressType]string{}
			for _, family := range desired.Resolve(service, []desired.Candidate{slicetest.Candidate(pod)}).Families {
				for _, group := range family.Groups {
					got[family.AddressType] = group.Endpoints[0].Addresses
				}
			}
			if diff := gocmp.Diff(c.want, got); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFamilies(t *testing.T) {
	v4, v6 := discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6
	for name, c := range map[string]struct {
		families  []corev1.IPFamily
		clusterIP string
		want      []discoveryv1.AddressType
	}{
		"stated":               {families: []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}, clusterIP: "10.0.0.1", want: []discoveryv1.AddressType{v4, v6}},
		"IPv4 cluster IP":      {clusterIP: "10.0.0.1", want: []discoveryv1.AddressType{v4}},
		"IPv6 cluster IP":      {clusterIP: "fd00::1", want: []discoveryv1.AddressType{v6}},
		"headless":             {clusterIP: corev1.ClusterIPNone, want: []discoveryv1.AddressType{v4, v6}},
		"no cluster IP yet":    {want: []discoveryv1.AddressType{v4, v6}},
		"unknown family, IPv4": {families: []corev1.IPFamily{"IPv5"}, clusterIP: "10.0.0.1", want: []discoveryv1.AddressType{v4}},
	} {
		t.Run(name, func(t *testing.T) {
			service := slicetest.Service("web", func(service *corev1.Service) {
				service.Spec.IPFamilies, service.Spec.ClusterIP = c.families, c.clusterIP
			})
			if diff := gocmp.Diff(c.want, desired.Families(service)); diff != "" {
				t.Errorf("families (-want +got):\n%s", diff)
			}
		})
	}
}

func TestResolve_Ports(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	container := func(policy *corev1.ContainerRestartPolicy, name string, protocol corev1.Protocol, number int32) corev1.Container {
		return corev1.Container{
			RestartPolicy: policy,
			Ports:         []corev1.ContainerPort{{Name: name, Protocol: protocol, ContainerPort: number}},
		}
	}
	named := []corev1.ServicePort{slicetest.Port("web", 80, intstr.FromString("http"))}
	for name, c := range map[string]struct {
		ports      []corev1.ServicePort
		containers []corev1.Container
		inits      []corev1.Container
		want       string
	}{
		"number":               {ports: []corev1.ServicePort{slicetest.Port("web", 80, intstr.FromInt32(8080))}, want: "web 8080/TCP"},
		"unnamed":              {ports: []corev1.ServicePort{slicetest.Port("", 80, intstr.FromInt32(8080))}, want: "8080/TCP"},
		"name":                 {ports: named, containers: []corev1.Container{container(nil, "http", corev1.ProtocolTCP, 8081)}, want: "web 8081/TCP"},
		"first container wins": {ports: named, containers: []corev1.Container{container(nil, "http", corev1.ProtocolTCP, 1), container(nil, "http", corev1.ProtocolTCP, 2)}, want: "web 1/TCP"},
		"protocol must match":  {ports: named, containers: []corev1.Container{container(nil, "http", corev1.ProtocolUDP, 1)}, want: "none"},
		"sidecar":              {ports: named, inits: []corev1.Container{container(&always, "http", corev1.ProtocolTCP, 3)}, want: "web 3/TCP"},
		"init container":       {ports: named, inits: []corev1.Container{container(nil, "http", corev1.ProtocolTCP, 3)}, want: "none"},
		"container before sidecar": {
			ports:      named,
			containers: []corev1.Container{container(nil, "http", corev1.ProtocolTCP, 1)},
			inits:      []corev1.Container{container(&always, "http", corev1.ProtocolTCP, 3)},
			want:       "web 1/TCP",
		},
		"the unresolved one is left out": {ports: append([]corev1.ServicePort{slicetest.Port("a", 1, intstr.FromInt32(1))}, named...), want: "a 1/TCP"},
		"ordered by name":                {ports: []corev1.ServicePort{slicetest.Port("b", 1, intstr.FromInt32(1)), slicetest.Port("a", 2, intstr.FromInt32(2))}, want: "a 2/TCP, b 1/TCP"},
		"none":                           {want: "none"},
	} {
		t.Run(name, func(t *testing.T) {
			service := slicetest.Service("web", func(service *corev1.Service) { service.Spec.Ports = c.ports })
			pod := slicetest.Pod("web-0", "10.1.0.1", func(pod *corev1.Pod) {
				pod.Spec.Containers, pod.Spec.InitContainers = c.containers, c.inits
			})
			group := desired.Resolve(service, []desired.Candidate{slicetest.Candidate(pod)}).Families[0].Groups[0]
			if got := desired.PortText(group.Ports); got != c.want {
				t.Errorf("ports are %s, want %s", got, c.want)
			}
			if group.Ports == nil {
				t.Error("ports are nil, which the API distinguishes from empty")
			}
			if group.Key != desired.KeyOf(group.Ports) {
				t.Error("the key is not that of the ports")
			}
		})
	}
}

func TestKeyOf_DiffersForDifferentSets(t *testing.T) {
	port := func(name, protocol, app *string, number *int32) discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: name, Protocol: (*corev1.Protocol)(protocol), AppProtocol: app, Port: number}
	}
	text := func(s string) *string { return &s }
	number := func(n int32) *int32 { return &n }
	sets := [][]discoveryv1.EndpointPort{
		{},
		{port(nil, nil, nil, nil)},
		{port(text(""), nil, nil, nil)},
		{port(nil, text(""), nil, nil)},
		{port(nil, nil, text(""), nil)},
		{port(nil, nil, nil, number(0))},
		{port(text("a"), text("TCP"), nil, number(1))},
		{port(text("aT"), text("CP"), nil, number(1))},
		{port(text("a"), text("TCP"), text("http"), number(1))},
		{port(text("a"), text("TCP"), nil, number(256))},
		{port(text("a"), text("TCP"), nil, number(1)), port(text("b"), text("TCP"), nil, number(2))},
		{port(text("a"), text("TCP"), nil, number(2)), port(text("b"), text("TCP"), nil, number(1))},
	}
	seen := map[desired.PortKey]int{}
	for i, set := range sets {
		key := desired.KeyOf(set)
		if other, taken := seen[key]; taken {
			t.Errorf("sets %d and %d have the same key %q", i, other, key)
		}
		seen[key] = i
	}
	last := sets[len(sets)-1]
	if desired.KeyOf(last) != desired.KeyOf([]discoveryv1.EndpointPort{last[1], last[0]}) {
		t.Error("the order of ports changes the key")
	}
	if desired.KeyOf(nil) != desired.KeyOf(sets[0]) {
		t.Error("nil and no ports have different keys")
	}
}

func TestObserve_ReadsBackWhatObjectRenders(t *testing.T) {
	for _, want := range []desired.Endpoint{
		{},
		{Identity: desired.Identity{Addresses: "10.1.0.1,10.1.0.2", Hostname: "h", PodNamespace: "n", PodName: "p"}, Target: "u", Node: "a", Zone: "z", Ready: true},
		{Identity: desired.Identity{Addresses: "fd00::1", PodName: "p"}, Serving: true, Terminating: true},
		{Identity: desired.Identity{Addresses: "10.1.0.1"}, HintZone: "z"},
		{Identity: desired.Identity{Addresses: "10.1.0.1"}, HintZone: "z", HintNode: "n"},
		{Identity: desired.Identity{Addresses: "10.1.0.1"}, HintNode: "n"},
	} {
		object := want.Object()
		got, exact := desired.FromObject(&object)
		if !exact || got != want {
			t.Errorf("read back %+v (exact %t), want %+v", got, exact, want)
		}
	}
}

func TestObserve_EndpointsOfOtherWritersAreNotExact(t *testing.T) {
	empty := ""
	for name, tamper := range map[string]func(*discoveryv1.Endpoint){
		"empty hints": func(e *discoveryv1.Endpoint) { e.Hints = &discoveryv1.EndpointHints{} },
		"two zones": func(e *discoveryv1.Endpoint) {
			e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}, {Name: "b"}}}
		},
		"zone without a name": func(e *discoveryv1.Endpoint) {
			e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{}}, ForNodes: []discoveryv1.ForNode{{Name: "n"}}}
		},
		"topology":       func(e *discoveryv1.Endpoint) { e.DeprecatedTopology = map[string]string{"a": "b"} },
		"no ready":       func(e *discoveryv1.Endpoint) { e.Conditions.Ready = nil },
		"empty zone":     func(e *discoveryv1.Endpoint) { e.Zone = &empty },
		"no target":      func(e *discoveryv1.Endpoint) { e.TargetRef = nil },
		"another target": func(e *discoveryv1.Endpoint) { e.TargetRef.Kind = "Node" },
		"a field of it":  func(e *discoveryv1.Endpoint) { e.TargetRef.FieldPath = "spec" },
	} {
		object := desired.Endpoint{Identity: desired.Identity{Addresses: "10.1.0.1"}}.Object()
		tamper(&object)
		if _, exact := desired.FromObject(&object); exact {
			t.Errorf("%s: read as exact", name)
		}
	}
}

func TestResolve_ChangesNoInput(t *testing.T) {
	service := slicetest.Service("web", func(service *corev1.Service) {
		service.Spec.Ports = []corev1.ServicePort{slicetest.Port("b", 1, intstr.FromInt32(1)), slicetest.Port("a", 2, intstr.FromString("x"))}
		service.DeletionTimestamp = &metav1.Time{}
	})
	candidates := slicetest.Pods(0, 3)
	serviceBefore, podBefore := service.DeepCopy(), candidates[1].Pod.DeepCopy()
	all := desired.Resolve(service, candidates)
	if len(all.Families[0].Groups[0].Endpoints) != 3 {
		t.Fatalf("resolved to %+v, want three endpoints", all)
	}
	if diff := gocmp.Diff(serviceBefore, service); diff != "" {
		t.Errorf("the Service changed:\n%s", diff)
	}
	if diff := gocmp.Diff(podBefore, candidates[1].Pod); diff != "" {
		t.Errorf("the pod changed:\n%s", diff)
	}
}

func TestAffinityOf_RevisionBeforeController(t *testing.T) {
	yes := true
	labelled := func(key, value string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Labels[key] = value }
	}
	ownedBy := func(uid types.UID) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.OwnerReferences = []metav1.OwnerReference{{UID: "another"}, {UID: uid, Controller: &yes}}
		}
	}
	affinity := func(changes ...func(*corev1.Pod)) uint32 {
		return desired.AffinityOf(slicetest.Pod("web-0", "10.1.0.1", changes...))
	}
	if affinity() != 0 {
		t.Error("a Pod without revision and controller has an affinity")
	}
	if a, b := affinity(labelled("pod-template-hash", "a")), affinity(labelled("pod-template-hash", "b")); a == b || a == 0 {
		t.Errorf("two revisions have affinities %d and %d", a, b)
	}
	if a, b := affinity(labelled("controller-revision-hash", "a")), affinity(labelled("pod-template-hash", "a"), labelled("controller-revision-hash", "b")); a != b {
		t.Errorf("the hash of the template does not win: %d and %d", a, b)
	}
	if a, b := affinity(ownedBy("x")), affinity(ownedBy("y")); a == 0 || a == b {
		t.Errorf("pods of two controllers have affinities %d and %d", a, b)
	}
}
