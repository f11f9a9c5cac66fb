package masterlease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ErrUnavailable is that etcd did not answer, or not in time.
var ErrUnavailable = errors.New("etcd unavailable")

// Client is what is needed of etcd. *clientv3.Client has it.
type Client interface {
	Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error)
	TimeToLive(ctx context.Context, id clientv3.LeaseID, opts ...clientv3.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error)
}

// Key is one key as it was read.
type Key struct {
	// Key is the whole etcd key.
	Key string
	// Address is what the value names; the zero Addr if it cannot be read.
	Address netip.Addr
	// Leased is whether the key has a lease, Alive whether etcd knows that lease. A server that lives has both.
	Leased, Alive bool
	// TTL is what was left of the lease.
	TTL time.Duration
	// Unreadable says why the value could not be read; empty if it could.
	Unreadable string
}

// Reader reads the keys of one cluster.
type Reader struct {
	client Client
	prefix string
}

// New returns a reader of the keys of kube-apiservers that run with this --etcd-prefix. It contacts nobody.
func New(client Client, etcdPrefix string) *Reader {
	return &Reader{client: client, prefix: path.Join("/", etcdPrefix, "masterleases") + "/"}
}

// Read returns all keys, ordered by address, as one linearizable read saw them, and what is left of their leases.
func (r *Reader) Read(ctx context.Context) ([]Key, error) {
	response, err := r.client.Get(ctx, r.prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("read master leases below %s: %w: %w", r.prefix, ErrUnavailable, err)
	}
	keys := make([]Key, 0, len(response.Kvs))
	for _, kv := range response.Kvs {
		key := Key{Key: string(kv.Key), Leased: kv.Lease != int64(clientv3.NoLease)}
		if key.Address, err = decode(kv.Value); err != nil {
			key.Unreadable = err.Error()
		}
		if key.TTL, err = r.timeToLive(ctx, clientv3.LeaseID(kv.Lease)); err != nil {
			return nil, fmt.Errorf("read the lease of %s: %w", key.Key, err)
		}
		key.Alive = key.TTL > 0
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b Key) int {
		return cmp.Or(a.Address.Compare(b.Address), strings.Compare(a.Key, b.Key))
	})
	return keys, nil
}

// timeToLive is at least a second for a lease that etcd knows: in its last one it says 0.
func (r *Reader) timeToLive(ctx context.Context, id clientv3.LeaseID) (time.Duration, error) {
	if id == clientv3.NoLease {
		return 0, nil
	}
	response, err := r.client.TimeToLive(ctx, id)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if response.TTL < 0 {
		return 0, nil // gone since the key was read, or never known to this etcd
	}
	return time.Duration(max(response.TTL, 1)) * time.Second, nil
}
