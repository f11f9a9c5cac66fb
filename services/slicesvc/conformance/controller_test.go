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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

// TestController_AsUpstream gives the controller one event after the other, as a watch does, those
// of its own writes as well. The controller reads slices, batches changes and compacts, as in
// production. Whenever no work is left, the test compares the slices with one sync of upstream.
// TestHistories_AsUpstream compares the number of writes.
func TestController_AsUpstream(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		if err := inBubble(t, func() error { return runHistory(r) }); err != nil {
			r.Fatal(err)
		}
	})
}

// runHistory draws a history and compares after each step.
func runHistory(t *rapid.T) error {
	auto := rapid.IntRange(0, 3).Draw(t, "topology annotation") == 0
	w, u := newClusterState(t, auto), newUpstream()
	s, stop, err := startController(drawSettings(t, w.limit))
	if err != nil {
		return err
	}
	defer stop()
	for range steps {
		theirs, err := u.sync(w)
		if err != nil {
			return fmt.Errorf("upstream: %w", err)
		}
		s.sendChanges(t, w)
		if err := s.compare(w, theirs, auto); err != nil {
			return err
		}
		w.slices = s.stored()
		w.step(t, auto)
	}
	return nil
}

// inBubble runs a check in a synctest bubble. It passes on the panic by which rapid ends an invalid
// check.
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

// fixture is a running controller with the slices that it has written.
type fixture struct {
	*slicecontroller.Controller
	settings settings
	known    clusterState // what the controller knows
	// ownEvents has the events of the controller's own writes.
	ownEvents chan func()

	mu      sync.Mutex // guards the rest
	slices  map[string]*discoveryv1.EndpointSlice
	version int
}

// settings are those of a controller and its watch.
type settings struct {
	limit int
	// reads says that the controller can read slices, without a watch.
	reads bool
	// batchPeriod is how long changes wait; 0 follows the load, negative is no wait.
	batchPeriod, compactAfter time.Duration
	// lag is how late the events of the controller's own writes are.
	lag time.Duration
}

func drawSettings(t *rapid.T, limit int) settings {
	return settings{
		limit:        limit,
		reads:        rapid.Bool().Draw(t, "reads"),
		batchPeriod:  rapid.SampledFrom([]time.Duration{-1, 0, 500 * time.Millisecond, 10 * time.Second}).Draw(t, "batch period"),
		compactAfter: rapid.SampledFrom([]time.Duration{0, 5 * time.Second}).Draw(t, "compact after"),
		lag:          rapid.SampledFrom([]time.Duration{0, time.Millisecond, 3 * time.Second}).Draw(t, "lag of own events"),
	}
}

// startController runs a controller with an empty cache until stop is called.
func startController(with settings) (s *fixture, stop func(), err error) {
	s = &fixture{settings: with, ownEvents: make(chan func(), 10_000), slices: map[string]*discoveryv1.EndpointSlice{}}
	deps := slicecontroller.Deps{Writer: s, Logger: slog.New(slog.DiscardHandler)}
	if with.reads {
		deps.Reader = s
	}
	if with.batchPeriod >= 0 {
		deps.Batcher = slicecontroller.NewLoadBatcher(with.batchPeriod, 2)
	}
	s.Controller, err = slicecontroller.New(slicecontroller.Config{
		ManagedBy: managedBy, Shards: 1, MaxEndpointsPerSlice: with.limit, Workers: 2, CompactAfter: with.compactAfter,
	}, deps)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx) })
	running.Go(func() { _ = s.RunShard(ctx, 0, func(error) {}) })
	delivered := make(chan struct{})
	go func() {
		defer close(delivered)
		for deliver := range s.ownEvents {
			deliver()
		}
	}()
	return s, func() {
		cancel()
		running.Wait()
		close(s.ownEvents)
		<-delivered
	}, nil
}

// Write stores a change as kube-apiserver does.
func (s *fixture) Write(_ context.Context, change pack.Change) (*discoveryv1.EndpointSlice, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.slices[change.Slice.Name]
	if (change.Verb == planned.Create) != (before == nil) || before != nil && before.ResourceVersion != change.Slice.ResourceVersion {
		return nil, kube.ErrConflict // another writer changed the slice, and its event has not come yet
	}
	if change.Verb == planned.Delete {
		s.sendOwn(func(gone *discoveryv1.EndpointSlice) { s.DeleteSlice(gone) }, s.remove(change.Slice.Name))
		return change.Slice, nil
	}
	stored := s.store(change.Slice)
	s.sendOwn(func(stored *discoveryv1.EndpointSlice) {
		if s.ObserveSliceMetadata(&stored.ObjectMeta) {
			s.PutSlice(stored)
		}
	}, stored.DeepCopy())
	return stored, nil
}

func (s *fixture) sendOwn(deliver func(*discoveryv1.EndpointSlice), slice *discoveryv1.EndpointSlice) {
	due := time.Now().Add(s.settings.lag)
	s.ownEvents <- func() {
		time.Sleep(time.Until(due))
		deliver(slice)
	}
}

// Get returns the stored slice, nil if there is none.
func (s *fixture) Get(_ context.Context, slice slicecontroller.Key) (*discoveryv1.EndpointSlice, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.slices[slice.Name].DeepCopy(), nil
}

// List returns the metadata of the stored slices.
func (s *fixture) List(context.Context) (all []metav1.ObjectMeta, resourceVersion string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, slice := range s.slices {
		if slice.Labels[discoveryv1.LabelManagedBy] == managedBy {
			all = append(all, *slice.ObjectMeta.DeepCopy())
		}
	}
	return all, strconv.Itoa(s.version), nil
}

// remove needs s.mu. It returns the slice with the version of its deletion.
func (s *fixture) remove(name string) *discoveryv1.EndpointSlice {
	s.version++
	gone := s.slices[name].DeepCopy()
	gone.ResourceVersion = strconv.Itoa(s.version)
	delete(s.slices, name)
	return gone
}

// store needs s.mu.
func (s *fixture) store(slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s.version++
	kept := slice.DeepCopy()
	kept.ResourceVersion = strconv.Itoa(s.version)
	if kept.UID == "" {
		kept.UID = types.UID("uid-of-" + kept.ResourceVersion)
	}
	s.slices[kept.Name] = kept
	return kept.DeepCopy()
}

func (s *fixture) stored() []*discoveryv1.EndpointSlice {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sorted(newStore(sorted(&store{slices: s.slices})))
}

// sendChanges sends events for everything that changed, with a pause after some of them, and waits
// until no work is left.
func (s *fixture) sendChanges(t *rapid.T, w clusterState) {
	time.Sleep(time.Minute) // rare changes of slices are no contention
	var events []func()
	for _, node := range w.nodes {
		if before := s.known.node(node.Name); before != node {
			events = append(events, func() { s.PutNode(node.DeepCopy()) })
		}
	}
	if s.known.service != w.service {
		events = append(events, func() { s.PutService(w.service.DeepCopy()) })
	}
	events = append(append(events, s.podEvents(w)...), s.sliceEvents(w)...)
	for _, send := range rapid.Permutation(events).Draw(t, "order of events") {
		send()
		if rapid.IntRange(0, 2).Draw(t, "pause") == 0 {
			synctest.Wait()
		}
	}
	time.Sleep(2 * time.Minute) // longer than the delay after a failure, and than compaction takes
	synctest.Wait()
	s.known = w
}

func (s *fixture) podEvents(w clusterState) []func() {
	var events []func()
	for _, pod := range w.pods {
		if !slices.Contains(s.known.pods, pod) {
			events = append(events, func() { s.PutPod(pod.DeepCopy()) })
		}
	}
	for _, pod := range s.known.pods {
		if !slices.ContainsFunc(w.pods, func(still *corev1.Pod) bool { return still.Name == pod.Name }) {
			events = append(events, func() { s.DeletePod(pod.DeepCopy()) })
		}
	}
	return events
}

// sliceEvents stores what another writer did to the slices, and returns the events.
func (s *fixture) sliceEvents(w clusterState) []func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var events []func()
	left := map[string]bool{}
	for _, slice := range w.slices {
		left[slice.Name] = true
		if before := s.slices[slice.Name]; before == nil || !cmp.Equal(before, slice) {
			edited := s.store(slice)
			events = append(events, func() { s.PutSlice(edited) })
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.slices)) {
		if left[name] {
			continue
		}
		gone := s.remove(name)
		events = append(events, func() { s.DeleteSlice(gone) })
	}
	return events
}

// compare compares the stored slices with those of upstream.
func (s *fixture) compare(w clusterState, theirs *store, auto bool) error {
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
		return fmt.Errorf("no slice of family %s", family)
	}
	endpoints, slices := map[string]int{}, map[string]int{}
	for _, slice := range ours.slices {
		if len(slice.Endpoints) > w.limit {
			return fmt.Errorf("slice %s has %d endpoints, more than %d", slice.Name, len(slice.Endpoints), w.limit)
		}
		group := string(slice.AddressType) + " " + portText(slice.Ports)
		endpoints[group] += len(slice.Endpoints)
		slices[group]++
	}
	for group, count := range slices {
		needed := max((endpoints[group]+w.limit-1)/w.limit, 1)
		if s.settings.compactAfter > 0 && count > max(needed*6/5, 1) {
			return fmt.Errorf("%s has %d slices after compaction, and needs %d", group, count, needed)
		}
	}
	preview, ok := s.Preview(slicecontroller.Key{Namespace: namespace, Name: w.service.Name})
	if !ok || !preview.Plan.Empty() {
		return fmt.Errorf("a plan is left: %v", preview.Plan.Changes)
	}
	return nil
}
