package rangestore

import (
	"context"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// rewatchPause is how long a watch that broke waits before it begins anew.
const rewatchPause = time.Second

// Handler takes in what Watch sees. Its methods are called from one goroutine; while they block, nothing more is read.
type Handler interface {
	// OnList tells all ranges that there are. What happened to them between the call before and this one is not known.
	OnList(values map[Name]Value)
	// OnChange tells one range after one change; the zero Value says that it is gone. No change is left out.
	OnChange(name Name, value Value)
	// OnError tells why ranges are not watched now; Begin follows when they are again.
	OnError(err error)
}

// Watch tells sink of all ranges, and of every change to them, until ctx ends. A watch that breaks begins anew by itself.
func (s *Store) Watch(ctx context.Context, sink Handler) {
	for ctx.Err() == nil {
		if err := s.watchOnce(ctx, sink); err != nil && ctx.Err() == nil {
			sink.OnError(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(rewatchPause):
		}
	}
}

func (s *Store) watchOnce(ctx context.Context, sink Handler) error {
	// Without a leader, a member of etcd that is cut off would keep a silent watch open for ever.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	response, err := s.client.Get(ctx, s.prefix, clientv3.WithPrefix())
	if err != nil {
		return fmt.Errorf("read ranges: %w: %w", ErrUnavailable, err)
	}
	values := map[Name]Value{}
	for _, kv := range response.Kvs {
		if name, ok := s.nameOf(string(kv.Key)); ok {
			values[name] = valueOf(kv.Value, kv.ModRevision)
		}
	}
	sink.OnList(values)
	for events := range s.client.Watch(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithRev(response.Header.Revision+1)) {
		if err := events.Err(); err != nil {
			return fmt.Errorf("watch ranges: %w: %w", ErrUnavailable, err)
		}
		s.tell(events.Events, sink)
	}
	return fmt.Errorf("watch ranges: %w: the watch ended", ErrUnavailable)
}

func (s *Store) tell(events []*clientv3.Event, sink Handler) {
	for _, event := range events {
		name, ok := s.nameOf(string(event.Kv.Key))
		switch {
		case !ok:
		case event.Type == clientv3.EventTypeDelete:
			sink.OnChange(name, Value{})
		default:
			sink.OnChange(name, valueOf(event.Kv.Value, event.Kv.ModRevision))
		}
	}
}

// nameOf leaves out keys that are no range of Services.
func (s *Store) nameOf(key string) (Name, bool) {
	name := Name(strings.TrimPrefix(key, s.prefix))
	switch name {
	case NodePorts, ClusterIPs, SecondaryClusterIPs:
		return name, true
	default:
		return "", false
	}
}
