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

	"github.com/trivet-dev/trivet/internal/term/internal/localterm"
)

const (
	// minMargin is the least by which a lease ends here before it ends in etcd, however short its TTL is.
	minMargin = 500 * time.Millisecond
	// requestTimeout bounds every request but a renewal.
	requestTimeout = 2 * time.Second
)

var (
	errLeaseGone  = errors.New("etcd no longer knows the lease")
	errMemberGone = errors.New("the member key was deleted")
	errRewound    = errors.New("etcd's revision went backwards; it was restored from a backup")
	errStopped    = errors.New("the replica stops")
)

// session is one etcd lease and the member key bound to it. Its lease ends once and for all; the replica then joins anew.
type session struct {
	client *clientv3.Client
	id     clientv3.LeaseID
	ttl    time.Duration
	lease  *localterm.Lease
	joined int64 // create revision of the member key

	problem atomic.Pointer[error] // why the last renewal was not acknowledged, nil when it was
}

// openSession asks etcd for a lease. Values of ctx stay visible under it; its end does not end the lease, because bodies
// have to be given time to return.
func openSession(ctx context.Context, client *clientv3.Client, ttl time.Duration) (*session, error) {
	asking, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	sent := time.Now()
	// Unlike Client.Grant, this fails at once, and with the reason, while no endpoint can be reached.
	granted, err := leases(client).LeaseGrant(asking, &pb.LeaseGrantRequest{TTL: int64(ttl / time.Second)})
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

// join creates the member key. An existing key is never overwritten: it is this replica's own from an earlier session and
// will go with that lease, or it is another process's, and then two would answer to one name.
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

// renew prolongs the lease until it ends, and ends it when etcd says that it is gone.
func (s *session) renew() {
	ctx := s.lease.Context()
	wait := s.ttl / 3
	for {
		pause(ctx, wait)
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

// renewOnce sends one request. Each uses a stream of its own, so that the next one may reach another endpoint; nothing here
// depends on a stream or channel staying open.
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

// revoke deletes the lease and with it every key bound to it. A lease that is gone already is no error.
func (s *session) revoke(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := s.client.Revoke(ctx, s.id)
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("revoke lease %x: %w", s.id, err)
	}
	return nil
}

// failure says why the lease ended, or what keeps it from being renewed; nil while all is well.
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
