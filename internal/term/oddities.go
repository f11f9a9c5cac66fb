package term

import (
	"log/slog"
	"maps"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// oddities reports malformed keys, each once, and leaves them alone.
type oddities struct {
	logger   *slog.Logger
	reported map[string]bool
}

func newOddities(logger *slog.Logger) *oddities {
	return &oddities{logger: logger, reported: map[string]bool{}}
}

func (o *oddities) report(key []byte, problem string) {
	if o.reported[string(key)] {
		return
	}
	o.reported[string(key)] = true
	o.logger.Warn("ignoring a malformed key; delete it if nothing owns it", "key", string(key), "problem", problem)
}

// keep forgets the reports about keys that are not among entries, which are all there are.
func (o *oddities) keep(entries []*mvccpb.KeyValue) {
	present := make(map[string]bool, len(entries))
	for _, entry := range entries {
		present[string(entry.Key)] = true
	}
	maps.DeleteFunc(o.reported, func(key string, _ bool) bool { return !present[key] })
}
