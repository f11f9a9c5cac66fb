package terms

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/test/faults/terms/internal/history"
)

// recorder records all changes in etcd from the first revision on. Compactions wait for it, so it
// misses none.
type recorder struct {
	mu       sync.Mutex // guards the following fields
	revision int64
	versions []history.Version
	claims   []history.Claim
	current  map[int]int // index into claims, by shard
	err      error
}

// follow watches until ctx ends.
func (r *recorder) follow(ctx context.Context, client *clientv3.Client) {
	for ctx.Err() == nil {
		for answer := range client.Watch(ctx, etcdconn.KeyPrefix(cluster), clientv3.WithPrefix(), clientv3.WithRev(r.lastRevision()+1)) {
			if err := answer.Err(); err != nil {
				r.fail(err)
				return
			}
			r.record(answer.Events)
		}
	}
}

// fail records an error that makes the record incomplete.
func (r *recorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = errors.Join(r.err, err)
}

func (r *recorder) record(events []*clientv3.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, event := range events {
		key, revision := string(event.Kv.Key), event.Kv.ModRevision
		var err error
		if suffix, ok := strings.CutPrefix(key, registersPrefix()); ok {
			err = r.recordVersion(suffix, event)
		} else if suffix, ok := strings.CutPrefix(key, termsPrefix()); ok {
			err = r.recordClaim(suffix, event)
		}
		if err != nil {
			r.err = errors.Join(r.err, fmt.Errorf("key %s: %w", key, err))
		}
		r.revision = max(r.revision, revision)
	}
}

func (r *recorder) recordVersion(suffix string, event *clientv3.Event) error {
	shard, err := strconv.Atoi(suffix)
	if err != nil {
		return err
	}
	register, err := parse(event.Kv.Value)
	r.versions = append(r.versions, history.Version{Shard: shard, Revision: event.Kv.ModRevision, Register: register})
	return err
}

func (r *recorder) recordClaim(suffix string, event *clientv3.Event) error {
	shard, err := strconv.Atoi(suffix)
	if err != nil {
		return err
	}
	if event.Type == clientv3.EventTypeDelete {
		r.claims[r.current[shard]].Gone = event.Kv.ModRevision
		delete(r.current, shard)
		return nil
	}
	if !event.IsCreate() {
		return errors.New("a term key was modified")
	}
	r.current[shard] = len(r.claims)
	r.claims = append(r.claims, history.Claim{Shard: shard, Holder: string(event.Kv.Value), Epoch: event.Kv.CreateRevision})
	return nil
}

func (r *recorder) lastRevision() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.revision
}

// holders returns the current holder of each claimed shard.
func (r *recorder) holders() map[int]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	holders := map[int]string{}
	for shard, i := range r.current {
		holders[shard] = r.claims[i].Holder
	}
	return holders
}

// recorded returns copies of all versions and claims so far.
func (r *recorder) recorded() ([]history.Version, []history.Claim, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.versions), slices.Clone(r.claims), r.err
}
