package slicecontroller

import (
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// metadataDelay is the delay of the sync that only learns new versions of slices.
const metadataDelay = time.Second

// Trigger is what a sync was for.
type Trigger string

const (
	// ByTerm means that a term of the Service's shard began here.
	ByTerm Trigger = "TERM"
	// ByEndpoints means that the Endpoints object changed that is mirrored.
	ByEndpoints Trigger = "ENDPOINTS"
	// ByService means that the Service changed.
	ByService Trigger = "SERVICE"
	// ByPod means that a Pod changed that the Service selects or selected.
	ByPod Trigger = "POD"
	// ByNode means that a Node changed that a Pod is bound to, or that hints depend on.
	ByNode Trigger = "NODE"
	// BySlice means that another writer changed or deleted a slice of the Service.
	BySlice Trigger = "SLICE"
	// ByConflict means that a slice changed while it was being written.
	ByConflict Trigger = "CONFLICT"
	// ByRetry means that the last sync failed.
	ByRetry Trigger = "RETRY"
	// ByRequest means that a client asked for a sync.
	ByRequest Trigger = "REQUEST"
	// ByCompaction means that the Service was quiet and fewer slices may be enough, or that slices
	// that took endpoints are written once more.
	ByCompaction Trigger = "COMPACTION"
)

// LastPlan is what a sync did.
type LastPlan struct {
	// Time is the beginning of the sync.
	Time time.Time
	// Trigger is the first cause of the sync.
	Trigger Trigger
	// Latency is the time from the change to the answer of the last write. It is 0 if the time of
	// the change is unknown or nothing was written.
	Latency time.Duration
	// Creates, Updates and Deletes count the stored changes.
	Creates, Updates, Deletes int
}

func (p LastPlan) writes() int { return p.Creates + p.Updates + p.Deletes }

// serviceRecord is what one term knows of a Service besides the cache. The owned shard's mutex
// guards it.
type serviceRecord struct {
	// object is the version of the Service that was synced last. A Service created again under its
	// name is another one.
	object Object
	// placement is which slice has which endpoint; nil if the next sync must plan the whole
	// Service. A running sync owns it.
	placement *pack.Placement
	pending   pendingSync
	syncing   bool
	// deferred are the names of changed Pods that the next sync plans too.
	deferred map[string]struct{}
	// observed has the slices that are being written, with what a watch showed of them meanwhile.
	observed map[string]*observedVersion
	// unread has the slices whose state in the cache is old. The next sync reads them first.
	unread   map[string]struct{}
	lastPlan LastPlan
	// writes has the last write of each slice.
	writes map[string]sliceWrite
	// maybeStored has the slices with a failed write that may be stored: the next event of the
	// slice may be of that write.
	maybeStored map[string]struct{}
	// contention is about what slicesvc writes, relabelling about labels that it does not set.
	contention, relabelling contention
	// failed has the slices that are not stored as planned, by name. A map is replaced, not
	// changed.
	failed map[string]SliceFailure
	// withoutRecycling says that kube-apiserver did not accept a recycled slice since all slices
	// were stored as planned.
	withoutRecycling bool
	// refusedSince is when kube-apiserver first refused to create a slice because the namespace is
	// being deleted; zero if the last sync was not refused.
	refusedSince time.Time
	// lost has the slices that this term created, that are not found again by their labels, and
	// that could not be deleted.
	lost []*discoveryv1.EndpointSlice
	// takers says that slices took endpoints and must be written once more.
	takers bool
	// compaction is how compaction fails since it last succeeded.
	compaction failure
	// quietAt is when the Service will be quiet for long enough to be compacted, or when its slices
	// that took endpoints are due; zero if there is nothing to do.
	quietAt time.Time
}

// sliceWrite is our last write of a slice.
type sliceWrite struct {
	at time.Time
	// changed says that another writer changed the slice since.
	changed bool
}

// observedVersion is what a watch showed of a slice while it was being written.
type observedVersion struct {
	version           string
	observed, deleted bool
}

// sliceEvent is what a watch showed of a slice that the cache did not have.
type sliceEvent struct {
	name, version string
	// edit says what differs from the cached version.
	edit        index.SliceEdit
	deleted     bool
	terminating bool
	// writer is the field manager that wrote the slice; empty if unknown.
	writer string
}

// addName adds to a set that may be nil.
func addName(names map[string]struct{}, name string) map[string]struct{} {
	if names == nil {
		names = map[string]struct{}{}
	}
	names[name] = struct{}{}
	return names
}

// recordEdit records that another writer changed or deleted a slice, and returns whether contention
// is to be reported. The late event of an unanswered write reverts nothing. A slice that is being
// deleted may have a finalizer, which reverts nothing either.
func (r *serviceRecord) recordEdit(event sliceEvent, now time.Time) (report bool) {
	if event.edit == index.EditedMetadata || event.terminating {
		return false
	}
	if _, own := r.maybeStored[event.name]; own {
		delete(r.maybeStored, event.name)
		return false
	}
	written, ok := r.writes[event.name]
	switch {
	case !ok || written.changed:
	case event.edit == index.EditedForeignLabels:
		r.relabelling.recordRevert(written.at, now, event.writer)
	default:
		report = r.contention.recordRevert(written.at, now, event.writer)
	}
	switch written.changed = true; {
	case event.deleted:
		delete(r.writes, event.name)
	case ok:
		r.writes[event.name] = written
	}
	return report
}

// recordRefusal records whether kube-apiserver refused to create a slice.
func (r *serviceRecord) recordRefusal(refused bool, now time.Time) {
	switch {
	case !refused:
		r.refusedSince = time.Time{}
	case r.refusedSince.IsZero():
		r.refusedSince = now
	}
}

// reactionDelay returns how long the sync after an edit of another writer waits.
func (r *serviceRecord) reactionDelay(edit index.SliceEdit, now time.Time) time.Duration {
	switch edit {
	case index.EditedMetadata:
		return metadataDelay
	case index.EditedForeignLabels:
		return r.relabelling.pausedFor(now)
	default:
		return r.contention.reactionDelay(now)
	}
}

// pauseEnd returns how long until the next pause of some changes ends; 0 if there is none.
func (r *serviceRecord) pauseEnd(now time.Time) time.Duration {
	contended, relabelled := r.contention.pausedFor(now), r.relabelling.pausedFor(now)
	if contended == 0 || relabelled == 0 {
		return max(contended, relabelled)
	}
	return min(contended, relabelled)
}

// pendingSync is what the next sync of a Service must answer. The zero value requests none.
type pendingSync struct {
	trigger Trigger
	// whole says that the whole Service must be planned.
	whole bool
	// pods are the names of changed Pods.
	pods map[string]struct{}
	// since is the time of the first cause. changeTime is the time of the earliest change, as its
	// object says; zero if unknown.
	since, changeTime time.Time
	// urgency is that of the most urgent cause. caused says that there is a cause besides requests.
	urgency index.Urgency
	caused  bool
	// events are the spans of the causes, maxEvents at most; nil without tracing.
	events []trace.SpanContext
	// waiters get the result.
	waiters []waiter
}

// waiter waits for the result of a sync.
type waiter struct {
	// fingerprint is that of the only plan that the waiter wants; empty for any.
	fingerprint string
	// result is a buffered channel.
	result chan<- syncResult
}

// syncCause is why a Service needs a sync.
type syncCause struct {
	trigger Trigger
	// urgency is how urgently the Service is queued, and how long the Batcher may delay it.
	urgency index.Urgency
	// pods are the changed Pods; without any the whole Service is planned.
	pods []Key
	// changeTime is zero if unknown.
	changeTime time.Time
	// object is the object that changed; nil if it is not known. span is that of the change or of
	// the sync that is repeated; nil without tracing.
	object metav1.Object
	span   *trace.SpanContext
}

func (p *pendingSync) empty() bool { return p.trigger == "" }

// add adds a cause for a Service of the namespace. The first cause gives the trigger, and the
// earliest change gives the time.
func (p *pendingSync) add(namespace string, cause syncCause, now time.Time) {
	if p.empty() {
		p.trigger, p.since = cause.trigger, now
	}
	p.whole = p.whole || len(cause.pods) == 0
	p.urgency = max(p.urgency, cause.urgency)
	p.caused = p.caused || cause.trigger != ByRequest
	if cause.span != nil && len(p.events) < maxEvents {
		p.events = append(p.events, *cause.span)
	}
	for _, pod := range cause.pods {
		if pod.Namespace == namespace {
			p.pods = addName(p.pods, pod.Name)
		}
	}
	if !cause.changeTime.IsZero() && (p.changeTime.IsZero() || cause.changeTime.Before(p.changeTime)) {
		p.changeTime = cause.changeTime
	}
}

func (p *pendingSync) notify(result syncResult) {
	for _, waiter := range p.waiters {
		waiter.result <- result
	}
	p.waiters = nil
}

// syncInput is what a sync starts from.
type syncInput struct {
	pendingSync
	object    Object
	placement *pack.Placement
	// deferred are the Pods among pods that did not cause the sync.
	deferred map[string]struct{}
	// unread are slices to read before planning.
	unread map[string]struct{}
	// failed has the slices that were not stored as planned.
	failed map[string]SliceFailure
	// lost has the slices to delete before another one is created.
	lost []*discoveryv1.EndpointSlice
	// firstSync says that the term has not synced this Service before.
	firstSync bool
	// contended pauses changes without an effect on traffic, relabelled those of labels and
	// annotations: another writer keeps reverting them.
	contended, relabelled bool
	// takers says that slices took endpoints and must be written once more, repeating that this
	// sync does it beside what is pending.
	takers, repeating bool
	// compacting says that nothing is pending, so the sync compacts, with at most compactionWrites
	// writes.
	compacting       bool
	compactionWrites int
	// span is that of the sync; nil without tracing.
	span *trace.SpanContext
}

// takeDeferred adds the deferred Pods of the record to those of the sync.
func (i *syncInput) takeDeferred(record *serviceRecord) {
	i.deferred, record.deferred = record.deferred, nil
	for pod := range i.deferred {
		i.pods = addName(i.pods, pod)
	}
}

// restoreDeferred defers the Pods again, after a sync that wrote nothing.
func (r *serviceRecord) restoreDeferred(input syncInput) {
	for pod := range input.deferred {
		r.deferred = addName(r.deferred, pod)
	}
}

// rejectStale answers the waiters that want another plan with ErrPlanChanged. It returns whether
// nothing else asked for the sync, so that the plan must not be applied.
func (i *syncInput) rejectStale(fingerprint string) (rejected bool) {
	if len(i.waiters) == 0 {
		return false
	}
	i.waiters = slices.DeleteFunc(i.waiters, func(waiting waiter) bool {
		stale := waiting.fingerprint != "" && waiting.fingerprint != fingerprint
		if stale {
			waiting.result <- syncResult{err: ErrPlanChanged}
		}
		return stale
	})
	return len(i.waiters) == 0 && !i.caused
}

// priority returns the priority of a retry.
func (i *syncInput) priority() priority {
	if i.compacting {
		return background
	}
	return priorityOf(i.urgency)
}

// podsOnly returns whether a plan of the changed Pods is enough.
func (i *syncInput) podsOnly() bool { return i.placement != nil && !i.whole }

// syncResult is how a sync went.
type syncResult struct {
	plan pack.Plan
	// fingerprint is that of the plan; empty if nothing waits for it.
	fingerprint string
	// outcomes say what came of each change of the plan; nil if the plan was not applied.
	outcomes []Outcome
	// missingNodes delay endpoints until they exist.
	missingNodes []string
	lastPlan     LastPlan
	// rejected says that the plan was not applied, because its only waiters wanted another one.
	rejected bool
	err      error
	// throttled is how long kube-apiserver asks to pause; 0 if it does not.
	throttled time.Duration
	// postponed are the changes that were left out because they failed a short time ago.
	postponed []pack.Change
	// paused says that changes were left out because another writer keeps reverting them.
	// terminating says that a slice cannot be created in a namespace that is being deleted.
	// interrupted says that a compaction ended early because the Service changed.
	paused, terminating, interrupted bool
	// placement is which slice has which endpoint; nil if the next sync must plan the whole
	// Service.
	placement *pack.Placement
	// compactable says that fewer slices may be enough, once the Service was quiet for quietPeriod.
	compactable bool
	quietPeriod time.Duration
	// takers says that slices took endpoints and must be written once more.
	takers bool
	// lost has the slices that are not found again and could not be deleted.
	lost []*discoveryv1.EndpointSlice
}

// complete returns whether everything that was planned was written.
func (r *syncResult) complete() bool {
	return r.err == nil && len(r.postponed) == 0 && !r.paused && !r.terminating && !r.interrupted
}

// takes returns whether the plan moves endpoints between slices.
func (r *syncResult) takes() bool {
	return slices.ContainsFunc(r.plan.Changes, func(change pack.Change) bool { return change.Takes })
}
