package api

import (
	"context"
	"fmt"
	"slices"
	"strings"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/answer"
	"github.com/trivet-dev/trivet/internal/pagetoken"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// leaseServer implements LeaseService.
type leaseServer struct {
	leasev1.UnimplementedLeaseServiceServer

	*Server
}

func (s *leaseServer) GetLease(ctx context.Context, request *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error) {
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
	shards := sessioncontroller.ServedShards{IDs: []int{lease.Shard}, Epoch: lease.Epoch}
	return &leasev1.GetLeaseResponse{Lease: s.leaseOf(&lease), Sources: s.sources(shards)}, nil
}

func (s *leaseServer) ListLeases(ctx context.Context, request *leasev1.ListLeasesRequest) (*leasev1.ListLeasesResponse, error) {
	sessions, err := s.runningSessions()
	if err != nil {
		return nil, s.statusOf(err)
	}
	arguments := leaseArguments{parent: request.Parent, states: request.States}
	options := sessioncontroller.ListOptions{Limit: PageSize(request.PageSize), Selection: s.selection(arguments)}
	if request.PageToken != "" {
		if options.After, err = s.parsePageToken(request.PageToken, arguments); err != nil {
			return nil, s.statusOf(err)
		}
	}
	page, err := sessions.List(ctx, options)
	if err != nil {
		return nil, s.statusOf(err)
	}
	response := &leasev1.ListLeasesResponse{Leases: make([]*leasev1.Lease, 0, len(page.Leases)), Sources: s.sources(page.Shards)}
	for i := range page.Leases {
		response.Leases = append(response.Leases, s.leaseOf(&page.Leases[i]))
	}
	if page.More {
		last := page.Leases[len(page.Leases)-1].Holder.Key
		response.NextPageToken = pagetoken.Encode(s.convert.name(last), leasev1.LeaseService_ListLeases_FullMethodName, arguments.String())
	}
	if request.PageToken == "" {
		response.ResumeToken = resumeTokens(sessions, arguments).format(page.Position)
	}
	return response, nil
}

func (s *leaseServer) parsePageToken(token string, arguments leaseArguments) (session.Key, error) {
	last, err := pagetoken.Parse(token, leasev1.LeaseService_ListLeases_FullMethodName, arguments.String())
	if err != nil {
		return session.Key{}, err
	}
	key, served := s.convert.key(last)
	if !served {
		return session.Key{}, pagetoken.ErrInvalid
	}
	return key, nil
}

func (s *leaseServer) selection(arguments leaseArguments) sessioncontroller.Selection {
	selection := sessioncontroller.Selection{Classes: s.convert.classesIn(arguments.parent)}
	for _, state := range arguments.states {
		selection.States = append(selection.States, stateFrom(state))
	}
	return selection
}

// leaseArguments select the leases of a list or watch.
type leaseArguments struct {
	parent string
	states []leasev1.Lease_State
}

// String returns the same text for the same selection.
func (a leaseArguments) String() string {
	parent := strings.TrimSuffix(a.parent, "namespaces/-") // the same as all
	return parent + "\x00" + EnumsText(a.states)
}

// EnumsText returns the same text for the same set of values.
func EnumsText[E ~int32](values []E) string {
	values = slices.Clone(values)
	slices.Sort(values)
	return fmt.Sprint(slices.Compact(values))
}

const (
	defaultPageSize = 500
	maxPageSize     = 5000
)

// PageSize returns the number of items of a page: the requested number up to a limit, or a default
// for 0.
func PageSize(requested int32) int {
	return answer.PageSize(requested, defaultPageSize, maxPageSize)
}
