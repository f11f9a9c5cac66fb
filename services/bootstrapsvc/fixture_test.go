package bootstrapsvc

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/shadow"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/hostaddress"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func self() term.Member {
	return term.Member{ID: "self-1", Service: "bootstrapsvc", Cluster: "test", GRPCAddress: "127.0.0.1:7602"}
}

// fixture is a service whose dependencies are in memory.
type fixture struct {
	*Service

	objects      *fakeObjects
	keys         *fakeKeys
	masterLeases *fakeMasterLeases
	resolver     *fakeResolver
	prober       *fakeProber
	adopted      *fakeProber // answers for every kube-apiserver without a sidecar
	candidate    *termtest.Candidate
	decisions    *decisions.Log
	stop         context.CancelFunc
	ended        chan error
}

// moment is longer than everything that happens at once, and ends between ticks.
const moment = 100 * time.Millisecond

// newFixture assembles a service beside the kube-apiserver at 10.1.0.1; start runs it.
func newFixture(t testing.TB, selection ...string) *fixture {
	t.Helper()
	return newFixtureWith(t, DefaultConfig(), selection...)
}

// newFixtureWith is newFixture with another configuration.
func newFixtureWith(t testing.TB, cfg Config, selection ...string) *fixture {
	t.Helper()
	return newShadowFixture(t, cfg, nil, selection...)
}

// newShadowFixture runs the loops of the trackers in dry run.
func newShadowFixture(t testing.TB, cfg Config, trackers *shadow.Trackers, selection ...string) *fixture {
	t.Helper()
	f := &fixture{
		objects: newFakeObjects(), keys: newFakeKeys(), prober: &fakeProber{}, adopted: &fakeProber{},
		masterLeases: &fakeMasterLeases{}, resolver: &fakeResolver{},
		candidate: termtest.NewCandidate(self(), 1), decisions: decisions.NewLog(),
		ended: make(chan error, 1),
	}
	var err error
	f.Service, err = assemble(cfg, Deps{
		Member: self(), Leadership: f.candidate, Decisions: f.decisions,
		Logger:  slog.New(slog.NewTextHandler(t.Output(), nil)),
		Metrics: prometheus.NewRegistry(), LoopSelection: selection, Shadow: trackers,
	}, parts{
		local:   localServer{port: 6443, address: hostaddress.Addresses{Primary: netip.MustParseAddr("10.1.0.1")}},
		objects: f.objects, keys: f.keys, probe: f.prober.Probe, masterLeases: f.masterLeases.Read, lookupIP: f.resolver.LookupNetIP,
		probeOf:     func(netip.Addr) apiserverscontroller.Probe { return f.adopted.Probe },
		allocations: emptyCluster{}, ranges: emptyRanges{}, repairs: emptyStore{},
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) start(t testing.TB) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	go func() { f.ended <- f.Run(ctx) }()
}

// end stops the service and waits for it.
func (f *fixture) end(t testing.TB) {
	t.Helper()
	f.stop()
	if err := <-f.ended; err != nil {
		t.Errorf("Run = %v", err)
	}
}

func (f *fixture) wantPublished(t testing.TB, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, f.objects.published()); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
}

func (f *fixture) statusOf(t testing.TB, name string) loop.Status {
	t.Helper()
	for _, status := range f.Loops().Status() {
		if status.Name == name {
			return status
		}
	}
	t.Fatalf("there is no loop %s", name)
	return loop.Status{}
}

// publish writes endpoints as kube-apiserver's own reconciler does.
func (f *fixture) publish(addresses ...string) {
	var servers []apiservers.Server
	for _, address := range addresses {
		servers = append(servers, apiservers.Server{Address: netip.MustParseAddr(address), Port: 6443, Ready: true})
	}
	plan := apiservers.NewPlan(apiservers.Want{ServiceIP: netip.MustParseAddr("10.0.0.1")}, apiservers.Snapshot{Servers: servers})
	for _, change := range plan.Changes {
		f.objects.put(change.Object)
	}
}

// readyPeer is the key of a ready kube-apiserver beside another replica.
func readyPeer(address string) apiserverscontroller.Entry {
	return apiserverscontroller.Entry{
		Address: netip.MustParseAddr(address), Port: 6443, Ready: true, Detail: "ok", ReplicaID: "other-1",
	}
}

// fakeObjects are the objects of a cluster. Like the real client behind its fence, it requires
// guards and a term for writes.
type fakeObjects struct {
	mu       sync.Mutex // guards the fields below
	objects  map[string]baseline.Object
	cidr     baseline.ServiceCIDR
	version  int
	written  []string // "verb Kind name"
	watchers watchers
	// before is called before each write, without the lock; an error rejects it.
	before func(ctx context.Context, step baseline.Change) error
	// reads is the error of every read, if set. forbidden are the errors of reads of one object.
	reads     error
	forbidden map[string]error
}

func newFakeObjects() *fakeObjects {
	return &fakeObjects{objects: map[string]baseline.Object{}, cidr: defaultCIDR("10.0.0.0/16")}
}

func keyOf(object baseline.Object) string {
	return baseline.Change{Object: object}.Kind().Kind + " " + object.GetName()
}

// put stores an object as another writer would.
func (m *fakeObjects) put(object baseline.Object) {
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
	m.notifyOf(keyOf(stored))
}

func (m *fakeObjects) remove(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, key)
	m.notifyOf(key)
}

func (m *fakeObjects) WatchEndpointSlice(ctx context.Context, changed func()) {
	m.watchers.watch(ctx, changed)
}

func (m *fakeObjects) notifyOf(key string) {
	if key == "EndpointSlice kubernetes" {
		m.watchers.notify()
	}
}

// edit changes a stored object as another writer would.
func edit[T baseline.Object](m *fakeObjects, key string, how func(T)) {
	m.mu.Lock()
	object := m.objects[key].DeepCopyObject().(T)
	m.mu.Unlock()
	how(object)
	m.put(object)
}

func load[T baseline.Object](m *fakeObjects, key string) (T, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var none T
	if err := errorOf(m.reads, m.forbidden[key]); err != nil {
		return none, err
	}
	object, found := m.objects[key]
	if !found {
		return none, nil
	}
	return object.DeepCopyObject().(T), nil
}

func errorOf(all, one error) error {
	if all != nil {
		return all
	}
	return one
}

func (m *fakeObjects) failReads(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads = err
}

// failReadsOf makes each read of one object fail.
func (m *fakeObjects) failReadsOf(key string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.forbidden == nil {
		m.forbidden = map[string]error{}
	}
	m.forbidden[key] = err
}

// beforeApply sets the function that is called before each write.
func (m *fakeObjects) beforeApply(before func(ctx context.Context, step baseline.Change) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.before = before
}

// failApply rejects each write; nil accepts them again.
func (m *fakeObjects) failApply(err error) {
	m.beforeApply(func(context.Context, baseline.Change) error { return err })
}

func (m *fakeObjects) hook() func(ctx context.Context, step baseline.Change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.before
}

func (m *fakeObjects) writes() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.written)
}

func (m *fakeObjects) Namespaces(_ context.Context, names []string) ([]*corev1.Namespace, error) {
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

func (m *fakeObjects) Service(context.Context) (*corev1.Service, error) {
	return load[*corev1.Service](m, "Service kubernetes")
}

func (m *fakeObjects) Endpoints(context.Context) (*corev1.Endpoints, error) {
	return load[*corev1.Endpoints](m, "Endpoints kubernetes")
}

func (m *fakeObjects) EndpointSlices(context.Context) ([]*discoveryv1.EndpointSlice, error) {
	slice, err := load[*discoveryv1.EndpointSlice](m, "EndpointSlice kubernetes")
	if slice == nil {
		return nil, err
	}
	return []*discoveryv1.EndpointSlice{slice}, nil
}

func (m *fakeObjects) ServiceCIDR(context.Context) (baseline.ServiceCIDR, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.forbidden["ServiceCIDR kubernetes"]; err != nil {
		return baseline.ServiceCIDR{}, err
	}
	return m.cidr, m.reads
}

// keepCIDR changes the default ServiceCIDR as kube-apiserver would.
func (m *fakeObjects) keepCIDR(how func(*baseline.ServiceCIDR)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	kept := m.cidr
	kept.Object = kept.Object.DeepCopy() // readers may hold the old object
	how(&kept)
	m.cidr = kept
}

// defaultCIDR is the default ServiceCIDR with these ranges.
func defaultCIDR(ranges ...string) baseline.ServiceCIDR {
	return baseline.ServiceCIDR{Served: true, Object: &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: ranges},
		Status: networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{{
			Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue,
		}}},
	}}
}

func (m *fakeObjects) Apply(ctx context.Context, step baseline.Change) error {
	t, found := term.FromContext(ctx)
	if !found {
		return term.ErrNone
	}
	if err := t.Check(); err != nil {
		return err
	}
	if before := m.hook(); before != nil {
		if err := before(ctx, step); err != nil {
			return err
		}
	}
	key := keyOf(step.Object)
	if err := m.guard(key, step); err != nil {
		return err
	}
	if step.Verb == planned.Delete {
		m.remove(key)
	} else {
		m.put(step.Object)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.written = append(m.written, string(step.Verb)+" "+key)
	return nil
}

func (m *fakeObjects) guard(key string, step baseline.Change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	stored, found := m.objects[key]
	switch {
	case step.Verb == planned.Create && !found:
		return nil
	case step.Verb != planned.Create && found && stored.GetResourceVersion() == step.Object.GetResourceVersion() &&
		stored.GetUID() == step.Object.GetUID():
		return nil
	default:
		return fmt.Errorf("%s %s: %w", step.Verb, key, guarded.ErrConflict)
	}
}

// published are the addresses in the slice and the Endpoints object; "differ" if they differ.
func (m *fakeObjects) published() []string {
	endpoints, _ := m.Endpoints(context.Background())
	slice, _ := m.EndpointSlices(context.Background())
	published := apiservers.PublishedInEndpoints(endpoints)
	if !slices.Equal(published, apiservers.PublishedInSlices(slice)) {
		return []string{"differ"}
	}
	return published
}

// publishedIn are the addresses in one object, also if reads of it fail.
func (m *fakeObjects) publishedIn(key string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch object := m.objects[key].(type) {
	case *corev1.Endpoints:
		return apiservers.PublishedInEndpoints(object)
	case *discoveryv1.EndpointSlice:
		return apiservers.PublishedInSlices([]*discoveryv1.EndpointSlice{object})
	default:
		return nil
	}
}

// fakeKeys are the keys of sidecars.
type fakeKeys struct {
	mu       sync.Mutex // guards the fields below
	entries  map[netip.Addr]apiserverscontroller.Entry
	watchers watchers
	puts     int
	// reads and writes are the errors of all such calls, if set.
	reads, writes error
	// hang makes every call block until its context ends.
	hang bool
}

func newFakeKeys() *fakeKeys {
	return &fakeKeys{entries: map[netip.Addr]apiserverscontroller.Entry{}}
}

// put writes a key as another replica would.
func (m *fakeKeys) put(entry apiserverscontroller.Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	entry.Name, entry.Leased = entry.Address.String(), true
	m.entries[entry.Address] = entry
	m.watchers.notify()
}

func (m *fakeKeys) drop(address string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.entries, netip.MustParseAddr(address))
	m.watchers.notify()
}

func (m *fakeKeys) fail(reads, writes error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads, m.writes = reads, writes
}

func (m *fakeKeys) get(address string) (apiserverscontroller.Entry, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	entry, found := m.entries[netip.MustParseAddr(address)]
	return entry, found
}

// fault hangs or fails as configured. The caller must not hold mu.
func (m *fakeKeys) fault(ctx context.Context, failure func() error) error {
	m.mu.Lock()
	isHanging, err := m.hang, failure()
	m.mu.Unlock()
	if isHanging {
		<-ctx.Done()
		return fmt.Errorf("%w: %w", apiserverscontroller.ErrUnavailable, ctx.Err())
	}
	return err
}

func (m *fakeKeys) Read(ctx context.Context) ([]apiserverscontroller.Entry, error) {
	if err := m.fault(ctx, func() error { return m.reads }); err != nil {
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

func (m *fakeKeys) List(ctx context.Context) ([]apiserverscontroller.Entry, error) {
	entries, err := m.Read(ctx)
	for i := range entries {
		entries[i].TTL = 5 * time.Second
	}
	return entries, err
}

func (m *fakeKeys) Publish(ctx context.Context, entry apiserverscontroller.Entry, _ clientv3.LeaseID) error {
	if err := m.fault(ctx, func() error { return m.writes }); err != nil {
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

func (m *fakeKeys) DeleteStale(ctx context.Context, address netip.Addr) (bool, error) {
	return m.delete(ctx, address, func(owner string) bool { return owner != self().ID })
}

func (m *fakeKeys) MarkLeft(ctx context.Context, entry apiserverscontroller.Entry) error {
	entry.Ready, entry.Left = false, true
	return m.Publish(ctx, entry, clientv3.NoLease)
}

func (m *fakeKeys) Key(entry apiserverscontroller.Entry) string {
	return "/trivet/test/apiservers/" + entry.Name
}

func (m *fakeKeys) delete(ctx context.Context, address netip.Addr, isMeant func(owner string) bool) (bool, error) {
	if err := m.fault(ctx, func() error { return m.writes }); err != nil {
		return false, err
	}
	there, found := m.get(address.String())
	if !found || !isMeant(there.ReplicaID) {
		return false, nil
	}
	m.drop(address.String())
	return true, nil
}

func (m *fakeKeys) Watch(ctx context.Context, changed func()) { m.watchers.watch(ctx, changed) }

// fakeProber answers probes of a kube-apiserver.
type fakeProber struct {
	mu         sync.Mutex // guards the fields below
	down, hung bool
}

// hang makes the server accept connections and never answer.
func (p *fakeProber) hang(hung bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hung = hung
}

func (p *fakeProber) set(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

func (p *fakeProber) Probe(ctx context.Context) apiservers.ProbeResult {
	p.mu.Lock()
	down, hung := p.down, p.hung
	p.mu.Unlock()
	if hung {
		<-ctx.Done()
		return apiservers.ProbeResult{Time: time.Now(), Silent: true, Detail: "no answer"}
	}
	if down {
		return apiservers.ProbeResult{Time: time.Now(), Detail: "connection refused"}
	}
	return apiservers.ProbeResult{Time: time.Now(), OK: true, Detail: "ok"}
}

// fakeMasterLeases are the keys of kube-apiserver's own reconciler.
type fakeMasterLeases struct {
	mu   sync.Mutex // guards the fields below
	keys []apiservers.MasterLease
	err  error
}

func (m *fakeMasterLeases) set(keys ...apiservers.MasterLease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys = keys
}

func (m *fakeMasterLeases) Read(context.Context) ([]apiservers.MasterLease, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.keys), m.err
}

// fakeResolver resolves every name to the same addresses.
type fakeResolver struct {
	mu        sync.Mutex // guards the fields below
	addresses []netip.Addr
	err       error
	hung      bool
}

// hang makes every lookup block until its context ends.
func (m *fakeResolver) hang() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hung = true
}

func (m *fakeResolver) set(err error, addresses ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err, m.addresses = err, nil
	for _, address := range addresses {
		m.addresses = append(m.addresses, netip.MustParseAddr(address))
	}
}

func (m *fakeResolver) LookupNetIP(ctx context.Context, _, _ string) ([]netip.Addr, error) {
	m.mu.Lock()
	hung, addresses, err := m.hung, slices.Clone(m.addresses), m.err
	m.mu.Unlock()
	if hung {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return addresses, err
}

// strip removes the lease of a key, as a restore does.
func (m *fakeKeys) strip(address string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	restored := m.entries[netip.MustParseAddr(address)]
	restored.Leased = false
	m.entries[restored.Address] = restored
}

// watchers fans out notifications to blocking Watch calls.
type watchers struct {
	mu    sync.Mutex
	calls map[chan struct{}]struct{} // guarded by mu
}

func (w *watchers) notify() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for call := range w.calls {
		select {
		case call <- struct{}{}:
		default:
		}
	}
}

// watch calls changed at once and after each notification until ctx ends.
func (w *watchers) watch(ctx context.Context, changed func()) {
	call := make(chan struct{}, 1)
	w.mu.Lock()
	if w.calls == nil {
		w.calls = map[chan struct{}]struct{}{}
	}
	w.calls[call] = struct{}{}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.calls, call)
	}()
	for changed(); ; changed() {
		select {
		case <-ctx.Done():
			return
		case <-call:
		}
	}
}

// emptyCluster has a range and neither Services nor allocations, so the audit finds nothing.
type emptyCluster struct{}

var emptyRange = []allocation.CIDR{{Name: "kubernetes", Prefixes: []string{"10.0.0.0/16"}, Ready: true}}

func (emptyCluster) Stores(context.Context) (allocationcontroller.Stores, error) {
	return allocationcontroller.Stores{Present: []allocation.Store{allocation.IPAddresses}}, nil
}

func (emptyCluster) Identity(context.Context) (*rangestore.ClusterIdentity, error) { return nil, nil }

func (emptyCluster) Watch(ctx context.Context, kinds []allocationcontroller.Kind, sink allocationcontroller.ObjectHandler) {
	for _, kind := range kinds {
		change := allocationcontroller.ObjectChange{Kind: kind, List: true}
		if kind == allocationcontroller.KindServiceCIDRs {
			change.Put.ServiceCIDRs = emptyRange
		}
		sink.OnChange(change)
	}
	<-ctx.Done()
}

func (emptyCluster) Service(context.Context, allocation.Key) (*allocation.Service, error) {
	return nil, nil
}
func (emptyCluster) Services(context.Context) ([]allocation.Service, error) { return nil, nil }
func (emptyCluster) IPAddress(context.Context, string) (*allocation.IPAddress, error) {
	return nil, nil
}
func (emptyCluster) ServiceCIDRs(context.Context) ([]allocation.CIDR, error) { return emptyRange, nil }
func (emptyCluster) Create(context.Context, allocation.IPAddress) error      { return nil }
func (emptyCluster) CanCreate(context.Context, allocation.IPAddress) error   { return nil }
func (emptyCluster) Relabel(context.Context, allocation.IPAddress, allocation.Guard) error {
	return nil
}
func (emptyCluster) Delete(context.Context, string, allocation.Guard) error { return nil }

type emptyRanges struct{}

func (emptyRanges) Read(context.Context, rangestore.Name) (rangestore.Value, error) {
	return rangestore.Value{}, nil
}

func (emptyRanges) CompareAndSwap(context.Context, rangestore.Name, int64, rangestore.Range) (int64, error) {
	return 0, rangestore.ErrConflict
}

func (emptyRanges) Watch(ctx context.Context, sink rangestore.Handler) {
	sink.OnList(nil)
	<-ctx.Done()
}

func (emptyRanges) VerifyCluster(context.Context, func(context.Context) (*rangestore.ClusterIdentity, error)) (string, error) {
	return "", nil
}

// emptyStore has no findings, plans and repairs. Its other methods are not called.
type emptyStore struct {
	allocationcontroller.RepairStore
}

func (emptyStore) Findings(context.Context) ([]allocation.Finding, int, error)         { return nil, 0, nil }
func (emptyStore) WriteFindings(context.Context, []allocation.Finding, []string) error { return nil }
func (emptyStore) Ignores(context.Context) ([]allocation.Ignore, int, error)           { return nil, 0, nil }
func (emptyStore) Plans(context.Context) ([]repairstore.Plan, int, error)              { return nil, 0, nil }
func (emptyStore) Repairs(context.Context) ([]repairstore.Repair, int, error)          { return nil, 0, nil }
func (emptyStore) WatchRepairs(ctx context.Context, _ repairstore.RepairHandler)       { <-ctx.Done() }
