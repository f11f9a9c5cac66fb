package apiserverscontroller

import (
	"context"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// rewatchPause is how long a watch that broke waits before it begins anew.
const rewatchPause = time.Second

// Watch calls changed whenever the set of ready apiservers may have changed, and each time it begins to watch, because
// something may have happened before. It blocks until ctx ends; a watch that breaks begins anew by itself. changed must
// not block.
func (r *Registry) Watch(ctx context.Context, changed func()) {
	for ctx.Err() == nil {
		r.watchOnce(ctx, changed)
		select {
		case <-ctx.Done():
		case <-time.After(rewatchPause):
		}
	}
}

func (r *Registry) watchOnce(ctx context.Context, changed func()) {
	// Without a leader, a member of etcd that is cut off would keep a silent watch open for ever.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	events := r.client.Watch(ctx, r.prefix, clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithCreatedNotify())
	for response := range events {
		if response.Err() != nil {
			return
		}
		if response.Created || r.matters(response.Events) {
			changed()
		}
	}
}

// matters tells a server that comes, goes or changes from one that merely says again how it is.
func (r *Registry) matters(events []*clientv3.Event) bool {
	for _, event := range events {
		if event.Type != clientv3.EventTypePut || event.PrevKv == nil {
			return true
		}
		name := strings.TrimPrefix(string(event.Kv.Key), r.prefix)
		now, before := decodeEntry(name, event.Kv.Value), decodeEntry(name, event.PrevKv.Value)
		now.Detail, now.ProbeTime, now.ReplicaID = before.Detail, before.ProbeTime, before.ReplicaID
		if now != before {
			return true
		}
	}
	return false
}
