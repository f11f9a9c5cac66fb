package rangestore

import (
	"context"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// rewatchPause is the time between the end of a watch and the next one.
const rewatchPause = time.Second

// Handler receives what Watch reads. Watch calls its methods from one goroutine, and reads nothing
// while they block.
type Handler interface {
	// OnList receives all existing ranges. Changes between the previous call and this one may have
	// been missed.
	OnList(values map[Name]Value)
	// OnChange receives one range after each change. The zero Value means that the key was deleted.
	OnChange(name Name, value Value)
	// OnError receives why the watch failed. OnList follows when it works again.
	OnError(err error)
}

// Watch calls handler with all ranges and then with every change, until ctx ends. It restarts a
// watch that fails.
func (s *Store) Watch(ctx context.Context, handler Handler) {
	for ctx.Err() == nil {
		if err := s.watchOnce(ctx, handler); err != nil && ctx.Err() == nil {
			handler.OnError(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(rewatchPause):
		}
	}
}

func (s *Store) watchOnce(ctx context.Context, handler Handler) error {
	// Without this option, an isolated etcd member would keep a silent watch open forever.
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
	handler.OnList(values)
	for events := range s.client.Watch(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithRev(response.Header.Revision+1)) {
		if err := events.Err(); err != nil {
			return fmt.Errorf("watch ranges: %w: %w", ErrUnavailable, err)
		}
		s.dispatch(events.Events, handler)
	}
	return fmt.Errorf("watch ranges: %w: the watch ended", ErrUnavailable)
}

func (s *Store) dispatch(events []*clientv3.Event, handler Handler) {
	for _, event := range events {
		name, ok := s.nameOf(string(event.Kv.Key))
		switch {
		case !ok:
		case event.Type == clientv3.EventTypeDelete:
			handler.OnChange(name, Value{})
		default:
			handler.OnChange(name, valueOf(event.Kv.Value, event.Kv.ModRevision))
		}
	}
}

// nameOf returns false for a key that is not a range of Services.
func (s *Store) nameOf(key string) (Name, bool) {
	name := Name(strings.TrimPrefix(key, s.prefix))
	switch name {
	case NodePorts, ClusterIPs, SecondaryClusterIPs:
		return name, true
	default:
		return "", false
	}
}
