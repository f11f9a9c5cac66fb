package shadow

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/shadow/difference"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// Reasons of intended differences.
const (
	// PackedOtherwise: the same content lies in other slices.
	PackedOtherwise = "SLICES_PACKED_OTHERWISE"
	// HintsAllocatedOtherwise: only hints of the topology mode differ.
	HintsAllocatedOtherwise = "HINTS_ALLOCATED_OTHERWISE"
	// SelectorCleanedUp: --cleanup-selectorless deletes what upstream leaves.
	SelectorCleanedUp = "SELECTOR_CLEANED_UP"
	// MirrorSpilled: --mirroring-spill mirrors addresses that upstream drops.
	MirrorSpilled = "MIRROR_SPILLED"
	// PortNamesRepeated: upstream writes ports of one name into one slice, which kube-apiserver
	// refuses.
	PortNamesRepeated = "PORT_NAMES_REPEATED"
)

// Input is what is compared for one Service or Endpoints object.
type Input struct {
	// Slices are the managed slices. Plan was made from them.
	Slices []*discoveryv1.EndpointSlice
	Plan   pack.Plan
	// Least is the least number of slices for the content; 0 if it does not matter.
	Least int
	// AllocatesHints says that hints depend on earlier allocations: the Service has the topology
	// mode Auto.
	AllocatesHints bool
	// Spills says that addresses above upstream's limit are mirrored.
	Spills bool
	// Subject is the Service or the Endpoints object.
	Subject difference.Object
}

// Compare returns what the plan would change, one difference for each slice and kind.
func Compare(in Input) []difference.Difference {
	c := comparison{Input: in, slices: map[string]*compared{}}
	for i := range in.Plan.Changes {
		c.add(&in.Plan.Changes[i])
	}
	c.pair()
	found := c.result()
	if in.Least > 0 && len(found) == 0 && len(in.Slices) > max(in.Least*6/5, 1) {
		found = append(found, difference.Difference{
			Kind: difference.Packing, Object: in.Subject, Reason: PackedOtherwise,
			Message: fmt.Sprintf("%d slices hold what %d can hold", len(in.Slices), in.Least),
		})
	}
	return found
}

// group is what endpoints of one slice have in common.
type group struct {
	addressType discoveryv1.AddressType
	ports       desired.PortKey
}

// placed is an endpoint in a slice.
type placed struct {
	slice    string
	identity desired.Identity
	endpoint *discoveryv1.Endpoint
	// key identifies the whole endpoint.
	key string
}

// compared is one slice that the plan changes.
type compared struct {
	change *pack.Change
	fields planned.Fields
	// gone and added count its endpoints without a counterpart.
	gone, added int
	hintsOnly   bool
}

type comparison struct {
	Input
	slices        map[string]*compared
	before, after map[group][]placed
}

// add takes in the endpoints of a change, before and after.
func (c *comparison) add(change *pack.Change) {
	if c.before == nil {
		c.before, c.after = map[group][]placed{}, map[group][]placed{}
	}
	c.slices[change.Slice.Name] = &compared{change: change, hintsOnly: true}
	if change.From != nil {
		place(c.before, change.From, change.Slice.Name)
	}
	if change.Verb != planned.Delete {
		place(c.after, change.Slice, change.Slice.Name)
	}
}

func place(into map[group][]placed, slice *discoveryv1.EndpointSlice, name string) {
	of := group{addressType: slice.AddressType, ports: desired.KeyOf(slice.Ports)}
	for i := range slice.Endpoints {
		endpoint, _ := desired.FromObject(&slice.Endpoints[i])
		into[of] = append(into[of], placed{
			slice: name, identity: endpoint.Identity, endpoint: &slice.Endpoints[i], key: planned.JSON(&slice.Endpoints[i]),
		})
	}
}

// pair removes the endpoints that are the same before and after, in whatever slice, and records the
// remaining ones as fields of their slices.
func (c *comparison) pair() {
	groups := maps.Clone(c.before)
	maps.Copy(groups, c.after)
	for of := range groups {
		gone, added := subtract(c.before[of], c.after[of]), subtract(c.after[of], c.before[of])
		next := map[desired.Identity][]placed{}
		for _, endpoint := range added {
			next[endpoint.identity] = append(next[endpoint.identity], endpoint)
		}
		for _, endpoint := range gone {
			slice := c.slices[endpoint.slice]
			if pairs := next[endpoint.identity]; len(pairs) > 0 {
				next[endpoint.identity] = pairs[1:]
				fields, hintsOnly := EndpointFields(pathOf(endpoint), endpoint.endpoint, pairs[0].endpoint)
				slice.fields = append(slice.fields, fields...)
				slice.hintsOnly = slice.hintsOnly && hintsOnly
				continue
			}
			slice.gone, slice.hintsOnly = slice.gone+1, false
			slice.fields = append(slice.fields, planned.Field{Path: pathOf(endpoint), Before: endpoint.key})
		}
		for _, endpoints := range next {
			for _, endpoint := range endpoints {
				slice := c.slices[endpoint.slice]
				slice.added, slice.hintsOnly = slice.added+1, false
				slice.fields = append(slice.fields, planned.Field{Path: pathOf(endpoint), After: endpoint.key})
			}
		}
	}
}

// subtract returns the endpoints of from that of does not have, each as often as it has more.
func subtract(from, of []placed) []placed {
	count := make(map[string]int, len(of))
	for i := range of {
		count[of[i].key]++
	}
	var rest []placed
	for _, endpoint := range from {
		if count[endpoint.key] > 0 {
			count[endpoint.key]--
			continue
		}
		rest = append(rest, endpoint)
	}
	return rest
}

// result returns the differences, ordered by slice and kind.
func (c *comparison) result() []difference.Difference {
	var found []difference.Difference
	for _, name := range slices.Sorted(maps.Keys(c.slices)) {
		slice := c.slices[name]
		change := slice.change
		metadata := metadataFields(change)
		if len(slice.fields) > 0 || c.emptySliceMatters(change) {
			if change.Verb == planned.Update && desired.KeyOf(change.From.Ports) != desired.KeyOf(change.Slice.Ports) {
				slice.fields = append(slice.fields, planned.Field{Path: "ports", Before: planned.JSON(change.From.Ports), After: planned.JSON(change.Slice.Ports)})
			}
			slice.fields.Sort()
			d := c.newDifference(change, c.kindOf(slice))
			d.Fields, d.FieldCount, d.Reason = slice.fields, len(slice.fields), c.reasonOf(slice)
			found = append(found, d)
		} else if len(metadata) == 0 {
			d := c.newDifference(change, difference.Packing)
			d.Reason = PackedOtherwise
			found = append(found, d)
		}
		if len(metadata) > 0 {
			d := c.newDifference(change, difference.Metadata)
			d.Fields, d.FieldCount = metadata, len(metadata)
			found = append(found, d)
		}
	}
	slices.SortStableFunc(found, func(a, b difference.Difference) int { return cmp.Compare(a.Object.Name, b.Object.Name) })
	return found
}

// emptySliceMatters returns whether a slice without endpoints is content: the one that says that a
// family has none, or one of a family that the Service does not have.
func (c *comparison) emptySliceMatters(change *pack.Change) bool {
	switch change.Reason {
	case pack.Placeholder:
		return change.Verb == planned.Create
	case pack.FamilyGone, pack.SelectorGone, pack.NotMirrored:
		return change.Verb == planned.Delete
	}
	return false
}

func (c *comparison) kindOf(slice *compared) difference.Kind {
	switch slice.change.Verb {
	case planned.Create:
		return difference.Missing
	case planned.Delete:
		return difference.Unwanted
	default:
		return difference.Content
	}
}

// reasonOf returns why a difference of content is intended; "" if no reason is known.
func (c *comparison) reasonOf(slice *compared) string {
	switch {
	case slice.change.Reason == pack.SelectorGone:
		return SelectorCleanedUp
	case c.AllocatesHints && slice.hintsOnly && len(slice.fields) > 0:
		return HintsAllocatedOtherwise
	case c.Spills && slice.added > 0 && slice.gone == 0 && slice.added == len(slice.fields):
		return MirrorSpilled
	case slice.change.Verb == planned.Create && c.repeatsPortName(slice.change.Slice):
		return PortNamesRepeated
	}
	return ""
}

// repeatsPortName returns whether another slice of the family, as planned, has a port of the same
// name with another number, for one of the same addresses.
func (c *comparison) repeatsPortName(created *discoveryv1.EndpointSlice) bool {
	if !isMirrored(created) {
		return false
	}
	addresses := map[string]bool{}
	for i := range created.Endpoints {
		for _, address := range created.Endpoints[i].Addresses {
			addresses[address] = true
		}
	}
	for i := range c.Plan.Changes {
		other := &c.Plan.Changes[i]
		if other.Slice == created || other.Verb == planned.Delete || other.Slice.AddressType != created.AddressType || !sharePortName(created, other.Slice) {
			continue
		}
		for j := range other.Slice.Endpoints {
			if slices.ContainsFunc(other.Slice.Endpoints[j].Addresses, func(address string) bool { return addresses[address] }) {
				return true
			}
		}
	}
	return false
}

func isMirrored(slice *discoveryv1.EndpointSlice) bool {
	return slices.ContainsFunc(slice.OwnerReferences, func(owner metav1.OwnerReference) bool { return owner.Kind == "Endpoints" })
}

func sharePortName(a, b *discoveryv1.EndpointSlice) bool {
	return slices.ContainsFunc(a.Ports, func(port discoveryv1.EndpointPort) bool {
		return slices.ContainsFunc(b.Ports, func(other discoveryv1.EndpointPort) bool { return equality.Semantic.DeepEqual(port.Name, other.Name) })
	})
}

func (c *comparison) newDifference(change *pack.Change, kind difference.Kind) difference.Difference {
	d := difference.Difference{
		Kind: kind, Message: fmt.Sprintf("%s: %s", change.Reason, change.Message()),
		Object: difference.Object{
			APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice", Namespace: change.Slice.Namespace, Name: change.Slice.Name,
		},
	}
	if change.From != nil {
		d.Object.UID, d.Version, d.Writer = string(change.From.UID), change.From.ResourceVersion, writerOf(change.From)
	}
	if change.Verb == planned.Create && d.Object.Name == "" {
		d.Object.Name = change.Slice.GenerateName
	}
	return d
}

// writerOf returns the field manager that wrote a slice last; "" if it is not known.
func writerOf(slice *discoveryv1.EndpointSlice) string {
	var newest *metav1.ManagedFieldsEntry
	for i := range slice.ManagedFields {
		entry := &slice.ManagedFields[i]
		if newest == nil || entry.Time != nil && (newest.Time == nil || newest.Time.Before(entry.Time)) {
			newest = entry
		}
	}
	if newest == nil {
		return ""
	}
	return newest.Manager
}

// metadataFields returns the labels, annotations and owners that an update changes. The time of the
// last change is of the write, not of the content.
func metadataFields(change *pack.Change) planned.Fields {
	if change.Verb != planned.Update {
		return nil
	}
	var found planned.Fields
	found.CompareMaps("metadata.labels", change.From.Labels, change.Slice.Labels)
	before, after := maps.Clone(change.From.Annotations), maps.Clone(change.Slice.Annotations)
	delete(before, corev1.EndpointsLastChangeTriggerTime)
	delete(after, corev1.EndpointsLastChangeTriggerTime)
	found.CompareMaps("metadata.annotations", before, after)
	found.Compare("metadata.ownerReferences", change.From.OwnerReferences, change.Slice.OwnerReferences)
	return found
}
