package bootstrapsvc

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/term"
)

// Run probes, and leads when it is this replica's turn. When ctx ends it stops in this order: it deletes its key; if it leads,
// it takes its address out of the endpoints; then it gives up the term. That takes at most twenty seconds. A leader's term
// therefore outlives ctx by that much.
func (s *Service) Run(ctx context.Context) error {
	group, alive := errgroup.WithContext(context.WithoutCancel(ctx))
	working, stop := context.WithCancel(alive)
	defer stop()
	defer context.AfterFunc(ctx, func() {
		s.stopping.Store(true)
		close(s.stopped)
		stop()
	})()
	leading, resign := context.WithCancel(alive)
	defer resign()
	group.Go(func() error {
		defer resign()
		err := s.runner.Run(working)
		s.leave(leading)
		return err
	})
	group.Go(func() error {
		defer stop()
		return s.leadership.Run(leading, s.lead)
	})
	return group.Wait()
}

// lead is the body of a term.
func (s *Service) lead(ctx context.Context, t *term.Term) error {
	s.held.Store(t)
	defer s.forget()
	return s.runner.RunTerm(ctx)
}

// forget drops what only a leader knows.
func (s *Service) forget() {
	s.held.Store(nil)
	for _, k := range s.keepers {
		k.known.Store(nil)
	}
	s.metrics.forget()
}

// leave makes a leader's last pass: its own address goes, while it still may write. A replica that does not lead leaves that
// to the leader, whose watch has seen the key go.
func (s *Service) leave(ctx context.Context) {
	t := s.held.Load()
	if t == nil || !s.at.primary.IsValid() || !s.isOn(endpointsLoop) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	ctx, done := untilEnd(ctx, t)
	defer done()
	if _, err := s.endpoints.ask(ctx, s.at.primary); err != nil {
		s.logger.Warn("could not take the address of the kube-apiserver out of the endpoints; the next leader will",
			"address", s.at.primary, "error", err)
	}
}

// isOn tells whether --loops lets a loop run.
func (s *Service) isOn(name string) bool {
	return slices.ContainsFunc(s.runner.Status(), func(status loop.Status) bool {
		return status.Name == name && status.State != loop.Disabled
	})
}

// untilEnd returns a context that also ends with the term, with the reason as its cause.
func untilEnd(ctx context.Context, t *term.Term) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(t.Context(), func() { cancel(t.Check()) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}
