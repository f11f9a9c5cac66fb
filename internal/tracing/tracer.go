package tracing

import (
	"context"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

const scopePrefix = "github.com/trivet-dev/trivet/"

// Tracer starts the spans of one part of a process. The zero Tracer is off: On returns false and
// Start returns its context and the zero Span. A caller on a hot path asks On before it makes
// attributes. Its methods are safe for concurrent use.
type Tracer struct{ tracer trace.Tracer }

// Tracer returns the tracer of a part, such as "slicesvc"; off for a nil *Tracing.
func (t *Tracing) Tracer(part string) Tracer {
	if t == nil {
		return Tracer{}
	}
	return Tracer{tracer: t.provider.Tracer(scopePrefix + part)}
}

// On returns whether spans may be recorded.
func (t Tracer) On() bool { return t.tracer != nil }

// Start starts a span as the child of that in ctx, or as the root of a trace. The caller ends it.
func (t Tracer) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, Span) {
	if t.tracer == nil {
		return ctx, Span{}
	}
	ctx, span := t.tracer.Start(ctx, name, options...)
	return ctx, Span{span: span}
}

// Span is one span. The zero Span does nothing. Its methods are safe for concurrent use.
type Span struct{ span trace.Span }

// Recording returns whether attributes of the span are kept.
func (s Span) Recording() bool { return s.span != nil && s.span.IsRecording() }

// Set adds attributes.
func (s Span) Set(attributes ...attribute.KeyValue) {
	if s.span != nil {
		s.span.SetAttributes(attributes...)
	}
}

// Context identifies the span; invalid for the zero Span.
func (s Span) Context() trace.SpanContext {
	if s.span == nil {
		return trace.SpanContext{}
	}
	return s.span.SpanContext()
}

// In returns ctx with the span as the parent; ctx itself for the zero Span.
func (s Span) In(ctx context.Context) context.Context {
	if s.span == nil {
		return ctx
	}
	return trace.ContextWithSpan(ctx, s.span)
}

// Reference is Context for keeping; nil for the zero Span.
func (s Span) Reference() *trace.SpanContext {
	if s.span == nil {
		return nil
	}
	at := s.span.SpanContext()
	return &at
}

// Reference returns that of the span in ctx; nil if there is none.
func Reference(ctx context.Context) *trace.SpanContext {
	span := trace.SpanFromContext(ctx)
	if !span.SpanContext().IsValid() {
		return nil
	}
	return Span{span: span}.Reference()
}

// End ends the span; err, unless it is nil, is its failure.
func (s Span) End(err error) { s.EndAt(time.Now(), err) }

// EndAt is End for a time that has passed.
func (s Span) EndAt(at time.Time, err error) {
	if s.span == nil {
		return
	}
	if err != nil {
		message := err.Error()
		// Half a character, or bytes of a server that are no text, would cost the batch.
		s.span.SetStatus(codes.Error, strings.ToValidUTF8(message[:min(len(message), maxValueLength)], ""))
	}
	s.span.End(trace.WithTimestamp(at))
}

type attributesKey struct{}

// With returns ctx with attributes for the spans of what runs with it, such as the epoch of a term.
// A span has them only if its caller adds [Attributes].
func With(ctx context.Context, attributes ...attribute.KeyValue) context.Context {
	return context.WithValue(ctx, attributesKey{}, append(Attributes(ctx), attributes...))
}

// Attributes returns a new slice with the attributes of ctx.
func Attributes(ctx context.Context) []attribute.KeyValue {
	found, _ := ctx.Value(attributesKey{}).([]attribute.KeyValue)
	return slices.Clone(found)
}

// Under returns ctx with a parent for the spans that are started with it; ctx itself if the parent
// is not valid.
func Under(ctx context.Context, parent trace.SpanContext) context.Context {
	if !parent.IsValid() {
		return ctx
	}
	return trace.ContextWithSpanContext(ctx, parent)
}
