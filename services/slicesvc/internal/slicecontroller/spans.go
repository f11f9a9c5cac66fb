package slicecontroller

import (
	"context"
	"errors"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/tracing"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// A trace of a sync has these spans: the change that was received, and under it the sync, with the
// time in the queue, the plan, each write with its request, and for each write the time until a
// watch shows it. Further changes that the sync answers are links. A retry is under the sync that
// failed.
const (
	changeSpan = "change received"
	syncSpan   = "sync slices"
	queueSpan  = "wait in queue"
	planSpan   = "plan slices"
	writeSpan  = "write slice"
	echoSpan   = "wait for watch"
)

// maxEvents bounds the changes that one sync links.
const maxEvents = 16

// keyAttributes are those of every span of a key.
func keyAttributes(owned *ownedShard, key Key) []attribute.KeyValue {
	return append(tracing.Attributes(owned.ctx),
		attribute.String("trivet.service.namespace", key.Namespace),
		attribute.String("trivet.service.name", key.Name),
		attribute.Int("trivet.shard", owned.shard))
}

// spanOfChange records the change that causes a sync.
func (c *Syncer) spanOfChange(owned *ownedShard, key Key, cause syncCause) *trace.SpanContext {
	attributes := append(keyAttributes(owned, key), attribute.String("trivet.trigger", string(cause.trigger)))
	if cause.object != nil {
		attributes = append(attributes,
			attribute.String("trivet.object.namespace", cause.object.GetNamespace()),
			attribute.String("trivet.object.name", cause.object.GetName()),
			attribute.String("trivet.object.resource_version", cause.object.GetResourceVersion()))
	}
	_, span := c.deps.Tracer.Start(context.Background(), changeSpan, trace.WithAttributes(attributes...))
	span.End(nil)
	return span.Reference()
}

// startSpan starts the span of a sync, which begins with its first cause. ctx is that of the term.
func (c *Syncer) startSpan(owned *ownedShard, key Key, input *syncInput, start time.Time) (ctx context.Context, span tracing.Span) {
	if !c.deps.Tracer.On() {
		return owned.ctx, tracing.Span{}
	}
	ctx = owned.ctx
	options := []trace.SpanStartOption{
		trace.WithTimestamp(input.since),
		trace.WithAttributes(append(keyAttributes(owned, key), attribute.String("trivet.trigger", string(input.trigger)))...),
	}
	if len(input.events) > 0 {
		ctx = tracing.Under(ctx, input.events[0])
		for _, event := range input.events[1:] {
			options = append(options, trace.WithLinks(trace.Link{SpanContext: event}))
		}
	}
	ctx, span = c.deps.Tracer.Start(ctx, syncSpan, options...)
	_, queued := c.deps.Tracer.Start(ctx, queueSpan, trace.WithTimestamp(input.since))
	queued.EndAt(start, nil)
	return ctx, span
}

// endSpan ends the span of a sync.
func endSpan(span tracing.Span, result *syncResult) {
	if span.Recording() {
		span.Set(
			attribute.Int("trivet.creates", result.lastPlan.Creates),
			attribute.Int("trivet.updates", result.lastPlan.Updates),
			attribute.Int("trivet.deletes", result.lastPlan.Deletes),
			attribute.Bool("trivet.complete", result.complete()),
		)
	}
	span.End(result.err)
}

// tracedPlan is source.plan with a span.
func (c *Syncer) tracedPlan(ctx context.Context, key Key, input *syncInput, result *syncResult) (*pack.Placement, error) {
	ctx, span := c.deps.Tracer.Start(ctx, planSpan)
	placement, err := c.source.plan(ctx, key, input, result)
	if span.Recording() {
		span.Set(
			attribute.Int("trivet.changes", len(result.plan.Changes)),
			attribute.Bool("trivet.whole", placement == nil),
			attribute.Int("trivet.pods", len(input.pods)),
		)
	}
	span.End(err)
	return placement, err
}

// tracedWrite is Writer.Write with a span, and then one that ends with the watch's event.
func (a *planApplier) tracedWrite(change pack.Change) (*discoveryv1.EndpointSlice, error) {
	if !a.deps.Tracer.On() {
		return a.deps.Writer.Write(a.ctx, change)
	}
	ctx, span := a.deps.Tracer.Start(a.ctx, writeSpan)
	name := keyOf(change.Slice.Namespace, change.Slice.Name)
	if span.Recording() {
		span.Set(
			attribute.String("trivet.verb", string(change.Verb)),
			attribute.String("trivet.reason", string(change.Reason)),
			attribute.String("trivet.slice.name", name.Name),
		)
		a.echoes.begin(name)
	}
	stored, err := a.deps.Writer.Write(ctx, change)
	switch {
	case !span.Recording():
	case err != nil:
		a.echoes.forget(name)
	case stored == nil: // it was gone before
		a.echoes.forget(name)
	default:
		span.Set(attribute.String("trivet.slice.resource_version", stored.ResourceVersion))
		a.echoes.answered(ctx, name, stored.ResourceVersion, change.Verb == planned.Delete)
	}
	span.End(err)
	return stored, err
}

const (
	// maxEchoes bounds the writes that wait for the watch. Further ones have no such span.
	maxEchoes = 4096
	// maxEchoWait is when a span of a wait ends with an error.
	maxEchoWait = time.Minute
)

var errNoEcho = errors.New("no watch event shows the write within a minute")

// echoes are the writes that no watch has shown yet. Only sampled writes are among them. It is safe
// for concurrent use.
type echoes struct {
	tracer  tracing.Tracer
	mu      sync.Mutex // guards waiting
	waiting map[Key]*echo
}

// echo is one write. The event of the watch may come before the answer.
type echo struct {
	begun time.Time
	// span is set with the answer, as are version and deletion.
	span     tracing.Span
	version  string
	deletion bool
	// seen is the newest version that a watch has shown, at seenAt; seenDeleted that it showed a
	// deletion.
	seen        string
	seenAt      time.Time
	seenDeleted bool
}

func newEchoes(tracer tracing.Tracer) *echoes {
	return &echoes{tracer: tracer, waiting: map[Key]*echo{}}
}

// begin records that a write of a slice begins. The wait for an earlier write ends without an
// event.
func (e *echoes) begin(slice Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if former := e.waiting[slice]; former != nil {
		former.span.End(nil)
	} else if len(e.waiting) >= maxEchoes {
		return
	}
	e.waiting[slice] = &echo{begun: time.Now()}
}

func (e *echoes) forget(slice Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.waiting, slice)
}

// answered starts the span of the wait. ctx has the span of the write.
func (e *echoes) answered(ctx context.Context, slice Key, version string, deletion bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	waiting := e.waiting[slice]
	if waiting == nil {
		return
	}
	start := time.Now()
	waiting.version, waiting.deletion = version, deletion
	shown := waiting.shown()
	if shown {
		start = waiting.seenAt
	}
	_, waiting.span = e.tracer.Start(ctx, echoSpan, trace.WithTimestamp(start),
		trace.WithAttributes(attribute.String("trivet.slice.name", slice.Name)))
	if shown {
		e.end(slice, waiting)
	}
}

// observed records what a watch showed of a slice.
func (e *echoes) observed(meta *metav1.ObjectMeta, deleted bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.waiting) == 0 {
		return
	}
	slice := keyOf(meta.Namespace, meta.Name)
	waiting := e.waiting[slice]
	if waiting == nil {
		return
	}
	waiting.seen, waiting.seenAt, waiting.seenDeleted = meta.ResourceVersion, time.Now(), deleted
	if waiting.version != "" && waiting.shown() {
		e.end(slice, waiting)
	}
}

// end needs e.mu.
func (e *echoes) end(slice Key, shown *echo) {
	if shown.span.Recording() {
		shown.span.Set(attribute.String("trivet.slice.resource_version", shown.seen))
	}
	shown.span.EndAt(shown.seenAt, nil)
	delete(e.waiting, slice)
}

// shown returns whether a watch has shown the write or something newer.
func (e *echo) shown() bool {
	switch {
	case e.seenAt.IsZero():
		return false
	case e.deletion || e.seenDeleted:
		return e.seenDeleted
	default:
		return index.CompareVersions(e.seen, e.version) >= 0
	}
}

// expire ends the spans that have waited for too long.
func (e *echoes) expire(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for slice, waiting := range e.waiting {
		if now.Sub(waiting.begun) > maxEchoWait {
			waiting.span.End(errNoEcho)
			delete(e.waiting, slice)
		}
	}
}
