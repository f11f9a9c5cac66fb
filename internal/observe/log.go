package observe

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/pflag"
)

// LogConfig configures the log. The zero value logs "info" and above, as text.
type LogConfig struct {
	// Level is the lowest level logged: debug, info, warn or error.
	Level string
	// Format is text or json.
	Format string
}

// RegisterFlags adds --log-level and --log-format.
func (c *LogConfig) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Level, "log-level", cmp.Or(c.Level, "info"), "Lowest level that is logged: debug, info, warn or error.")
	fs.StringVar(&c.Format, "log-format", cmp.Or(c.Format, "text"), "Format of the log: text or json.")
}

// Validate returns all problems of c.
func (c *LogConfig) Validate() []error {
	var problems []error
	if _, ok := level(c.Level); !ok {
		problems = append(problems, fmt.Errorf("--log-level %q is none of debug, info, warn, error", c.Level))
	}
	switch c.Format {
	case "", "text", "json":
	default:
		problems = append(problems, fmt.Errorf("--log-format %q is neither text nor json", c.Format))
	}
	return problems
}

// NewLogger returns a logger that writes to w. Invalid values of cfg mean the defaults.
func NewLogger(w io.Writer, cfg LogConfig) *slog.Logger {
	return NewLoggerAt(w, cfg, NewLogLevel(cfg))
}

// NewLoggerAt is NewLogger with a level that may change.
func NewLoggerAt(w io.Writer, cfg LogConfig, lowest *LogLevel) *slog.Logger {
	options := &slog.HandlerOptions{Level: &lowest.current}
	if cfg.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// level returns the slog level with that name; the empty name means info.
func level(name string) (slog.Level, bool) {
	switch name {
	case "debug":
		return slog.LevelDebug, true
	case "info", "":
		return slog.LevelInfo, true
	case "warn":
		return slog.LevelWarn, true
	case "error":
		return slog.LevelError, true
	default:
		return slog.LevelInfo, false
	}
}
