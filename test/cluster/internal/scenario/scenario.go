// Package scenario takes a cluster through steps that are data: an action, and what a client of
// kube-apiserver must see before the next step. The same steps run on clusters with different
// controllers, and a recorder keeps what each of them shows.
package scenario

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/test/cluster/internal/recorder"
	"github.com/trivet-dev/trivet/test/cluster/internal/recording"
)

// Machines does to machines what kube-apiserver cannot.
type Machines interface {
	// StopKubelet ends the kubelet of a node at once and keeps it down. Containers go on.
	StopKubelet(ctx context.Context, node string) error
	StartKubelet(ctx context.Context, node string) error
	// StopAPIServer stops the kube-apiserver of a node in good order.
	StopAPIServer(ctx context.Context, node string) error
	// KillAPIServer ends it at once and keeps it down.
	KillAPIServer(ctx context.Context, node string) error
	StartAPIServer(ctx context.Context, node string) error
}

// Step is one action and what it must lead to.
type Step struct {
	Name  string
	Do    Action
	Until []Expectation
}

// Expectation counts fields that a client sees. In patterns, * stands for any text.
type Expectation struct {
	Kind, Object, Field, Value string
	Count                      int
}

// Bounds of a step.
const (
	stepTimeout = 3 * time.Minute
	// quiet ends a step after its expectations are met; trailing changes belong to it.
	quiet      = 3 * time.Second
	quietLimit = 15 * time.Second
)

// Stage is a cluster with a recorder.
type Stage struct {
	Kube     kubernetes.Interface
	Recorder *recorder.Recorder
	Machines Machines
	Logger   *slog.Logger
	// Image is that of all Pods; its program runs until it is told to end.
	Image string
}

// Run takes the cluster through all steps, once atRest is met. The recorder must run. A step whose
// expectations are not met in time ends the run with an error that says what is seen instead.
func (s *Stage) Run(ctx context.Context, atRest []Expectation, steps []Step) error {
	if err := s.Recorder.AwaitListed(ctx); err != nil {
		return err
	}
	resting, cancel := context.WithTimeoutCause(ctx, stepTimeout, errors.New("the cluster does not come to rest"))
	defer cancel()
	if err := s.await(resting, atRest); err != nil {
		return err
	}
	for _, step := range steps {
		began := time.Now()
		if err := s.step(ctx, step); err != nil {
			return fmt.Errorf("step %q: %w", step.Name, err)
		}
		s.Logger.Info("step done", "step", step.Name, "took", time.Since(began).Round(100*time.Millisecond))
	}
	return nil
}

func (s *Stage) step(ctx context.Context, step Step) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stepTimeout, fmt.Errorf("not within %v", stepTimeout))
	defer cancel()
	s.Recorder.BeginStep(step.Name)
	if err := step.Do.run(ctx, s); err != nil {
		return err
	}
	if err := s.await(ctx, step.Until); err != nil {
		return err
	}
	return s.Recorder.AwaitQuiet(ctx, quiet, quietLimit)
}

func (s *Stage) await(ctx context.Context, expectations []Expectation) error {
	return s.Recorder.Await(ctx, func(views recorder.Views) error {
		for _, e := range expectations {
			if err := e.check(views(e.Kind)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (e Expectation) check(views []recording.View) error {
	object, field, value := recording.Pattern(e.Object), recording.Pattern(e.Field), recording.Pattern(e.Value)
	count := 0
	var seen []string
	for _, v := range views {
		if !object(v.Name) {
			continue
		}
		for name, text := range v.Fields {
			if !field(name) {
				continue
			}
			seen = append(seen, fmt.Sprintf("%s %s is %s", v.Name, name, text))
			if value(text) {
				count++
			}
		}
	}
	if count != e.Count {
		return fmt.Errorf("%d times %s %s %s %s, want %d; seen: %q", count, e.Kind, e.Object, e.Field, e.Value, e.Count, seen)
	}
	return nil
}
