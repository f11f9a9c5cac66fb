package process

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/term"
)

// servingOnlyError is a failed check that makes this replica unready for RPCs but not for terms.
type servingOnlyError struct{ error }

func (s servingOnlyError) Unwrap() error { return s.error }

// forServingOnly makes the failures of a check irrelevant to terms.
func forServingOnly(check func() error) func() error {
	return func() error {
		if err := check(); err != nil {
			return servingOnlyError{error: err}
		}
		return nil
	}
}

// notReadyForTerms returns why this replica cannot do the work of a term: a dependency is missing,
// or its loops keep failing. It returns nil if it can.
//
// The result differs from readiness for RPCs. It excludes the session with etcd, because without
// one there is no term. It also excludes an unfinished first pass of a loop: in a large cluster the
// pass is slow on every replica.
func (p *Process) notReadyForTerms() error {
	var reasons []error
	for _, failed := range p.ready.Failed() {
		if !errors.As(failed, new(servingOnlyError)) {
			reasons = append(reasons, failed)
		}
	}
	loops := p.service.Loops()
	return errors.Join(append(reasons, failing(loops.Status(), loops.CheckReady()))...)
}

// failing returns the loops that are stalled, and those that are failing if readiness counts
// failures. Readiness ignores a single failure, and loops in dry run.
func failing(loops []loop.Status, unready error) error {
	var found []error
	for _, l := range loops {
		if !l.DryRun && (l.State == loop.Stalled || l.State == loop.Failing && unready != nil) {
			found = append(found, fmt.Errorf("loop %s is %v: %s", l.Name, l.State, l.LastError))
		}
	}
	return errors.Join(found...)
}

var errNoLeader = errors.New("no replica has held a shard yet")

// leaderSeen checks that a replica has held a shard since this process started. Otherwise a new
// replica without peers would be ready before it leads. After the first holder, the check always
// passes: a term that moves between replicas makes none of them unready.
type leaderSeen struct {
	holdings func() []term.ShardStatus
	seen     atomic.Bool
}

// check is safe for concurrent use.
func (l *leaderSeen) check() error {
	if l.seen.Load() {
		return nil
	}
	if !slices.ContainsFunc(l.holdings(), func(h term.ShardStatus) bool { return h.ReplicaID != "" }) {
		return errNoLeader
	}
	l.seen.Store(true)
	return nil
}
