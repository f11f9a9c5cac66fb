package term

import (
	"context"

	"github.com/trivet-dev/trivet/internal/term/internal/localterm"
)

// Term is one shard held by this process: its number, its epoch, the comparison that guards etcd writes and a context that
// ends before the etcd lease can lapse.
type Term = localterm.Term

// Body does the work of one shard for one term. Its context carries the term and ends before the session can lapse; Body
// must then return soon, for the shard is released only after it has. Returning earlier, with or without an error, gives the
// shard up; it is claimed again after a backoff.
type Body func(ctx context.Context, t *Term) error

var (
	// ErrEnded is wrapped by [Term.Check] once the local lease bound has passed or the term was given up.
	ErrEnded = localterm.ErrEnded
	// ErrNone says that a context carries no term.
	ErrNone = localterm.ErrNone
)

// FromContext returns the term that ctx carries, and whether it carries one. A term that is returned may have ended.
func FromContext(ctx context.Context) (*Term, bool) { return localterm.FromContext(ctx) }
