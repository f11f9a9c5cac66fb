package conformance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

// TestEngine_AsUpstream gives histories to the whole of slicesvc's engine, one event after the other as a watch would show them,
// and holds what it has written at each rest against one sync of upstream's over all there is. The engine plans from what
// changed, upstream from everything; how many writes that takes is compared elsewhere, plan by plan.
func TestEngine_AsUpstream(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		if err := inBubble(t, func() error { return history(r) }); err != nil {
			r.Fatal(err)
		}
	})
}

// history draws a history and compares at each rest.
func history(t *rapid.T) error {
	auto := rapid.IntRange(0, 3).Draw(t, "topology annotation") == 0
	w, u := newWorld(t, auto), newUpstream()
	s, stop, err := startEngine(w.limit)
	if err != nil {
		return err
	}
	defer stop()
	for range steps {
		theirs, err := u.sync(w)
		if err != nil {
			return fmt.Errorf("upstream: %w", err)
		}
		s.learn(t, w)
		if err := s.compare(w, theirs, auto); err != nil {
			return err
		}
		w.slices = s.stored()
		w.step(t, auto)
	}
	return nil
}

// inBubble runs one check where time passes at once. The panics by which rapid ends a check that draws too much pass through it.
func inBubble(t *testing.T, check func() error) (err error) {
	var ended any
	synctest.Test(t, func(*testing.T) {
		defer func() { ended = recover() }()
		err = check()
	})
	if ended != nil {
		panic(ended)
	}
	return err
}

// served is an engine at work on a world, with the slices that it has written.
type served struct {
	*slicecontroller.Controller
	told world // what the engine knows

	mu      sync.Mutex // guards the rest
	slices  map[string]*discoveryv1.EndpointSlice
	version int
}

// startEngine lets an engine work that knows of nothing, until it is stopped.
func startEngine(limit int) (s *served, stop func(), err error) {
	s = &served{slices: map[string]*discoveryv1.EndpointSlice{}}
	s.Controller, err = slicecontroller.New(
		slicecontroller.Config{ManagedBy: managedBy, Shards: 1, MaxEndpointsPerSlice: limit, Workers: 2},
		slicecontroller.Deps{Writer: s, Logger: slog.New(slog.DiscardHandler)},
	)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx) })
	running.Go(func() { _ = s.RunShard(ctx, 0, func(error) {}) })
	return s, func() {
		cancel()
		running.Wait()
	}, nil
}

// Write implements slicecontroller.Writer as a kube-apiserver would.
func (s *served) Write(_ context.Context, change pack.Change) (*discoveryv1.EndpointSlice, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.slices[change.Slice.Name]
	if (change.Verb == pack.Create) != (before == nil) || before != nil && before.ResourceVersion != change.Slice.ResourceVersion {
		return nil, kube.ErrConflict // somebody else was here, of whom the engine has not been told yet
	}
	if change.Verb == pack.Delete {
		delete(s.slices, change.Slice.Name)
		return change.Slice, nil
	}
	return s.store(change.Slice), nil
}

// store needs s.mu.
func (s *served) store(slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s.version++
	kept := slice.DeepCopy()
	kept.ResourceVersion = strconv.Itoa(s.version)
	if kept.UID == "" {
		kept.UID = types.UID("uid-of-" + kept.ResourceVersion)
	}
	s.slices[kept.Name] = kept
	return kept.DeepCopy()
}

func (s *served) stored() []*discoveryv1.EndpointSlice {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sorted(newStore(sorted(&store{slices: s.slices})))
}

// learn tells the engine what is new in the world, with a rest after some of it, and lets it come to rest.
func (s *served) learn(t *rapid.T, w world) {
	time.Sleep(time.Minute) // who changes slices only now and then is no second writer
	var news []func()
	for _, node := range w.nodes {
		if before := s.told.node(node.Name); before != node {
			news = append(news, func() { s.PutNode(node.DeepCopy()) })
		}
	}
	if s.told.service != w.service {
		news = append(news, func() { s.PutService(w.service.DeepCopy()) })
	}
	news = append(append(news, s.podNews(w)...), s.sliceNews(w)...)
	for _, tell := range rapid.Permutation(news).Draw(t, "order of events") {
		tell()
		if rapid.IntRange(0, 2).Draw(t, "rest") == 0 {
			synctest.Wait()
		}
	}
	time.Sleep(time.Minute) // longer than the pause after a failure
	synctest.Wait()
	s.told = w
}

func (s *served) podNews(w world) []func() {
	var news []func()
	for _, pod := range w.pods {
		if !slices.Contains(s.told.pods, pod) {
			news = append(news, func() { s.PutPod(pod.DeepCopy()) })
		}
	}
	for _, pod := range s.told.pods {
		if !slices.ContainsFunc(w.pods, func(still *corev1.Pod) bool { return still.Name == pod.Name }) {
			news = append(news, func() { s.DeletePod(pod.DeepCopy()) })
		}
	}
	return news
}

// sliceNews are what others have done to the slices.
func (s *served) sliceNews(w world) []func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var news []func()
	left := map[string]bool{}
	for _, slice := range w.slices {
		left[slice.Name] = true
		if before := s.slices[slice.Name]; before == nil || !cmp.Equal(before, slice) {
			edited := s.store(slice)
			news = append(news, func() { s.PutSlice(edited) })
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.slices)) {
		if left[name] {
			continue
		}
		s.version++
		gone := s.slices[name].DeepCopy()
		gone.ResourceVersion = strconv.Itoa(s.version)
		delete(s.slices, name)
		news = append(news, func() { s.DeleteSlice(gone) })
	}
	return news
}

// compare holds what lies there now against what upstream left.
func (s *served) compare(w world, theirs *store, auto bool) error {
	ours := newStore(s.stored())
	if auto {
		if problem := hintProblem(ours, w); problem != "" {
			return errors.New(problem)
		}
		theirs, ours = withoutHints(theirs), withoutHints(ours)
	}
	if diff := cmp.Diff(published(theirs), published(ours)); diff != "" {
		return fmt.Errorf("endpoints of slices (-upstream +ours):\n%s", diff)
	}
	if diff := cmp.Diff(labels(theirs), labels(ours)); diff != "" {
		return fmt.Errorf("labels of slices (-upstream +ours):\n%s", diff)
	}
	if family := familyWithout(ours, w); family != "" {
		return fmt.Errorf("there is no slice of %s", family)
	}
	for _, slice := range ours.slices {
		if len(slice.Endpoints) > w.limit {
			return fmt.Errorf("slice %s holds %d endpoints, more than %d", slice.Name, len(slice.Endpoints), w.limit)
		}
	}
	preview, ok := s.Preview(slicecontroller.Key{Namespace: namespace, Name: w.service.Name})
	if !ok || !preview.Plan.Empty() {
		return fmt.Errorf("at rest there is still to do: %v", preview.Plan.Changes)
	}
	return nil
}
