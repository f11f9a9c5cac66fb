package cluster

import "github.com/trivet-dev/trivet/services/bootstrapsvc/internal/errorclass"

var (
	// ErrConflict is errorclass.ErrConflict: the object is not what the plan was made from.
	ErrConflict = errorclass.ErrConflict
	// ErrUnavailable is errorclass.ErrUnavailable.
	ErrUnavailable = errorclass.ErrUnavailable
)
