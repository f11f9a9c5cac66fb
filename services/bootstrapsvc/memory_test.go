package bootstrapsvc

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
)

// memoryObjects is a Kubernetes in memory that insists on guards and on a term, as the real one behind its fence does.
type memoryObjects struct {
	mu       sync.Mutex // guards what follows
	objects  map[string]baseline.Object
	cidr     baseline.ServiceCIDR
	version  int
	written  []string // "verb Kind name"
	watchers map[chan struct{}]struct{}
	// before is called before each write, without the lock; an error refuses it.
	before func(ctx context.Context, step baseline.Change) error
	// reads, if set, is what every read fails with.
	reads error
}

func newMemoryObjects() *memoryObjects {
	return &memoryObjects{objects: map[string]baseline.Object{}, watchers: map[chan struct{}]struct{}{}, cidr: defaultCIDR("10.0.0.0/16")}
}

func keyOf(object baseline.Object) string {
	return baseline.Change{Object: object}.Kind().Kind + " " + object.GetName()
}

// put stores an object as another writer would.
func (m *memoryObjects) put(object baseline.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.version++
	stored := object.DeepCopyObject().(baseline.Object)
	stored.SetResourceVersion(strconv.Itoa(m.version))
	if stored.GetUID() == "" {
		stored.SetUID(types.UID(fmt.Sprintf("uid-%d", m.version)))
	}
	if namespace, ok := stored.(*corev1.Namespace); ok && namespace.Status.Phase == "" {
		namespace.Status.Phase = corev1.NamespaceActive
		namespace.Labels = map[string]string{corev1.LabelMetadataName: namespace.Name}
	}
	m.objects[keyOf(stored)] = stored
	m.notify(keyOf(stored))
}

func (m *memoryObjects) remove(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, key)
	m.notify(key)
}

// notify tells the watchers of a slice. The caller holds mu.
func (m *memoryObjects) notify(key string) {
	if key == "EndpointSlice kubernetes" {
		for watcher := range m.watchers {
			hint(watcher)
		}
	}
}

func (m *memoryObjects) Watch(ctx context.Context, changed func()) {
	events := make(chan struct{}, 1)
	m.mu.Lock()
	m.watchers[events] = struct{}{}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watchers, events)
	}()
	for changed(); ; changed() {
		select {
		case <-ctx.Done():
			return
		case <-events:
		}
	}
}

// edit changes a stored object as another writer would.
func edit[T baseline.Object](m *memoryObjects, key string, how func(T)) {
	m.mu.Lock()
	object := m.objects[key].DeepCopyObject().(T)
	m.mu.Unlock()
	how(object)
	m.put(object)
}

func load[T baseline.Object](m *memoryObjects, key string) (T, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var none T
	if m.reads != nil {
		return none, m.reads
	}
	object, found := m.objects[key]
	if !found {
		return none, nil
	}
	return object.DeepCopyObject().(T), nil
}

func (m *memoryObjects) failReads(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads = err
}

func (m *memoryObjects) writes() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.written)
}

func (m *memoryObjects) Namespaces(_ context.Context, names []string) ([]*corev1.Namespace, error) {
	var existing []*corev1.Namespace
	for _, name := range names {
		namespace, err := load[*corev1.Namespace](m, "Namespace "+name)
		if err != nil {
			return nil, err
		}
		if namespace != nil {
			existing = append(existing, namespace)
		}
	}
	return existing, nil
}

func (m *memoryObjects) Service(context.Context) (*corev1.Service, error) {
	return load[*corev1.Service](m, "Service kubernetes")
}

func (m *memoryObjects) Endpoints(context.Context) (*corev1.Endpoints, error) {
	return load[*corev1.Endpoints](m, "Endpoints kubernetes")
}

func (m *memoryObjects) EndpointSlices(context.Context) ([]*discoveryv1.EndpointSlice, error) {
	slice, err := load[*discoveryv1.EndpointSlice](m, "EndpointSlice kubernetes")
	if slice == nil {
		return nil, err
	}
	return []*discoveryv1.EndpointSlice{slice}, nil
}

func (m *memoryObjects) ServiceCIDR(context.Context) (baseline.ServiceCIDR, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cidr, m.reads
}

// keepCIDR changes the default ServiceCIDR as kube-apiserver would.
func (m *memoryObjects) keepCIDR(how func(*baseline.ServiceCIDR)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	kept := m.cidr
	kept.Object = kept.Object.DeepCopy() // readers may hold the one before
	how(&kept)
	m.cidr = kept
}

// defaultCIDR is the default ServiceCIDR of a cluster that has these ranges.
func defaultCIDR(ranges ...string) baseline.ServiceCIDR {
	return baseline.ServiceCIDR{Served: true, Object: &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: ranges},
		Status: networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{{
			Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue,
		}}},
	}}
}

func (m *memoryObjects) Apply(ctx context.Context, step baseline.Change) error {
	t, found := term.FromContext(ctx)
	if !found {
		return term.ErrNone
	}
	if err := t.Check(); err != nil {
		return err
	}
	if m.before != nil {
		if err := m.before(ctx, step); err != nil {
			return err
		}
	}
	key := keyOf(step.Object)
	if err := m.guard(key, step); err != nil {
		return err
	}
	if step.Verb == baseline.Delete {
		m.remove(key)
	} else {
		m.put(step.Object)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.written = append(m.written, string(step.Verb)+" "+key)
	return nil
}

func (m *memoryObjects) guard(key string, step baseline.Change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	stored, found := m.objects[key]
	switch {
	case step.Verb == baseline.Create && !found:
		return nil
	case step.Verb != baseline.Create && found && stored.GetResourceVersion() == step.Object.GetResourceVersion() &&
		stored.GetUID() == step.Object.GetUID():
		return nil
	default:
		return fmt.Errorf("%s %s: %w", step.Verb, key, baselinecontroller.ErrConflict)
	}
}

// published are the addresses in slice and Endpoints; "differ" if the two do not agree.
func (m *memoryObjects) published() []string {
	survey := survey{}
	survey.endpoints.snapshot.Endpoints, _ = m.Endpoints(context.Background())
	survey.endpoints.snapshot.Slices, _ = m.EndpointSlices(context.Background())
	service := baselineOf(survey).GetKubernetesService()
	if !slices.Equal(service.GetEndpointsAddresses(), service.GetEndpointSliceAddresses()) {
		return []string{"differ"}
	}
	return service.GetEndpointsAddresses()
}

// memoryKeys are the apiserver keys of an etcd in memory.
type memoryKeys struct {
	mu       sync.Mutex // guards what follows
	entries  map[netip.Addr]apiserverscontroller.Entry
	watchers map[chan struct{}]struct{}
	puts     int
	// reads and writes, if set, are what every call of that kind fails with.
	reads, writes error
	// hang makes every call wait for its context.
	hang bool
}

func newMemoryKeys() *memoryKeys {
	return &memoryKeys{entries: map[netip.Addr]apiserverscontroller.Entry{}, watchers: map[chan struct{}]struct{}{}}
}

// put writes a key as another replica would.
func (m *memoryKeys) put(entry apiserverscontroller.Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	entry.Name, entry.Leased = entry.Address.String(), true
	m.entries[entry.Address] = entry
	m.notify()
}

func (m *memoryKeys) drop(address string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.entries, netip.MustParseAddr(address))
	m.notify()
}

func (m *memoryKeys) fail(reads, writes error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads, m.writes = reads, writes
}

func (m *memoryKeys) get(address string) (apiserverscontroller.Entry, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	entry, found := m.entries[netip.MustParseAddr(address)]
	return entry, found
}

// notify tells the watchers. The caller holds mu.
func (m *memoryKeys) notify() {
	for watcher := range m.watchers {
		hint(watcher)
	}
}

// admit says how a call begins: it may hang, or fail. The caller must not hold mu.
func (m *memoryKeys) admit(ctx context.Context, failure func() error) error {
	m.mu.Lock()
	isHanging, err := m.hang, failure()
	m.mu.Unlock()
	if isHanging {
		<-ctx.Done()
		return fmt.Errorf("%w: %w", apiserverscontroller.ErrUnavailable, ctx.Err())
	}
	return err
}

func (m *memoryKeys) Read(ctx context.Context) ([]apiserverscontroller.Entry, error) {
	if err := m.admit(ctx, func() error { return m.reads }); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var entries []apiserverscontroller.Entry
	for _, entry := range m.entries {
		entries = append(entries, entry)
	}
	slices.SortFunc(entries, func(a, b apiserverscontroller.Entry) int { return a.Address.Compare(b.Address) })
	return entries, nil
}

func (m *memoryKeys) List(ctx context.Context) ([]apiserverscontroller.Entry, error) {
	entries, err := m.Read(ctx)
	for i := range entries {
		entries[i].TTL = 5 * time.Second
	}
	return entries, err
}

func (m *memoryKeys) Publish(ctx context.Context, entry apiserverscontroller.Entry, _ clientv3.LeaseID) error {
	if err := m.admit(ctx, func() error { return m.writes }); err != nil {
		return err
	}
	if there, found := m.get(entry.Name); found && there.ReplicaID != entry.ReplicaID {
		return apiserverscontroller.ErrTaken
	}
	m.put(entry)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.puts++
	return nil
}

func (m *memoryKeys) Evict(ctx context.Context, address netip.Addr) (bool, error) {
	return m.delete(ctx, address, func(owner string) bool { return owner != self().ID })
}

func (m *memoryKeys) Withdraw(ctx context.Context, address netip.Addr) error {
	_, err := m.delete(ctx, address, func(owner string) bool { return owner == self().ID })
	return err
}

func (m *memoryKeys) Leave(ctx context.Context, entry apiserverscontroller.Entry) error {
	entry.Ready, entry.Left = false, true
	return m.Publish(ctx, entry, clientv3.NoLease)
}

func (m *memoryKeys) Key(entry apiserverscontroller.Entry) string {
	return "/trivet/test/apiservers/" + entry.Name
}

func (m *memoryKeys) delete(ctx context.Context, address netip.Addr, isMeant func(owner string) bool) (bool, error) {
	if err := m.admit(ctx, func() error { return m.writes }); err != nil {
		return false, err
	}
	there, found := m.get(address.String())
	if !found || !isMeant(there.ReplicaID) {
		return false, nil
	}
	m.drop(address.String())
	return true, nil
}

func (m *memoryKeys) Watch(ctx context.Context, changed func()) {
	events := make(chan struct{}, 1)
	m.mu.Lock()
	m.watchers[events] = struct{}{}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watchers, events)
	}()
	for changed(); ; changed() {
		select {
		case <-ctx.Done():
			return
		case <-events:
		}
	}
}

// memoryProber is a kube-apiserver in memory.
type memoryProber struct {
	mu         sync.Mutex // guards what follows
	down, hung bool
}

// hang makes the server accept connections and say nothing.
func (p *memoryProber) hang(hung bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hung = hung
}

func (p *memoryProber) set(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

func (p *memoryProber) Probe(ctx context.Context) apiservers.Outcome {
	p.mu.Lock()
	down, hung := p.down, p.hung
	p.mu.Unlock()
	if hung {
		<-ctx.Done()
		return apiservers.Outcome{Time: time.Now(), Silent: true, Detail: "no answer"}
	}
	if down {
		return apiservers.Outcome{Time: time.Now(), Detail: "connection refused"}
	}
	return apiservers.Outcome{Time: time.Now(), OK: true, Detail: "ok"}
}

// memoryLeases are kube-apiserver's own keys.
type memoryLeases struct {
	mu   sync.Mutex // guards what follows
	keys []apiserverscontroller.MasterLease
	err  error
}

func (m *memoryLeases) set(keys ...apiserverscontroller.MasterLease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys = keys
}

func (m *memoryLeases) Read(context.Context) ([]apiserverscontroller.MasterLease, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.keys), m.err
}

// memoryNames is a DNS in which every name leads to the same addresses.
type memoryNames struct {
	mu        sync.Mutex // guards what follows
	addresses []netip.Addr
	err       error
	hung      bool
}

// hang makes every question go unanswered.
func (m *memoryNames) hang() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hung = true
}

func (m *memoryNames) set(err error, addresses ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err, m.addresses = err, nil
	for _, address := range addresses {
		m.addresses = append(m.addresses, netip.MustParseAddr(address))
	}
}

func (m *memoryNames) LookupNetIP(ctx context.Context, _, _ string) ([]netip.Addr, error) {
	m.mu.Lock()
	hung, addresses, err := m.hung, slices.Clone(m.addresses), m.err
	m.mu.Unlock()
	if hung {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return addresses, err
}
