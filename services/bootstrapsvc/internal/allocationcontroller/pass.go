package allocationcontroller

import (
	"context"
	"fmt"
	"time"
)

// hurry makes the next pass come at a time, if it is not to come earlier and may.
func (s *session) hurry(at time.Time) {
	if at.Before(s.notBefore) {
		at = s.notBefore
	}
	if at.Before(s.due) {
		s.due = at
	}
}

// schedule says when the next pass is due after one that ended now.
func (s *session) schedule(now time.Time, err error) {
	s.due, s.notBefore = now.Add(period), time.Time{}
	if err != nil {
		const doublings = 10 // far beyond retryMax, far from overflow
		s.notBefore = now.Add(min(retryMax, retryMin<<min(s.failures, doublings)))
		s.failures++
		s.hurry(now)
		return
	}
	s.failures, s.failingSince = 0, now
	if next := s.ledger.NextDue(); !next.IsZero() {
		s.hurry(next)
	}
	if s.ranges.doubt != "" {
		s.hurry(now.Add(doubtPeriod))
	}
	if next, any := s.nextAttempt(); any {
		s.hurry(next)
	}
}

// pass judges, mends, remembers and publishes. The error says since when passes have failed, once that is long ago.
func (s *session) pass(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	err := s.round(ctx)
	if failing := time.Since(s.failingSince); err != nil && failing > announceAfter {
		err = fmt.Errorf("no pass has succeeded for %s: %w", failing.Round(time.Second), err)
	}
	if err != nil && s.view.Load() == nil {
		s.setNotSynced(err)
	}
	s.Reporter.PassFinished(s.took, s.view.Load(), err)
	return err
}

func (s *session) round(ctx context.Context) error {
	now := time.Now()
	if err := s.whole(); err != nil {
		return err
	}
	if err := s.ascertain(ctx, now); err != nil {
		return err
	}
	err := s.judge(ctx, now)
	if err == nil {
		err = s.mend(ctx, now)
	}
	if err == nil && s.healthy() == nil {
		s.ledger.Observe(now)
	}
	s.publish()
	if kept := s.keep(ctx); err == nil {
		err = kept
	}
	return err
}

// judge compares what is used with what is allocated, and takes what differs into the book. An error tells that something was
// not read, so that it does not count as open yet; what else was found is in the book all the same.
func (s *session) judge(ctx context.Context, now time.Time) error {
	if err := s.whole(); err != nil {
		return err
	}
	deltas, err := s.compare(ctx, now)
	s.audited, s.states = now, s.ledger.StoreStates()
	for _, delta := range deltas {
		for _, opened := range s.book.take(delta, now) {
			s.Reporter.FindingOpened(opened)
		}
	}
	return err
}

// keep writes what is new of findings to the journal. What could not be written is written with the next pass.
func (s *session) keep(ctx context.Context) error {
	findings, forget := s.book.unkept()
	if len(findings)+len(forget) == 0 {
		return nil
	}
	if err := s.Store.WriteFindings(ctx, findings, forget); err != nil {
		return err
	}
	s.book.keptAll()
	return nil
}

// publish makes what is known now visible and returns it.
func (s *session) publish() *Snapshot {
	old, changed := s.view.Load(), s.book.refresh(s.ledger.Finding)
	if old != nil && !changed {
		// Nothing but the time is new: whoever waits for news goes on waiting.
		view := *old
		view.Stores, view.CompareDuration, view.CompareTime, view.Version = s.states, s.took, s.audited, s.version
		s.view.Store(&view)
		return &view
	}
	told := s.more
	s.more = make(chan struct{})
	view := &Snapshot{
		Current: s.book.listStanding(), Ended: s.book.listEnded(), Stores: s.states, CompareDuration: s.took, CompareTime: s.audited,
		Version: s.version, Changed: s.more,
	}
	s.view.Store(view)
	close(told)
	return view
}
