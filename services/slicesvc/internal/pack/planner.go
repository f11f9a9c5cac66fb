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

	"github.com/trivet-dev/trivet/internal/planned"
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
	// succeeding has the slices of a family that get other ports.
	succeeding map[*discoveryv1.EndpointSlice]struct{}
}

func newPlanner(in Input, scope *scope) *planner {
	in.Limit = max(in.Limit, 1)
	return &planner{Input: in, scope: scope}
}

// ending reports whether the owner is being deleted.
func (p *planner) ending() bool { return p.Owner.Object.DeletionTimestamp != nil }

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

// newSlice returns the object of a draft that has no existing slice.
func (p *planner) newSlice(d *draft, names *namer) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:            names.next(groupKey{addressType: d.addressType, ports: d.key}),
			Namespace:       p.Owner.Object.Namespace,
			Labels:          p.labels(),
			Annotations:     p.annotations(d),
			OwnerReferences: []metav1.OwnerReference{p.Owner.reference()},
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
	next.Annotations = p.annotations(d)
	if p.Owner.Mirror != nil {
		next.OwnerReferences = p.Owner.references(d.from.OwnerReferences)
		next.ManagedFields = nil // kube-apiserver keeps its own
	}
	next.Endpoints = nonNil(d.endpoints)
	next.Ports = d.ports
	return &next
}

// annotations returns the annotations of a new slice, or the next ones of an existing slice. For a
// Service they have the time of the change. When that is not known, an earlier time is removed,
// from which a reader would conclude that the change took so long.
func (p *planner) annotations(d *draft) map[string]string {
	var annotations map[string]string
	if d.from != nil {
		annotations = maps.Clone(d.from.Annotations)
	}
	if d.reason == Repeated {
		delete(annotations, TookEndpoints)
	}
	switch {
	case p.Owner.Mirror != nil:
		annotations = p.Owner.Mirror.annotations(d.from, annotations)
	case p.ChangeTime.IsZero():
		delete(annotations, corev1.EndpointsLastChangeTriggerTime)
	default:
		annotations = withChangeTime(annotations, p.ChangeTime)
	}
	const took = "true"
	if d.takes && sizeOf(annotations)+len(TookEndpoints)+len(took) <= maxAnnotationsSize {
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[TookEndpoints] = took
	}
	return annotations
}

func withChangeTime(annotations map[string]string, at time.Time) map[string]string {
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[corev1.EndpointsLastChangeTriggerTime] = at.UTC().Format(time.RFC3339Nano)
	return annotations
}

// SetChangeTime sets the time of the change that a slice of a Service answers.
func (c *Change) SetChangeTime(at time.Time) {
	if c.Verb != planned.Delete {
		c.Slice.Annotations = withChangeTime(c.Slice.Annotations, at)
	}
}

func nonNil(endpoints []discoveryv1.Endpoint) []discoveryv1.Endpoint {
	if endpoints == nil {
		return []discoveryv1.Endpoint{}
	}
	return endpoints
}

// labels returns a new map with the labels of every slice: those of the owner, and the reserved
// ones.
func (p *planner) labels() map[string]string {
	labels := make(map[string]string, len(p.Owner.Object.Labels)+3)
	for key, value := range p.Owner.Object.Labels {
		if !p.Owner.reserved(key) {
			labels[key] = value
		}
	}
	if p.Owner.Mirror == nil && desired.Headless(p.Service) {
		labels[corev1.IsHeadlessService] = ""
	}
	labels[discoveryv1.LabelServiceName] = p.Owner.Object.Name
	labels[discoveryv1.LabelManagedBy] = p.ManagedBy
	return labels
}

// metadataChange returns the reason to write a slice whose endpoints are as they should be; empty
// for none.
func (p *planner) metadataChange(slice *discoveryv1.EndpointSlice) Reason {
	switch {
	case p.labelsDiffer(slice):
		return LabelsChanged
	case p.Owner.Mirror == nil:
		return ""
	case p.Owner.Mirror.annotationsDiffer(slice):
		return AnnotationsChanged
	case !p.Owner.owns(slice):
		return OwnerChanged
	default:
		return ""
	}
}

// labelsDiffer reports whether a slice's labels differ from the owner's. The reserved keys do not
// count, as upstream has it, except for the label of headless Services: kube-proxy ignores the
// slices that have it.
func (p *planner) labelsDiffer(slice *discoveryv1.EndpointSlice) bool {
	if p.Owner.Mirror == nil {
		if _, marked := slice.Labels[corev1.IsHeadlessService]; marked != desired.Headless(p.Service) {
			return true
		}
	}
	return !p.covers(p.Owner.Object.Labels, slice.Labels) || !p.covers(slice.Labels, p.Owner.Object.Labels)
}

// covers reports whether a has every label of b that is not reserved.
func (p *planner) covers(a, b map[string]string) bool {
	for key, value := range b {
		if p.Owner.reserved(key) {
			continue
		}
		if has, ok := a[key]; !ok || has != value {
			return false
		}
	}
	return true
}

// isPlaceholder reports whether a slice is the one that addPlaceholder would create.
func (p *planner) isPlaceholder(slice *discoveryv1.EndpointSlice) bool {
	return p.Owner.owns(slice) &&
		len(slice.Endpoints) == 0 &&
		len(slice.Ports) == 0 &&
		maps.Equal(slice.Labels, p.labels())
}

// hashLength is the number of characters, of five bits each, behind the dash of a slice's name.
const hashLength = 10

// namer names the new slices of a plan after the owner, the group and a running number, so that two
// writers with the same view choose the same names, and one of them is refused.
type namer struct {
	*planner
	// used has the names of the owner's slices and of this plan. Like numbers, it is made for the
	// first name.
	used map[string]struct{}
	// numbers has the next number to try.
	numbers map[groupKey]uint64
}

// groupKey identifies the slices of one owner that may share endpoints.
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
	for _, part := range []string{string(n.Owner.Object.UID), string(group.addressType), string(group.ports)} {
		hash.Write(binary.AppendUvarint(nil, uint64(len(part))))
		hash.Write([]byte(part))
	}
	hash.Write(binary.AppendUvarint(nil, number))
	suffix := strings.ToLower(base32.StdEncoding.EncodeToString(hash.Sum(nil)))[:hashLength]
	return index.SliceNamePrefix(n.Owner.Object.Name) + "-" + suffix
}
