package baselinecontroller

import "github.com/trivet-dev/trivet/services/bootstrapsvc/internal/refusal"

var (
	// ErrConflict is refusal.ErrConflict: the object is not what the plan was made from.
	ErrConflict = refusal.ErrConflict
	// ErrUnavailable is refusal.ErrUnavailable.
	ErrUnavailable = refusal.ErrUnavailable
)
