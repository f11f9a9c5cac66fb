package observe

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
)

// Bridge redirects klog (client-go) and grpclog to logger. Both have a process-wide variable
// without a lock, so call Bridge once, before any client or server exists.
func Bridge(logger *slog.Logger) {
	klog.SetSlogLogger(logger.With(slog.String("source", "client-go")))
	grpclog.SetLoggerV2(grpcLogger{logger: logger.With(slog.String("source", "grpc")), repeats: newRepeats()})
}

// grpcLogger is a grpclog.LoggerV2 on slog. gRPC's info messages report each step of a connection
// and become debug. Fatal becomes error, after which gRPC ends the process. gRPC logs warnings and
// errors for each connection, so of messages that are alike one is logged in repeatPeriod, with the
// number of the messages that were left out; at debug all are logged.
type grpcLogger struct {
	logger  *slog.Logger
	repeats *repeats
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
	message = strings.TrimSpace(message)
	var attributes []any
	if level > slog.LevelDebug && !g.enabled(slog.LevelDebug) {
		leftOut, wanted := g.repeats.observe(time.Now(), message)
		if !wanted {
			return
		}
		if leftOut > 0 {
			attributes = append(attributes, slog.Int("similar_left_out", leftOut))
		}
	}
	g.logger.Log(context.Background(), level, message, attributes...)
}

const (
	// repeatPeriod is the time between two messages of one kind.
	repeatPeriod = 10 * time.Second
	// kindLength bounds the part of a message that decides about its kind, in bytes.
	kindLength = 1000
	// kindsLimit bounds the remembered kinds.
	kindsLimit = 100
)

// repeats limits messages of the same kind. It is safe for concurrent use.
type repeats struct {
	mu    sync.Mutex // guards kinds
	kinds map[string]*repeated
}

type repeated struct {
	logged  time.Time
	leftOut int
}

func newRepeats() *repeats { return &repeats{kinds: map[string]*repeated{}} }

// observe says whether a message should be logged, and how many of its kind were left out before.
func (r *repeats) observe(now time.Time, message string) (leftOut int, wanted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kind := kindOf(message)
	known := r.kinds[kind]
	if known == nil {
		if len(r.kinds) >= kindsLimit {
			clear(r.kinds)
		}
		r.kinds[kind] = &repeated{logged: now}
		return 0, true
	}
	if now.Sub(known.logged) < repeatPeriod {
		known.leftOut++
		return 0, false
	}
	leftOut, known.leftOut, known.logged = known.leftOut, 0, now
	return leftOut, true
}

// variable matches what differs between messages of one kind: connections in brackets, and words
// with a digit, such as addresses, ports and identifiers.
var variable = regexp.MustCompile(`\[[^\]]*\]|[\w.:%/-]*[0-9][\w.:%/-]*`)

// kindOf returns a message without its variable parts. The cause, which is at the end of most
// messages of gRPC, belongs to the kind.
func kindOf(message string) string {
	return variable.ReplaceAllLiteralString(message[:min(len(message), kindLength)], "#")
}
