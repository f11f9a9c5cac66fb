package observe

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
)

// Bridge redirects klog (client-go) and grpclog to logger. Both have a process-wide variable
// without a lock, so call Bridge once, before any client or server exists.
func Bridge(logger *slog.Logger) {
	klog.SetSlogLogger(logger.With(slog.String("source", "client-go")))
	grpclog.SetLoggerV2(grpcLogger{logger: logger.With(slog.String("source", "grpc"))})
}

// grpcLogger is a grpclog.LoggerV2 on slog. gRPC's info messages report each step of a connection
// and become debug. Fatal becomes error, after which gRPC ends the process.
type grpcLogger struct {
	logger *slog.Logger
}

var _ grpclog.LoggerV2 = grpcLogger{}

func (g grpcLogger) Info(args ...any)                    { g.print(slog.LevelDebug, args) }
func (g grpcLogger) Infoln(args ...any)                  { g.println(slog.LevelDebug, args) }
func (g grpcLogger) Infof(format string, args ...any)    { g.printf(slog.LevelDebug, format, args) }
func (g grpcLogger) Warning(args ...any)                 { g.print(slog.LevelWarn, args) }
func (g grpcLogger) Warningln(args ...any)               { g.println(slog.LevelWarn, args) }
func (g grpcLogger) Warningf(format string, args ...any) { g.printf(slog.LevelWarn, format, args) }
func (g grpcLogger) Error(args ...any)                   { g.print(slog.LevelError, args) }
func (g grpcLogger) Errorln(args ...any)                 { g.println(slog.LevelError, args) }
func (g grpcLogger) Errorf(format string, args ...any)   { g.printf(slog.LevelError, format, args) }
func (g grpcLogger) Fatal(args ...any)                   { g.print(slog.LevelError, args) }
func (g grpcLogger) Fatalln(args ...any)                 { g.println(slog.LevelError, args) }
func (g grpcLogger) Fatalf(format string, args ...any)   { g.printf(slog.LevelError, format, args) }

// V disables the verbose messages of gRPC unless debug is enabled.
func (g grpcLogger) V(verbosity int) bool {
	return verbosity <= 0 || g.enabled(slog.LevelDebug)
}

// The three formatters check the level first, because gRPC logs on hot paths.

func (g grpcLogger) print(level slog.Level, args []any) {
	if g.enabled(level) {
		g.write(level, fmt.Sprint(args...))
	}
}

func (g grpcLogger) println(level slog.Level, args []any) {
	if g.enabled(level) {
		g.write(level, fmt.Sprintln(args...))
	}
}

func (g grpcLogger) printf(level slog.Level, format string, args []any) {
	if g.enabled(level) {
		g.write(level, fmt.Sprintf(format, args...))
	}
}

func (g grpcLogger) enabled(level slog.Level) bool {
	return g.logger.Enabled(context.Background(), level)
}

func (g grpcLogger) write(level slog.Level, message string) {
	g.logger.Log(context.Background(), level, strings.TrimSpace(message))
}
