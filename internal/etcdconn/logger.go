package etcdconn

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// newLogger returns a logger for etcd's client. Warnings become debug messages: the client warns of
// each attempt of a request, and the caller reports the final error.
func newLogger(logger *slog.Logger) *zap.Logger {
	return zap.New(&core{logger: logger.With("component", "etcd-client")})
}

// core is a zapcore.Core that writes to slog. It is safe for concurrent use.
type core struct {
	logger *slog.Logger
}

func level(l zapcore.Level) slog.Level {
	if l >= zapcore.ErrorLevel {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// Enabled says whether slog wants messages of that level.
func (c *core) Enabled(l zapcore.Level) bool {
	return c.logger.Enabled(context.Background(), level(l))
}

// With returns a core that adds the fields to every message.
func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{logger: c.logger.With(attributes(fields)...)}
}

// Check adds this core to an entry that slog wants.
func (c *core) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !c.Enabled(entry.Level) {
		return checked
	}
	return checked.AddCore(entry, c)
}

// Write logs an entry.
func (c *core) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	c.logger.Log(context.Background(), level(entry.Level), entry.Message, attributes(fields)...)
	return nil
}

// Sync does nothing, because slog handlers do not buffer.
func (c *core) Sync() error { return nil }

func attributes(fields []zapcore.Field) []any {
	encoder := zapcore.NewMapObjectEncoder()
	attributes := make([]any, 0, len(fields))
	for _, field := range fields {
		field.AddTo(encoder)
	}
	for _, key := range slices.Sorted(maps.Keys(encoder.Fields)) {
		attributes = append(attributes, slog.Any(key, encoder.Fields[key]))
	}
	return attributes
}
