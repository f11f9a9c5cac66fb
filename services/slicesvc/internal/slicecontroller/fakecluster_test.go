package slicecontroller_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// apiserver keeps slices as a kube-apiserver does: it counts versions, refuses
// writes that are not up to date and tells its replicas of every change, a lag
// later. Its events arrive in order.
type apiserver struct {
	t *testing.T

	mu       sync.Mutex // guards all below
	version  int
	slices   map[string]*discoveryv1.EndpointSlice
	replicas []*replica
	// lag is how long an event takes.
	lag time.Duration
	// writes has the verb and name of every write that was stored.
	writes []string
	// reads counts single slices that were read past the watch.
	reads int
	// refuse, if set, may refuse a write before it is looked at.
	refuse func(pack.Change) error
	// lose, if set, may lose the answer of a write that was stored.
	lose func(pack.Change) error
	// underway counts, by shard, the writes that are not answered yet.
	underway [shards]int
}

// replica is an engine with its watch of an apiserver.
type replica struct {
	*slicecontroller.Engine
	api    *apiserver
	events chan func()
	frozen chan struct{} // guarded by api.mu; while set, it holds all events up
}

// shards is enough for Services to be apart and few enough to be together.
const shards = 4

// start returns an engine with two workers on an empty apiserver. Both are
// stopped after the test, which must run in a synctest bubble.
func start(t *testing.T, changes ...func(*slicecontroller.Config, *slicecontroller.Deps)) (*slicecontroller.Engine, *apiserver) {
	t.Helper()
	api := &apiserver{
		t:      t,
		slices: map[string]*discoveryv1.EndpointSlice{},
		lag:    500 * time.Microsecond,
	}
	return api.join(t, changes...).Engine, api
}

// join starts another replica, before there are any slices.
func (a *apiserver) join(t *testing.T, changes ...func(*slicecontroller.Config, *slicecontroller.Deps)) *replica {
	t.Helper()
	r := &replica{api: a, events: make(chan func(), 10000)}
	cfg := slicecontroller.Config{
		ManagedBy: slicetest.ManagedBy,
		Shards:    shards,
		Limit:     100,
		Workers:   2,
	}
	deps := slicecontroller.Deps{
		Writer: r,
		Reader: r,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, change := range changes {
		change(&cfg, &deps)
	}
	var err error
	r.Engine, err = slicecontroller.New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	a.replicas = append(a.replicas, r)
	a.mu.Unlock()
	r.run(t)
	return r
}

// run lets the engine work and its watch deliver until the test ends.
func (r *replica) run(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	returned := make(chan error, 1)
	go func() { returned <- r.Run(ctx) }()
	delivered := make(chan struct{})
	go func() {
		defer close(delivered)
		for deliver := range r.events {
			deliver()
		}
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-returned; err != nil {
			t.Errorf("run: %v", err)
		}
		close(r.events)
		<-delivered
	})
}

// term is a time in which an engine holds shards.
type term struct {
	end     func()
	reports *reports
}

type reports struct {
	mu  sync.Mutex
	all []error
}

func (r *reports) add(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, err)
}

// last returns the latest report, and whether there is one.
func (r *reports) last() (reported bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all) == 0 {
		return false, nil
	}
	return true, r.all[len(r.all)-1]
}

// lead begins a term of all shards, which ends after the test at the latest.
func lead(t *testing.T, e *slicecontroller.Engine) term {
	t.Helper()
	return hold(t, e, 0, 1, 2, 3)
}

// hold begins a term of some shards, which ends after the test at the latest.
func hold(t *testing.T, e *slicecontroller.Engine, shards ...int) term {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var seen reports
	returned := make(chan error, len(shards))
	for _, number := range shards {
		held := context.WithValue(ctx, shardKey{}, number)
		go func() { returned <- e.Hold(held, number, seen.add) }()
	}
	end := sync.OnceFunc(func() {
		cancel()
		for range shards {
			if err := <-returned; err != nil {
				t.Errorf("hold: %v", err)
			}
		}
	})
	t.Cleanup(end)
	return term{end: end, reports: &seen}
}

// shardKey is under what the context of a term has its shard in these tests.
type shardKey struct{}

// Write stores a change as a kube-apiserver would. Request and answer take a
// millisecond each, so that events come before and after answers.
func (r *replica) Write(ctx context.Context, change pack.Change) (*discoveryv1.EndpointSlice, error) {
	own := shard.Of(slicetest.Namespace, change.Slice.Labels[discoveryv1.LabelServiceName], shards)
	if held := ctx.Value(shardKey{}); held != own {
		r.api.t.Errorf("%s, which is in shard %d, is written under the term of shard %v", change.Slice.Name, own, held)
	}
	r.api.count(own, 1)
	defer r.api.count(own, -1)
	time.Sleep(time.Millisecond)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	defer time.Sleep(time.Millisecond)
	return r.api.handle(change)
}

// blind makes an engine that cannot read past its cache.
func blind(_ *slicecontroller.Config, deps *slicecontroller.Deps) { deps.Reader = nil }

// Get reads a slice as it is now.
func (r *replica) Get(ctx context.Context, slice slicecontroller.Key) (*discoveryv1.EndpointSlice, error) {
	time.Sleep(time.Millisecond)
	r.api.mu.Lock()
	defer r.api.mu.Unlock()
	r.api.reads++
	return r.api.slices[slice.Name].DeepCopy(), ctx.Err()
}

// List reads the metadata of all slices that are ours.
func (r *replica) List(ctx context.Context) ([]metav1.ObjectMeta, string, error) {
	time.Sleep(time.Millisecond)
	r.api.mu.Lock()
	defer r.api.mu.Unlock()
	var all []metav1.ObjectMeta
	for _, slice := range r.api.slices {
		if slice.Labels[discoveryv1.LabelManagedBy] == slicetest.ManagedBy {
			all = append(all, *slice.ObjectMeta.DeepCopy())
		}
	}
	return all, strconv.Itoa(r.api.version), ctx.Err()
}

func (a *apiserver) count(shard, by int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.underway[shard] += by
}

// writing returns how many writes for a shard are not answered yet.
func (a *apiserver) writing(shard int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.underway[shard]
}

func (a *apiserver) handle(change pack.Change) (*discoveryv1.EndpointSlice, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refuse != nil {
		if err := a.refuse(change); err != nil {
			return nil, err
		}
	}
	existing := a.slices[change.Slice.Name]
	switch {
	case (change.Verb == pack.Create) != (existing == nil),
		existing != nil && existing.ResourceVersion != change.Slice.ResourceVersion:
		return nil, fmt.Errorf("%s %s: %w", change.Verb, change.Slice.Name, kube.ErrConflict)
	}
	a.writes = append(a.writes, string(change.Verb)+" "+change.Slice.Name)
	stored := change.Slice
	if change.Verb == pack.Delete {
		a.remove(change.Slice.Name)
	} else {
		stored = a.store(change.Slice)
	}
	if a.lose != nil {
		return stored, a.lose(change)
	}
	return stored, nil
}

// store needs a.mu.
func (a *apiserver) store(slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	a.version++
	stored := slice.DeepCopy()
	stored.ResourceVersion = strconv.Itoa(a.version)
	if stored.UID == "" {
		stored.UID = types.UID("uid-" + stored.ResourceVersion)
		stored.CreationTimestamp = metav1.Now()
	}
	a.slices[stored.Name] = stored
	a.tell(func(e *slicecontroller.Engine) {
		if e.SliceSeen(&stored.ObjectMeta) {
			e.PutSlice(stored)
		}
	})
	return stored
}

// remove needs a.mu. A slice with a finalizer is only marked.
func (a *apiserver) remove(name string) {
	gone := a.slices[name].DeepCopy()
	if len(gone.Finalizers) > 0 {
		now := metav1.Now()
		gone.DeletionTimestamp = &now
		a.store(gone)
		return
	}
	a.version++
	gone.ResourceVersion = strconv.Itoa(a.version)
	delete(a.slices, name)
	a.tell(func(e *slicecontroller.Engine) { e.DeleteSlice(gone) })
}

// tell needs a.mu.
func (a *apiserver) tell(event func(*slicecontroller.Engine)) {
	due := time.Now().Add(a.lag)
	for _, r := range a.replicas {
		frozen := r.frozen
		r.events <- func() {
			if frozen != nil {
				<-frozen
			}
			time.Sleep(time.Until(due))
			event(r.Engine)
		}
	}
}

// freeze holds up all events of the first replica from now on, until the
// function it returns is called.
func (a *apiserver) freeze() (thaw func()) { return a.replicas[0].freeze() }

func (r *replica) freeze() (thaw func()) {
	r.api.mu.Lock()
	defer r.api.mu.Unlock()
	r.frozen = make(chan struct{})
	return func() {
		r.api.mu.Lock()
		defer r.api.mu.Unlock()
		close(r.frozen)
		r.frozen = nil
	}
}

// edit changes a slice by somebody else's hand.
func (a *apiserver) edit(name string, change func(*discoveryv1.EndpointSlice)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	edited := a.slices[name].DeepCopy()
	change(edited)
	a.store(edited)
}

func (a *apiserver) delete(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.remove(name)
}

func (a *apiserver) refuseWith(refuse func(pack.Change) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refuse = refuse
}

func (a *apiserver) loseWith(lose func(pack.Change) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lose = lose
}

// only returns the one slice there is.
func (a *apiserver) only(t *testing.T) *discoveryv1.EndpointSlice {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.slices) != 1 {
		t.Fatalf("%d slices, want one", len(a.slices))
	}
	for _, slice := range a.slices {
		return slice
	}
	return nil
}

// contents gives the state of each slice by name.
func (a *apiserver) contents() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	contents := map[string]string{}
	for name, slice := range a.slices {
		contents[name] = fmt.Sprintf("%s at %s with %d endpoints", slice.UID, slice.ResourceVersion, len(slice.Endpoints))
	}
	return contents
}

// size returns how many slices there are.
func (a *apiserver) size() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.slices)
}

// took returns how many writes were stored since it was last asked.
func (a *apiserver) took() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	count := len(a.writes)
	a.writes = nil
	return count
}

// settle lets d pass, and then whatever runs come to rest.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

var errBusy = errors.New("busy")
