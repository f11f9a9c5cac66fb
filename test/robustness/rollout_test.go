package robustness

import (
	"context"
	"path/filepath"
	"time"

	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/robustness/internal/schedule"
)

// rollOut replaces the replicas of a service, one after the other, by those of another build, or
// back. It waits for each to be ready before it goes on, as a Deployment does.
func (w *world) rollOut(_ *slot, f schedule.Fault) error {
	w.updates.Add(1)
	defer w.updates.Add(1)
	for _, s := range w.replicasOf(f.Service) {
		if err := s.Stop(); err != nil {
			return err
		}
		w.otherBuild(s)
		if err := s.Start(); err != nil {
			return err
		}
		if err := w.awaitReady(s); err != nil {
			return err
		}
		testkit.Pause(context.Background(), f.Duration)
	}
	return nil
}

// otherBuild makes the next process of a slot one of the other build, if there is one, or back.
func (w *world) otherBuild(s *slot) {
	s.Change(func(c *childprocess.Config) {
		if c.Path == w.binary && *other != "" {
			c.Path = filepath.Join(*other, s.Service)
		} else {
			c.Path = w.binary
		}
	})
}

// awaitReady waits for the readiness of the present process of a slot.
func (w *world) awaitReady(s *slot) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		_, err := s.get(ctx, "/readyz")
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		testkit.Pause(ctx, 100*time.Millisecond)
	}
}
