package allocationcontroller

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
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// fakeCluster is a kube-apiserver, its etcd and the repair store in memory. It requires guards and
// a term, as the real ones do.
type fakeCluster struct {
	mu        sync.Mutex // guards the fields below
	services  map[allocation.Key]allocation.Service
	addresses map[string]allocation.IPAddress
	cidrs     []allocation.CIDR
	ports     rangestore.Value
	version   int64
	// feeds has a channel of events for each watch of objects, and ranges for each watch of the
	// range.
	feeds map[chan ObjectChange]struct{}
	// watcher is the handler of the current watch of objects.
	watcher ObjectHandler
	ranges  map[chan rangestore.Value]struct{}
	// foreign says why the range belongs to another cluster.
	foreign string
	// stale are the kinds whose events are not sent.
	stale map[Kind]bool
	// readErr is the error of reads of the range. getErr is that of reads of one object.
	readErr, getErr error
	// lists counts the lists of all Services. listErr is their error.
	lists   int
	listErr error

	// takenIDs is how many IDs of plans exist already.
	takenIDs int
	// refused are the addresses that a dry run of a create refuses. discovered are the stores, nil
	// for those of a current kube-apiserver. listless makes a watch send nothing at its start.
	listless   bool
	refused    map[string]error
	discovered *Stores

	findings map[string]allocation.Finding
	ignores  map[string]allocation.Ignore
	plans    map[string]repairstore.Plan
	stored   map[string]repairstore.Repair
	// followers are the handlers of watches of repairs.
	followers map[repairstore.RepairHandler]struct{}

	writes []string
	// hook is called before and after each write, without the lock. An error before the write
	// rejects it, an error after it loses the answer.
	hook func(write string, after bool) error
}

func newFakeCluster(t testing.TB) *fakeCluster {
	t.Helper()
	w := &fakeCluster{
		services: map[allocation.Key]allocation.Service{}, addresses: map[string]allocation.IPAddress{},
		cidrs: []allocation.CIDR{{Name: "kubernetes", Prefixes: []string{"10.0.0.0/16"}, Ready: true}},
		feeds: map[chan ObjectChange]struct{}{}, ranges: map[chan rangestore.Value]struct{}{}, stale: map[Kind]bool{},
		findings: map[string]allocation.Finding{}, ignores: map[string]allocation.Ignore{}, plans: map[string]repairstore.Plan{},
		stored: map[string]repairstore.Repair{}, followers: map[repairstore.RepairHandler]struct{}{},
	}
	raw, err := (&corev1.RangeAllocation{Range: "30000-32767", Data: []byte{}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	envelope := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "RangeAllocation"}, Raw: raw}
	encoded, err := envelope.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	stored, err := rangestore.Decode(append([]byte("k8s\x00"), encoded...))
	if err != nil {
		t.Fatal(err)
	}
	w.version = 1
	w.ports = rangestore.Value{Range: stored, ModRevision: 1}
	w.addService("kubernetes", "None") // an empty list of Services is never believed
	return w
}

// addService adds a Service without allocating what it uses.
func (w *fakeCluster) addService(name, address string, ports ...int32) allocation.Service {
	s := allocation.Service{
		Key: allocation.Key{Namespace: "default", Name: name}, UID: "uid-of-" + name, Type: allocation.ClusterIP,
		ClusterIPs: []string{address}, Created: time.Now(),
	}
	for _, port := range ports {
		s.Ports = append(s.Ports, allocation.Port{Number: port, Protocol: "TCP"})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.services[s.Key] = s
	w.send(ObjectChange{Kind: KindServices, Put: Objects{Services: []allocation.Service{s}}})
	return s
}

// deleteService deletes a Service. What it used stays allocated.
func (w *fakeCluster) deleteService(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.services, allocation.Key{Namespace: "default", Name: name})
	w.send(ObjectChange{Kind: KindServices, Deleted: []types.NamespacedName{{Namespace: "default", Name: name}}})
}

// deleteAddress deletes an IPAddress.
func (w *fakeCluster) deleteAddress(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.addresses, name)
	w.sendAddress(name)
}

// addAddress creates an IPAddress with a Service as parent.
func (w *fakeCluster) addAddress(name, parent string, change ...func(*allocation.IPAddress)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := allocation.IPAddress{
		Name: name, UID: fmt.Sprintf("uid-%d", w.next()), ResourceVersion: strconv.FormatInt(w.version, 10), Created: time.Now(),
		Parent:    allocation.ServiceParent(allocation.Key{Namespace: "default", Name: parent}),
		ManagedBy: allocation.AllocatorName, Family: allocation.FamilyIPv4,
	}
	for _, how := range change {
		how(&a)
	}
	w.addresses[name] = a
	w.sendAddress(name)
}

// relist sends a list of a kind, as after a gap in the watch.
func (w *fakeCluster) relist(kind Kind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for feed := range w.feeds {
		feed <- w.all(kind)
	}
}

// putBits writes the whole bitmap as kube-apiserver would.
func (w *fakeCluster) putBits(ports ...int) {
	w.mu.Lock()
	bitmap := allocation.Bitmap{Store: allocation.NodePorts, Range: "30000-32767"}
	var steps []allocation.Step
	for _, port := range ports {
		steps = append(steps, allocation.Step{
			Verb: planned.SetBit, Store: allocation.NodePorts, Range: bitmap.Range, Offset: port - 30000, Subject: strconv.Itoa(port),
		})
	}
	data, err := bitmap.Write(steps)
	if err != nil {
		panic(err)
	}
	w.putRange(w.ports.Range.With(data))
	w.mu.Unlock()
}

// putRange writes the range. The caller holds the lock.
func (w *fakeCluster) putRange(next rangestore.Range) {
	w.ports = rangestore.Value{Range: next, ModRevision: w.next()}
	for feed := range w.ranges {
		feed <- w.ports
	}
}

func (w *fakeCluster) hasPort(port int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	data, i := w.ports.Range.Data(), port-30000
	at := len(data) - 1 - i/8
	return at >= 0 && data[at]>>(i%8)&1 == 1
}

// next returns a new revision. The caller holds the lock.
func (w *fakeCluster) next() int64 {
	w.version++
	return w.version
}

// locked calls change, which sets fields of w.
func (w *fakeCluster) locked(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// send sends an event. The caller holds the lock.
func (w *fakeCluster) send(change ObjectChange) {
	for feed := range w.feeds {
		if !w.stale[change.Kind] {
			feed <- change
		}
	}
}

// sendAddress sends an event with the current IPAddress. The caller holds the lock.
func (w *fakeCluster) sendAddress(name string) {
	if address, exists := w.addresses[name]; exists {
		w.send(ObjectChange{Kind: KindIPAddresses, Put: Objects{IPAddresses: []allocation.IPAddress{address}}})
		return
	}
	w.send(ObjectChange{Kind: KindIPAddresses, Deleted: []types.NamespacedName{{Name: name}}})
}

// write makes a write under a term, between the two calls of hook.
func (w *fakeCluster) write(ctx context.Context, name string, do func() error) error {
	held, ok := term.FromContext(ctx)
	if !ok {
		return term.ErrNone
	}
	if err := held.Check(); err != nil {
		return err
	}
	w.mu.Lock()
	at := w.hook
	w.mu.Unlock()
	if at != nil {
		if err := at(name, false); err != nil {
			return err
		}
	}
	w.mu.Lock()
	err := do()
	if err == nil {
		w.writes = append(w.writes, name)
	}
	w.mu.Unlock()
	if err != nil || at == nil {
		return err
	}
	return at(name, true)
}

// onWrite sets the hook.
func (w *fakeCluster) onWrite(at func(write string, after bool) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hook = at
}

// writesDone returns the writes that succeeded.
func (w *fakeCluster) writesDone() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.writes)
}

// fakeObjects implements Cluster.
type fakeObjects struct{ *fakeCluster }

func (c fakeObjects) Stores(context.Context) (Stores, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.discovered != nil {
		return *c.discovered, nil
	}
	return Stores{Present: []allocation.Store{allocation.IPAddresses, allocation.NodePorts}}, nil
}

func (c fakeObjects) CanCreate(_ context.Context, wanted allocation.IPAddress) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused[wanted.Name]
}

// feedLength is more than a test changes at once: the sender holds the lock.
const feedLength = 1000

// watching returns the handler of the current watch of objects.
func (w *fakeCluster) watching() ObjectHandler {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.watcher
}

func (c fakeObjects) Watch(ctx context.Context, kinds []Kind, handler ObjectHandler) {
	feed := make(chan ObjectChange, feedLength)
	c.mu.Lock()
	for _, kind := range kinds {
		if !c.listless {
			feed <- c.all(kind)
		}
	}
	c.feeds[feed], c.watcher = struct{}{}, handler
	c.mu.Unlock()
	for ctx.Err() == nil {
		select {
		case change := <-feed:
			handler.OnChange(change)
		case <-ctx.Done():
		}
	}
	c.mu.Lock()
	delete(c.feeds, feed)
	c.mu.Unlock()
}

// all returns a list of a kind. The caller holds the lock.
func (w *fakeCluster) all(kind Kind) ObjectChange {
	change := ObjectChange{Kind: kind, List: true}
	switch kind {
	case KindServices:
		change.Put.Services = slices.Collect(maps.Values(w.services))
	case KindIPAddresses:
		change.Put.IPAddresses = slices.Collect(maps.Values(w.addresses))
	case KindServiceCIDRs:
		change.Put.ServiceCIDRs = slices.Clone(w.cidrs)
	}
	return change
}

func (c fakeObjects) Service(_ context.Context, key allocation.Key) (*allocation.Service, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if service, ok := c.services[key]; ok {
		return &service, c.getErr
	}
	return nil, c.getErr
}

func (c fakeObjects) Identity(context.Context) (*rangestore.ClusterIdentity, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if service, ok := c.services[allocation.Key{Namespace: "default", Name: "kubernetes"}]; ok {
		return &rangestore.ClusterIdentity{UID: service.UID}, nil
	}
	return nil, nil
}

func (c fakeObjects) Services(context.Context) ([]allocation.Service, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists++
	return slices.Collect(maps.Values(c.services)), c.listErr
}

func (c fakeObjects) IPAddress(_ context.Context, name string) (*allocation.IPAddress, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if address, ok := c.addresses[name]; ok {
		return &address, c.getErr
	}
	return nil, c.getErr
}

func (c fakeObjects) ServiceCIDRs(context.Context) ([]allocation.CIDR, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all(KindServiceCIDRs).Put.ServiceCIDRs, c.getErr
}

func (c fakeObjects) Create(ctx context.Context, wanted allocation.IPAddress) error {
	return c.write(ctx, "create "+wanted.Name, func() error {
		if _, exists := c.addresses[wanted.Name]; exists {
			return guarded.ErrConflict
		}
		wanted.UID, wanted.ResourceVersion = fmt.Sprintf("uid-%d", c.next()), strconv.FormatInt(c.version, 10)
		c.addresses[wanted.Name] = wanted
		c.sendAddress(wanted.Name)
		return nil
	})
}

func (c fakeObjects) Relabel(ctx context.Context, wanted allocation.IPAddress, guard allocation.Guard) error {
	return c.write(ctx, "relabel "+wanted.Name, func() error {
		stored, exists := c.addresses[wanted.Name]
		if !exists || stored.UID != guard.UID || stored.ResourceVersion != guard.ResourceVersion {
			return guarded.ErrConflict
		}
		stored.ManagedBy, stored.Family, stored.ResourceVersion = wanted.ManagedBy, wanted.Family, strconv.FormatInt(c.next(), 10)
		c.addresses[wanted.Name] = stored
		c.sendAddress(wanted.Name)
		return nil
	})
}

func (c fakeObjects) Delete(ctx context.Context, name string, guard allocation.Guard) error {
	return c.write(ctx, "delete "+name, func() error {
		stored, exists := c.addresses[name]
		if !exists || stored.UID != guard.UID || stored.ResourceVersion != guard.ResourceVersion {
			return guarded.ErrConflict
		}
		delete(c.addresses, name)
		c.sendAddress(name)
		return nil
	})
}

// fakeRanges implements Ranges.
type fakeRanges struct{ *fakeCluster }

func (r fakeRanges) Read(_ context.Context, name rangestore.Name) (rangestore.Value, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if name != rangestore.NodePorts {
		return rangestore.Value{}, nil
	}
	return r.ports, r.readErr
}

func (r fakeRanges) CompareAndSwap(ctx context.Context, name rangestore.Name, revision int64, next rangestore.Range) (int64, error) {
	return 0, r.write(ctx, "swap "+string(name), func() error {
		if r.ports.ModRevision != revision {
			return rangestore.ErrConflict
		}
		r.putRange(next)
		return nil
	})
}

func (r fakeRanges) Watch(ctx context.Context, handler rangestore.Handler) {
	feed := make(chan rangestore.Value, feedLength)
	r.mu.Lock()
	value := r.ports
	r.ranges[feed] = struct{}{}
	r.mu.Unlock()
	handler.OnList(map[rangestore.Name]rangestore.Value{rangestore.NodePorts: value})
	for ctx.Err() == nil {
		select {
		case value := <-feed:
			handler.OnChange(rangestore.NodePorts, value)
		case <-ctx.Done():
		}
	}
	r.mu.Lock()
	delete(r.ranges, feed)
	r.mu.Unlock()
}

func (r fakeRanges) VerifyCluster(ctx context.Context, identify func(context.Context) (*rangestore.ClusterIdentity, error)) (string, error) {
	of, err := identify(ctx)
	switch {
	case err != nil:
		return "", err
	case of == nil:
		return "there is no service", nil
	case *of != rangestore.ClusterIdentity{UID: "uid-of-kubernetes"}:
		return "", fmt.Errorf("verified %+v", of)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.foreign, nil
}

// fakeReporter records the findings that opened, and counts the refused attempts by verb.
type fakeReporter struct {
	mu      sync.Mutex // guards the following fields
	opened  []string
	refused map[planned.Verb]int
}

func (s *fakeReporter) FindingOpened(finding allocation.Finding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened = append(s.opened, finding.Name)
}

func (s *fakeReporter) openedNames() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.opened)
}

func (s *fakeReporter) StepRefused(step allocation.Step, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused == nil {
		s.refused = map[planned.Verb]int{}
	}
	s.refused[step.Verb]++
}

// takeRefused returns the refused attempts since the last call.
func (s *fakeReporter) takeRefused() map[planned.Verb]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	refused := s.refused
	s.refused = nil
	return refused
}

func (*fakeReporter) Start(context.Context) func()                         { return func() {} }
func (*fakeReporter) PassFinished(time.Duration, *Snapshot, error)         {}
func (*fakeReporter) StepFinished(allocation.Step, repairstore.StepResult) {}

// leadership is one term of a controller over a fakeCluster.
type leadership struct {
	*Controller
	reporter *fakeReporter
	log      *decisions.Log
	ctx      context.Context
	lose     func()
	ended    chan struct{}
	mu       sync.Mutex // guards errs
	errs     []error
}

func (w *fakeCluster) autoRepairConfig() Config {
	cfg := w.config()
	cfg.AutoRepair = true
	return cfg
}

func (w *fakeCluster) config() Config { return Config{FindingHistory: 10, RepairHistory: 10} }

// lead begins a term.
func (w *fakeCluster) lead(t testing.TB, cfg Config) *leadership {
	t.Helper()
	_, ctx, lose := termtest.NewTerm(0, 1)
	r := &leadership{reporter: &fakeReporter{}, log: decisions.NewLog(), ctx: ctx, lose: lose, ended: make(chan struct{})}
	r.Controller = New(cfg, Deps{
		Cluster: fakeObjects{w}, Ranges: fakeRanges{w}, RepairStore: fakeStore{w}, Reporter: r.reporter, Decisions: r.log,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	go func() {
		defer close(r.ended)
		if err := r.Run(ctx, r.report); err != nil && ctx.Err() == nil {
			t.Errorf("Run = %v", err)
		}
	}()
	return r
}

func (r *leadership) report(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}

func (r *leadership) lastError() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.errs) == 0 {
		return errors.New("no pass yet")
	}
	return r.errs[len(r.errs)-1]
}

func (r *leadership) end() {
	r.lose()
	<-r.ended
}

// current returns the current findings by name, with their states.
func (r *leadership) current(t testing.TB) map[string]allocation.FindingState {
	t.Helper()
	snapshot, err := r.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]allocation.FindingState{}
	for _, finding := range snapshot.Current {
		names[finding.Name] = finding.State
	}
	return names
}
