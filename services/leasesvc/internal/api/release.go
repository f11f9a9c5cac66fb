package api

import (
	"context"
	"time"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// deleteTimeout bounds the requests to the kube-apiserver for one release.
const deleteTimeout = 10 * time.Second

// ReleaseLease deletes the Lease object of a holder, unless that is to stay, and then its session.
// A second call does nothing.
func (s *Server) ReleaseLease(ctx context.Context, request *leasev1.ReleaseLeaseRequest) (*leasev1.ReleaseLeaseResponse, error) {
	holder, served := s.convert.holder(request.Holder)
	if !served {
		return nil, errUnknownClass(request.Holder.GetClass())
	}
	caller := authn.FromContext(ctx)
	access := s.accessIn(ctx, caller)
	if err := access.check(ctx, holder.Key); err != nil {
		s.reportRefused(access, nil, leasev1.HeartbeatService_ReleaseLease_FullMethodName)
		return nil, err
	}
	sessions, err := s.runningSessions()
	if err != nil {
		return nil, s.statusOf(err)
	}
	if request.ValidateOnly {
		err = sessions.CheckRelease(ctx, holder, s.Catalog.ShardOf(holder.Key), request.Etag)
	} else {
		begun := time.Now()
		err = s.statusOf(s.release(ctx, sessions, holder, request))
		s.reportRelease(caller, request, holder.Key, err, time.Since(begun))
	}
	if err != nil {
		return nil, s.statusOf(err)
	}
	return &leasev1.ReleaseLeaseResponse{}, nil
}

// release deletes the Lease object before the session, so that the client can retry after a failure
// in between.
func (s *Server) release(ctx context.Context, sessions Sessions, holder session.Holder, request *leasev1.ReleaseLeaseRequest) error {
	release, err := sessions.BeginRelease(ctx, holder, s.Catalog.ShardOf(holder.Key), request.Etag)
	switch {
	case err != nil:
		return err
	case release == nil && request.KeepObject:
		return nil
	case release == nil:
		return s.releaseWithoutSession(ctx, sessions, holder.Key)
	case request.KeepObject:
		sessions.CompleteRelease(release)
		return nil
	}
	deleted := false
	defer func() {
		if deleted {
			sessions.CompleteRelease(release)
		} else {
			sessions.AbortRelease(release) // also after a panic
		}
	}()
	err = s.deleteUnderTerm(ctx, release.Shard, func(ctx context.Context) error {
		return s.Leases.Delete(ctx, release.Namespace, release.Name)
	})
	deleted = err == nil
	return err
}

// releaseWithoutSession deletes the Lease object of a holder whose session was lost, for example
// with a replica. It reads the object before it checks that there is no session: if one begins
// afterwards, it writes the object, and the delete of the version that was read conflicts.
func (s *Server) releaseWithoutSession(ctx context.Context, sessions Sessions, key session.Key) error {
	read, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	own, err := s.Leases.Own(read, s.Catalog.Get(key.Class).Namespace, key.Name)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return errNotDeleted(err)
	}
	held, err := sessions.CheckAbsent(ctx, key, s.Catalog.ShardOf(key), 0)
	if err != nil || held == nil || own == nil {
		return err
	}
	return s.deleteUnderTerm(ctx, held, func(ctx context.Context) error { return s.Leases.DeleteUnchanged(ctx, own) })
}

// deleteUnderTerm runs call with the term's context, bounded by ctx and deleteTimeout.
func (s *Server) deleteUnderTerm(ctx context.Context, held *sessioncontroller.HeldShard, call func(context.Context) error) error {
	term, end, ok := held.BeginWrite()
	if !ok {
		return sessioncontroller.NotHeldError{Shard: held.ID()}
	}
	defer end()
	write, cancel := context.WithTimeout(term, deleteTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	err := call(write)
	s.OnDelete(err)
	switch {
	case err == nil:
		return nil
	case term.Err() != nil:
		return sessioncontroller.NotHeldError{Shard: held.ID()}
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return errNotDeleted(err)
}
