package slicecontroller

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/internal/shadow/difference"
	"github.com/trivet-dev/trivet/internal/tracing"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/explain"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/shadow"
)

var (
	// ErrServiceNotFound is returned for a Service that does not exist.
	ErrServiceNotFound = errors.New("no such service")
	// ErrPodNotFound is returned for a Pod that does not exist.
	ErrPodNotFound = errors.New("no such pod")
	// ErrPlanChanged is returned if the plan is not the one that was asked for.
	ErrPlanChanged = errors.New("the plan has changed")
	// ErrUnmanaged is returned for a Service whose slices are not written here.
	ErrUnmanaged = errors.New("service is not managed")
	// ErrSlicesUnread is wrapped by a sync that planned nothing, because the current state of a
	// slice could not be read.
	ErrSlicesUnread = errors.New("slices of the service cannot be read")
	// ErrShardNotHeld is returned if this replica does not lead the shard, or leads it no longer.
	ErrShardNotHeld = errors.New("shard is not held here")
)

// SyncHistory is how the syncs of a Service went on this replica.
type SyncHistory struct {
	// LastSuccess is the time of the last sync that wrote all that it planned, in any term; zero if
	// there is none.
	LastSuccess time.Time
	// LastError is the error of the last sync. It is empty if that succeeded, or if this replica
	// does not lead the shard of the Service.
	LastError string
	// Failures is the number of failures since the last success.
	Failures int
}

// ServiceState is what is known of one Service. Its objects are shared and must not be changed.
type ServiceState struct {
	Service   *corev1.Service
	Unmanaged index.UnmanagedReason
	// Slices are the slices of the Service, unordered, as they were written last.
	Slices  []*discoveryv1.EndpointSlice
	History SyncHistory
	// LastPlan is the last sync of this term; its Time is zero if there was none.
	LastPlan LastPlan
	// WriteTimes has the time of this replica's last write in this term, by the name of the slice.
	WriteTimes map[string]time.Time
	// ContendedBy names another writer that keeps reverting slices; empty if there is none.
	// ContendedSince is when that was found.
	ContendedBy    string
	ContendedSince time.Time
	// CreationRefusedSince is when kube-apiserver first refused to create a slice because the
	// namespace is being deleted; zero if it does not.
	CreationRefusedSince time.Time
	// Failed has the slices that are not stored as planned, by name.
	Failed map[string]SliceFailure
	// Topology is the Service's own value of its trafficDistribution or topology annotation.
	Topology string
	// TopologyProblem says why a Service with the topology annotation has no hints, in the first
	// family without hints. To find it costs a plan of the Service.
	TopologyProblem string
}

// Preview is what the next sync of a Service would write.
type Preview struct {
	Plan pack.Plan
	// Unmanaged says that the Service is never synced. Then the plan is empty.
	Unmanaged bool
	// Fingerprint identifies the plan and the versions that it was made from.
	Fingerprint string
	// MissingNodes delay endpoints until they exist.
	MissingNodes []string
	// CatchingUp says that the cache may lack writes of the last leader of the shard. A sync waits
	// for them.
	CatchingUp bool
}

// OutcomeState says what came of a change.
type OutcomeState uint8

const (
	// Skipped: the write was not tried, because one that it needs failed, or all writes stopped.
	Skipped OutcomeState = iota
	// Applied: the write was stored.
	Applied
	// NotNeeded: another writer had deleted the slice already.
	NotNeeded
	// Failed: the write was rejected, its answer is unknown, or something else was stored.
	Failed
)

// Outcome is what came of one change of a plan.
type Outcome struct {
	State OutcomeState
	// Err is why the write failed.
	Err error
	// Time is when the write was answered; zero if it was not tried.
	Time time.Time
}

// Stored returns whether the cluster is as the change wants it.
func (o Outcome) Stored() bool { return o.State == Applied || o.State == NotNeeded }

// Reconciled is what a requested sync planned and did.
type Reconciled struct {
	Preview
	// Outcomes has one Outcome for each change of the plan. It is nil if the sync ended before it
	// applied the plan.
	Outcomes []Outcome
}

// SyncStatus is what a Syncer knows of a key besides its objects. Without a held shard only
// History.LastSuccess is set.
type SyncStatus struct {
	History SyncHistory
	// LastPlan is the last sync of this term; its Time is zero if there was none.
	LastPlan LastPlan
	// WriteTimes has the time of this replica's last write in this term, by the name of the slice.
	WriteTimes map[string]time.Time
	// ContendedBy names another writer that keeps reverting slices; empty if there is none.
	// ContendedSince is when that was found.
	ContendedBy    string
	ContendedSince time.Time
	// CreationRefusedSince is when kube-apiserver first refused to create a slice because the
	// namespace is being deleted; zero if it does not.
	CreationRefusedSince time.Time
	// Failed has the slices that are not stored as planned, by name.
	Failed map[string]SliceFailure
}

// SyncStatus returns what is known of a key.
func (c *Syncer) SyncStatus(key Key) SyncStatus {
	var status SyncStatus
	c.shards.describe(key, &status, time.Now())
	return status
}

// State returns false if there is no such Service.
func (c *Controller) State(key Key) (ServiceState, bool) {
	service, slices, ok := c.index.Slices(key)
	if !ok {
		return ServiceState{}, false
	}
	status := c.SyncStatus(key)
	state := ServiceState{
		Service:              service,
		Unmanaged:            index.UnmanagedReasonOf(service),
		Slices:               slices,
		History:              status.History,
		LastPlan:             status.LastPlan,
		WriteTimes:           status.WriteTimes,
		ContendedBy:          status.ContendedBy,
		ContendedSince:       status.ContendedSince,
		CreationRefusedSince: status.CreationRefusedSince,
		Failed:               status.Failed,
		Topology:             hints.ModeName(service),
	}
	if hints.ModeOf(service) == hints.Auto {
		state.TopologyProblem = c.topologyProblem(key)
	}
	return state, true
}

func (c *Controller) topologyProblem(key Key) string {
	preview, _ := c.Preview(key)
	for _, family := range preview.Plan.Topology {
		if family.Problem != "" {
			return family.Problem
		}
	}
	return ""
}

// KeysAfter returns the first limit Services after a key, in order, of one namespace or of all for
// "". The zero Key is before all Services.
func (c *Controller) KeysAfter(namespace string, after Key, limit int) []Key {
	return c.index.KeysAfter(namespace, after, limit)
}

// Preview plans the whole Service, without compaction. It returns false if there is no such
// Service. The plan of a Service that is not managed is empty.
func (c *Controller) Preview(key Key) (Preview, bool) {
	snapshot, ok := c.index.Snapshot(key)
	if !ok {
		return Preview{}, false
	}
	var preview Preview
	if index.Managed(snapshot.Service) {
		in, owned := c.planInput(snapshot), c.shards.ownerOf(key)
		preview.Plan, preview.MissingNodes = pack.Make(in), in.Endpoints.MissingNodes
		preview.CatchingUp = owned != nil && owned.catchingUp()
	} else {
		preview.Plan = c.planUnmanaged(snapshot)
	}
	preview.Unmanaged = !c.handles(snapshot.Service)
	preview.Fingerprint = preview.Plan.Fingerprint(pack.ServiceOwner(snapshot.Service))
	return preview, true
}

// Compared returns the slices of a Service, and the plan of the whole Service that is made from
// them. It needs no term. It returns false for a Service that gets no slices, and never fails.
func (c *Controller) Compared(_ context.Context, key Key) (shadow.Input, bool, error) {
	snapshot, ok := c.index.Snapshot(key)
	if !ok || !c.handles(snapshot.Service) {
		return shadow.Input{}, false, nil
	}
	in := shadow.Input{
		Slices:  snapshot.Slices,
		Subject: difference.Object{APIVersion: "v1", Kind: "Service", Namespace: key.Namespace, Name: key.Name, UID: string(snapshot.Service.UID)},
	}
	if !index.Managed(snapshot.Service) {
		in.Plan = c.planUnmanaged(snapshot)
		return in, true, nil
	}
	in.Plan = pack.Make(c.planInput(snapshot))
	in.Least = pack.MinSlices(snapshot.Slices, len(snapshot.Service.Spec.IPFamilies), c.cfg.MaxEndpointsPerSlice)
	in.AllocatesHints = hints.ModeOf(snapshot.Service) == hints.Auto
	return in, true, nil
}

// Endpoint returns what is known of a Pod in the Service's namespace, without Held and
// TopologyProblem. It fails with ErrServiceNotFound or ErrPodNotFound.
func (c *Controller) Endpoint(service Key, pod string) (explain.Facts, error) {
	facts, ok := c.facts(service)
	if !ok {
		return explain.Facts{}, ErrServiceNotFound
	}
	candidate, ok := c.index.Candidate(keyOf(service.Namespace, pod))
	if !ok {
		return explain.Facts{}, ErrPodNotFound
	}
	facts.Candidate = candidate
	return facts, nil
}

// EndpointAt is Endpoint for the Pod that has the address. If there is none, the facts have the
// address and no Pod. It fails with ErrServiceNotFound.
func (c *Controller) EndpointAt(service Key, address string) (explain.Facts, error) {
	facts, ok := c.facts(service)
	if !ok {
		return explain.Facts{}, ErrServiceNotFound
	}
	facts.Address = desired.CanonicalAddress(address)
	facts.Candidate, _ = c.index.CandidateAt(service, facts.Address)
	return facts, nil
}

func (c *Controller) facts(service Key) (explain.Facts, bool) {
	object, slices, ok := c.index.Slices(service)
	owned := c.shards.ownerOf(service)
	return explain.Facts{
		Now:     time.Now(),
		Service: object,
		Slices:  slices,
		Pending: owned != nil && owned.pending(service),
	}, ok
}

// Reconcile syncs a whole Service before all waiting Services, without a pause of some changes. It
// blocks until the sync has ended, ctx ends, or the shard is lost. If fingerprint is not empty and
// is not that of the plan, it fails with ErrPlanChanged, and writes nothing for this call. It fails
// with ErrServiceNotFound, ErrUnmanaged, ErrShardNotHeld or the error of the sync, which is retried
// anyway. The result of a failed sync says what it planned and did.
func (c *Syncer) Reconcile(ctx context.Context, key Key, fingerprint string) (Reconciled, error) {
	if _, err := c.source.object(key); err != nil {
		return Reconciled{}, err
	}
	owned := c.shards.ownerOf(key)
	if owned == nil {
		return Reconciled{}, ErrShardNotHeld
	}
	done := make(chan syncResult, 1) // notify must not block
	owned.addWaiter(key, waiter{fingerprint: fingerprint, result: done}, tracing.Reference(ctx), time.Now())
	c.shards.enqueue(key, requested, 0)
	select {
	case <-ctx.Done():
		return Reconciled{}, ctx.Err()
	case <-owned.ctx.Done():
		return Reconciled{}, ErrShardNotHeld
	case result := <-done:
		return Reconciled{
			Preview: Preview{
				Plan:         result.plan,
				Fingerprint:  result.fingerprint,
				MissingNodes: result.missingNodes,
			},
			Outcomes: result.outcomes,
		}, result.err
	}
}

// RecordChange records a change of a Service that a reader of Changes must see: of its mirrored
// slices.
func (c *Controller) RecordChange(key Key) { c.changed(key) }

// Service returns a Service; false if there is none of that name.
func (c *Controller) Service(key Key) (*corev1.Service, bool) { return c.index.Service(key) }

// Keys returns the keys of the Services of a shard.
func (c *Controller) Keys(shard int) []Key { return c.index.ShardKeys(shard) }

// SliceCount returns how many slices a Service has that are written here.
func (c *Controller) SliceCount(service Key) int { return len(c.index.SlicesOf(service)) }

// Revision returns the revision of the latest change. A reader calls it, lists the Services, and
// then calls Changes.
func (c *Controller) Revision() uint64 { return c.changes.latest() }

// Changes returns the Services that changed since a revision. It does not block. A Service that
// changed several times is returned once.
func (c *Controller) Changes(since uint64) Changes { return c.changes.since(since) }

// RecordShardChange records a change of each Service of a shard: another replica leads the shard.
func (c *Controller) RecordShardChange(shard int) {
	for _, key := range c.index.ShardKeys(shard) {
		c.changed(key)
	}
}
