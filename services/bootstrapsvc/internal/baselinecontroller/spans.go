package baselinecontroller

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/tracing"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// A trace of a pass has these spans: the time from the change that triggered it, each observation
// with its requests, which ends with the plan, and each write. The observation after a write shows
// it, as the watch of another controller would.
const (
	passSpan    = "reconcile "
	triggerSpan = "wait for pass"
	observeSpan = "observe and plan"
	applySpan   = "apply change"
)

// startSpan starts the span of a pass. It begins with the trigger, if there was one.
func (r *Reconciler) startSpan(ctx context.Context, asked request) (context.Context, tracing.Span) {
	if !r.Tracer.On() {
		return ctx, tracing.Span{}
	}
	begun := time.Now()
	since, trigger := begun, "PERIOD"
	switch triggered := r.triggered.Swap(nil); {
	case asked.reply != nil:
		trigger = "REQUEST"
	case triggered != nil:
		since, trigger = *triggered, "CHANGE"
	}
	attributes := []attribute.KeyValue{attribute.String("trivet.loop", r.Loop), attribute.String("trivet.trigger", trigger)}
	if held, ok := term.FromContext(ctx); ok {
		attributes = append(attributes, attribute.Int("trivet.shard", held.Shard()), attribute.Int64("trivet.epoch", held.Epoch()))
	}
	ctx, span := r.Tracer.Start(ctx, passSpan+r.Loop, trace.WithTimestamp(since), trace.WithAttributes(attributes...))
	if since != begun {
		_, waited := r.Tracer.Start(ctx, triggerSpan, trace.WithTimestamp(since))
		waited.EndAt(begun, nil)
	}
	return ctx, span
}

func endSpan(span tracing.Span, result *Result, err error) {
	if span.Recording() {
		span.Set(attribute.Int("trivet.writes", len(result.Tries)), attribute.Int("trivet.reports", len(result.Reports)))
	}
	span.End(err)
}

func (r *Reconciler) tracedObserve(ctx context.Context, observe Observe) (Observation, error) {
	ctx, span := r.Tracer.Start(ctx, observeSpan)
	observation, err := observe(ctx)
	if span.Recording() {
		span.Set(attribute.Int("trivet.changes", len(baseline.Writes(observation.Changes))))
	}
	span.End(err)
	return observation, err
}

func (r *Reconciler) tracedApply(ctx context.Context, step baseline.Change) error {
	ctx, span := r.Tracer.Start(ctx, applySpan)
	if span.Recording() {
		span.Set(
			attribute.String("trivet.kind", step.Kind().Kind),
			attribute.String("trivet.object.namespace", step.Object.GetNamespace()),
			attribute.String("trivet.object.name", step.Object.GetName()),
			attribute.String("trivet.object.resource_version", step.Object.GetResourceVersion()),
			attribute.String("trivet.verb", string(step.Verb)),
			attribute.String("trivet.reason", string(step.Reason)))
	}
	err := r.Writer.Apply(ctx, step)
	span.End(err)
	return err
}
