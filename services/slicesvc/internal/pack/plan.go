package pack

import (
	"fmt"
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

// Input is what a plan is made from.
type Input struct {
	// Snapshot has the slices, which may have other owners. Its Service, Pods and Shares are used
	// only for the slices of a Service.
	index.Snapshot
	// Owner is the object that owns the slices.
	Owner Owner
	// Endpoints are the endpoints that the slices should have.
	Endpoints desired.Endpoints
	// Limit is how many endpoints a slice may have; less than 1 counts as 1.
	Limit int
	// ManagedBy is the value of the managed-by label.
	ManagedBy string
	// WithoutRecycling tells that no slice is rewritten for another set of ports. kube-apiserver
	// refuses a slice of this plan, and must not thereby keep a slice that is to be deleted.
	WithoutRecycling bool
	// ChangeTime is when the change happened that the plan answers; zero when not known.
	ChangeTime time.Time
}

// Plan has the writes for one Service, in the order in which they must be made: creations, updates,
// deletions. So no endpoint is missing from all slices in between.
type Plan struct {
	Changes []Change
	// Topology tells for each family what became of the Service's wish for hints. It is nil when
	// the Service has none, and in the plan of a Placement.
	Topology []FamilyHints
}

// Empty reports whether there is nothing to write.
func (p Plan) Empty() bool { return len(p.Changes) == 0 }

// With returns the plan with those changes of another plan whose slices it does not write itself.
func (p Plan) With(other Plan) Plan {
	for _, change := range other.Changes {
		if !slices.ContainsFunc(p.Changes, func(own Change) bool { return own.Slice.Name == change.Slice.Name }) {
			p.Changes = append(p.Changes, change)
		}
	}
	return p
}

// FamilyHints tells what became of a Service's wish for hints in one family.
type FamilyHints struct {
	AddressType discoveryv1.AddressType
	hints.Verdict
}

// Change is one write.
type Change struct {
	Verb planned.Verb
	// Slice is the object to write. An update has the resourceVersion, and a deletion the
	// resourceVersion and UID, of the slice that the plan was made from.
	Slice *discoveryv1.EndpointSlice
	// From is the slice that the plan was made from; nil for a creation.
	From   *discoveryv1.EndpointSlice
	Reason Reason
	// Added, Removed and Changed count the slice's endpoints.
	Added, Removed, Changed int
	// Moved tells that other slices of the plan get endpoints that the slice loses, or other
	// endpoints of the Pods of a deleted slice.
	Moved bool
	// Takes tells that the slice gets endpoints that another slice loses, so that Repeat must
	// follow.
	Takes bool
}

// Reason is a stable code for why a slice is written.
type Reason string

const (
	// NewEndpoints: the endpoints do not fit into the existing slices.
	NewEndpoints Reason = "NEW_ENDPOINTS"
	// Placeholder: a family has no endpoint, and its one empty slice is missing or differs.
	Placeholder Reason = "PLACEHOLDER"
	// EndpointsChanged: endpoints of the slice were added, removed or changed.
	EndpointsChanged Reason = "ENDPOINTS_CHANGED"
	// LabelsChanged: only the labels differ from the Service's.
	LabelsChanged Reason = "LABELS_CHANGED"
	// Recycled: the slice is no longer needed and is rewritten as a new one.
	Recycled Reason = "RECYCLED"
	// Emptied: none of the slice's endpoints belongs to it any more.
	Emptied Reason = "EMPTIED"
	// PortsGone: no endpoint serves the slice's set of ports any more.
	PortsGone Reason = "PORTS_GONE"
	// FamilyGone: the Service is not served in the slice's address family.
	FamilyGone Reason = "FAMILY_GONE"
	// NotOwned: the slice has the managed-by label but another owner, for example an earlier
	// Service of the same name.
	NotOwned Reason = "NOT_OWNED"
	// Compacted: the endpoints of several slices fit into fewer.
	Compacted Reason = "COMPACTED"
	// Repeated: the slice took endpoints from another slice, which is written by now.
	Repeated Reason = "REPEATED"
	// AnnotationsChanged: only the annotations differ from those of the Endpoints object.
	AnnotationsChanged Reason = "ANNOTATIONS_CHANGED"
	// OwnerChanged: the slice has the endpoints of the Endpoints object, but another owner, for
	// example an earlier Endpoints object of the same name.
	OwnerChanged Reason = "OWNER_CHANGED"
	// NotMirrored: there is no Endpoints object, or it is not mirrored any more.
	NotMirrored Reason = "NOT_MIRRORED"
	// SelectorGone: the Service gets no slices any more, and those it had are deleted.
	SelectorGone Reason = "SELECTOR_GONE"
)

// Supersedes reports whether the change takes endpoints out of a slice that may have moved to other
// slices of the plan. It must be made only if those were written. A slice whose Pods are all gone,
// or whose family is not served any more, supersedes nothing.
func (c Change) Supersedes() bool {
	if c.Verb != planned.Delete {
		return c.Moved
	}
	return c.Moved || c.Reason == PortsGone || c.Reason == NotOwned || c.Reason == Compacted
}

// AffectsTraffic reports whether the change decides to which endpoints clients send traffic: it
// adds or removes endpoints, or changes their ports or conditions. Other changes are of labels,
// zones, nodes and hints.
func (c Change) AffectsTraffic() bool {
	if c.Verb != planned.Update || c.Added+c.Removed > 0 || desired.KeyOf(c.From.Ports) != desired.KeyOf(c.Slice.Ports) {
		return true
	}
	// Nothing was added or removed, so each endpoint has the position that it had.
	return !slices.EqualFunc(c.From.Endpoints, c.Slice.Endpoints, func(a, b discoveryv1.Endpoint) bool {
		return equality.Semantic.DeepEqual(a.Conditions, b.Conditions)
	})
}

// Message describes the change for people.
func (c Change) Message() string {
	ports := desired.PortText(c.Slice.Ports)
	switch c.Reason {
	case NewEndpoints:
		return fmt.Sprintf("%d %s endpoints for ports %s", c.Added, c.Slice.AddressType, ports)
	case Placeholder:
		return fmt.Sprintf("no %s endpoints: one empty slice says so", c.Slice.AddressType)
	case LabelsChanged:
		return fmt.Sprintf("labels differ from the %s's", sourceOf(c.Slice))
	case AnnotationsChanged:
		return fmt.Sprintf("annotations differ from the %s's", sourceOf(c.Slice))
	case OwnerChanged:
		return fmt.Sprintf("not owned by this %s", sourceOf(c.Slice))
	case NotMirrored:
		return "no mirrored Endpoints object has this slice"
	case Recycled:
		return fmt.Sprintf("now %d %s endpoints for ports %s", len(c.Slice.Endpoints), c.Slice.AddressType, ports)
	case Repeated:
		return "its endpoints left another slice, whose readers may have lost them"
	case Emptied:
		return fmt.Sprintf("%d endpoints gone, none left", c.Removed)
	case PortsGone:
		return fmt.Sprintf("no endpoint serves ports %s", ports)
	case FamilyGone:
		return fmt.Sprintf("the %s has no %s addresses", sourceOf(c.Slice), c.Slice.AddressType)
	case NotOwned:
		return "not owned by this Service"
	case SelectorGone:
		return "the Service has no selector any more"
	case Compacted:
		if c.Verb == planned.Delete {
			return fmt.Sprintf("%d endpoints moved to other slices", c.Removed)
		}
		return fmt.Sprintf("%d endpoints taken from other slices", c.Added)
	default:
		return fmt.Sprintf("%d endpoints added, %d removed, %d changed", c.Added, c.Removed, c.Changed)
	}
}

// sourceOf names the kind of object that a slice has its endpoints from.
func sourceOf(slice *discoveryv1.EndpointSlice) string {
	for i := range slice.OwnerReferences {
		if slice.OwnerReferences[i].Kind == "Endpoints" {
			return "Endpoints object"
		}
	}
	return "Service"
}
