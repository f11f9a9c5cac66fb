package gateway

import (
	"context"

	"github.com/trivet-dev/trivet/internal/term"
)

// Directory knows which replicas there are. *term.Directory is the one over etcd. All methods but Run return at once and
// are safe for concurrent use, also before Run.
type Directory interface {
	// Run keeps the directory up to date until ctx ends and returns nil then. It is called once.
	Run(ctx context.Context) error
	// Members returns the replicas known last, ordered by service and id, also while etcd is away. The caller does not
	// change the slice.
	Members() []term.Member
	// Check returns why Members may be out of date, or nil.
	Check() error
	// Changed is closed at the next change of Members.
	Changed() <-chan struct{}
}
