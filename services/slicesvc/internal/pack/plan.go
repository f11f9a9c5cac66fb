package pack

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
)

// Input is what a plan is made from.
type Input struct {
	// Service owns the slices.
	Service *corev1.Service
	// Endpoints is what the Service should have.
	Endpoints desired.Endpoints
	// Slices are those that exist: ours by managed-by and service name, in any order, whoever owns them.
	Slices []*discoveryv1.EndpointSlice
	// Taken reports whether the namespace has an EndpointSlice of that name,
	// ours or not; nil when the names in Slices are all there are.
	Taken func(name string) bool
	// Part restricts the plan to what may have changed; nil for all of it.
	Part *Part
	// Affinity gives pods of the Service's namespace that come and go together the
	// same number, as desired.AffinityOf does; nil when all are alike. It is asked
	// for pods in Slices and in Endpoints, and only when endpoints need a place.
	Affinity func(pod string) uint32
	// Zones are the zones' parts of the cluster, for Services with the topology annotation.
	Zones hints.Shares
	// Limit is how many endpoints a slice may hold; less than 1 counts as 1.
	Limit int
	// ManagedBy is the value of the managed-by label.
	ManagedBy string
	// ChangeTime is when the change came about that the plan answers; the zero
	// time when that is not known.
	ChangeTime time.Time
}

// ending reports whether the Service is being deleted.
func (in *Input) ending() bool { return in.Service.DeletionTimestamp != nil }

// affinity is that of a pod.
func (in *Input) affinity(pod string) uint32 {
	if in.Affinity == nil {
		return 0
	}
	return in.Affinity(pod)
}

// Verb is what happens to a slice.
type Verb string

// The verbs.
const (
	Create Verb = "create"
	Update Verb = "update"
	Delete Verb = "delete"
)

// Reason is a stable code for why a slice is written.
type Reason string

// The reasons.
const (
	// NewEndpoints: endpoints found no place in the slices there are.
	NewEndpoints Reason = "NEW_ENDPOINTS"
	// Placeholder: a family has no endpoint, and its one empty slice is missing or differs.
	Placeholder Reason = "PLACEHOLDER"
	// EndpointsChanged: endpoints of the slice changed, came or went.
	EndpointsChanged Reason = "ENDPOINTS_CHANGED"
	// LabelsChanged: only the labels differ from the Service's.
	LabelsChanged Reason = "LABELS_CHANGED"
	// Recycled: the slice was not needed any more and becomes one that is.
	Recycled Reason = "RECYCLED"
	// Emptied: none of the slice's endpoints is wanted in it any more.
	Emptied Reason = "EMPTIED"
	// PortsGone: nothing serves the slice's set of ports any more.
	PortsGone Reason = "PORTS_GONE"
	// FamilyGone: the Service is not served in the slice's address family.
	FamilyGone Reason = "FAMILY_GONE"
	// NotOwned: the slice carries our labels but is not owned by this Service, as after the Service was deleted and made again.
	NotOwned Reason = "NOT_OWNED"
	// Compacted: the endpoints of several slices find room in fewer.
	Compacted Reason = "COMPACTED"
)

// Change is one write.
type Change struct {
	Verb Verb
	// Slice is what is written. An update carries the resourceVersion, and a
	// deletion resourceVersion and UID, of the slice the plan was made from.
	Slice  *discoveryv1.EndpointSlice
	Reason Reason
	// Added, Removed and Changed count the slice's endpoints.
	Added, Removed, Changed int
	// Moved says that of those removed some go elsewhere: they are above the limit, or
	// their pods have other endpoints in slices of the plan.
	Moved bool
}

// Supersedes reports whether the change takes endpoints out of a slice that may
// have moved to other slices of the plan, so that it must not happen unless those
// were written. A slice whose pods are all gone, or whose family is not served
// any more, has nothing to lose.
func (c Change) Supersedes() bool {
	if c.Verb != Delete {
		return c.Moved
	}
	return c.Moved || c.Reason == PortsGone || c.Reason == NotOwned || c.Reason == Compacted
}

// Detail says for people what the change does.
func (c Change) Detail() string {
	ports := desired.PortText(c.Slice.Ports)
	switch c.Reason {
	case NewEndpoints:
		return fmt.Sprintf("%d %s endpoints for ports %s", c.Added, c.Slice.AddressType, ports)
	case Placeholder:
		return fmt.Sprintf("no %s endpoints: one empty slice says so", c.Slice.AddressType)
	case LabelsChanged:
		return "labels differ from the Service's"
	case Recycled:
		return fmt.Sprintf("now %d %s endpoints for ports %s", c.Added, c.Slice.AddressType, ports)
	case Emptied:
		return fmt.Sprintf("%d endpoints gone, none left", c.Removed)
	case PortsGone:
		return fmt.Sprintf("no endpoint serves ports %s", ports)
	case FamilyGone:
		return fmt.Sprintf("the Service has no %s addresses", c.Slice.AddressType)
	case NotOwned:
		return "not owned by this Service"
	case SelectorGone:
		return "the Service has no selector any more"
	case Compacted:
		if c.Verb == Delete {
			return fmt.Sprintf("%d endpoints moved to other slices", c.Removed)
		}
		return fmt.Sprintf("%d endpoints taken from other slices", c.Added)
	default:
		return fmt.Sprintf("%d endpoints added, %d removed, %d changed", c.Added, c.Removed, c.Changed)
	}
}

// Plan is the writes for one Service, in the order in which they are to be
// made: creations, updates, deletions, so that no endpoint is missing from all
// slices in between.
type Plan struct {
	Changes []Change
	// Topology says for each family what became of the Service's wish for hints;
	// nil when it has none, or when the plan is for a part. It is no write.
	Topology []FamilyHints
}

// Empty reports whether there is nothing to write.
func (p Plan) Empty() bool { return len(p.Changes) == 0 }
