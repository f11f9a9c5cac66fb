package pack

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

// planner makes one plan.
type planner struct {
	Input
	// scope is nil for a plan of the whole Service.
	scope *scope
	// affinities has the affinity of the snapshot's Pods; nil until endpoints need a slice.
	affinities map[string]uint32
}

func newPlanner(in Input, scope *scope) *planner {
	in.Limit = max(in.Limit, 1)
	return &planner{Input: in, scope: scope}
}

// ending reports whether the Service is being deleted.
func (p *planner) ending() bool { return p.Service.DeletionTimestamp != nil }

// affinity returns the affinity of a Pod; 0 for one that the Service does not select.
func (p *planner) affinity(pod string) uint32 {
	if p.scope != nil {
		return p.scope.placement.pods[pod].affinity
	}
	if p.affinities == nil {
		p.affinities = p.Affinities()
	}
	return p.affinities[pod]
}

// owns reports whether a slice belongs to this very Service, not to an earlier one of the same
// name.
func (p *planner) owns(slice *discoveryv1.EndpointSlice) bool {
	for i := range slice.OwnerReferences {
		owner := &slice.OwnerReferences[i]
		if owner.UID == p.Service.UID && owner.Kind == "Service" && owner.APIVersion == "v1" {
			return true
		}
	}
	return false
}

// newSlice returns the object of a draft that has no existing slice.
func (p *planner) newSlice(d *draft, names *namer) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:            names.next(groupKey{addressType: d.addressType, ports: d.key}),
			Namespace:       p.Service.Namespace,
			Labels:          p.labels(),
			Annotations:     p.annotations(nil),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(p.Service, corev1.SchemeGroupVersion.WithKind("Service"))},
		},
		AddressType: d.addressType,
		Endpoints:   nonNil(d.endpoints),
		Ports:       d.ports,
	}
}

// nextVersion returns the next version of a draft's existing slice. Annotations, finalizers and
// further owners stay, because other writers own them.
func (p *planner) nextVersion(d *draft) *discoveryv1.EndpointSlice {
	next := *d.from
	next.Labels = p.labels()
	next.Annotations = p.annotations(d.from.Annotations)
	next.Endpoints = nonNil(d.endpoints)
	next.Ports = d.ports
	return &next
}

// annotations returns a copy of the annotations with the time of the change. When that is not
// known, it removes an earlier time, from which a reader would conclude that the change took so
// long.
func (p *planner) annotations(existing map[string]string) map[string]string {
	annotations := maps.Clone(existing)
	if p.ChangeTime.IsZero() {
		delete(annotations, corev1.EndpointsLastChangeTriggerTime)
		return annotations
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[corev1.EndpointsLastChangeTriggerTime] = p.ChangeTime.UTC().Format(time.RFC3339Nano)
	return annotations
}

func nonNil(endpoints []discoveryv1.Endpoint) []discoveryv1.Endpoint {
	if endpoints == nil {
		return []discoveryv1.Endpoint{}
	}
	return endpoints
}

// labels returns a new map with the labels of every slice of the Service: the Service's own, and
// the three reserved ones.
func (p *planner) labels() map[string]string {
	labels := make(map[string]string, len(p.Service.Labels)+3)
	for key, value := range p.Service.Labels {
		if !reserved(key) {
			labels[key] = value
		}
	}
	if desired.Headless(p.Service) {
		labels[corev1.IsHeadlessService] = ""
	}
	labels[discoveryv1.LabelServiceName] = p.Service.Name
	labels[discoveryv1.LabelManagedBy] = p.ManagedBy
	return labels
}

// labelsDiffer reports whether a slice's labels differ from the Service's. As upstream has it, the
// reserved keys do not count.
func (p *planner) labelsDiffer(slice *discoveryv1.EndpointSlice) bool {
	return !covers(p.Service.Labels, slice.Labels) || !covers(slice.Labels, p.Service.Labels)
}

// covers reports whether a has every label of b that is not reserved.
func covers(a, b map[string]string) bool {
	for key, value := range b {
		if reserved(key) {
			continue
		}
		if has, ok := a[key]; !ok || has != value {
			return false
		}
	}
	return true
}

func reserved(key string) bool {
	switch key {
	case discoveryv1.LabelServiceName, discoveryv1.LabelManagedBy, corev1.IsHeadlessService:
		return true
	default:
		return false
	}
}

// isPlaceholder reports whether a slice is the one that addPlaceholder would create.
func (p *planner) isPlaceholder(slice *discoveryv1.EndpointSlice) bool {
	return p.owns(slice) &&
		len(slice.Endpoints) == 0 &&
		len(slice.Ports) == 0 &&
		maps.Equal(slice.Labels, p.labels())
}

// hashLength is the number of characters, of five bits each, behind the dash of a slice's name.
const hashLength = 10

// namer names the new slices of a plan after the Service, the group and a running number, so that
// two writers with the same view choose the same names, and one of them is refused.
type namer struct {
	*planner
	// used has the names of the Service's slices and of this plan. Like numbers, it is made for the
	// first name.
	used map[string]struct{}
	// numbers has the next number to try.
	numbers map[groupKey]uint64
}

// groupKey identifies the slices of one Service that may share endpoints.
type groupKey struct {
	addressType discoveryv1.AddressType
	ports       desired.PortKey
}

// next returns the first free name for another slice of a group.
func (n *namer) next(group groupKey) string {
	if n.used == nil {
		n.used, n.numbers = make(map[string]struct{}, len(n.Slices)), map[groupKey]uint64{}
		for _, slice := range n.Slices {
			n.used[slice.Name] = struct{}{}
		}
	}
	for {
		name := n.name(group, n.numbers[group])
		n.numbers[group]++
		if _, used := n.used[name]; !used && !n.NameTaken(name) {
			n.used[name] = struct{}{}
			return name
		}
	}
}

func (n *namer) name(group groupKey, number uint64) string {
	hash := sha256.New()
	for _, part := range []string{string(n.Service.UID), string(group.addressType), string(group.ports)} {
		hash.Write(binary.AppendUvarint(nil, uint64(len(part))))
		hash.Write([]byte(part))
	}
	hash.Write(binary.AppendUvarint(nil, number))
	suffix := strings.ToLower(base32.StdEncoding.EncodeToString(hash.Sum(nil)))[:hashLength]
	return index.SliceNamePrefix(n.Service.Name) + "-" + suffix
}
