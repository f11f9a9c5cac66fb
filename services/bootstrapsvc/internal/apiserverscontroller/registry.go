package apiserverscontroller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trivet-dev/trivet/internal/wording"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
)

const (
	// leftTTL is how long a key that is marked as left stays: long enough for any leader to act on
	// it.
	leftTTL = time.Minute
	// rewatchPause is the pause before a watch that ended starts again.
	rewatchPause = time.Second
)

var (
	// ErrUnavailable: etcd did not answer, or not in time.
	ErrUnavailable = errors.New("etcd unavailable")
	// ErrTaken: another live replica writes the key of this address.
	ErrTaken = errors.New("address is taken")
	// ErrConflict: the key changed between read and write; try again.
	ErrConflict = errors.New("key has changed")
)

// Etcd has the methods of *clientv3.Client that this package uses.
type Etcd interface {
	Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error)
	Txn(ctx context.Context) clientv3.Txn
	Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan
	Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error)
	TimeToLive(ctx context.Context, id clientv3.LeaseID, opts ...clientv3.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error)
}

// Registry reads and writes the keys of sidecars in one cluster. It keeps no state, starts no
// goroutine and is safe for concurrent use. Its methods block until etcd answers or ctx ends.
// Errors wrap ErrUnavailable if etcd did not answer, and guarded.ErrEtcdDenied if it denies access.
type Registry struct {
	client  Etcd
	prefix  string
	replica string
	// suffix follows the address in this replica's key: the replica, if several share the address.
	suffix string
}

// NewRegistry returns the registry of the cluster whose keys begin with clusterPrefix. replicaID is
// the replica that writes.
func NewRegistry(client Etcd, clusterPrefix, replicaID string) *Registry {
	return &Registry{client: client, prefix: clusterPrefix + "apiservers/", replica: replicaID}
}

// NewSharedRegistry is NewRegistry for a replica whose kube-apiserver shares its address with
// others. Its key has a name of its own below the address.
func NewSharedRegistry(client Etcd, clusterPrefix, replicaID string) *Registry {
	shared := NewRegistry(client, clusterPrefix, replicaID)
	shared.suffix = "/" + replicaID
	return shared
}

func (r *Registry) name(address netip.Addr) string { return address.String() + r.suffix }

func (r *Registry) key(address netip.Addr) string { return r.prefix + r.name(address) }

// Key is the etcd key of an entry that this registry has read.
func (r *Registry) Key(entry Entry) string { return r.prefix + entry.Name }

// Read returns all entries without TTLs, ordered by address, from one linearizable read.
func (r *Registry) Read(ctx context.Context) ([]Entry, error) {
	response, err := r.client.Get(ctx, r.prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("read apiserver keys: %w", failed(err))
	}
	entries := make([]Entry, 0, len(response.Kvs))
	for _, kv := range response.Kvs {
		entry := decodeEntry(strings.TrimPrefix(string(kv.Key), r.prefix), kv.Value)
		entry.lease = clientv3.LeaseID(kv.Lease)
		entry.Leased = entry.lease != clientv3.NoLease
		entries = append(entries, entry)
	}
	slices.SortFunc(entries, func(a, b Entry) int {
		return cmp.Or(a.Address.Compare(b.Address), strings.Compare(a.Name, b.Name))
	})
	return entries, nil
}

// List is Read with TTLs.
func (r *Registry) List(ctx context.Context) ([]Entry, error) {
	entries, err := r.Read(ctx)
	if err != nil {
		return nil, err
	}
	for i := range entries {
		if entries[i].TTL, err = timeToLive(ctx, r.client, entries[i].lease); err != nil {
			return nil, fmt.Errorf("read lease of apiserver key %s: %w", entries[i].Name, err)
		}
	}
	return entries, nil
}

// timeToLive is 0 for a lease that etcd does not know and at least a second otherwise: in the last
// second of a lease, etcd answers 0.
func timeToLive(ctx context.Context, client Etcd, id clientv3.LeaseID) (time.Duration, error) {
	if id == clientv3.NoLease {
		return 0, nil
	}
	response, err := client.TimeToLive(ctx, id)
	if err != nil {
		return 0, failed(err)
	}
	if response.TTL < 0 {
		return 0, nil // it expired after the key was read, or etcd never knew it
	}
	return time.Duration(max(response.TTL, 1)) * time.Second, nil
}

// Publish writes this replica's entry, bound to its session. The error wraps ErrTaken if another
// replica wrote the key, and ErrConflict if the key changed at the same moment.
func (r *Registry) Publish(ctx context.Context, entry Entry, session clientv3.LeaseID) error {
	key := r.key(entry.Address)
	encoded, err := encodeEntry(entry)
	if err != nil {
		return fmt.Errorf("encode apiserver key %s: %w", key, err)
	}
	revision, owner, err := r.owner(ctx, entry.Address)
	if err != nil {
		return err
	}
	if revision != 0 && owner != r.replica {
		return fmt.Errorf("publish apiserver %s: replica %q publishes the same address; give each sidecar "+
			"its own --apiserver-advertise-address: %w", entry.Address, owner, ErrTaken)
	}
	return r.compareAndSwap(ctx, key, revision, clientv3.OpPut(key, encoded, clientv3.WithLease(session)))
}

// DeleteStale deletes the key of this replica's address if another replica wrote it, such as an
// earlier process of this sidecar, readable or not. It returns whether there was such a key.
func (r *Registry) DeleteStale(ctx context.Context, address netip.Addr) (bool, error) {
	return r.delete(ctx, address, func(owner string) bool { return owner != r.replica })
}

func (r *Registry) delete(ctx context.Context, address netip.Addr, isMeant func(owner string) bool) (bool, error) {
	revision, owner, err := r.owner(ctx, address)
	if err != nil || revision == 0 || !isMeant(owner) {
		return false, err
	}
	key := r.key(address)
	return true, r.compareAndSwap(ctx, key, revision, clientv3.OpDelete(key))
}

// MarkLeft writes into this replica's key that the sidecar stopped in good order. The key then
// expires after a minute, or when the sidecar starts again. A missing key, or the key of another
// replica, is no error.
func (r *Registry) MarkLeft(ctx context.Context, entry Entry) error {
	key := r.key(entry.Address)
	revision, owner, err := r.owner(ctx, entry.Address)
	if err != nil || revision == 0 || owner != r.replica {
		return err
	}
	entry.Ready, entry.Left = false, true
	encoded, err := encodeEntry(entry)
	if err != nil {
		return fmt.Errorf("encode apiserver key %s: %w", key, err)
	}
	granted, err := r.client.Grant(ctx, int64(leftTTL/time.Second))
	if err != nil {
		return fmt.Errorf("grant a lease for apiserver key %s: %w", key, failed(err))
	}
	return r.compareAndSwap(ctx, key, revision, clientv3.OpPut(key, encoded, clientv3.WithLease(granted.ID)))
}

// owner returns the key's revision, 0 if it does not exist, and the replica that wrote it.
func (r *Registry) owner(ctx context.Context, address netip.Addr) (int64, string, error) {
	key := r.key(address)
	response, err := r.client.Get(ctx, key)
	if err != nil {
		return 0, "", fmt.Errorf("read apiserver key %s: %w", key, failed(err))
	}
	if len(response.Kvs) == 0 {
		return 0, "", nil
	}
	kv := response.Kvs[0]
	return kv.ModRevision, decodeEntry(r.name(address), kv.Value).ReplicaID, nil
}

// compareAndSwap does op if the key still has the revision; 0 means that it does not exist.
func (r *Registry) compareAndSwap(ctx context.Context, key string, revision int64, op clientv3.Op) error {
	isUnchanged := clientv3.Compare(clientv3.ModRevision(key), "=", revision)
	response, err := r.client.Txn(ctx).If(isUnchanged).Then(op).Commit()
	if err != nil {
		return fmt.Errorf("write apiserver key %s: %w", key, failed(err))
	}
	if !response.Succeeded {
		return fmt.Errorf("write apiserver key %s: %w", key, ErrConflict)
	}
	return nil
}

// failed classifies an error of etcd.
func failed(err error) error { return guarded.ClassifyEtcd(err, ErrUnavailable) }

// Watch calls changed when the set of ready servers may have changed, and at each start of a watch,
// because changes may have been missed before. It blocks until ctx ends and restarts a watch that
// ends. changed must not block.
func (r *Registry) Watch(ctx context.Context, changed func()) {
	wait.UntilWithContext(ctx, func(ctx context.Context) { r.watchOnce(ctx, changed) }, rewatchPause)
}

func (r *Registry) watchOnce(ctx context.Context, changed func()) {
	// Without WithRequireLeader, an etcd member that is partitioned would keep a silent watch open
	// for ever.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	events := r.client.Watch(ctx, r.prefix, clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithCreatedNotify())
	for response := range events {
		if response.Err() != nil {
			return
		}
		if response.Created || r.isChange(response.Events) {
			changed()
		}
	}
}

// isChange says whether a server appears, disappears or changes. A refresh of a key is no change.
func (r *Registry) isChange(events []*clientv3.Event) bool {
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

// Entry is what the key of one sidecar says about its kube-apiserver.
type Entry struct {
	// Address is where pods reach the server. It is the zero Addr if the key does not end in an
	// address.
	Address netip.Addr
	// Secondary is the address of the other family; the zero Addr if there is none.
	Secondary netip.Addr
	// Name is the end of the key: the address as it is written there, and the replica if several
	// share it.
	Name string
	Port int32
	// Ready says whether the server should be an endpoint.
	Ready bool
	// Detail describes the result of the last probe for operators.
	Detail string
	// ProbeTime is when the last probe ended, by the sidecar's clock.
	ProbeTime time.Time
	// Left says that the sidecar has stopped in good order. Such an entry is not ready.
	Left bool
	// ReplicaID is the bootstrapsvc replica beside the server.
	ReplicaID string
	// Leased says whether the key expires with its writer, as the key of a sidecar does. A key
	// without a lease has another writer, or is left by a restore.
	Leased bool
	lease  clientv3.LeaseID
	// TTL is the rest of the key's lease; zero without a lease. Only List sets it.
	TTL time.Duration
	// Unreadable says why key or value could not be read; empty if they could. Such an entry is not
	// ready.
	Unreadable string
}

// entryValue is the JSON in etcd. Fields may be added; their meaning must not change.
type entryValue struct {
	Port      int32      `json:"port"`
	Ready     bool       `json:"ready"`
	Detail    string     `json:"detail,omitempty"`
	ProbeTime time.Time  `json:"probeTime,omitzero"`
	ReplicaID string     `json:"replica"`
	Secondary netip.Addr `json:"secondaryAddress,omitzero"`
	Left      bool       `json:"left,omitempty"`
}

func encodeEntry(e Entry) (string, error) {
	encoded, err := json.Marshal(entryValue{
		Port: e.Port, Ready: e.Ready, Detail: wording.Printable(e.Detail, textLimit), ProbeTime: e.ProbeTime, ReplicaID: e.ReplicaID,
		Secondary: e.Secondary, Left: e.Left,
	})
	return string(encoded), err
}

// decodeEntry decodes one key; name is the key without the prefix.
func decodeEntry(name string, raw []byte) Entry {
	entry := Entry{Name: wording.Printable(name, textLimit)}
	text, _, _ := strings.Cut(name, "/") // the replica follows, if several share the address
	address, err := netip.ParseAddr(text)
	if err != nil {
		return entry.unreadable("the key does not end in an IP address")
	}
	if entry.Address = address.Unmap(); entry.Address.String() != text {
		return entry.unreadable("the address in the key is not in canonical form, want " + entry.Address.String())
	}
	var read entryValue
	if err := json.Unmarshal(raw, &read); err != nil {
		return entry.unreadable("the value is not a JSON object of the known kind")
	}
	entry.Port, entry.Ready, entry.ProbeTime = read.Port, read.Ready, read.ProbeTime
	entry.Detail, entry.ReplicaID = wording.Printable(read.Detail, textLimit), wording.Printable(read.ReplicaID, textLimit)
	entry.Secondary = read.Secondary.Unmap()
	if entry.Left = read.Left; entry.Left {
		entry.Ready = false
	}
	if read.Port < 1 || read.Port > 65535 {
		return entry.unreadable(fmt.Sprintf("the value has port %d, want 1 to 65535", read.Port))
	}
	return entry
}

func (e Entry) unreadable(why string) Entry {
	e.Unreadable, e.Ready = why, false
	return e
}

// textLimit bounds the text of a foreign writer, in bytes.
const textLimit = 512
