package allocation

// Verb is what a step does.
type Verb string

const (
	// Create writes an IPAddress object that must not exist.
	Create Verb = "create"
	// Relabel writes the allocator's labels over exactly one version of an IPAddress object. The address stays allocated.
	Relabel Verb = "relabel"
	// Delete removes exactly one version of an IPAddress object.
	Delete Verb = "delete"
	// SetBit sets a bit of a bitmap that is clear.
	SetBit Verb = "set"
	// ClearBit clears a bit of a bitmap that is set.
	ClearBit Verb = "clear"
)

// Reason is a stable UPPER_SNAKE_CASE code that says why a step is taken.
type Reason string

const (
	// ReasonInUse: it is allocated because a Service uses it.
	ReasonInUse Reason = "IN_USE_NOT_ALLOCATED"
	// ReasonReference: it is allocated anew in the name of its user; both the delete and the create carry it.
	ReasonReference Reason = "WRONG_REFERENCE"
	// ReasonLabels: its labels are corrected.
	ReasonLabels Reason = "WRONG_LABELS"
	// ReasonLeaked: it is freed because nobody uses it.
	ReasonLeaked Reason = "LEAKED"
	// ReasonOrphan: it is freed because its parent is gone and nobody uses it.
	ReasonOrphan Reason = "ORPHAN"
)

// Step is one write, and everything that must hold when it is made.
type Step struct {
	// Finding is the name of the finding that it mends.
	Finding string
	Verb    Verb
	Store   Store
	Subject string
	// Object is, for IPAddresses, the object as it will be (Create, Relabel) or as it was seen (Delete).
	Object IPAddress
	// Offset is, for a bitmap, the number of the bit, and Range the stored text that it counts in.
	Offset int
	Range  string
	// Guard is the version that it was planned from.
	Guard Guard
	// Owner is the Service that a Create or SetBit is for; its key is empty when the step frees.
	Owner Owner
	// Sole tells that no Service but Owner may use the subject; with an empty Owner none may.
	Sole   bool
	Reason Reason
	// Detail says the same as Reason for people, with the values that matter.
	Detail string
	Safe   bool
	// Risk says what can go wrong by it; empty when nothing can.
	Risk string
}

// Guard is the version that a step was planned from.
type Guard struct {
	// Absent: the IPAddress must not exist.
	Absent bool
	// UID and ResourceVersion are those of the IPAddress.
	UID, ResourceVersion string
	// Revision is the modification revision of the range's key when the step was planned. It is shown and not held against
	// the step: on a busy cluster it moves with every Service. The write is made at the revision that Check was given.
	Revision int64
}

// Frees tells whether the step gives something free that was allocated.
func (s Step) Frees() bool {
	return s.Verb == ClearBit || s.Verb == Delete && s.Reason != ReasonReference
}
