package mirrorcontroller_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirrorcontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

const (
	shards    = 4
	namespace = "shop"
)

// fakeCluster stores objects as kube-apiserver does: it counts versions, refuses writes of old
// versions, and sends every change to its replicas, in order and after a lag. Tests use it in a
// synctest bubble.
type fakeCluster struct {
	t *testing.T

	mu        sync.Mutex // guards all below
	version   int
	slices    map[string]*discoveryv1.EndpointSlice
	endpoints map[string]*corev1.Endpoints
	services  map[string]*corev1.Service
	replicas  []*replica
	lag       time.Duration
	// writes has the verb and name of every stored write of a slice.
	writes []string
	// attempts counts the writes of each slice, stored or not.
	attempts map[string]int
	// reads counts the reads of Endpoints.
	reads int
	// refuse, if set, may refuse a write. lose may replace the answer of a stored write by an
	// error.
	refuse, lose func(pack.Change) error
}

// replica is a Controller with its watches of a fakeCluster.
type replica struct {
	*mirrorcontroller.Controller
	cluster *fakeCluster
	events  chan func()
	sink    *eventSink
	log     bytes.Buffer

	mu sync.Mutex // guards all below
	// seen has the Services that the watch has shown, others the slices of Pods.
	seen    map[string]*corev1.Service
	others  map[string]int
	changed map[string]int
	written map[string]int
	paused  chan struct{} // while set, it delays all events
	// readAnswer is how long the answer to a read of Endpoints or of a slice takes.
	readAnswer time.Duration
}

func newCluster(t *testing.T) *fakeCluster {
	t.Helper()
	return &fakeCluster{
		t:         t,
		slices:    map[string]*discoveryv1.EndpointSlice{},
		endpoints: map[string]*corev1.Endpoints{},
		services:  map[string]*corev1.Service{},
		attempts:  map[string]int{},
		lag:       500 * time.Microsecond,
	}
}

// start returns a cluster with one replica that holds all shards.
func start(t *testing.T, changes ...func(*mirrorcontroller.Config)) (*fakeCluster, *replica) {
	t.Helper()
	cluster := newCluster(t)
	r := cluster.join(t, changes...)
	r.hold(t)
	return cluster, r
}

// join starts another replica, which gets every object that exists.
func (c *fakeCluster) join(t *testing.T, changes ...func(*mirrorcontroller.Config)) *replica {
	t.Helper()
	r := &replica{
		cluster: c, events: make(chan func(), 100_000), sink: &eventSink{},
		seen: map[string]*corev1.Service{}, others: map[string]int{}, changed: map[string]int{}, written: map[string]int{},
	}
	cfg := mirrorcontroller.Config{Shards: shards, Workers: 2, Limits: mirror.Limits{PerSubset: 1000}}
	for _, change := range changes {
		change(&cfg)
	}
	var err error
	r.Controller, err = mirrorcontroller.New(cfg, mirrorcontroller.Deps{
		Writer: r, Reader: r, Services: r, Endpoints: r, Events: r.sink,
		Written: func(key mirrorcontroller.Key) { r.count(r.written, key.Name) },
		Logger:  slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), &r.log), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	for _, service := range c.services {
		r.showService(service)
	}
	for _, object := range c.endpoints {
		r.showEndpoints(object)
	}
	for _, slice := range c.slices {
		r.showSlice(slice)
	}
	c.replicas = append(c.replicas, r)
	c.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	running.Go(func() {
		for deliver := range r.events {
			deliver()
		}
	})
	t.Cleanup(func() {
		cancel()
		close(r.events)
		running.Wait()
	})
	return r
}

type shardKey struct{}

// hold begins a term of all shards, which ends with the test at the latest.
func (r *replica) hold(t *testing.T) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var terms sync.WaitGroup
	for number := range shards {
		terms.Go(func() {
			if err := r.RunShard(context.WithValue(ctx, shardKey{}, number), number, func(error) {}); err != nil {
				t.Errorf("shard: %v", err)
			}
		})
	}
	end = sync.OnceFunc(func() {
		cancel()
		terms.Wait()
	})
	t.Cleanup(end)
	return end
}

func (r *replica) count(in map[string]int, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	in[name]++
}

func (r *replica) Service(key mirrorcontroller.Key) (*corev1.Service, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	service, ok := r.seen[key.Name]
	return service, ok
}

func (r *replica) SliceCount(key mirrorcontroller.Key) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.others[key.Name]
}

func (r *replica) Keys(number int) []mirrorcontroller.Key {
	r.mu.Lock()
	defer r.mu.Unlock()
	var keys []mirrorcontroller.Key
	for name := range r.seen {
		if shard.Of(namespace, name, shards) == number {
			keys = append(keys, key(name))
		}
	}
	return keys
}

func (r *replica) setReadAnswer(after time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readAnswer = after
}

func (r *replica) awaitAnswer() {
	r.mu.Lock()
	after := r.readAnswer
	r.mu.Unlock()
	time.Sleep(after)
}

func (r *replica) RecordChange(key mirrorcontroller.Key) { r.count(r.changed, key.Name) }

func (r *replica) Endpoints(ctx context.Context, key types.NamespacedName) (*corev1.Endpoints, error) {
	time.Sleep(time.Millisecond)
	defer r.awaitAnswer()
	r.cluster.mu.Lock()
	defer r.cluster.mu.Unlock()
	r.cluster.reads++
	return r.cluster.endpoints[key.Name].DeepCopy(), ctx.Err()
}

// Write stores a change. Request and answer take a millisecond each, so events come before and
// after the answer.
func (r *replica) Write(ctx context.Context, change pack.Change) (*discoveryv1.EndpointSlice, error) {
	own := shard.Of(namespace, change.Slice.Labels[discoveryv1.LabelServiceName], shards)
	if held := ctx.Value(shardKey{}); held != own {
		r.cluster.t.Errorf("%s of shard %d is written in the term of shard %v", change.Slice.Name, own, held)
	}
	if change.Verb != planned.Create && (change.Slice.ResourceVersion == "" || change.Slice.UID == "") {
		r.cluster.t.Errorf("%s of %s without resourceVersion or UID", change.Verb, change.Slice.Name)
	}
	time.Sleep(time.Millisecond)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	defer time.Sleep(time.Millisecond)
	return r.cluster.write(change)
}

func (r *replica) Get(ctx context.Context, slice mirrorcontroller.Key) (*discoveryv1.EndpointSlice, error) {
	time.Sleep(time.Millisecond)
	defer r.awaitAnswer()
	r.cluster.mu.Lock()
	defer r.cluster.mu.Unlock()
	return r.cluster.slices[slice.Name].DeepCopy(), ctx.Err()
}

func (r *replica) List(ctx context.Context) ([]metav1.ObjectMeta, string, error) {
	time.Sleep(time.Millisecond)
	r.cluster.mu.Lock()
	defer r.cluster.mu.Unlock()
	var all []metav1.ObjectMeta
	for _, slice := range r.cluster.slices {
		if slice.Labels[discoveryv1.LabelManagedBy] == mirror.ManagedBy {
			all = append(all, *slice.ObjectMeta.DeepCopy())
		}
	}
	return all, strconv.Itoa(r.cluster.version), ctx.Err()
}

// pauseEvents delays all later events of the replica until resume is called.
func (r *replica) pauseEvents() (resume func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	paused := make(chan struct{})
	r.paused = paused
	return func() {
		r.mu.Lock()
		r.paused = nil
		r.mu.Unlock()
		close(paused)
	}
}

// The show methods do what package kube and the wiring of the service do with an object.

func (r *replica) showService(service *corev1.Service) {
	r.mu.Lock()
	before := r.seen[service.Name]
	r.seen[service.Name] = service
	r.mu.Unlock()
	r.ServiceChanged(key(service.Name), before, service)
}

func (r *replica) showServiceDeletion(name string) {
	r.mu.Lock()
	before := r.seen[name]
	delete(r.seen, name)
	r.mu.Unlock()
	r.ServiceChanged(key(name), before, nil)
}

func (r *replica) showEndpoints(object *corev1.Endpoints) {
	if r.ObserveEndpoints(&object.ObjectMeta) {
		r.PutEndpoints(object)
	}
}

func (r *replica) showSlice(slice *discoveryv1.EndpointSlice) {
	if r.ObserveSliceMetadata(&slice.ObjectMeta) {
		r.PutSlice(slice)
	}
}

func (c *fakeCluster) write(change pack.Change) (*discoveryv1.EndpointSlice, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attempts[change.Slice.Name]++
	if c.refuse != nil {
		if err := c.refuse(change); err != nil {
			return nil, err
		}
	}
	existing := c.slices[change.Slice.Name]
	switch {
	case (change.Verb == planned.Create) != (existing == nil),
		existing != nil && (existing.ResourceVersion != change.Slice.ResourceVersion || existing.UID != change.Slice.UID):
		if change.Verb == planned.Delete && existing == nil {
			return nil, nil
		}
		return nil, fmt.Errorf("%s %s: %w", change.Verb, change.Slice.Name, kube.ErrConflict)
	}
	c.writes = append(c.writes, string(change.Verb)+" "+change.Slice.Name)
	stored := change.Slice
	if change.Verb == planned.Delete {
		c.remove(change.Slice.Name)
	} else {
		stored = c.store(change.Slice)
	}
	if c.lose != nil {
		return stored, c.lose(change)
	}
	return stored, nil
}

// next needs c.mu. It returns the next version.
func (c *fakeCluster) next() string {
	c.version++
	return strconv.Itoa(c.version)
}

// store needs c.mu.
func (c *fakeCluster) store(slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	stored := slice.DeepCopy()
	stored.ResourceVersion = c.next()
	if stored.UID == "" {
		stored.UID = types.UID("uid-" + stored.ResourceVersion)
	}
	c.slices[stored.Name] = stored
	c.send(func(r *replica) { r.showSlice(stored) })
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
	removed.ResourceVersion = c.next()
	delete(c.slices, name)
	c.send(func(r *replica) { r.DeleteSlice(removed) })
}

// send needs c.mu.
func (c *fakeCluster) send(event func(*replica)) {
	due := time.Now().Add(c.lag)
	for _, r := range c.replicas {
		r.mu.Lock()
		paused := r.paused
		r.mu.Unlock()
		r.events <- func() {
			if paused != nil {
				<-paused
			}
			time.Sleep(time.Until(due))
			event(r)
		}
	}
}

func (c *fakeCluster) putEndpoints(object *corev1.Endpoints) {
	c.mu.Lock()
	defer c.mu.Unlock()
	object = object.DeepCopy()
	object.ResourceVersion = c.next()
	if existing := c.endpoints[object.Name]; existing != nil && object.UID == "" {
		object.UID = existing.UID
	} else if object.UID == "" {
		object.UID = types.UID("endpoints-" + object.ResourceVersion)
	}
	c.endpoints[object.Name] = object
	c.send(func(r *replica) { r.showEndpoints(object) })
}

func (c *fakeCluster) deleteEndpoints(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.endpoints[name].ObjectMeta.DeepCopy()
	last.ResourceVersion = c.next()
	delete(c.endpoints, name)
	c.send(func(r *replica) { r.DeleteEndpoints(last) })
}

func (c *fakeCluster) putService(service *corev1.Service) {
	c.mu.Lock()
	defer c.mu.Unlock()
	service.ResourceVersion = c.next()
	c.services[service.Name] = service
	c.send(func(r *replica) { r.showService(service) })
}

func (c *fakeCluster) deleteService(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next()
	delete(c.services, name)
	c.send(func(r *replica) { r.showServiceDeletion(name) })
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
	edited.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "rival", Operation: metav1.ManagedFieldsOperationUpdate}}
	c.store(edited)
}

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

func (c *fakeCluster) loseWith(lose func(pack.Change) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lose = lose
}

func (c *fakeCluster) setLag(lag time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lag = lag
}

func (c *fakeCluster) attemptsOf(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.attempts[name]
}

// takeWrites returns the stored writes since the last call.
func (c *fakeCluster) takeWrites() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.writes
	c.writes = nil
	return all
}

// contents describes all live slices: "web: 10.1.0.1+ 10.1.0.2-" with the ports in front, sorted. +
// is ready.
func (c *fakeCluster) contents() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for _, slice := range c.slices {
		if slice.DeletionTimestamp == nil {
			all = append(all, describe(slice))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

func describe(slice *discoveryv1.EndpointSlice) string {
	text := slice.Labels[discoveryv1.LabelServiceName]
	for _, port := range slice.Ports {
		text += fmt.Sprintf(" %d", *port.Port)
	}
	text += ":"
	var addresses []string
	for _, endpoint := range slice.Endpoints {
		sign := "-"
		if endpoint.Conditions.Ready != nil && *endpoint.Conditions.Ready {
			sign = "+"
		}
		addresses = append(addresses, " "+endpoint.Addresses[0]+sign)
	}
	slices.Sort(addresses)
	return text + strings.Join(addresses, "")
}

// only returns the only slice of a Service.
func (c *fakeCluster) only(service string) *discoveryv1.EndpointSlice {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []*discoveryv1.EndpointSlice
	for _, slice := range c.slices {
		if slice.Labels[discoveryv1.LabelServiceName] == service && slice.DeletionTimestamp == nil {
			found = append(found, slice)
		}
	}
	if len(found) != 1 {
		c.t.Fatalf("%d slices of %s, want one", len(found), service)
	}
	return found[0]
}

// eventSink collects the Events of a Controller.
type eventSink struct {
	mu     sync.Mutex
	events []string
}

func (s *eventSink) Create(event *corev1.Event) (*corev1.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, event.Reason+" "+event.InvolvedObject.Kind+" "+event.InvolvedObject.Name+" "+event.Source.Component+": "+event.Message)
	return event, nil
}

func (s *eventSink) Update(event *corev1.Event) (*corev1.Event, error) { return s.Create(event) }

func (s *eventSink) Patch(event *corev1.Event, _ []byte) (*corev1.Event, error) {
	return s.Create(event)
}

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

func key(name string) mirrorcontroller.Key {
	return mirrorcontroller.Key{Namespace: namespace, Name: name}
}

// service returns a Service without a selector.
func service(name string, changes ...func(*corev1.Service)) *corev1.Service {
	object := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("service-" + name)}}
	for _, change := range changes {
		change(object)
	}
	return object
}

func selecting(object *corev1.Service) {
	object.Spec.Selector = map[string]string{"app": object.Name}
}

// endpoints returns an Endpoints object with one subset for each port and ready addresses.
func endpoints(name string, port int32, addresses ...string) *corev1.Endpoints {
	object := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name,
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl-create", Operation: metav1.ManagedFieldsOperationUpdate}},
	}}
	return withSubset(object, port, addresses...)
}

func withSubset(object *corev1.Endpoints, port int32, addresses ...string) *corev1.Endpoints {
	subset := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Name: fmt.Sprint("p", port), Port: port, Protocol: corev1.ProtocolTCP}}}
	for _, address := range addresses {
		if ip, notReady := strings.CutSuffix(address, "-"); notReady {
			subset.NotReadyAddresses = append(subset.NotReadyAddresses, corev1.EndpointAddress{IP: ip})
			continue
		}
		subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: address})
	}
	object.Subsets = append(object.Subsets, subset)
	return object
}

// expect waits a little, and compares all slices.
func (c *fakeCluster) expect(step, want string) {
	c.t.Helper()
	advance(200 * time.Millisecond)
	if got := c.contents(); got != want {
		c.t.Errorf("%s: slices are %q, want %q", step, got, want)
	}
}

// expectWrites checks the number of writes since the last call.
func (c *fakeCluster) expectWrites(step string, want int) {
	c.t.Helper()
	if got := c.takeWrites(); len(got) != want {
		c.t.Errorf("%s: writes are %v, want %d", step, got, want)
	}
}
