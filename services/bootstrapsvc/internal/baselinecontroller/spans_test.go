package baselinecontroller

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/test/lab/otlptest"
)

type instantWriter struct{ written chan struct{} }

func (w instantWriter) Apply(context.Context, baseline.Change) error {
	close(w.written)
	return nil
}

// A trigger, the observation, the write and the observation that shows it are one trace.
func TestReconciler_APassIsOneTraceFromItsTrigger(t *testing.T) {
	t.Parallel()
	collector := otlptest.New(t)
	running, stop := collector.Run(t, "bootstrapsvc")
	writer := instantWriter{written: make(chan struct{})}
	first := make(chan struct{})
	passes := 0
	r := newReconciler(t, time.Hour, func(context.Context) (Observation, error) {
		if passes++; passes == 2 {
			return Observation{Changes: []baseline.Change{{
				Verb: planned.Update, Object: &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", ResourceVersion: "7"}},
			}}}, nil
		}
		if passes == 1 {
			close(first)
		}
		return Observation{}, nil
	})
	r.Writer, r.Tracer = writer, running.Tracer("bootstrapsvc")
	ctx, cancel := context.WithCancel(t.Context())
	ended, reports := make(chan error, 1), make(chan error, 10)
	go func() { ended <- r.Run(ctx, func(err error) { reports <- err }) }()
	<-first
	<-reports
	r.Trigger()
	<-writer.written
	if err := <-reports; err != nil {
		t.Error(err)
	}
	cancel()
	<-ended
	stop()
	spans := collector.Spans()
	at := slices.IndexFunc(spans, func(span otlptest.Span) bool { return span.Values["trivet.trigger"] == "CHANGE" })
	if at < 0 {
		t.Fatalf("no pass of a change among %v", spans)
	}
	pass := spans[at]
	var children []string
	for _, span := range spans {
		if span.Parent() == pass.ID() && span.Trace() == pass.Trace() {
			children = append(children, span.Name)
		}
		if span.Name == applySpan && (span.Values["trivet.object.name"] != "kubernetes" || span.Values["trivet.object.resource_version"] != "7") {
			t.Errorf("the write has the attributes %v", span.Values)
		}
	}
	slices.Sort(children)
	if want := []string{applySpan, observeSpan, observeSpan, triggerSpan}; !slices.Equal(children, want) {
		t.Errorf("under the pass are %q, want %q", children, want)
	}
}
