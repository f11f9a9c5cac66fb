package slicecontroller

import (
	"context"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/trivet-dev/trivet/internal/tracing"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// A trace of a sync has these spans: the change that was received, and under it the sync, with the
// time in the queue, the plan, and each write with its request. Further changes that the sync
// answers are links. A retry is under the sync that failed.
const (
	changeSpan = "change received"
	syncSpan   = "sync slices"
	queueSpan  = "wait in queue"
	planSpan   = "plan slices"
	writeSpan  = "write slice"
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

// tracedWrite is Writer.Write with a span.
func (a *planApplier) tracedWrite(change pack.Change) (*discoveryv1.EndpointSlice, error) {
	ctx, span := a.deps.Tracer.Start(a.ctx, writeSpan)
	if span.Recording() {
		span.Set(
			attribute.String("trivet.verb", string(change.Verb)),
			attribute.String("trivet.reason", string(change.Reason)),
			attribute.String("trivet.slice.name", change.Slice.Name),
		)
	}
	stored, err := a.deps.Writer.Write(ctx, change)
	if span.Recording() && stored != nil {
		span.Set(attribute.String("trivet.slice.resource_version", stored.ResourceVersion))
	}
	span.End(err)
	return stored, err
}
