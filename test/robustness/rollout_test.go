package robustness

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"github.com/trivet-dev/trivet/test/robustness/internal/schedule"
)

// rollOut replaces the replicas of a service, one after the other, by those of another build, or
// back. It waits for each to be ready before it goes on, as a Deployment does.
func (w *world) rollOut(_ *slot, f schedule.Fault) error {
	w.updates.Add(1)
	defer w.updates.Add(1)
	for _, s := range w.replicasOf(f.Service) {
		if err := s.stop(); err != nil {
			return err
		}
		s.otherBuild()
		if err := s.start(); err != nil {
			return err
		}
		if err := w.awaitReady(s); err != nil {
			return err
		}
		pause(context.Background(), f.Duration)
	}
	return nil
}

// otherBuild makes the next process of a slot one of the other build, if there is one.
func (s *slot) otherBuild() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.program != "" || *other == "" {
		s.program = ""
		return
	}
	s.program = filepath.Join(*other, s.service)
}

// awaitReady waits for the readiness of the present process of a slot.
func (w *world) awaitReady(s *slot) error {
	client, err := w.pki.httpClient()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+s.admin+"/readyz", nil)
		if err != nil {
			return err
		}
		answer, err := client.Do(request)
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("%s is not ready: %s", s.name, answer.Status)
		}
		if ctx.Err() != nil {
			return err
		}
		pause(ctx, 100*time.Millisecond)
	}
}
