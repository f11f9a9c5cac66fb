package rangestore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
)

var (
	// ErrUnavailable: etcd did not answer, or not in time. A write may have happened.
	ErrUnavailable = errors.New("etcd unavailable")
	// ErrConflict: the range changed after it was read. Nothing was written.
	ErrConflict = errors.New("range changed meanwhile")
)

// Name is the last part of a range's key.
type Name string

// The ranges of kube-apiserver.
const (
	NodePorts           Name = "servicenodeports"
	ClusterIPs          Name = "serviceips"
	SecondaryClusterIPs Name = "secondaryserviceips"
)

// Names returns all ranges.
func Names() []Name { return []Name{NodePorts, ClusterIPs, SecondaryClusterIPs} }

// Client has the methods of *clientv3.Client that a Store calls.
type Client interface {
	Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error)
	Txn(ctx context.Context) clientv3.Txn
	Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan
}

// Value is the value of a key at one revision.
type Value struct {
	Range Range
	// ModRevision is the key's modification revision, 0 if the key does not exist.
	ModRevision int64
	// Unreadable says why Range is not set. It is empty if Range is set or the key does not exist.
	Unreadable string
}

// Store reads and writes the ranges in one kube-apiserver's etcd.
type Store struct {
	client Client
	// root is kube-apiserver's prefix, and prefix the prefix of its ranges.
	root, prefix string
}

// New returns the store below the prefix of kube-apiserver's flag --etcd-prefix, by default
// "/registry".
func New(client Client, etcdPrefix string) *Store {
	root := "/" + strings.Trim(etcdPrefix, "/")
	return &Store{client: client, root: root, prefix: root + "/ranges/"}
}

// Read returns one range by a linearizable read. An absent or unreadable range is not an error.
func (s *Store) Read(ctx context.Context, name Name) (Value, error) {
	response, err := s.client.Get(ctx, s.prefix+string(name))
	if err != nil {
		return Value{}, fmt.Errorf("read range %s: %w: %w", name, ErrUnavailable, err)
	}
	if len(response.Kvs) == 0 {
		return Value{}, nil
	}
	return valueOf(response.Kvs[0].Value, response.Kvs[0].ModRevision), nil
}

func valueOf(raw []byte, revision int64) Value {
	decoded, err := Decode(raw)
	if err != nil {
		return Value{ModRevision: revision, Unreadable: err.Error()}
	}
	return Value{Range: decoded, ModRevision: revision}
}

// CompareAndSwap writes next if the key still has the revision, and returns the new revision. ctx
// carries the term. The error wraps term.ErrNone or term.ErrEnded without a term, and ErrConflict
// if the key has another revision.
func (s *Store) CompareAndSwap(ctx context.Context, name Name, revision int64, next Range) (int64, error) {
	if revision <= 0 {
		return 0, fmt.Errorf("write range %s: only a range that exists can be written: %w", name, ErrConflict)
	}
	encoded, err := next.Encode()
	if err != nil {
		return 0, fmt.Errorf("write range %s: %w", name, err)
	}
	key := s.prefix + string(name)
	written, err := guarded.Transaction{
		Conditions: []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", revision)},
		Writes:     []clientv3.Op{clientv3.OpPut(key, string(encoded))},
		Conflict:   ErrConflict, Unavailable: ErrUnavailable,
	}.Commit(ctx, s.client.Txn)
	if err != nil {
		return 0, fmt.Errorf("write range %s: %w", name, err)
	}
	return written, nil
}
