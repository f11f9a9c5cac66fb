package allocationcontroller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// ranges is the source of what is in etcd, beside the kinds of package inventory.
const ranges Kind = "ranges"

// session is the auditor's life for one term. But for what stands below changes, one goroutine uses it.
type session struct {
	*Controller
	ctx    context.Context
	cancel context.CancelFunc
	// watching are the goroutines that fill changes. Each change is to be called by the session's goroutine.
	watching sync.WaitGroup
	changes  chan func()

	stores []allocation.Store
	ledger *allocation.Index
	ranges ownership
	// missing are the sources that have not been read whole yet; trouble says why a source cannot be read now.
	missing map[Kind]struct{}
	trouble map[Kind]error
	version string

	book    *book
	history history
	// running is the repair that has not ended; nil if there is none.
	running *repairstore.Repair
	// attempts are those to mend findings alone, by the findings' names.
	attempts map[string]attempt

	// due is when the next pass is to be made, and not before notBefore.
	due, notBefore time.Time
	failures       int
	failingSince   time.Time

	states  []allocation.StoreState
	took    time.Duration
	audited time.Time
	more    chan struct{}
}

func newSession(ctx context.Context, a *Controller, stores []allocation.Store) *session {
	ctx, cancel := context.WithCancel(ctx)
	s := &session{
		Controller: a, ctx: ctx, cancel: cancel, changes: make(chan func()), stores: stores, ranges: newOwnership(),
		ledger:  allocation.NewIndex(allocation.Settings{Stores: stores, Ranges: a.ExpectedRanges, GracePeriods: a.GracePeriods}),
		missing: map[Kind]struct{}{ranges: {}}, trouble: map[Kind]error{},
		attempts: map[string]attempt{},
		book:     newBook(a.FindingHistory), history: history{limit: a.RepairHistory},
		due: time.Now().Add(settle), failingSince: time.Now(), more: make(chan struct{}),
	}
	for _, kind := range s.kinds() {
		s.missing[kind] = struct{}{}
	}
	return s
}

// close ends what the session began; nothing is known afterwards.
func (s *session) close() {
	s.cancel()
	s.watching.Wait()
	s.setNotSynced(errors.New("the term has ended"))
	close(s.more)
}

// kinds are those that the cluster has.
func (s *session) kinds() []Kind {
	if slices.Contains(s.stores, allocation.IPAddresses) {
		return []Kind{KindServices, KindIPAddresses, KindServiceCIDRs}
	}
	return []Kind{KindServices}
}

func (s *session) watch() {
	s.watching.Go(func() { s.Cluster.Watch(s.ctx, s.kinds(), &clusterSink{session: s}) })
	s.watching.Go(func() { s.Ranges.Watch(s.ctx, &rangesSink{session: s}) })
}

// happen gives a change to the session's goroutine.
func (s *session) happen(change func()) {
	select {
	case s.changes <- change:
	case <-s.ctx.Done():
	}
}

// clusterSink brings what inventory watches to the session's goroutine.
type clusterSink struct{ session *session }

func (c *clusterSink) OnChange(change ObjectChange) {
	c.session.happen(func() { c.session.take(change) })
}

func (c *clusterSink) OnError(kind Kind, err error) {
	c.session.happen(func() { c.session.broken(kind, err) })
}

// rangesSink brings what rangestore watches to the session's goroutine.
type rangesSink struct{ session *session }

func (r *rangesSink) OnList(values map[rangestore.Name]rangestore.Value) {
	r.session.happen(func() { r.session.begin(values) })
}

func (r *rangesSink) OnChange(name rangestore.Name, value rangestore.Value) {
	r.session.happen(func() { r.session.putRange(name, value) })
}

func (r *rangesSink) OnError(err error) {
	r.session.happen(func() { r.session.broken(ranges, err) })
}

func (s *session) broken(kind Kind, err error) {
	if err == nil {
		delete(s.trouble, kind)
		return
	}
	s.trouble[kind] = err
}

// read tells that a source was read whole. The second time something may have been missed.
func (s *session) read(kind Kind) {
	if _, isFirst := s.missing[kind]; !isFirst {
		s.ledger.RecordGap()
	}
	delete(s.missing, kind)
	delete(s.trouble, kind)
}

func (s *session) take(change ObjectChange) {
	for _, service := range change.Put.Services {
		s.ledger.PutService(service)
	}
	for _, address := range change.Put.IPAddresses {
		s.ledger.PutIPAddress(address)
	}
	for _, cidr := range change.Put.ServiceCIDRs {
		s.ledger.PutCIDR(cidr)
	}
	for _, gone := range change.Deleted {
		s.remove(change.Kind, gone)
	}
	if change.Version != "" {
		s.version = change.Version
	}
	if change.List {
		s.read(change.Kind)
	}
}

func (s *session) remove(kind Kind, gone types.NamespacedName) {
	switch kind {
	case KindServices:
		s.ledger.DeleteService(allocation.Key{Namespace: gone.Namespace, Name: gone.Name})
	case KindIPAddresses:
		s.ledger.DeleteIPAddress(gone.Name)
	case KindServiceCIDRs:
		s.ledger.DeleteCIDR(gone.Name)
	}
}

func (s *session) begin(values map[rangestore.Name]rangestore.Value) {
	for _, name := range rangestore.Names() {
		s.putRange(name, values[name])
	}
	s.read(ranges)
}

func storeOf(name rangestore.Name) (allocation.Store, bool) {
	switch name {
	case rangestore.NodePorts:
		return allocation.NodePorts, true
	case rangestore.ClusterIPs:
		return allocation.ClusterIPs, true
	case rangestore.SecondaryClusterIPs:
		return allocation.SecondaryClusterIPs, true
	default:
		return 0, false
	}
}

// RangeName is what the stored range of a store with bits is called.
func RangeName(store allocation.Store) rangestore.Name {
	switch store {
	case allocation.ClusterIPs:
		return rangestore.ClusterIPs
	case allocation.SecondaryClusterIPs:
		return rangestore.SecondaryClusterIPs
	default:
		return rangestore.NodePorts
	}
}

// healthy says what keeps the session from knowing what is so now; nil if nothing does.
func (s *session) healthy() error {
	var problems []error
	for _, kind := range slices.Sorted(maps.Keys(s.trouble)) {
		problems = append(problems, s.trouble[kind])
	}
	for _, kind := range slices.Sorted(maps.Keys(s.missing)) {
		if s.trouble[kind] == nil {
			problems = append(problems, fmt.Errorf("%s have not been read yet", kind))
		}
	}
	if len(s.missing) > 0 {
		return fmt.Errorf("%w: %w", ErrNotSynced, errors.Join(problems...))
	}
	return errors.Join(problems...)
}

// whole is healthy as far as everything was read once.
func (s *session) whole() error {
	if len(s.missing) == 0 {
		return nil
	}
	return s.healthy()
}
