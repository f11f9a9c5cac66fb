package term

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestShardLog_OneLineForEachKind(t *testing.T) {
	var text bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
	var log shardLog
	for _, shard := range []int{5, 3, 4, 9, 0} {
		log.add(shard, "moved", "reason", "moved to b")
	}
	log.add(7, "stops", "reason", "stops")
	log.info(logger, "shards given up")
	want := `level=INFO msg="shards given up" count=5 shards=0,3-5,9 reason="moved to b"
level=INFO msg="shards given up" count=1 shards=7 reason=stops
`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}
