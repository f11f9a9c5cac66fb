package api

import (
	"context"
	"fmt"

	"github.com/trivet-dev/trivet/internal/pagetoken"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

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
