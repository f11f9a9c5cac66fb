package api

import (
	"context"
	"fmt"
	"time"

	"github.com/trivet-dev/trivet/internal/pagetoken"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// deleteTimeout bounds the requests to the kube-apiserver for one release.
const deleteTimeout = 10 * time.Second

// GetLease returns a session from memory if this replica holds its shard.
func (s *Server) GetLease(ctx context.Context, request *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error) {
	sessions, err := s.runningSessions()
	if err != nil {
		return nil, s.statusOf(err)
	}
	key, served := s.convert.key(request.Name)
	if !served {
		return nil, s.statusOf(errLeaseNotFound(request.Name))
	}
	lease, found, err := sessions.Get(ctx, key, s.Catalog.ShardOf(key))
	if err == nil && !found {
		err = errLeaseNotFound(request.Name)
	}
	if err != nil {
		return nil, s.statusOf(err)
	}
	return &leasev1.GetLeaseResponse{Lease: s.convert.lease(&lease), Freshness: s.freshness(lease.Epoch)}, nil
}

// ListLeases returns the sessions of the held shards, ordered by resource name.
func (s *Server) ListLeases(ctx context.Context, request *leasev1.ListLeasesRequest) (*leasev1.ListLeasesResponse, error) {
	sessions, err := s.runningSessions()
	if err != nil {
		return nil, s.statusOf(err)
	}
	options := sessioncontroller.ListOptions{
		Limit: PageSize(request.PageSize), Classes: s.convert.classesIn(request.Parent), State: stateFrom(request.State),
	}
	arguments := fmt.Sprintf("%s\x00%d", request.Parent, request.State)
	if request.PageToken != "" {
		if options.After, err = s.parsePageToken(request.PageToken, arguments); err != nil {
			return nil, s.statusOf(err)
		}
	}
	epoch := sessions.Epoch() // before the read: the answer must not claim a newer epoch than it contains
	page, more, err := sessions.List(ctx, options)
	if err != nil {
		return nil, s.statusOf(err)
	}
	response := &leasev1.ListLeasesResponse{Leases: make([]*leasev1.Lease, 0, len(page)), Freshness: s.freshness(epoch)}
	for i := range page {
		response.Leases = append(response.Leases, s.convert.lease(&page[i]))
	}
	if more {
		response.NextPageToken = PageToken(arguments, s.convert.name(page[len(page)-1].Holder.Key))
	}
	return response, nil
}

func (s *Server) parsePageToken(token, arguments string) (session.Key, error) {
	last, err := ParsePageToken(token, arguments)
	if err != nil {
		return session.Key{}, err
	}
	key, served := s.convert.key(last)
	if !served {
		return session.Key{}, pagetoken.ErrInvalid
	}
	return key, nil
}

// ReleaseLease deletes the Lease object of a holder, and then its session. A second call does
// nothing.
func (s *Server) ReleaseLease(ctx context.Context, request *leasev1.ReleaseLeaseRequest) (*leasev1.ReleaseLeaseResponse, error) {
	sessions, err := s.runningSessions()
	if err != nil {
		return nil, s.statusOf(err)
	}
	holder, served := s.convert.holder(request.Holder)
	if !served {
		return &leasev1.ReleaseLeaseResponse{}, nil // the session cannot exist
	}
	if err := s.release(ctx, sessions, holder); err != nil {
		return nil, s.statusOf(err)
	}
	return &leasev1.ReleaseLeaseResponse{}, nil
}

// release deletes the Lease object before the session, so that the client can retry after a failure
// in between.
func (s *Server) release(ctx context.Context, sessions Sessions, holder session.Holder) error {
	release, err := sessions.BeginRelease(ctx, holder, s.Catalog.ShardOf(holder.Key), "")
	if err != nil {
		return err
	}
	if release == nil {
		return s.releaseWithoutSession(ctx, sessions, holder.Key)
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
