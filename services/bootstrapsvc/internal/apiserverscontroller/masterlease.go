package apiserverscontroller

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// MasterLease is one key as it was read.
type MasterLease struct {
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

// MasterLeaseReader reads the keys of one cluster.
type MasterLeaseReader struct {
	client Etcd
	prefix string
}

// NewMasterLeaseReader returns a reader of the keys of kube-apiservers that run with this --etcd-prefix. It contacts nobody.
func NewMasterLeaseReader(client Etcd, etcdPrefix string) *MasterLeaseReader {
	return &MasterLeaseReader{client: client, prefix: path.Join("/", etcdPrefix, "masterleases") + "/"}
}

// Read returns all keys, ordered by address, as one linearizable read saw them, and what is left of their leases.
func (r *MasterLeaseReader) Read(ctx context.Context) ([]MasterLease, error) {
	response, err := r.client.Get(ctx, r.prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("read master leases below %s: %w: %w", r.prefix, ErrUnavailable, err)
	}
	keys := make([]MasterLease, 0, len(response.Kvs))
	for _, kv := range response.Kvs {
		key := MasterLease{Key: string(kv.Key), Leased: kv.Lease != int64(clientv3.NoLease)}
		if key.Address, err = decodeMasterLease(kv.Value); err != nil {
			key.Unreadable = err.Error()
		}
		if key.TTL, err = r.timeToLive(ctx, clientv3.LeaseID(kv.Lease)); err != nil {
			return nil, fmt.Errorf("read the lease of %s: %w", key.Key, err)
		}
		key.Alive = key.TTL > 0
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b MasterLease) int {
		return cmp.Or(a.Address.Compare(b.Address), strings.Compare(a.Key, b.Key))
	})
	return keys, nil
}

// timeToLive is at least a second for a lease that etcd knows: in its last one it says 0.
func (r *MasterLeaseReader) timeToLive(ctx context.Context, id clientv3.LeaseID) (time.Duration, error) {
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
