package tracing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/tracing"
	"github.com/trivet-dev/trivet/test/lab/otlptest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestTracing_SpansArriveWithParentsAndProcess(t *testing.T) {
	collector := otlptest.New(t)
	running, stop := collector.Run(t, "slicesvc")
	tracer := running.Tracer("slicesvc")
	ctx, root := tracer.Start(t.Context(), "sync")
	_, child := tracer.Start(ctx, "write", trace.WithAttributes(attribute.String("trivet.verb", "update")))
	child.End(errors.New("refused"))
	root.End(nil)
	stop() // sends what waits

	spans := byName(collector.Spans())
	if len(spans) != 2 {
		t.Fatalf("received %v, want two spans", spans)
	}
	write, sync := spans["write"], spans["sync"]
	if sync.Parent() != "" || write.Parent() != sync.ID() || write.Trace() != sync.Trace() {
		t.Errorf("write has parent %q, want %q of the root in one trace", write.Parent(), sync.ID())
	}
	if write.Status.GetMessage() != "refused" || sync.Status.GetMessage() != "" || write.Values["trivet.verb"] != "update" {
		t.Errorf("write is %v", write)
	}
	want := map[string]string{
		"service.name": "slicesvc", "service.namespace": "trivet", "service.version": "test",
		"service.instance.id": "slicesvc-0", "k8s.cluster.name": "test",
	}
	if diff := cmp.Diff(want, sync.Process); diff != "" {
		t.Errorf("process (-want +got):\n%s", diff)
	}
}

// The exporter refuses a batch with text that is not UTF-8. One such error must not cost the other
// spans of the batch.
func TestTracing_AnErrorWithOddTextCostsNoSpans(t *testing.T) {
	collector := otlptest.New(t)
	running, stop := collector.Run(t, "slicesvc")
	for name, text := range map[string]string{"cut": "x" + strings.Repeat("é", 300), "bytes": "denied: \xff\xfe"} {
		_, span := running.Tracer("slicesvc").Start(t.Context(), name)
		span.End(errors.New(text))
	}
	_, other := running.Tracer("slicesvc").Start(t.Context(), "other")
	other.End(nil)
	stop()
	spans := byName(collector.Spans())
	if len(spans) != 3 {
		t.Fatalf("received %v, want three spans", spans)
	}
	if got := spans["cut"].Status.GetMessage(); len(got) > 256 || !strings.HasPrefix(got, "xééé") {
		t.Errorf("the message has %d bytes: %q", len(got), got)
	}
	if got := spans["bytes"].Status.GetMessage(); !strings.HasPrefix(got, "denied: ") {
		t.Errorf("the message is %q", got)
	}
}

func byName(spans []otlptest.Span) map[string]otlptest.Span {
	named := map[string]otlptest.Span{}
	for _, span := range spans {
		named[span.Name] = span
	}
	return named
}

// A collector that answers nothing costs spans, and nothing else.
func TestTracing_AHangingCollectorDelaysNothing(t *testing.T) {
	collector := otlptest.NewHanging(t)
	registry := prometheus.NewRegistry()
	cfg := tracing.DefaultConfig()
	cfg.Endpoint = collector.Endpoint
	var log bytes.Buffer
	running, err := tracing.New(cfg, tracing.Process{Service: "slicesvc"}, slog.New(slog.NewTextHandler(&log, nil)), registry)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- running.Run(ctx) }()
	tracer := running.Tracer("slicesvc")
	begin := time.Now()
	const spans = 20_000
	for range spans {
		_, span := tracer.Start(t.Context(), "sync")
		span.End(nil)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("%d spans took %v", spans, took)
	}
	testkit.Eventually(t, 20*time.Second, func() error {
		if collector.Calls() == 0 {
			return errors.New("the collector has no request yet")
		}
		return nil
	})
	cancel()
	begin = time.Now()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > 8*time.Second {
		t.Errorf("shutdown took %v, want about 2 s", took)
	}
	expected := `# HELP trivet_tracing_spans_exported_total Spans that the collector of --tracing-endpoint has accepted.
# TYPE trivet_tracing_spans_exported_total counter
trivet_tracing_spans_exported_total 0
`
	if err := promtest.GatherAndCompare(registry, strings.NewReader(expected), "trivet_tracing_spans_exported_total"); err != nil {
		t.Error(err)
	}
	dropped := 0.0
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "trivet_tracing_spans_dropped_total" {
			for _, metric := range family.Metric {
				dropped += metric.GetCounter().GetValue()
			}
		}
	}
	if dropped != spans {
		t.Errorf("%v of %d spans are counted as dropped", dropped, spans)
	}
	if lines := strings.Count(log.String(), "cannot export traces"); lines != 1 {
		t.Errorf("%d lines about the collector, want one a minute:\n%s", lines, &log)
	}
}

func TestTracing_WithoutAnEndpointItIsOff(t *testing.T) {
	running, err := tracing.New(tracing.DefaultConfig(), tracing.Process{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if running != nil || err != nil {
		t.Fatalf("New() = %v, %v", running, err)
	}
	tracer := running.Tracer("slicesvc")
	if tracer.On() || running.Server(nil) != nil || running.Client() != nil {
		t.Error("tracing is on")
	}
	ctx := t.Context()
	if allocated := testing.AllocsPerRun(100, func() {
		inner, span := tracer.Start(ctx, "sync")
		if inner != ctx || span.Recording() {
			t.Error("a span was started")
		}
		span.End(nil)
	}); allocated != 0 {
		t.Errorf("a span that is off allocates %v times", allocated)
	}
	if running.WrapTransport(http.DefaultTransport) != http.DefaultTransport {
		t.Error("the transport is wrapped")
	}
}

// A rate of 0 records no trace of this process, but those that a server of Trivet records.
func TestTracing_TheRateIsForTracesThatBeginHere(t *testing.T) {
	collector := otlptest.New(t)
	cfg := tracing.Config{Endpoint: collector.Endpoint}
	running, err := tracing.New(cfg, tracing.Process{}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	tracer := running.Tracer("slicesvc")
	_, root := tracer.Start(t.Context(), "root")
	if root.Recording() {
		t.Error("a root is recorded at rate 0")
	}
	sampled := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled, Remote: true})
	_, child := tracer.Start(tracing.Under(t.Context(), sampled), "child")
	if !child.Recording() || child.Context().TraceID() != sampled.TraceID() {
		t.Error("the child of a recorded trace is not recorded")
	}
}

func TestConfig_Validate(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*tracing.Config)
		want   string
	}{
		"default":            {func(*tracing.Config) {}, ""},
		"endpoint":           {func(c *tracing.Config) { c.Endpoint = "otel.observability:4317" }, ""},
		"URL":                {func(c *tracing.Config) { c.Endpoint = "http://otel:4317" }, "--tracing-endpoint"},
		"no host":            {func(c *tracing.Config) { c.Endpoint = ":4317" }, "the host is missing"},
		"rate":               {func(c *tracing.Config) { c.SamplingRatePerMillion = 1_000_001 }, "--tracing-sampling-rate-per-million"},
		"CA without address": {func(c *tracing.Config) { c.TLS.CAFile = "ca.crt" }, "need --tracing-endpoint"},
		"missing CA":         {func(c *tracing.Config) { c.Endpoint, c.TLS.CAFile = "otel:4317", "/no/ca.crt" }, "--tracing-ca-file"},
		"half a pair":        {func(c *tracing.Config) { c.Endpoint, c.TLS.CertFile = "otel:4317", "tls.crt" }, "need each other"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := tracing.DefaultConfig()
			c.change(&cfg)
			problems := errors.Join(cfg.Validate()...)
			if got := fmt.Sprint(problems); c.want == "" && problems != nil || !strings.Contains(got, c.want) {
				t.Errorf("Validate() = %v, want %q", problems, c.want)
			}
		})
	}
}

// Watches and writes of Leases are made outside of spans. They are neither traced nor changed.
func TestTransport_TracesRequestsOfSpansOnly(t *testing.T) {
	collector := otlptest.New(t)
	running, stop := collector.Run(t, "slicesvc")
	headers := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { headers <- r.Header.Get("Traceparent") }))
	defer server.Close()
	client := &http.Client{Transport: running.WrapTransport(&http.Transport{DisableKeepAlives: true})}
	get := func(ctx context.Context) string {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/api/v1/pods", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return <-headers
	}
	if header := get(t.Context()); header != "" {
		t.Errorf("a request without a span has the trace %q", header)
	}
	ctx, span := running.Tracer("slicesvc").Start(t.Context(), "sync")
	if header := get(ctx); !strings.Contains(header, span.Context().TraceID().String()) {
		t.Errorf("a request of trace %s tells kube-apiserver %q", span.Context().TraceID(), header)
	}
	span.End(nil)
	stop()
	spans := byName(collector.Spans())
	if request := spans["HTTP GET"]; len(spans) != 2 || request.Parent() != spans["sync"].ID() {
		t.Errorf("received %v, want the span and its request", spans)
	}
}

// What a collector says is bounded and printable before it is logged.
func TestTracing_TheErrorOfACollectorIsLoggedInOneShortLine(t *testing.T) {
	collector := otlptest.NewRefusing(t, status.Error(codes.InvalidArgument, "no\x1b[31m\r\n\u202e"+strings.Repeat("x", 8<<10)))
	cfg := tracing.DefaultConfig()
	cfg.Endpoint = collector.Endpoint
	var log testkit.LogBuffer
	running, err := tracing.New(cfg, tracing.Process{Service: "slicesvc"}, slog.New(slog.NewJSONHandler(&log, nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- running.Run(ctx) }()
	_, span := running.Tracer("slicesvc").Start(t.Context(), "sync")
	span.End(nil)
	testkit.Eventually(t, 30*time.Second, func() error {
		if !strings.Contains(log.String(), "cannot export traces") {
			return errors.New("no warning yet")
		}
		return nil
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if line := log.String(); len(line) > 1024 || !strings.Contains(line, "xxx") || strings.Contains(line, `\u001b`) || strings.Contains(line, "\u202e") {
		t.Errorf("%d bytes are logged: %.300q", len(line), line)
	}
}
