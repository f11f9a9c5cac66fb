package allocation

// Plan is what would be written to mend findings, and what that leaves.
type Plan struct {
	// Steps in the order in which they must be carried out: what allocates first, what replaces next, what frees last.
	Steps []Step
	// Left are the findings that no step mends, ordered by name, each with why in its UnsafeReason.
	Left []Finding
}

// PlanRepair orders the steps of open findings. The order of findings does not matter, and each counts once.
func PlanRepair(findings []Finding) Plan { return Plan{} }

// Safe returns the plan's safe steps, of which whole findings are left out when one of their steps is not safe.
func (p Plan) Safe() Plan { return p }

// Material is a canonical text of the steps with what they were planned from, in their order: two plans are the same if and
// only if their materials are. Guard.Revision is not part of it, see there.
func (p Plan) Material() string { return "" }

// Material is the canonical text of one step: one line without its line break.
func (s Step) Material() string { return "" }

// Live is what was read for one step, right before it would be made.
type Live struct {
	// Services is a quorum list of all Services, read after the IPAddress or the bitmap. Freeing needs all; for a step that
	// allocates, those that use the subject are enough.
	Services []Service
	// IPAddress is the object of that name; nil when there is none. For steps of IPAddresses.
	IPAddress *IPAddress
	// Bitmap is the range as read; the write must be made at its revision. For steps of bitmaps.
	Bitmap Bitmap
}

// Outcome is what Check says.
type Outcome uint8

const (
	// Go: everything that the step was planned from holds. Do it.
	Go Outcome = iota + 1
	// Unneeded: what the step would bring about is so already.
	Unneeded
	// Drifted: something that it was planned from has changed. Leave it, and plan again.
	Drifted
)

// Check says whether a step may be made now, and why not.
func Check(s Step, live Live) (Outcome, string) { return Drifted, "not implemented" }

// Write returns the bitmap's data after steps, in upstream's encoding without leading zero bytes. The bitmap given stays
// as it is. It refuses steps of other stores or ranges.
func (b Bitmap) Write(steps []Step) ([]byte, error) { return nil, nil }
