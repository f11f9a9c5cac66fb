package audit

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/internal/authn"
)

const (
	// queueLength is the number of records that wait to be written.
	queueLength = 4096
	// summaryPeriod is the time between summaries of suppressed and dropped records.
	summaryPeriod = time.Minute
	// warnPeriod is the time between warnings that the file cannot be written.
	warnPeriod = time.Minute
)

// Log is the audit log. Write is safe for concurrent use; Run owns the file. A nil Log discards
// records.
type Log struct {
	logger  *slog.Logger // of the process
	handler slog.Handler // of the records
	file    *file        // nil for the log of the process
	queue   chan Record
	metrics *metrics

	mu         sync.Mutex // guards the fields below
	denials    *limits
	repeatable *limits // of allowed calls
	dropped    int     // since the log last said so

	warned time.Time // when Run last warned that the file cannot be written
}

type metrics struct {
	records    *prometheus.CounterVec
	suppressed prometheus.Counter
	dropped    prometheus.Counter
	failures   prometheus.Counter
}

// New opens the audit log, and registers its metrics unless registerer is nil. It returns nil if
// cfg asks for none. Records wait until Run is called.
func New(cfg Config, logger *slog.Logger, registerer prometheus.Registerer) (*Log, error) {
	if cfg.File == "" {
		return nil, nil
	}
	metrics, err := newMetrics(registerer)
	if err != nil {
		return nil, err
	}
	l := &Log{
		logger: logger, handler: logger.Handler(), metrics: metrics,
		queue: make(chan Record, queueLength), denials: newLimits(maxDenied), repeatable: newLimits(maxRepeatable),
	}
	if !cfg.toFile() {
		return l, nil
	}
	if l.file, err = openFile(cfg.File, cfg.MaxBytes, cfg.Backups); err != nil {
		return nil, fmt.Errorf("audit log (--audit-log-file): %w", err)
	}
	l.handler = slog.NewJSONHandler(l.file, nil)
	return l, nil
}

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		records: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_audit_records_total", Help: "Records of the audit log, by decision.",
		}, []string{"decision"}),
		suppressed: counter("trivet_audit_suppressed_total", "Denials, takeovers and releases without a record of their own, because their identity had too many."),
		dropped:    counter("trivet_audit_dropped_total", "Records that were lost, because the queue of the audit log was full."),
		failures:   counter("trivet_audit_write_failures_total", "Records that could not be written to the file of the audit log."),
	}
	if registerer == nil {
		return m, nil
	}
	for _, collector := range []prometheus.Collector{m.records, m.suppressed, m.dropped, m.failures} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics of the audit log: %w", err)
		}
	}
	return m, nil
}

// Write queues a record. It never blocks. It drops the record if the queue is full.
func (l *Log) Write(record Record) {
	if l == nil {
		return
	}
	if record.Caller == nil {
		record.Caller = &authn.Caller{User: authn.Anonymous()}
	}
	record.cutNames()
	now := time.Now()
	if record.Time.IsZero() {
		record.Time = now
	}
	if !l.admit(record, now) {
		l.metrics.suppressed.Inc()
		return
	}
	select {
	case l.queue <- record:
		l.metrics.records.WithLabelValues(string(record.Decision)).Inc()
	default:
		l.metrics.dropped.Inc()
		l.mu.Lock()
		l.dropped++
		l.mu.Unlock()
	}
}

func (l *Log) admit(record Record, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case record.Decision == Denied:
		return l.denials.admit(record, now)
	case record.Repeatable:
		return l.repeatable.admit(record, now)
	default:
		return true
	}
}

// Run writes records until ctx ends, then those that wait, and closes the file. Call it once.
func (l *Log) Run(ctx context.Context) error {
	if l == nil {
		<-ctx.Done()
		return nil
	}
	ticker := time.NewTicker(summaryPeriod)
	defer ticker.Stop()
	for {
		select {
		case record := <-l.queue:
			l.write(record)
		case now := <-ticker.C:
			l.summarize(now)
		case <-ctx.Done():
			return l.end()
		}
	}
}

// end writes what waits, and closes the file.
func (l *Log) end() error {
	for {
		select {
		case record := <-l.queue:
			l.write(record)
		default:
			l.summarize(time.Now())
			if l.file == nil {
				return nil
			}
			return l.file.Close()
		}
	}
}

// write writes a record. The level of the process's log does not decide about it.
func (l *Log) write(record Record) {
	l.handle(record.Time, "audit", record.attributes()...)
	if len(l.queue) <= queueLength/2 {
		l.sayDropped()
	}
}

// summarize writes what was suppressed and dropped.
func (l *Log) summarize(now time.Time) {
	l.mu.Lock()
	denied, repeated := l.denials.summaries(now), l.repeatable.summaries(now)
	l.mu.Unlock()
	for _, s := range denied {
		l.handle(now, "audit: further denials", s.attributes(Denied)...)
	}
	for _, s := range repeated {
		l.handle(now, "audit: further takeovers and releases", s.attributes(Allowed)...)
	}
	l.sayDropped()
}

// sayDropped writes how many records are missing.
func (l *Log) sayDropped() {
	l.mu.Lock()
	dropped := l.dropped
	l.dropped = 0
	l.mu.Unlock()
	if dropped > 0 {
		l.handle(time.Now(), "audit: records were dropped", slog.Int("dropped", dropped))
	}
}

// handle writes one line. A file that cannot be written is reported, and tried again with the next
// line.
func (l *Log) handle(at time.Time, message string, attributes ...slog.Attr) {
	line := slog.NewRecord(at, slog.LevelInfo, message, 0)
	line.AddAttrs(attributes...)
	err := l.handler.Handle(context.Background(), line)
	if err == nil {
		return
	}
	l.metrics.failures.Inc()
	if now := time.Now(); now.Sub(l.warned) >= warnPeriod {
		l.warned = now
		l.logger.Warn("cannot write the audit log", "error", err)
	}
}
