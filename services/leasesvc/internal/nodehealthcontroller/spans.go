package nodehealthcontroller

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/trivet-dev/trivet/internal/tracing"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// A trace of a Node begins with the verdict that it is silent. Under it are the writes of the Node
// and those of its Pods, each with its time in the queue and its requests. A step without a verdict
// has a trace of its own.
const (
	verdictSpan = "node is silent"
	nodeSpan    = "write node"
	podSpan     = "mark pod not ready"
	queueSpan   = "wait in queue"
)

// verdicts are the spans of the Nodes that are marked. They belong to the goroutine that passes.
type verdicts map[string]*trace.SpanContext

// jobSpan is how a job is traced; the zero value for not at all.
type jobSpan struct {
	parent *trace.SpanContext
	queued time.Time
}

// spanOfStep records the verdict of a MarkUnknown, and returns how its write is traced.
func (r *run) spanOfStep(step *nodehealth.Step) jobSpan {
	if !r.Tracer.On() {
		return jobSpan{}
	}
	if step.Kind == nodehealth.MarkUnknown {
		_, verdict := r.Tracer.Start(context.Background(), verdictSpan, trace.WithAttributes(
			attribute.String("trivet.node.name", step.Node.Name),
			attribute.String("trivet.node.resource_version", step.Node.ResourceVersion),
			attribute.String("trivet.lease.resource_version", step.Lease.LeaseVersion),
			attribute.String("trivet.reason", step.Reason),
			attribute.Int("trivet.shard", step.Shard),
			attribute.Bool("trivet.kubelet.cut_off", step.CutOff),
		))
		verdict.End(nil)
		r.verdicts[step.Node.Name] = verdict.Reference()
	}
	traced := r.spanOf(step.Node.Name)
	if step.Kind == nodehealth.RemoveNoExecute { // it lives again
		delete(r.verdicts, step.Node.Name)
	}
	return traced
}

// spanOf returns how a write for a Node is traced.
func (r *run) spanOf(node string) jobSpan {
	if !r.Tracer.On() {
		return jobSpan{}
	}
	return jobSpan{parent: r.verdicts[node], queued: time.Now()}
}

// startSpan starts the span of a job, within the time that the job is bounded to.
func (r *run) startSpan(j *job) tracing.Span {
	if j.span.queued.IsZero() {
		return tracing.Span{}
	}
	ctx := context.Background()
	if j.span.parent != nil {
		ctx = tracing.Under(ctx, *j.span.parent)
	}
	attributes := make([]attribute.KeyValue, 0, 8)
	name := nodeSpan
	if j.pod != nil {
		name = podSpan
		attributes = append(attributes,
			attribute.String("trivet.pod.namespace", j.pod.Namespace),
			attribute.String("trivet.pod.name", j.pod.Name),
			attribute.String("trivet.pod.resource_version", j.pod.ResourceVersion),
			attribute.String("trivet.node.name", j.pod.Spec.NodeName))
	} else {
		attributes = append(attributes,
			attribute.String("trivet.node.name", j.step.Node.Name),
			attribute.String("trivet.node.resource_version", j.step.Node.ResourceVersion),
			attribute.String("trivet.step", j.step.Kind.String()),
			attribute.String("trivet.reason", j.step.Reason))
	}
	if len(j.terms) > 0 {
		attributes = append(attributes, attribute.Int("trivet.shard", j.terms[0].ID()), attribute.Int64("trivet.epoch", j.terms[0].Epoch()))
	}
	ctx, span := r.Tracer.Start(ctx, name, trace.WithTimestamp(j.span.queued), trace.WithAttributes(attributes...))
	_, queued := r.Tracer.Start(ctx, queueSpan, trace.WithTimestamp(j.span.queued))
	queued.End(nil)
	return span
}

func endSpan(span tracing.Span, res *result) {
	if res.node != nil && span.Recording() {
		span.Set(attribute.String("trivet.node.stored_resource_version", res.node.ResourceVersion))
	}
	span.End(res.err)
}
