package sessioncontroller

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/term"
)

// ErrTermEnded reports a write that was not made because the term has ended.
var ErrTermEnded = errors.New("the term has ended")

// CheckpointStore keeps the checkpoints of shards in etcd. The key is
// /trivet/<cluster>/checkpoints/leasesvc/<shard>, the value is that of package checkpoint. It is
// bound to no etcd lease, because it must outlive the replica that wrote it.
//
// Only the leader of a shard writes: a write is a transaction that fails after the term has
// ended. Reads are linearizable, so the next leader of the shard reads the last value. A
// CheckpointStore is safe for concurrent use; its methods block until etcd answers or their context
// ends.
type CheckpointStore struct {
	client clientv3.KV
	prefix string
}

// NewCheckpointStore returns the CheckpointStore of a service.
func NewCheckpointStore(client clientv3.KV, cluster, service string) *CheckpointStore {
	return &CheckpointStore{client: client, prefix: etcdconn.KeyPrefix(cluster) + "checkpoints/" + service + "/"}
}

func (s *CheckpointStore) key(shard int) string { return s.prefix + strconv.Itoa(shard) }

// Read returns the checkpoint of a shard; nil if there is none.
func (s *CheckpointStore) Read(ctx context.Context, shard int) ([]byte, error) {
	response, err := s.client.Get(ctx, s.key(shard))
	if err != nil {
		return nil, fmt.Errorf("read checkpoint of shard %d: %w", shard, err)
	}
	if len(response.Kvs) == 0 {
		return nil, nil
	}
	// etcd returns an empty value as nil; it must differ from a missing key.
	return append([]byte{}, response.Kvs[0].Value...), nil
}

// Put stores the checkpoint of the term's shard. After ErrTermEnded it was not stored; after other
// errors it may have been.
func (s *CheckpointStore) Put(ctx context.Context, t *term.Term, value []byte) error {
	return s.write(ctx, t, clientv3.OpPut(s.key(t.Shard()), string(value)))
}

// Delete removes the checkpoint of the term's shard, if there is one. Its errors are those of Put.
func (s *CheckpointStore) Delete(ctx context.Context, t *term.Term) error {
	return s.write(ctx, t, clientv3.OpDelete(s.key(t.Shard())))
}

func (s *CheckpointStore) write(ctx context.Context, t *term.Term, op clientv3.Op) error {
	if err := t.Check(); err != nil {
		return fmt.Errorf("write checkpoint of shard %d: %w: %w", t.Shard(), ErrTermEnded, err)
	}
	response, err := s.client.Txn(ctx).If(t.Guard()).Then(op).Commit()
	if err != nil {
		return fmt.Errorf("write checkpoint of shard %d: %w", t.Shard(), err)
	}
	if !response.Succeeded {
		return fmt.Errorf("write checkpoint of shard %d at epoch %d: %w", t.Shard(), t.Epoch(), ErrTermEnded)
	}
	return nil
}
