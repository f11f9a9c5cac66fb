package term

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/term/internal/localterm"
)

const (
	// minMargin is the least time by which a lease ends here before it ends in etcd.
	minMargin = 500 * time.Millisecond
	// requestTimeout bounds every request except a renewal.
	requestTimeout = 2 * time.Second
	// batchSize is how many shards one transaction claims or releases. etcd allows 128 operations,
	// nested ones included.
	batchSize = 32
)

var (
	errLeaseGone  = errors.New("etcd no longer knows the lease")
	errMemberGone = errors.New("the member key was deleted")
	errRewound    = errors.New("etcd's revision went backwards; it was restored from a backup")
	errStopped    = errors.New("the replica stops")
)

// session is one etcd lease, the member key bound to it, and the transactions under it. A lease
// that has ended does not return; the replica then opens a new session.
type session struct {
	client *clientv3.Client
	id     clientv3.LeaseID
	ttl    time.Duration
	lease  *localterm.Lease
	joined int64 // create revision of the member key

	problem atomic.Pointer[error] // why the last renewal was not acknowledged; nil if it was
}

// openSession grants a lease. The lease keeps the values of ctx but does not end with it, because
// bodies need time to return.
func openSession(ctx context.Context, client *clientv3.Client, ttl time.Duration) (*session, error) {
	granting, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	sent := time.Now()
	// Client.Grant would wait for an endpoint. This call fails at once, with the reason.
	granted, err := leases(client).LeaseGrant(granting, &pb.LeaseGrantRequest{TTL: int64(ttl / time.Second)})
	if err != nil {
		return nil, fmt.Errorf("ask etcd for a lease: %w", rpctypes.Error(err))
	}
	s := &session{client: client, id: clientv3.LeaseID(granted.ID), ttl: time.Duration(granted.TTL) * time.Second}
	s.lease = localterm.NewLease(context.WithoutCancel(ctx), sent, s.ttl, margin(s.ttl))
	return s, nil
}

func leases(client *clientv3.Client) pb.LeaseClient {
	return pb.NewLeaseClient(client.ActiveConnection())
}

func margin(ttl time.Duration) time.Duration { return max(ttl/5, minMargin) }

// renew renews the lease until it ends. It ends the lease if etcd does not know it.
func (s *session) renew() {
	ctx := s.lease.Context()
	wait := s.ttl / 3
	for {
		backoff.Sleep(ctx, wait)
		if ctx.Err() != nil {
			return
		}
		err := s.renewOnce(ctx)
		if errors.Is(err, errLeaseGone) {
			s.lease.End(errLeaseGone)
			return
		}
		wait = s.ttl / 3
		if err != nil {
			s.problem.Store(&err)
			wait = s.ttl / 20
			continue
		}
		s.problem.Store(nil)
	}
}

// renewOnce sends one renewal on a stream of its own, so that the next one can reach another
// endpoint.
func (s *session) renewOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), s.ttl/4)
	defer cancel()
	sent := time.Now()
	stream, err := leases(s.client).LeaseKeepAlive(ctx)
	if err != nil {
		return fmt.Errorf("renew lease %x: %w", s.id, rpctypes.Error(err))
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(s.id)}); err != nil {
		return fmt.Errorf("renew lease %x: %w", s.id, rpctypes.Error(err))
	}
	answer, err := stream.Recv()
	if err != nil {
		return fmt.Errorf("renew lease %x: %w", s.id, rpctypes.Error(err))
	}
	if answer.TTL <= 0 {
		return errLeaseGone
	}
	s.lease.Extend(sent, time.Duration(answer.TTL)*time.Second)
	return nil
}

// failure returns why the lease ended or why it is not renewed, or nil.
func (s *session) failure() error {
	problem := s.problem.Load()
	if s.lease.Context().Err() == nil {
		if problem == nil {
			return nil
		}
		return *problem
	}
	cause := context.Cause(s.lease.Context())
	if problem == nil {
		return cause
	}
	return fmt.Errorf("%w: %w", cause, *problem)
}

// join creates the member key. It never overwrites a key: an existing one belongs to an earlier
// session of this replica and ends with that lease, or to another process with the same id.
func (s *session) join(ctx context.Context, key, value string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	response, err := s.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, value, clientv3.WithLease(s.id))).
		Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return fmt.Errorf("create member key %q: %w", key, err)
	}
	if !response.Succeeded {
		for _, entry := range response.Responses[0].GetResponseRange().Kvs {
			return fmt.Errorf("create member key %q: it exists already, bound to lease %x; waiting for it to go", key, entry.Lease)
		}
	}
	s.joined = response.Header.Revision
	return nil
}

// announce replaces the value of the member key, unless the key is gone.
func (s *session) announce(ctx context.Context, key, value string) error {
	if err := s.ifMember(ctx, key, clientv3.OpPut(key, value, clientv3.WithLease(s.id))); err != nil {
		return fmt.Errorf("update member key %q: %w", key, err)
	}
	return nil
}

// leave deletes the member key although the lease is alive.
func (s *session) leave(ctx context.Context, key string) error {
	if err := s.ifMember(ctx, key, clientv3.OpDelete(key)); err != nil {
		return fmt.Errorf("delete member key %q: %w", key, err)
	}
	return nil
}

// ifMember applies op if the member key of this session exists.
func (s *session) ifMember(ctx context.Context, key string, op clientv3.Op) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", s.joined)).Then(op).Commit()
	return err
}

// anchorKey is the key of the member that joined first, and the revision that created it.
type anchorKey struct {
	key      string
	revision int64
}

// memberKey is the member key of this replica and its value.
type memberKey struct{ key, value string }

// claim creates the keys of the shards that have none, in one transaction. It returns the present
// key of each shard, in the given order. A shard is held if its key is bound to the lease of s, by
// this transaction or by an earlier one whose response was lost. claim does nothing and returns no
// records if this replica or the anchor is no longer a member.
func (s *session) claim(ctx context.Context, k keys, id string, anchor anchorKey, shards []int) ([]record, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var each []clientv3.Op
	for _, shard := range shards {
		key := k.term(shard)
		each = append(each, clientv3.OpTxn(
			[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)},
			[]clientv3.Op{clientv3.OpPut(key, id, clientv3.WithLease(s.id))},
			[]clientv3.Op{clientv3.OpGet(key)},
		))
	}
	response, err := s.client.Txn(ctx).If(
		clientv3.Compare(clientv3.CreateRevision(k.member(id)), "=", s.joined),
		clientv3.Compare(clientv3.CreateRevision(anchor.key), "=", anchor.revision),
	).Then(each...).Commit()
	if err != nil {
		return nil, fmt.Errorf("claim %d shards from %q: %w", len(shards), k.term(shards[0]), err)
	}
	if !response.Succeeded {
		return nil, nil
	}
	return s.claimed(response, id), nil
}

// claimed returns a record for each claim of a transaction.
func (s *session) claimed(response *clientv3.TxnResponse, id string) []record {
	var records []record
	for _, answer := range response.Responses {
		inner := answer.GetResponseTxn()
		if inner.Succeeded {
			revision := response.Header.Revision
			records = append(records, record{revision: revision, held: true, leader: id, lease: s.id, epoch: revision})
			continue
		}
		for _, entry := range inner.Responses[0].GetResponseRange().Kvs {
			records = append(records, recordOf(entry))
		}
	}
	return records
}

// release deletes the keys of ended terms in one transaction, each only if this claim created it.
// The transaction also writes the member key, whose value names the ended terms: other replicas
// take no other deletion for a handover. It returns the shards whose keys it deleted, and the
// revision. A key that is gone or belongs to a later claim is not an error.
func (s *session) release(ctx context.Context, k keys, self memberKey, ended []*heldShard) ([]int, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var each []clientv3.Op
	for _, h := range ended {
		each = append(each, clientv3.OpTxn(
			[]clientv3.Cmp{h.term.Guard()}, []clientv3.Op{clientv3.OpDelete(k.term(h.shard))}, nil,
		))
	}
	each = append(each, clientv3.OpTxn(
		[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(self.key), "=", s.joined)},
		[]clientv3.Op{clientv3.OpPut(self.key, self.value, clientv3.WithLease(s.id))}, nil,
	))
	response, err := s.client.Txn(ctx).Then(each...).Commit()
	if err != nil {
		return nil, 0, fmt.Errorf("release %d shards below %q: %w", len(ended), k.terms, err)
	}
	var deleted []int
	for i, h := range ended {
		if response.Responses[i].GetResponseTxn().Succeeded {
			deleted = append(deleted, h.shard)
		}
	}
	return deleted, response.Header.Revision, nil
}

// revoke deletes the lease and every key bound to it. A lease that is gone already is not an error.
func (s *session) revoke(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := s.client.Revoke(ctx, s.id)
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("revoke lease %x: %w", s.id, err)
	}
	return nil
}
