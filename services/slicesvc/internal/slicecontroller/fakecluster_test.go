package slicecontroller_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// shards is enough to separate Services, and small enough that some share a shard.
const shards = 4

var errBusy = errors.New("busy")

// fakeCluster stores slices as kube-apiserver does: it counts versions, refuses writes of old
// versions, and sends every change to its replicas, in order and after a lag. Tests use it in a
// synctest bubble.
type fakeCluster struct {
	decisions *decisions.Log // of all replicas

	t *testing.T

	mu       sync.Mutex // guards all below
	version  int
	slices   map[string]*discoveryv1.EndpointSlice
	replicas []*replica
	// lag is the delay of an event.
	lag time.Duration
	// writes has the verb and name of every stored write.
	writes []string
	// begun counts writes, stored or not. latency is how long each takes besides a millisecond.
	begun   int
	latency time.Duration
	// reads counts calls of Get.
	reads int
	// refuse, if set, may refuse a write.
	refuse func(pack.Change) error
	// alter, if set, may change what a write stores, as a mutating webhook does.
	alter func(*discoveryv1.EndpointSlice)
	// lose, if set, may replace the answer of a stored write by an error.
	lose func(pack.Change) error
	// unanswered counts, by shard, the writes without an answer yet.
	unanswered [shards]int
}

// replica is a Controller with its watch of a fakeCluster.
type replica struct {
	*slicecontroller.Controller
	cluster *fakeCluster
	events  chan func()
	paused  chan struct{} // guarded by cluster.mu; while set, it delays all events
}

// start returns a Controller with two workers on an empty fakeCluster. Both stop after the test.
func start(t *testing.T, changes ...func(*slicecontroller.Config, *slicecontroller.Deps)) (*slicecontroller.Controller, *fakeCluster) {
	t.Helper()
	cluster := &fakeCluster{
		t:      t,
		slices: map[string]*discoveryv1.EndpointSlice{}, decisions: decisions.NewLog(),
		lag: 500 * time.Microsecond,
	}
	return cluster.join(t, changes...).Controller, cluster
}

// join starts another replica, before there are any slices.
func (c *fakeCluster) join(t *testing.T, changes ...func(*slicecontroller.Config, *slicecontroller.Deps)) *replica {
	t.Helper()
	r := &replica{cluster: c, events: make(chan func(), 10000)}
	cfg := slicecontroller.Config{
		ManagedBy:            slicetest.ManagedBy,
		Shards:               shards,
		MaxEndpointsPerSlice: 100,
		Workers:              2,
	}
	deps := slicecontroller.Deps{
		Writer: r,
		Reader: r,

		Decisions: c.decisions,

		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, change := range changes {
		change(&cfg, &deps)
	}
	var err error
	r.Controller, err = slicecontroller.New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	c.replicas = append(c.replicas, r)
	c.mu.Unlock()
	r.run(t)
	return r
}

// run runs the Controller and delivers events until the test ends.
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

// withoutReader makes a Controller that has only its cache.
func withoutReader(_ *slicecontroller.Config, deps *slicecontroller.Deps) { deps.Reader = nil }

// term is a time in which a Controller holds shards.
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

func holdAllShards(t *testing.T, controller *slicecontroller.Controller) term {
	t.Helper()
	return holdShards(t, controller, 0, 1, 2, 3)
}

// holdShards begins a term of some shards, which ends with the test at the latest.
func holdShards(t *testing.T, controller *slicecontroller.Controller, shards ...int) term {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var seen reports
	returned := make(chan error, len(shards))
	for _, number := range shards {
		held := context.WithValue(ctx, shardKey{}, number)
		go func() { returned <- controller.RunShard(held, number, seen.add) }()
	}
	end := sync.OnceFunc(func() {
		cancel()
		for range shards {
			if err := <-returned; err != nil {
				t.Errorf("shard: %v", err)
			}
		}
	})
	t.Cleanup(end)
	return term{end: end, reports: &seen}
}

// shardKey is the key of the shard's number in the context of a term.
type shardKey struct{}

// Write stores a change. Request and answer take a millisecond each, so events come before and
// after the answer.
func (r *replica) Write(ctx context.Context, change pack.Change) (*discoveryv1.EndpointSlice, error) {
	own := shard.Of(slicetest.Namespace, change.Slice.Labels[discoveryv1.LabelServiceName], shards)
	if held := ctx.Value(shardKey{}); held != own {
		r.cluster.t.Errorf("%s of shard %d is written in the term of shard %v", change.Slice.Name, own, held)
	}
	r.cluster.countUnanswered(own, 1)
	defer r.cluster.countUnanswered(own, -1)
	time.Sleep(r.cluster.beginWrite())
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	defer time.Sleep(time.Millisecond)
	return r.cluster.write(change)
}

func (r *replica) Get(ctx context.Context, slice slicecontroller.Key) (*discoveryv1.EndpointSlice, error) {
	time.Sleep(time.Millisecond)
	r.cluster.mu.Lock()
	defer r.cluster.mu.Unlock()
	r.cluster.reads++
	return r.cluster.slices[slice.Name].DeepCopy(), ctx.Err()
}

func (r *replica) List(ctx context.Context) ([]metav1.ObjectMeta, string, error) {
	time.Sleep(time.Millisecond)
	r.cluster.mu.Lock()
	defer r.cluster.mu.Unlock()
	var all []metav1.ObjectMeta
	for _, slice := range r.cluster.slices {
		if slice.Labels[discoveryv1.LabelManagedBy] == slicetest.ManagedBy {
			all = append(all, *slice.ObjectMeta.DeepCopy())
		}
	}
	return all, strconv.Itoa(r.cluster.version), ctx.Err()
}

// pauseEvents delays all later events of the replica until resume is called.
func (r *replica) pauseEvents() (resume func()) {
	r.cluster.mu.Lock()
	defer r.cluster.mu.Unlock()
	r.paused = make(chan struct{})
	return func() {
		r.cluster.mu.Lock()
		defer r.cluster.mu.Unlock()
		close(r.paused)
		r.paused = nil
	}
}

// pauseEvents delays all later events of the first replica until resume is called.
func (c *fakeCluster) pauseEvents() (resume func()) { return c.replicas[0].pauseEvents() }

func (c *fakeCluster) countUnanswered(shard, by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unanswered[shard] += by
}

// unansweredWrites returns how many writes for a shard have no answer yet.
func (c *fakeCluster) unansweredWrites(shard int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unanswered[shard]
}

func (c *fakeCluster) write(change pack.Change) (*discoveryv1.EndpointSlice, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse != nil {
		if err := c.refuse(change); err != nil {
			return nil, err
		}
	}
	existing := c.slices[change.Slice.Name]
	switch {
	case (change.Verb == planned.Create) != (existing == nil),
		existing != nil && existing.ResourceVersion != change.Slice.ResourceVersion && (change.Verb != planned.Delete || change.Slice.ResourceVersion != "" || existing.UID != change.Slice.UID):
		return nil, fmt.Errorf("%s %s: %w", change.Verb, change.Slice.Name, kube.ErrConflict)
	}
	c.writes = append(c.writes, string(change.Verb)+" "+change.Slice.Name)
	stored := change.Slice
	if change.Verb == planned.Delete {
		c.remove(change.Slice.Name)
	} else {
		if c.alter != nil {
			stored = stored.DeepCopy()
			c.alter(stored)
		}
		stored = c.store(stored)
	}
	if c.lose != nil {
		return stored, c.lose(change)
	}
	return stored, nil
}

// store needs c.mu.
func (c *fakeCluster) store(slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	c.version++
	stored := slice.DeepCopy()
	stored.ResourceVersion = strconv.Itoa(c.version)
	if stored.UID == "" {
		stored.UID = types.UID("uid-" + stored.ResourceVersion)
		stored.CreationTimestamp = metav1.Now()
	}
	c.slices[stored.Name] = stored
	c.send(func(controller *slicecontroller.Controller) {
		if controller.ObserveSliceMetadata(&stored.ObjectMeta) {
			controller.PutSlice(stored)
		}
	})
	return stored
}

// remove needs c.mu. A slice with a finalizer only gets a deletionTimestamp.
func (c *fakeCluster) remove(name string) {
	removed := c.slices[name].DeepCopy()
	if len(removed.Finalizers) > 0 {
		now := metav1.Now()
		removed.DeletionTimestamp = &now
		c.store(removed)
		return
	}
	c.version++
	removed.ResourceVersion = strconv.Itoa(c.version)
	delete(c.slices, name)
	c.send(func(controller *slicecontroller.Controller) { controller.DeleteSlice(removed) })
}

// send needs c.mu.
func (c *fakeCluster) send(event func(*slicecontroller.Controller)) {
	due := time.Now().Add(c.lag)
	for _, r := range c.replicas {
		paused := r.paused
		r.events <- func() {
			if paused != nil {
				<-paused
			}
			time.Sleep(time.Until(due))
			event(r.Controller)
		}
	}
}

// storeAsOther stores a slice of another writer.
func (c *fakeCluster) storeAsOther(slice *discoveryv1.EndpointSlice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.store(slice)
}

// edit changes a slice as another writer.
func (c *fakeCluster) edit(name string, change func(*discoveryv1.EndpointSlice)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	edited := c.slices[name].DeepCopy()
	change(edited)
	c.store(edited)
}

// delete deletes a slice as another writer.
func (c *fakeCluster) delete(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(name)
}

func (c *fakeCluster) refuseWith(refuse func(pack.Change) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = refuse
}

func (c *fakeCluster) alterWith(alter func(*discoveryv1.EndpointSlice)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alter = alter
}

func (c *fakeCluster) loseWith(lose func(pack.Change) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lose = lose
}

// beginWrite counts a write, and returns how long it takes until it is stored.
func (c *fakeCluster) beginWrite() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun++
	return time.Millisecond + c.latency
}

// setLatency makes every later write take so much longer.
func (c *fakeCluster) setLatency(latency time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.latency, c.begun = latency, 0
}

// begunWrites returns how many writes have begun since setLatency.
func (c *fakeCluster) begunWrites() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.begun
}

func (c *fakeCluster) setLag(lag time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lag = lag
}

// onlySlice returns the only slice, and fails if there is not exactly one.
func (c *fakeCluster) onlySlice(t *testing.T) *discoveryv1.EndpointSlice {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.slices) != 1 {
		t.Fatalf("%d slices, want one", len(c.slices))
	}
	for _, slice := range c.slices {
		return slice
	}
	return nil
}

// contents describes each slice, by name.
func (c *fakeCluster) contents() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	contents := map[string]string{}
	for name, slice := range c.slices {
		contents[name] = fmt.Sprintf("%s at %s with %d endpoints", slice.UID, slice.ResourceVersion, len(slice.Endpoints))
	}
	return contents
}

// size returns the number of slices.
func (c *fakeCluster) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.slices)
}

// takeWrites returns the number of writes that were stored since the last call.
func (c *fakeCluster) takeWrites() int { return len(c.listWrites()) }

// listWrites returns the writes that were stored since the last call.
func (c *fakeCluster) listWrites() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	writes := c.writes
	c.writes = nil
	return writes
}

// endpoints returns the Service and address of every endpoint, and fails if one is there twice.
func (c *fakeCluster) endpoints(t *testing.T) map[string]bool {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := map[string]bool{}
	for _, slice := range c.slices {
		for _, endpoint := range slice.Endpoints {
			at := slice.Labels[discoveryv1.LabelServiceName] + " " + endpoint.Addresses[0]
			if seen[at] {
				t.Errorf("duplicate endpoint %s", at)
			}
			seen[at] = true
		}
	}
	return seen
}

// readyAt returns whether an endpoint with the address is ready.
func (c *fakeCluster) readyAt(address string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, slice := range c.slices {
		for _, endpoint := range slice.Endpoints {
			if endpoint.Addresses[0] == address && *endpoint.Conditions.Ready {
				return true
			}
		}
	}
	return false
}

// contentsOf lists the slices of a Service that have endpoints, each with its port and addresses.
func (c *fakeCluster) contentsOf(service string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for _, slice := range c.slices {
		if slice.Labels[discoveryv1.LabelServiceName] != service || len(slice.Endpoints) == 0 {
			continue
		}
		text := fmt.Sprint(*slice.Ports[0].Port)
		for _, endpoint := range slice.Endpoints {
			text += " " + endpoint.Addresses[0]
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// eventSink collects the Events of a Controller.
type eventSink struct {
	mu     sync.Mutex
	events []string
}

func (s *eventSink) Create(event *corev1.Event) (*corev1.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, event.Reason+" "+event.InvolvedObject.Name+": "+event.Message)
	return event, nil
}

func (s *eventSink) Update(event *corev1.Event) (*corev1.Event, error)          { return event, nil }
func (s *eventSink) Patch(event *corev1.Event, _ []byte) (*corev1.Event, error) { return event, nil }

// with returns the Events with that reason.
func (s *eventSink) with(reason string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []string
	for _, event := range s.events {
		if strings.HasPrefix(event, reason+" ") {
			found = append(found, event)
		}
	}
	return found
}

// advance lets d pass, and waits until all goroutines are blocked.
func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func key(name string) slicecontroller.Key {
	return slicecontroller.Key{Namespace: slicetest.Namespace, Name: name}
}

func node(name, zone string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

func selectorOf(app string) func(*corev1.Service) {
	return func(service *corev1.Service) { service.Spec.Selector = map[string]string{"app": app} }
}

func labelledApp(app string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Labels = map[string]string{"app": app} }
}

// putService puts a Service with that many Pods on one Node.
func putService(controller *slicecontroller.Controller, service string, pods int) {
	controller.PutNode(node("node-a", "zone-a"))
	controller.PutService(slicetest.Service(service, selectorOf(service)))
	for i := range pods {
		controller.PutPod(slicetest.Pod(fmt.Sprintf("%s-%d", service, i), slicetest.Address(i), labelledApp(service)))
	}
}

// startWithWeb starts a Controller that holds all shards, and waits for the slice of Service web
// with two Pods.
func startWithWeb(t *testing.T) (*slicecontroller.Controller, *fakeCluster, term) {
	t.Helper()
	controller, cluster := start(t)
	controller.PutNode(node("node-a", "zone-a"))
	controller.PutService(slicetest.Service("web"))
	controller.PutPod(slicetest.Pod("web-0", "10.1.0.1"))
	controller.PutPod(slicetest.Pod("web-1", "10.1.0.2"))
	held := holdAllShards(t, controller)
	advance(100 * time.Millisecond)
	if got := describe(cluster.onlySlice(t)); got != "10.1.0.1 ready zone-a, 10.1.0.2 ready zone-a" {
		t.Fatalf("slice has %s", got)
	}
	if got := cluster.takeWrites(); got != 1 {
		t.Fatalf("%d writes at the start, want 1", got)
	}
	return controller, cluster, held
}

// describe lists the endpoints of a slice.
func describe(slice *discoveryv1.EndpointSlice) string {
	var all []string
	for _, endpoint := range slice.Endpoints {
		text := endpoint.Addresses[0]
		if *endpoint.Conditions.Ready {
			text += " ready"
		}
		if endpoint.Zone != nil {
			text += " " + *endpoint.Zone
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func webSlice(t *testing.T, controller *slicecontroller.Controller) *discoveryv1.EndpointSlice {
	t.Helper()
	slices := slicesOf(t, controller, "web")
	if len(slices) != 1 {
		t.Fatalf("web has slices %v, want one", slices)
	}
	return slices[0]
}

func slicesOf(t *testing.T, controller *slicecontroller.Controller, service string) []*discoveryv1.EndpointSlice {
	t.Helper()
	state, ok := controller.State(key(service))
	if !ok || len(state.Slices) == 0 {
		t.Fatalf("%s has no slices", service)
	}
	return state.Slices
}
