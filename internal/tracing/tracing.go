package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/trivet-dev/trivet/internal/wording"
)

const (
	// queueLength bounds the spans that wait for the collector, and with it their memory.
	queueLength = 4096
	// batchLength and batchPeriod say when the waiting spans are sent.
	batchLength = 512
	batchPeriod = time.Second
	// exportTimeout bounds one request with its repetitions. The queue fills meanwhile.
	exportTimeout = 10 * time.Second
	// shutdownTimeout bounds the requests after the end of Run's context.
	shutdownTimeout = 2 * time.Second
	// warnPeriod is the time between two warnings about the collector.
	warnPeriod = time.Minute
	// attributes and links bound one span. Long values are cut.
	maxAttributes, maxLinks, maxValueLength = 32, 32, 256
	// maxErrorText and maxHeaderBytes bound what the collector sends.
	maxErrorText, maxHeaderBytes = 512, 16 << 10
)

// Process describes the process whose spans are exported.
type Process struct{ Service, Version, Replica, Cluster string }

// Tracing records and exports the spans of one process. A nil *Tracing records none. Its methods
// are safe for concurrent use.
type Tracing struct {
	provider    *sdktrace.TracerProvider
	queue       *queue
	endpoint    string
	credentials credentials.TransportCredentials
	logger      *slog.Logger
	warnings    *rate.Limiter
}

// New returns nil without an endpoint. It starts nothing and contacts no server. It fails on
// unusable TLS files and on metrics that the registry refuses.
func New(cfg Config, process Process, logger *slog.Logger, registry prometheus.Registerer) (*Tracing, error) {
	queue, err := newQueue(registry)
	if err != nil || cfg.Endpoint == "" {
		return nil, err
	}
	queue.spans = make(chan sdktrace.ReadOnlySpan, queueLength)
	transport, err := cfg.credentials(logger)
	if err != nil {
		return nil, err
	}
	limits := sdktrace.NewSpanLimits()
	limits.AttributeCountLimit, limits.LinkCountLimit, limits.AttributeValueLengthLimit = maxAttributes, maxLinks, maxValueLength
	return &Tracing{
		provider: sdktrace.NewTracerProvider(
			sdktrace.WithSpanProcessor(queue),
			sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(float64(cfg.SamplingRatePerMillion)/perMillion))),
			sdktrace.WithRawSpanLimits(limits),
			sdktrace.WithResource(resource.NewSchemaless(
				attribute.String("service.name", process.Service),
				attribute.String("service.namespace", "trivet"),
				attribute.String("service.version", process.Version),
				attribute.String("service.instance.id", process.Replica),
				attribute.String("k8s.cluster.name", process.Cluster),
			)),
		),
		queue: queue, endpoint: cfg.Endpoint, credentials: transport, logger: logger,
		warnings: rate.NewLimiter(rate.Every(warnPeriod), 1),
	}, nil
}

// Run exports spans until ctx ends. Then it exports the waiting ones for up to two seconds, drops
// the rest and returns nil. The error is a malformed endpoint. Call it once. With a nil *Tracing it
// waits for the end of ctx.
func (t *Tracing) Run(ctx context.Context) error {
	if t == nil {
		<-ctx.Done()
		return nil
	}
	conn, err := grpc.NewClient(t.endpoint, grpc.WithTransportCredentials(t.credentials), grpc.WithMaxHeaderListSize(maxHeaderBytes))
	if err != nil {
		return fmt.Errorf("--tracing-endpoint: %w", err)
	}
	defer conn.Close()
	exporter := otlptrace.NewUnstarted(otlptracegrpc.NewClient(
		otlptracegrpc.WithGRPCConn(conn), otlptracegrpc.WithTimeout(exportTimeout),
	))
	exporting, cut := context.WithCancel(context.Background())
	defer cut()
	if err := exporter.Start(exporting); err != nil {
		return fmt.Errorf("start the exporter of traces: %w", err)
	}
	defer context.AfterFunc(ctx, func() { time.AfterFunc(shutdownTimeout, cut) })()
	ticker := time.NewTicker(batchPeriod)
	defer ticker.Stop()
	batch := make([]sdktrace.ReadOnlySpan, 0, batchLength)
	for {
		select {
		case <-ctx.Done():
			t.flush(exporting, exporter, batch)
			return nil
		case <-ticker.C:
		case span := <-t.queue.spans:
			if batch = append(batch, span); len(batch) < batchLength {
				continue
			}
		}
		t.export(exporting, exporter, batch)
		clear(batch)
		batch = batch[:0]
	}
}

// flush exports what waits, until ctx ends.
func (t *Tracing) flush(ctx context.Context, exporter sdktrace.SpanExporter, batch []sdktrace.ReadOnlySpan) {
	for {
		select {
		case span := <-t.queue.spans:
			if batch = append(batch, span); len(batch) < batchLength {
				continue
			}
			t.export(ctx, exporter, batch)
			batch = batch[:0]
		default:
			t.export(ctx, exporter, batch)
			return
		}
	}
}

// export sends a batch once. A batch that fails is dropped: newer spans tell more than old ones.
func (t *Tracing) export(ctx context.Context, exporter sdktrace.SpanExporter, batch []sdktrace.ReadOnlySpan) {
	if len(batch) == 0 {
		return
	}
	if err := exporter.ExportSpans(ctx, batch); err != nil {
		t.queue.dropped.WithLabelValues(dropExport).Add(float64(len(batch)))
		if t.warnings.Allow() {
			t.logger.Warn("cannot export traces; spans are dropped", "endpoint", t.endpoint, "spans", len(batch), "error", wording.Printable(err.Error(), maxErrorText))
		}
		return
	}
	t.queue.exported.Add(float64(len(batch)))
}

// Causes of dropped spans.
const (
	dropQueue  = "queue_full"
	dropExport = "export_failed"
)

// queue keeps the spans that have ended until Run takes them. It never blocks.
type queue struct {
	spans    chan sdktrace.ReadOnlySpan
	exported prometheus.Counter
	dropped  *prometheus.CounterVec
}

var _ sdktrace.SpanProcessor = &queue{}

// newQueue registers the metrics of the spans, which are 0 without an endpoint.
func newQueue(registry prometheus.Registerer) (*queue, error) {
	q := &queue{
		exported: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "trivet_tracing_spans_exported_total", Help: "Spans that the collector of --tracing-endpoint has accepted.",
		}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_tracing_spans_dropped_total",
			Help: "Spans that were dropped, by cause: queue_full if the collector is slower than the spans, export_failed if it did not accept them.",
		}, []string{"cause"}),
	}
	for _, cause := range []string{dropQueue, dropExport} {
		q.dropped.WithLabelValues(cause)
	}
	if registry == nil {
		return q, nil
	}
	for _, collector := range []prometheus.Collector{q.exported, q.dropped} {
		if err := registry.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics of traces: %w", err)
		}
	}
	return q, nil
}

// OnStart does nothing.
func (q *queue) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd queues a sampled span, or drops it if the queue is full.
func (q *queue) OnEnd(span sdktrace.ReadOnlySpan) {
	if !span.SpanContext().IsSampled() {
		return
	}
	select {
	case q.spans <- span:
	default:
		q.dropped.WithLabelValues(dropQueue).Inc()
	}
}

// Shutdown does nothing: the end of Run's context stops the export.
func (q *queue) Shutdown(context.Context) error { return nil }

// ForceFlush does nothing.
func (q *queue) ForceFlush(context.Context) error { return nil }
