package process

import (
	"errors"
	"slices"
	"sync/atomic"

	"github.com/trivet-dev/trivet/internal/term"
)

// errUnled: a replica that has just come cannot say that all is well with the service while nobody does its work.
var errUnled = errors.New("nobody is known to lead yet")

// led tells whether anybody has held a shard since this replica came. It keeps a fresh replica that is alone from being ready for
// the moment before it leads, from which on its loops speak for themselves. Later it says nothing: that a term is on its way from
// one replica to another is no reason to call all of them unready.
type led struct {
	holdings func() []term.Holding
	seen     atomic.Bool
}

// check is safe for concurrent use.
func (l *led) check() error {
	if l.seen.Load() {
		return nil
	}
	if !slices.ContainsFunc(l.holdings(), func(h term.Holding) bool { return h.ReplicaID != "" }) {
		return errUnled
	}
	l.seen.Store(true)
	return nil
}
