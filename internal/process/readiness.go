package process

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/term"
)

// apart is a reason to be unready that says nothing about whether this replica could do the work of a term.
type apart struct{ error }

func (a apart) Unwrap() error { return a.error }

// setApart makes a check's failures ones that do not cost this replica its terms.
func setApart(check func() error) func() error {
	return func() error {
		if err := check(); err != nil {
			return apart{error: err}
		}
		return nil
	}
}

// unable says why this replica could not do the work of a term, nil when it could: what it depends on is missing, or its loops
// keep failing. It is not the same as readiness. The session with etcd is left out, because there is no term without one; so is
// a loop's first pass that is still under way, because a large cluster takes its time and would take as long elsewhere.
func (p *Process) unable() error {
	var reasons []error
	for _, failed := range p.ready.Failed() {
		if !errors.As(failed, new(apart)) {
			reasons = append(reasons, failed)
		}
	}
	loops := p.service.Loops()
	return errors.Join(append(reasons, failing(loops.Status(), loops.CheckReady()))...)
}

// failing names the loops that are failing or stalled, if readiness holds failures against them: a single one it forgives.
func failing(loops []loop.Status, unready error) error {
	var found []error
	for _, l := range loops {
		if l.State == loop.Stalled || l.State == loop.Failing && unready != nil {
			found = append(found, fmt.Errorf("loop %s is %v: %s", l.Name, l.State, l.LastError))
		}
	}
	return errors.Join(found...)
}

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
