package repairstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/term"
)

var (
	// ErrUnavailable: etcd did not answer, or not in time; a write may have happened.
	ErrUnavailable = errors.New("etcd unavailable")
	// ErrExists: what was to be written for the first time is there already; nothing was written.
	ErrExists = errors.New("written before")
)

// maxOps is how many keys one transaction writes; etcd refuses more than 128.
const maxOps = 100

// Client is what is needed of etcd. *clientv3.Client has it.
type Client interface {
	Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error)
	Txn(ctx context.Context) clientv3.Txn
}

// Store is that of one cluster.
type Store struct {
	client   Client
	findings string
	repairs  string
}

// New returns the journal of the cluster whose keys begin with clusterPrefix.
func New(client Client, clusterPrefix string) *Store {
	return &Store{client: client, findings: clusterPrefix + "findings/", repairs: clusterPrefix + "repairs/"}
}

// write is one key to be written or deleted.
type write struct {
	op clientv3.Op
	// once is the key, if it must not exist yet.
	once string
}

func put(key string, value any) (write, error) {
	encoded, err := json.Marshal(value)
	if err != nil {
		return write{}, fmt.Errorf("encode %s: %w", key, err)
	}
	return write{op: clientv3.OpPut(key, string(encoded))}, nil
}

func putOnce(key string, value any) (write, error) {
	w, err := put(key, value)
	w.once = key
	return w, err
}

// commit makes the writes under the term of ctx, in their order, so many at a time. An error leaves those before it made.
func (j *Store) commit(ctx context.Context, writes []write) error {
	for len(writes) > 0 {
		n := min(len(writes), maxOps)
		if err := j.commitBatch(ctx, writes[:n]); err != nil {
			return fmt.Errorf("write journal: %w", err)
		}
		writes = writes[n:]
	}
	return nil
}

func (j *Store) commitBatch(ctx context.Context, writes []write) error {
	held, ok := term.FromContext(ctx)
	if !ok {
		return term.ErrNone
	}
	if err := held.Check(); err != nil {
		return err
	}
	conditions, ops := []clientv3.Cmp{held.Guard()}, make([]clientv3.Op, 0, len(writes))
	for _, w := range writes {
		ops = append(ops, w.op)
		if w.once != "" {
			conditions = append(conditions, clientv3.Compare(clientv3.CreateRevision(w.once), "=", 0))
		}
	}
	response, err := j.client.Txn(ctx).If(conditions...).Then(ops...).
		Else(clientv3.OpTxn([]clientv3.Cmp{held.Guard()}, nil, nil)).Commit()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case response.Succeeded:
		return nil
	case !response.Responses[0].GetResponseTxn().Succeeded:
		return fmt.Errorf("%w: its key is gone from etcd", term.ErrEnded)
	default:
		return ErrExists
	}
}

// read calls each for every key below prefix, in the order of keys.
func (j *Store) read(ctx context.Context, prefix string, each func(name string, value []byte)) error {
	response, err := j.client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return fmt.Errorf("read journal: %w: %w", ErrUnavailable, err)
	}
	for _, kv := range response.Kvs {
		each(string(kv.Key[len(prefix):]), kv.Value)
	}
	return nil
}
