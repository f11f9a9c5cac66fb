package term

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
)

// shardLog collects what happened to many shards at once, for one log line each kind instead of one
// line each shard. The zero value is empty.
type shardLog struct {
	kinds []shardEvents // in the order in which they were added
}

// shardEvents are shards with the same kind of event.
type shardEvents struct {
	kind       string
	attributes []any // of the first event
	shards     []int
}

// add adds a shard. Shards of the same kind share a line, with the attributes of the first one.
func (l *shardLog) add(shard int, kind string, attributes ...any) {
	i := slices.IndexFunc(l.kinds, func(e shardEvents) bool { return e.kind == kind })
	if i < 0 {
		i = len(l.kinds)
		l.kinds = append(l.kinds, shardEvents{kind: kind, attributes: attributes})
	}
	l.kinds[i].shards = append(l.kinds[i].shards, shard)
}

func (l *shardLog) info(logger *slog.Logger, message string) {
	l.write(logger, slog.LevelInfo, message)
}
func (l *shardLog) warn(logger *slog.Logger, message string) {
	l.write(logger, slog.LevelWarn, message)
}

func (l *shardLog) write(logger *slog.Logger, level slog.Level, message string) {
	for _, e := range l.kinds {
		attributes := append([]any{"count", len(e.shards), "shards", ranges(e.shards)}, e.attributes...)
		logger.Log(context.Background(), level, message, attributes...)
	}
}

// ranges returns shards in ascending order as text, such as "0-3,7".
func ranges(shards []int) string {
	sorted := slices.Sorted(slices.Values(shards))
	var parts []string
	for i := 0; i < len(sorted); {
		end := i
		for end+1 < len(sorted) && sorted[end+1] == sorted[end]+1 {
			end++
		}
		if end == i {
			parts = append(parts, fmt.Sprint(sorted[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", sorted[i], sorted[end]))
		}
		i = end + 1
	}
	return strings.Join(parts, ",")
}
