package rangestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"

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
		return Value{}, fmt.Errorf("read range %s: %w", name, guarded.ClassifyEtcd(err, ErrUnavailable))
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

// ClusterIdentity is the metadata of the Service default/kubernetes, of which every cluster has its
// own.
type ClusterIdentity struct{ UID, ResourceVersion string }

// identityKey is the key of the Service default/kubernetes below kube-apiserver's prefix.
const identityKey = "/services/specs/default/kubernetes"

// encryptedPrefix begins a value that kube-apiserver encrypts at rest. It never encrypts ranges.
const encryptedPrefix = "k8s:enc:"

// noIdentity is the problem of a cluster without its Service.
const noIdentity = "service default/kubernetes does not exist, so nothing tells yet whether these are the ranges of this cluster"

// maxComparisons bounds how often one call of VerifyCluster compares.
const maxComparisons = 3

// VerifyCluster returns why the ranges may belong to another cluster than the one that identify
// reads from the API, and an empty text if they belong to it. identify returns nil without the
// Service default/kubernetes. Reads between which the Service changes say nothing; if it changes
// again and again, the error wraps ErrConflict.
func (s *Store) VerifyCluster(ctx context.Context, identify func(context.Context) (*ClusterIdentity, error)) (problem string, err error) {
	before, err := identify(ctx)
	for range maxComparisons {
		if err != nil {
			return "", err
		}
		if before == nil {
			return noIdentity, nil
		}
		if problem, err = s.compareIdentity(ctx, *before); problem == "" || err != nil {
			return problem, err
		}
		var after *ClusterIdentity
		if after, err = identify(ctx); err == nil && after != nil && *after == *before {
			return problem, nil
		}
		before = after
	}
	return "", fmt.Errorf("compare service default/kubernetes in the API and in etcd: %w", ErrConflict)
}

func (s *Store) compareIdentity(ctx context.Context, identity ClusterIdentity) (problem string, err error) {
	key := s.root + identityKey
	response, err := s.client.Get(ctx, key)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", key, guarded.ClassifyEtcd(err, ErrUnavailable))
	}
	if len(response.Kvs) == 0 {
		return fmt.Sprintf("etcd has no key %s, so below %s is nothing of this cluster: see --etcd-prefix and --etcd-endpoints", key, s.root), nil
	}
	if kv := response.Kvs[0]; !identity.matches(kv.Value, kv.ModRevision) {
		return fmt.Sprintf("the key %s is of another service than the API shows, so what is below %s is of another cluster: "+
			"see --etcd-prefix and --etcd-endpoints", key, s.root), nil
	}
	return "", nil
}

// matches reports whether a stored value has this identity. It does not decode the value: a UID is
// random, and stored as text in every encoding.
func (i ClusterIdentity) matches(value []byte, revision int64) bool {
	if bytes.HasPrefix(value, []byte(encryptedPrefix)) {
		return i.ResourceVersion == strconv.FormatInt(revision, 10)
	}
	return i.UID != "" && bytes.Contains(value, []byte(i.UID))
}

// rewatchPause is the time between the end of a watch and the next one.
const rewatchPause = time.Second

// Handler receives what Watch reads. Watch calls its methods from one goroutine, and reads nothing
// while they block.
type Handler interface {
	// OnList receives all existing ranges. Changes between the previous call and this one may have
	// been missed.
	OnList(values map[Name]Value)
	// OnChange receives one range after each change. The zero Value means that the key was deleted.
	OnChange(name Name, value Value)
	// OnError receives why the watch failed. OnList follows when it works again.
	OnError(err error)
}

// Watch calls handler with all ranges and then with every change, until ctx ends. It restarts a
// watch that fails.
func (s *Store) Watch(ctx context.Context, handler Handler) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := s.watchOnce(ctx, handler); err != nil && ctx.Err() == nil {
			handler.OnError(err)
		}
	}, rewatchPause)
}

func (s *Store) watchOnce(ctx context.Context, handler Handler) error {
	// Without this option, an isolated etcd member would keep a silent watch open forever.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	response, err := s.client.Get(ctx, s.prefix, clientv3.WithPrefix())
	if err != nil {
		return fmt.Errorf("read ranges: %w", guarded.ClassifyEtcd(err, ErrUnavailable))
	}
	values := map[Name]Value{}
	for _, kv := range response.Kvs {
		if name, ok := s.nameOf(string(kv.Key)); ok {
			values[name] = valueOf(kv.Value, kv.ModRevision)
		}
	}
	handler.OnList(values)
	for events := range s.client.Watch(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithRev(response.Header.Revision+1)) {
		if err := events.Err(); err != nil {
			return fmt.Errorf("watch ranges: %w", guarded.ClassifyEtcd(err, ErrUnavailable))
		}
		s.dispatch(events.Events, handler)
	}
	return fmt.Errorf("watch ranges: %w: the watch ended", ErrUnavailable)
}

func (s *Store) dispatch(events []*clientv3.Event, handler Handler) {
	for _, event := range events {
		name, ok := s.nameOf(string(event.Kv.Key))
		switch {
		case !ok:
		case event.Type == clientv3.EventTypeDelete:
			handler.OnChange(name, Value{})
		default:
			handler.OnChange(name, valueOf(event.Kv.Value, event.Kv.ModRevision))
		}
	}
}

func (s *Store) nameOf(key string) (Name, bool) {
	name := Name(strings.TrimPrefix(key, s.prefix))
	switch name {
	case NodePorts, ClusterIPs, SecondaryClusterIPs:
		return name, true
	default:
		return "", false
	}
}
