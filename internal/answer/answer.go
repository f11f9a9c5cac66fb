// Package answer has what the answers of all services say of themselves: which replica made them,
// from what, and how fresh that was.
package answer

import (
	"cmp"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// Cache says how fresh the cache of one kind of objects is.
type Cache struct {
	// Kind is the kind as Kubernetes writes it, for example "Pod".
	Kind string
	// ResourceVersion is the newest one that a list or the watch has shown; "" before the first.
	ResourceVersion string
	// Heard is when kube-apiserver last completed a list or sent an event. It sends a bookmark
	// about once a minute. It is zero before the first answer.
	Heard time.Time
}

// Replica is what answers.
type Replica struct{ Service, ID string }

// Source returns the source of an answer that the replica makes now from caches, and as the leader
// of shards: at epoch, the newest of their terms, or 0 without one. It must be made before what
// it vouches for is read, so that it never claims too much.
func (r Replica) Source(epoch int64, shards []int, caches ...Cache) *metav1.Source {
	now := time.Now()
	source := &metav1.Source{Service: r.Service, ReplicaId: r.ID, Epoch: epoch, ReadTime: timestamppb.New(now)}
	for _, shard := range shards {
		source.Shards = append(source.Shards, int32(shard))
	}
	for _, cache := range caches {
		status := &metav1.CacheStatus{Kind: cache.Kind, ResourceVersion: cache.ResourceVersion}
		if !cache.Heard.IsZero() {
			status.Lag = durationpb.New(max(now.Sub(cache.Heard), 0))
		}
		source.Caches = append(source.Caches, status)
	}
	return source
}

// PageSize returns the number of items of a page: the requested number up to most, or standard for
// none.
func PageSize(requested int32, standard, most int) int {
	return min(cmp.Or(max(int(requested), 0), standard), most)
}
