package mirror_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

const namespace = "shop"

// endpointsOf returns the Endpoints object web.
func endpointsOf(subsets ...corev1.EndpointSubset) *corev1.Endpoints {
	return &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: namespace, UID: "uid-of-endpoints"},
		Subsets:    subsets,
	}
}

// subset returns a subset with ports such as "http:80" or "dns:53/UDP", and addresses. An address
// with the prefix "!" is not ready.
func subset(ports []string, addresses ...string) corev1.EndpointSubset {
	var result corev1.EndpointSubset
	for _, text := range ports {
		result.Ports = append(result.Ports, endpointPort(text))
	}
	for _, text := range addresses {
		if ip, notReady := strings.CutPrefix(text, "!"); notReady {
			result.NotReadyAddresses = append(result.NotReadyAddresses, corev1.EndpointAddress{IP: ip})
		} else {
			result.Addresses = append(result.Addresses, corev1.EndpointAddress{IP: ip})
		}
	}
	return result
}

func endpointPort(text string) corev1.EndpointPort {
	text, appProtocol, hasApp := strings.Cut(text, "@")
	name, rest, _ := strings.Cut(text, ":")
	number, protocol, _ := strings.Cut(rest, "/")
	n, err := strconv.Atoi(number)
	if err != nil {
		panic(err)
	}
	port := corev1.EndpointPort{Name: name, Port: int32(n), Protocol: cmp.Or(corev1.Protocol(protocol), corev1.ProtocolTCP)}
	if hasApp {
		port.AppProtocol = &appProtocol
	}
	return port
}

// addresses returns n IPv4 addresses in the order of their text.
func addresses(n int) []string {
	all := make([]string, 0, n)
	for i := range n {
		all = append(all, fmt.Sprintf("10.1.%d.%d", 100+i/100, 100+i%100))
	}
	return all
}

func with[T any](object T, changes ...func(T)) T {
	for _, change := range changes {
		change(object)
	}
	return object
}

func standard() mirror.Limits { return mirror.Limits{PerSubset: 1000} }

// input returns the input of a plan.
func input(endpoints *corev1.Endpoints, limits mirror.Limits, existing []*discoveryv1.EndpointSlice) pack.Input {
	return pack.Input{
		Snapshot:  index.Snapshot{Slices: existing},
		Owner:     mirror.Owner(endpoints),
		Endpoints: desired.Endpoints{Families: mirror.Resolve(endpoints, limits).Families},
		Limit:     limits.PerSlice(),
		ManagedBy: mirror.ManagedBy,
	}
}

// cluster has the slices as kube-apiserver stores them.
type cluster struct {
	slices  map[string]*discoveryv1.EndpointSlice
	version int
}

func newCluster(existing ...*discoveryv1.EndpointSlice) *cluster {
	c := &cluster{slices: map[string]*discoveryv1.EndpointSlice{}, version: 100}
	for _, slice := range existing {
		c.slices[slice.Name] = slice
	}
	return c
}

func (c *cluster) list() []*discoveryv1.EndpointSlice {
	return slices.SortedFunc(maps.Values(c.slices), func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
}

// live returns the slices that are not being deleted.
func (c *cluster) live() []*discoveryv1.EndpointSlice {
	return slices.DeleteFunc(c.list(), func(slice *discoveryv1.EndpointSlice) bool { return slice.DeletionTimestamp != nil })
}

// sync plans and applies the plan.
func (c *cluster) sync(t rapid.TB, endpoints *corev1.Endpoints, limits mirror.Limits) pack.Plan {
	t.Helper()
	plan := pack.Make(input(endpoints, limits, c.list()))
	for _, change := range plan.Changes {
		c.write(t, change)
	}
	return plan
}

// write makes one write. The test fails if kube-apiserver would refuse it.
func (c *cluster) write(t rapid.TB, change pack.Change) {
	t.Helper()
	name := change.Slice.Name
	stored, exists := c.slices[name]
	switch {
	case (change.Verb == planned.Create) == exists:
		t.Fatalf("cannot %s slice %s", change.Verb, name)
	case exists && (stored.UID != change.Slice.UID || stored.ResourceVersion != change.Slice.ResourceVersion):
		t.Fatalf("%s of slice %s is not guarded", change.Verb, name)
	case change.Verb == planned.Update && stored.AddressType != change.Slice.AddressType:
		t.Fatalf("update of slice %s changes its address type", name)
	case change.Verb == planned.Delete:
		delete(c.slices, name)
		return
	}
	next := change.Slice.DeepCopy()
	checkValid(t, next)
	c.version++
	next.ResourceVersion = strconv.Itoa(c.version)
	next.ManagedFields = nil
	if stored != nil {
		next.ManagedFields = stored.ManagedFields
	} else {
		next.UID = types.UID("uid-of-" + name)
	}
	setManager(next, stored, "trivet")
	c.slices[name] = next
}

// checkValid fails as the validation of kube-apiserver.
func checkValid(t rapid.TB, slice *discoveryv1.EndpointSlice) {
	t.Helper()
	if len(slice.Endpoints) > 1000 {
		t.Fatalf("slice %s has %d endpoints", slice.Name, len(slice.Endpoints))
	}
	names := map[string]bool{}
	for _, port := range slice.Ports {
		if port.Name == nil || port.Port == nil || port.Protocol == nil || names[*port.Name] {
			t.Fatalf("slice %s has the ports %s", slice.Name, desired.PortText(slice.Ports))
		}
		names[*port.Name] = true
	}
	for _, endpoint := range slice.Endpoints {
		ip, err := netip.ParseAddr(endpoint.Addresses[0])
		if err != nil || len(endpoint.Addresses) != 1 || ip.Is4In6() || ip.Is4() != (slice.AddressType == discoveryv1.AddressTypeIPv4) {
			t.Fatalf("%s slice %s has the addresses %v", slice.AddressType, slice.Name, endpoint.Addresses)
		}
	}
	controllers := 0
	for _, owner := range slice.OwnerReferences {
		if owner.Controller != nil && *owner.Controller {
			controllers++
		}
	}
	if controllers > 1 {
		t.Fatalf("slice %s has %d controllers", slice.Name, controllers)
	}
}

// setManager records that a field manager set the annotations that differ from an earlier version.
func setManager(slice, before *discoveryv1.EndpointSlice, manager string) {
	changed := map[string]bool{}
	for key, value := range slice.Annotations {
		if before == nil {
			changed[key] = true
		} else if was, had := before.Annotations[key]; !had || was != value {
			changed[key] = true
		}
	}
	if len(changed) == 0 {
		return
	}
	fields := map[string]map[string]map[string]any{"f:metadata": {"f:annotations": {".": map[string]any{}}}}
	for key := range changed {
		fields["f:metadata"]["f:annotations"]["f:"+key] = map[string]any{}
	}
	raw, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	entry := metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{}}
	entry.FieldsV1.SetRawBytes(raw)
	slice.ManagedFields = append(slices.Clone(slice.ManagedFields), entry)
}

// texts describes the slices: their names are left out, their endpoints are sorted.
func texts(of []*discoveryv1.EndpointSlice) []string {
	var all []string
	for _, slice := range of {
		var endpoints []string
		for i := range slice.Endpoints {
			endpoints = append(endpoints, endpointText(&slice.Endpoints[i]))
		}
		slices.Sort(endpoints)
		all = append(all, fmt.Sprintf("%s [%s] %s", slice.AddressType, desired.PortText(slice.Ports), strings.Join(endpoints, " ")))
	}
	slices.Sort(all)
	return all
}

// endpointText is the address, with the prefix "!" if it is not ready.
func endpointText(endpoint *discoveryv1.Endpoint) string {
	text := strings.Join(endpoint.Addresses, ",")
	if endpoint.Conditions.Ready == nil || !*endpoint.Conditions.Ready {
		text = "!" + text
	}
	return text
}

func verbs(plan pack.Plan) []string {
	var all []string
	for _, change := range plan.Changes {
		all = append(all, fmt.Sprintf("%s %s", change.Verb, change.Reason))
	}
	return all
}
