package repairstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
)

// rewatchPause is the time between the end of a watch and the next one.
const rewatchPause = time.Second

// RepairHandler receives what WatchRepairs reads. WatchRepairs calls its methods from one
// goroutine, and reads nothing while they block.
type RepairHandler interface {
	// OnList receives all readable repairs.
	OnList(repairs []Repair)
	// OnChange receives the repairs that changed, and the last states of those that were deleted.
	OnChange(changed, deleted []Repair)
	// OnError receives why the watch failed. OnList follows when it works again.
	OnError(err error)
}

// WatchRepairs calls handler with all repairs and then with every change, until ctx ends. It
// restarts a watch that fails.
func (s *Store) WatchRepairs(ctx context.Context, handler RepairHandler) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := s.watchRepairs(ctx, handler); err != nil && ctx.Err() == nil {
			handler.OnError(err)
		}
	}, rewatchPause)
}

func (s *Store) watchRepairs(ctx context.Context, handler RepairHandler) error {
	// Without this option, an isolated etcd member would keep a silent watch open forever.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	known := knownRepairs{parts: records{}, repairs: map[string]Repair{}}
	revision, err := s.read(ctx, s.repairs, func(name string, value []byte) { known.parts.put(name, value) })
	if err != nil {
		return err
	}
	for id, parts := range known.parts {
		if repair, err := decodeRepair(id, parts); err == nil {
			known.repairs[id] = repair
		}
	}
	handler.OnList(slices.Collect(maps.Values(known.repairs)))
	for events := range s.client.Watch(ctx, s.repairs, clientv3.WithPrefix(), clientv3.WithRev(revision+1)) {
		if err := events.Err(); err != nil {
			return fmt.Errorf("watch repairs: %w", guarded.ClassifyEtcd(err, ErrUnavailable))
		}
		if changed, deleted := known.apply(events.Events, s.repairs); len(changed)+len(deleted) > 0 {
			handler.OnChange(changed, deleted)
		}
	}
	return fmt.Errorf("watch repairs: %w: the watch ended", ErrUnavailable)
}

// knownRepairs are the repairs that a watch knows. An unreadable one is in parts only.
type knownRepairs struct {
	parts   records
	repairs map[string]Repair
}

// apply applies events of the keys below prefix, and returns what they changed.
func (k knownRepairs) apply(events []*clientv3.Event, prefix string) (changed, deleted []Repair) {
	touched := map[string]bool{}
	for _, event := range events {
		name := string(event.Kv.Key[len(prefix):])
		if event.Type == clientv3.EventTypeDelete {
			touched[k.parts.delete(name)] = true
		} else {
			touched[k.parts.put(name, event.Kv.Value)] = true
		}
	}
	for id := range touched {
		last, wasKnown := k.repairs[id]
		repair, err := decodeRepair(id, k.parts[id])
		switch {
		case err == nil:
			k.repairs[id] = repair
			changed = append(changed, repair)
		case wasKnown && len(k.parts[id]) == 0:
			delete(k.repairs, id)
			deleted = append(deleted, last)
		}
	}
	return changed, deleted
}
