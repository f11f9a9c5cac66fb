// Package checkpointstore keeps the checkpoints of shards in etcd.
//
// Key /trivet/<cluster>/checkpoints/leasesvc/<shard>; the value is package checkpoint's, and bound to no lease: it outlives its
// writer, which is what it is for. Only the holder of the shard's term writes, in transactions that the end of the term makes
// void; so the last word is that of the last holder. Reads are linearizable: who has claimed the shard sees that word.
//
// The package keeps no state and starts no goroutine. Its methods are safe for concurrent use, and block until etcd answers or
// their context ends.
package checkpointstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/term"
)

// ErrOver says that the term under which was to be written is over, as etcd knows.
var ErrTermEnded = errors.New("the term is over")

// Client is what is needed of etcd. *clientv3.Client has it.
type Client interface {
	Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error)
	Txn(ctx context.Context) clientv3.Txn
}

// Store reads and writes the checkpoints of one service in one cluster.
type Store struct {
	client Client
	prefix string
}

// New returns the store of a service.
func New(client Client, cluster, service string) *Store {
	return &Store{client: client, prefix: term.Prefix(cluster) + "checkpoints/" + service + "/"}
}

func (s *Store) key(shard int) string { return s.prefix + strconv.Itoa(shard) }

// Read returns what is stored of a shard; nil when nothing is.
func (s *Store) Read(ctx context.Context, shard int) ([]byte, error) {
	response, err := s.client.Get(ctx, s.key(shard))
	if err != nil {
		return nil, fmt.Errorf("read checkpoint of shard %d: %w", shard, err)
	}
	if len(response.Kvs) == 0 {
		return nil, nil
	}
	// An empty value, which arrives as nil, is something that somebody stored.
	return append([]byte{}, response.Kvs[0].Value...), nil
}

// Put stores a value for the shard of a term. With ErrOver it was not stored; after other errors it may have been.
func (s *Store) Put(ctx context.Context, t *term.Term, value []byte) error {
	return s.write(ctx, t, clientv3.OpPut(s.key(t.Shard()), string(value)))
}

// Delete removes what is stored for the shard of a term; there may be nothing. Its errors are those of Put.
func (s *Store) Delete(ctx context.Context, t *term.Term) error {
	return s.write(ctx, t, clientv3.OpDelete(s.key(t.Shard())))
}

func (s *Store) write(ctx context.Context, t *term.Term, op clientv3.Op) error {
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
