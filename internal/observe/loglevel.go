package observe

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/internal/observe/loglevel"
)

const (
	// defaultLogLevelTime and maxLogLevelTime bound how long a changed level lasts, so that a
	// forgotten one does not fill a disk.
	defaultLogLevelTime = 10 * time.Minute
	maxLogLevelTime     = 24 * time.Hour
)

// LogLevel is the lowest level that a process logs. It is safe for concurrent use.
type LogLevel struct {
	configured slog.Level
	current    slog.LevelVar

	mu    sync.Mutex // guards all below
	timer *time.Timer
	until time.Time // zero while the level is the configured one
}

// NewLogLevel returns the level of cfg.
func NewLogLevel(cfg LogConfig) *LogLevel {
	l := &LogLevel{}
	l.configured, _ = level(cfg.Level)
	l.current.Set(l.configured)
	return l
}

// Set changes the level for a time, after which it is the configured one again.
func (l *LogLevel) Set(to slog.Level, last time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
	until := time.Now().Add(last)
	l.until = until
	l.current.Set(to)
	l.timer = time.AfterFunc(last, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.until.Equal(until) { // else another Set came first
			l.reset()
		}
	})
}

// Reset returns to the configured level.
func (l *LogLevel) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reset()
}

// reset needs l.mu.
func (l *LogLevel) reset() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	l.until = time.Time{}
	l.current.Set(l.configured)
}

// State returns the level now.
func (l *LogLevel) State() loglevel.State {
	l.mu.Lock()
	defer l.mu.Unlock()
	state := loglevel.State{Level: levelName(l.current.Level()), Configured: levelName(l.configured)}
	if !l.until.IsZero() {
		until := l.until.UTC()
		state.Until = &until
	}
	return state
}

func levelName(level slog.Level) string { return strings.ToLower(level.String()) }

// serve answers GET with the state. PUT changes the level to that of the query for the time "for",
// and DELETE returns to the configured one.
func (l *LogLevel) serve(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPut:
		to, last, err := parseLogLevel(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		l.Set(to, last)
	case http.MethodDelete:
		l.Reset()
	}
	body, err := json.Marshal(l.State())
	writeJSON(w, body, err)
}

func parseLogLevel(r *http.Request) (slog.Level, time.Duration, error) {
	query := r.URL.Query()
	name := query.Get("level")
	to, known := level(name)
	if !known || name == "" {
		return 0, 0, fmt.Errorf("level=%q is none of debug, info, warn, error", name)
	}
	text := query.Get("for")
	if text == "" {
		return to, defaultLogLevelTime, nil
	}
	last, err := time.ParseDuration(text)
	if err != nil || last <= 0 || last > maxLogLevelTime {
		return 0, 0, fmt.Errorf("for=%q is not a time such as 10m, %s at most", text, maxLogLevelTime)
	}
	return to, last, nil
}
