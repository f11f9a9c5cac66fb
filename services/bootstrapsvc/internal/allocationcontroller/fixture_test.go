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

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// world is a kube-apiserver, its etcd and the journal in memory. It insists on guards and on a term, as the real ones do.
type world struct {
	mu        sync.Mutex // guards what follows
	services  map[allocation.Key]allocation.Service
	addresses map[string]allocation.IPAddress
	ports     rangestore.Value
	version   int64
	// feeds are those of who watches objects, and ranges of who watches the range: all that happened, in order.
	feeds map[chan Change]struct{}
	// watcher is who watches objects now.
	watcher Sink
	ranges  map[chan rangestore.Value]struct{}
	// strange says why the range is another cluster's.
	strange string
	// stale are kinds of which no change is told to watchers.
	stale map[Kind]bool
	// unread is what reading the range ends with; nil while it can be read.
	unread error
	// lists counts the lists of all Services that were asked for.
	lists int

	findings map[string]repairstore.Finding
	plans    map[string]repairstore.Plan
	outcomes map[string]map[int]repairstore.Outcome
	ends     map[string]time.Time

	writes []string
	// at is called before and after each write, without the lock; an error before it refuses the write, one after it loses
	// the answer.
	at func(write string, after bool) error
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{
		services: map[allocation.Key]allocation.Service{}, addresses: map[string]allocation.IPAddress{},
		feeds: map[chan Change]struct{}{}, ranges: map[chan rangestore.Value]struct{}{}, stale: map[Kind]bool{},
		findings: map[string]repairstore.Finding{}, plans: map[string]repairstore.Plan{},
		outcomes: map[string]map[int]repairstore.Outcome{}, ends: map[string]time.Time{},
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
	w.service("kubernetes", "None") // without any Service nothing is freed
	return w
}

// service adds a Service; what it uses is not allocated.
func (w *world) service(name, address string, ports ...int32) allocation.Service {
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
	w.tell(Change{Kind: KindServices, Put: Objects{Services: []allocation.Service{s}}})
	return s
}

// remove takes a Service away; what it used stays allocated.
func (w *world) remove(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.services, allocation.Key{Namespace: "default", Name: name})
	w.tell(Change{Kind: KindServices, Gone: []types.NamespacedName{{Namespace: "default", Name: name}}})
}

// free takes an address away.
func (w *world) free(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.addresses, name)
	w.tellAddress(name)
}

// address allocates an address in the name of a Service.
func (w *world) address(name, parent string, change ...func(*allocation.IPAddress)) {
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
	w.tellAddress(name)
}

// relist tells all watchers all of a kind, as after a watch that had a gap.
func (w *world) relist(kind Kind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for feed := range w.feeds {
		feed <- w.all(kind)
	}
}

// bits writes the whole bitmap as kube-apiserver would.
func (w *world) bits(ports ...int) {
	w.mu.Lock()
	bitmap := allocation.Bitmap{Store: allocation.NodePorts, Range: "30000-32767"}
	var steps []allocation.Step
	for _, port := range ports {
		steps = append(steps, allocation.Step{
			Verb: allocation.SetBit, Store: allocation.NodePorts, Range: bitmap.Range, Offset: port - 30000, Subject: strconv.Itoa(port),
		})
	}
	data, err := bitmap.Write(steps)
	if err != nil {
		panic(err)
	}
	w.putRange(w.ports.Range.With(data))
	w.mu.Unlock()
}

// putRange needs the lock.
func (w *world) putRange(next rangestore.Range) {
	w.ports = rangestore.Value{Range: next, ModRevision: w.next()}
	for feed := range w.ranges {
		feed <- w.ports
	}
}

func (w *world) has(port int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	data, i := w.ports.Range.Data(), port-30000
	at := len(data) - 1 - i/8
	return at >= 0 && data[at]>>(i%8)&1 == 1
}

// next needs the lock.
func (w *world) next() int64 {
	w.version++
	return w.version
}

// tell needs the lock.
func (w *world) tell(change Change) {
	for feed := range w.feeds {
		if !w.stale[change.Kind] {
			feed <- change
		}
	}
}

// tellAddress tells of an address as it is. It needs the lock.
func (w *world) tellAddress(name string) {
	if address, there := w.addresses[name]; there {
		w.tell(Change{Kind: KindIPAddresses, Put: Objects{IPAddresses: []allocation.IPAddress{address}}})
		return
	}
	w.tell(Change{Kind: KindIPAddresses, Gone: []types.NamespacedName{{Name: name}}})
}

// write does what changes something, under a term, between the two calls of at.
func (w *world) write(ctx context.Context, name string, do func() error) error {
	held, ok := term.FromContext(ctx)
	if !ok {
		return term.ErrNone
	}
	if err := held.Check(); err != nil {
		return err
	}
	w.mu.Lock()
	at := w.at
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

// interfere has at called from now on.
func (w *world) interfere(at func(write string, after bool) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = at
}

// written are the writes that were made.
func (w *world) written() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.writes)
}

// memoryCluster is the world as inventory shows it.
type memoryCluster struct{ *world }

func (c memoryCluster) Stores(context.Context) ([]allocation.Store, error) {
	return []allocation.Store{allocation.IPAddresses, allocation.NodePorts}, nil
}

// feedLength is more than any test changes at once, for who changes something holds the lock.
const feedLength = 1000

// watching returns who watches objects now.
func (w *world) watching() Sink {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.watcher
}

func (c memoryCluster) Watch(ctx context.Context, kinds []Kind, sink Sink) {
	feed := make(chan Change, feedLength)
	c.mu.Lock()
	for _, kind := range kinds {
		feed <- c.all(kind)
	}
	c.feeds[feed], c.watcher = struct{}{}, sink
	c.mu.Unlock()
	for ctx.Err() == nil {
		select {
		case change := <-feed:
			sink.Change(change)
		case <-ctx.Done():
		}
	}
	c.mu.Lock()
	delete(c.feeds, feed)
	c.mu.Unlock()
}

// all is what a list of a kind tells. It needs the lock.
func (w *world) all(kind Kind) Change {
	change := Change{Kind: kind, Whole: true}
	switch kind {
	case KindServices:
		change.Put.Services = slices.Collect(maps.Values(w.services))
	case KindIPAddresses:
		change.Put.IPAddresses = slices.Collect(maps.Values(w.addresses))
	case KindServiceCIDRs:
		change.Put.ServiceCIDRs = []allocation.CIDR{{Name: "kubernetes", Prefixes: []string{"10.0.0.0/16"}, Ready: true}}
	}
	return change
}

func (c memoryCluster) Service(_ context.Context, key allocation.Key) (*allocation.Service, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if service, ok := c.services[key]; ok {
		return &service, nil
	}
	return nil, nil
}

func (c memoryCluster) Witness(context.Context) (*rangestore.Witness, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if service, ok := c.services[allocation.Key{Namespace: "default", Name: "kubernetes"}]; ok {
		return &rangestore.Witness{UID: service.UID}, nil
	}
	return nil, nil
}

func (c memoryCluster) Services(context.Context) ([]allocation.Service, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists++
	return slices.Collect(maps.Values(c.services)), nil
}

func (c memoryCluster) IPAddress(_ context.Context, name string) (*allocation.IPAddress, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if address, ok := c.addresses[name]; ok {
		return &address, nil
	}
	return nil, nil
}

func (c memoryCluster) Create(ctx context.Context, wanted allocation.IPAddress) error {
	return c.write(ctx, "create "+wanted.Name, func() error {
		if _, there := c.addresses[wanted.Name]; there {
			return ErrConflict
		}
		wanted.UID, wanted.ResourceVersion = fmt.Sprintf("uid-%d", c.next()), strconv.FormatInt(c.version, 10)
		c.addresses[wanted.Name] = wanted
		c.tellAddress(wanted.Name)
		return nil
	})
}

func (c memoryCluster) Relabel(ctx context.Context, wanted allocation.IPAddress, guard allocation.Guard) error {
	return c.write(ctx, "relabel "+wanted.Name, func() error {
		stored, there := c.addresses[wanted.Name]
		if !there || stored.UID != guard.UID || stored.ResourceVersion != guard.ResourceVersion {
			return ErrConflict
		}
		stored.ManagedBy, stored.Family, stored.ResourceVersion = wanted.ManagedBy, wanted.Family, strconv.FormatInt(c.next(), 10)
		c.addresses[wanted.Name] = stored
		c.tellAddress(wanted.Name)
		return nil
	})
}

func (c memoryCluster) Delete(ctx context.Context, name string, guard allocation.Guard) error {
	return c.write(ctx, "delete "+name, func() error {
		stored, there := c.addresses[name]
		if !there || stored.UID != guard.UID || stored.ResourceVersion != guard.ResourceVersion {
			return ErrConflict
		}
		delete(c.addresses, name)
		c.tellAddress(name)
		return nil
	})
}

// memoryRanges is the world as rangestore shows it.
type memoryRanges struct{ *world }

func (r memoryRanges) Read(_ context.Context, name rangestore.Name) (rangestore.Value, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if name != rangestore.NodePorts {
		return rangestore.Value{}, nil
	}
	return r.ports, r.unread
}

func (r memoryRanges) Swap(ctx context.Context, name rangestore.Name, revision int64, next rangestore.Range) (int64, error) {
	return 0, r.write(ctx, "swap "+string(name), func() error {
		if r.ports.ModRevision != revision {
			return rangestore.ErrConflict
		}
		r.putRange(next)
		return nil
	})
}

func (r memoryRanges) Watch(ctx context.Context, sink rangestore.Sink) {
	feed := make(chan rangestore.Value, feedLength)
	r.mu.Lock()
	value := r.ports
	r.ranges[feed] = struct{}{}
	r.mu.Unlock()
	sink.Begin(map[rangestore.Name]rangestore.Value{rangestore.NodePorts: value})
	for ctx.Err() == nil {
		select {
		case value := <-feed:
			sink.Change(rangestore.NodePorts, value)
		case <-ctx.Done():
		}
	}
	r.mu.Lock()
	delete(r.ranges, feed)
	r.mu.Unlock()
}

func (r memoryRanges) Doubt(_ context.Context, of rangestore.Witness) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if of != (rangestore.Witness{UID: "uid-of-kubernetes"}) {
		return "", fmt.Errorf("asked for %+v", of)
	}
	return r.strange, nil
}

// memoryJournal is the world as journal shows it.
type memoryJournal struct{ *world }

func (j memoryJournal) Findings(context.Context) ([]repairstore.Finding, int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Collect(maps.Values(j.findings)), 0, nil
}

func (j memoryJournal) WriteFindings(ctx context.Context, findings []repairstore.Finding, forget []string) error {
	return j.write(ctx, "findings", func() error {
		for _, finding := range findings {
			finding.Steps = nil
			j.findings[finding.Name] = finding
		}
		for _, name := range forget {
			delete(j.findings, name)
		}
		return nil
	})
}

func (j memoryJournal) Begin(ctx context.Context, plan repairstore.Plan) error {
	return j.write(ctx, "begin", func() error {
		if _, there := j.plans[plan.ID]; there {
			return repairstore.ErrExists
		}
		j.plans[plan.ID] = plan
		return nil
	})
}

func (j memoryJournal) Record(ctx context.Context, id string, outcomes map[int]repairstore.Outcome) error {
	return j.write(ctx, "record", func() error {
		for number := range outcomes {
			if _, there := j.outcomes[id][number]; there {
				return repairstore.ErrExists
			}
		}
		if j.outcomes[id] == nil {
			j.outcomes[id] = map[int]repairstore.Outcome{}
		}
		maps.Copy(j.outcomes[id], outcomes)
		return nil
	})
}

func (j memoryJournal) End(ctx context.Context, id string, now time.Time) error {
	return j.write(ctx, "end", func() error {
		if _, there := j.ends[id]; there {
			return repairstore.ErrExists
		}
		j.ends[id] = now
		return nil
	})
}

func (j memoryJournal) Forget(ctx context.Context, ids []string) error {
	return j.write(ctx, "forget", func() error {
		for _, id := range ids {
			delete(j.plans, id)
			delete(j.outcomes, id)
			delete(j.ends, id)
		}
		return nil
	})
}

func (j memoryJournal) Repairs(context.Context) ([]repairstore.Repair, int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var repairs []repairstore.Repair
	for id, plan := range j.plans {
		repair := repairstore.Repair{Plan: plan, Outcomes: make([]repairstore.Outcome, len(plan.Steps)), Ended: j.ends[id]}
		for number, outcome := range j.outcomes[id] {
			repair.Outcomes[number] = outcome
		}
		repairs = append(repairs, repair)
	}
	slices.SortFunc(repairs, func(a, b repairstore.Repair) int { return b.Started.Compare(a.Started) })
	return repairs, 0, nil
}

// silence is a herald that remembers what was opened.
type silence struct {
	mu     sync.Mutex // guards opened
	opened []string
}

func (s *silence) Opened(finding allocation.Finding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened = append(s.opened, finding.Name)
}

func (s *silence) told() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.opened)
}
func (*silence) Passed(time.Duration, *View, error)           {}
func (*silence) Stepped(allocation.Step, repairstore.Outcome) {}

// reign is one term of an auditor over a world.
type reign struct {
	*Auditor
	herald *silence
	ctx    context.Context
	lose   func()
	ended  chan struct{}
	mu     sync.Mutex // guards errs
	errs   []error
}

func (w *world) config() Config { return Config{FindingHistory: 10, RepairHistory: 10} }

// lead begins a term; end ends it.
func (w *world) lead(t testing.TB, cfg Config) *reign {
	t.Helper()
	_, ctx, lose := termtest.NewTerm(0, 1)
	r := &reign{herald: &silence{}, ctx: ctx, lose: lose, ended: make(chan struct{})}
	r.Auditor = New(cfg, Deps{
		Cluster: memoryCluster{w}, Ranges: memoryRanges{w}, Journal: memoryJournal{w}, Herald: r.herald,
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

func (r *reign) report(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}

func (r *reign) lastError() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.errs) == 0 {
		return errors.New("there was no pass")
	}
	return r.errs[len(r.errs)-1]
}

func (r *reign) end() {
	r.lose()
	<-r.ended
}

// standing are the names of what stands, with their states.
func (r *reign) standing(t testing.TB) map[string]allocation.State {
	t.Helper()
	view, err := r.View()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]allocation.State{}
	for _, finding := range view.Standing {
		names[finding.Name] = finding.State
	}
	return names
}
