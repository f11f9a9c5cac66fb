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

// Sink takes in what Watch sees. Its methods are called from one goroutine; while they block, nothing more is read.
type Sink interface {
	// Begin tells all ranges that there are. What happened to them between the call before and this one is not known.
	Begin(values map[Name]Value)
	// Change tells one range after one change; the zero Value says that it is gone. No change is left out.
	Change(name Name, value Value)
	// Broken tells why ranges are not watched now; Begin follows when they are again.
	Broken(err error)
}

// Watch tells sink of all ranges, and of every change to them, until ctx ends. A watch that breaks begins anew by itself.
func (s *Store) Watch(ctx context.Context, sink Sink) {
	for ctx.Err() == nil {
		if err := s.watchOnce(ctx, sink); err != nil && ctx.Err() == nil {
			sink.Broken(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(rewatchPause):
		}
	}
}

func (s *Store) watchOnce(ctx context.Context, sink Sink) error {
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
	sink.Begin(values)
	for events := range s.client.Watch(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithRev(response.Header.Revision+1)) {
		if err := events.Err(); err != nil {
			return fmt.Errorf("watch ranges: %w: %w", ErrUnavailable, err)
		}
		s.tell(events.Events, sink)
	}
	return fmt.Errorf("watch ranges: %w: the watch ended", ErrUnavailable)
}

func (s *Store) tell(events []*clientv3.Event, sink Sink) {
	for _, event := range events {
		name, ok := s.nameOf(string(event.Kv.Key))
		switch {
		case !ok:
		case event.Type == clientv3.EventTypeDelete:
			sink.Change(name, Value{})
		default:
			sink.Change(name, valueOf(event.Kv.Value, event.Kv.ModRevision))
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
