package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/gateway/internal/fanin"
	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

const (
	defaultPageSize = 500
	maxPageSize     = 5000
	// maxRounds bounds how often the replicas are asked for one page. A second time is needed at most where a page begins in the
	// middle of what was read before, or a replica had nothing to show but a token.
	maxRounds = 4
)

// list is one List call.
type list[T merge.Named] struct {
	arguments string
	size      int
	token     string
	// shared is whether every replica has the whole list.
	shared bool
	// ask asks one replica for a page.
	ask func(ctx context.Context, conn grpc.ClientConnInterface, size int32, token string) ([]T, string, error)
}

// merged is the answer to a list.
type merged[T merge.Named] struct {
	items   []T
	token   string
	missing []*gatewayv1.SourceStatus
}

// ListNodeHealth implements NodeService.
func (s *nodeServer) ListNodeHealth(ctx context.Context, request *gatewayv1.ListNodeHealthRequest) (*gatewayv1.ListNodeHealthResponse, error) {
	page, err := run(ctx, s.replicas, list[*leasev1.NodeHealth]{
		arguments: fmt.Sprintf("nodes\x00%d\x00%s", request.Health, request.Zone), size: pageSize(request.PageSize), token: request.PageToken,
		ask: func(ctx context.Context, conn grpc.ClientConnInterface, size int32, token string) ([]*leasev1.NodeHealth, string, error) {
			answer, err := leasev1.NewNodeHealthServiceClient(conn).ListNodeHealth(ctx, &leasev1.ListNodeHealthRequest{
				Health: request.Health, Zone: request.Zone, PageSize: size, PageToken: token,
			})
			return answer.GetNodes(), answer.GetNextPageToken(), err
		},
	})
	if err != nil {
		return nil, err
	}
	return &gatewayv1.ListNodeHealthResponse{Nodes: page.items, NextPageToken: page.token, Missing: page.missing}, nil
}

// ListLeases implements NodeService.
func (s *nodeServer) ListLeases(ctx context.Context, request *gatewayv1.ListLeasesRequest) (*gatewayv1.ListLeasesResponse, error) {
	page, err := run(ctx, s.replicas, list[*leasev1.Lease]{
		arguments: fmt.Sprintf("leases\x00%d\x00%s", request.State, request.Parent), size: pageSize(request.PageSize), token: request.PageToken,
		ask: func(ctx context.Context, conn grpc.ClientConnInterface, size int32, token string) ([]*leasev1.Lease, string, error) {
			answer, err := leasev1.NewLeaseServiceClient(conn).ListLeases(ctx, &leasev1.ListLeasesRequest{
				Parent: request.Parent, State: request.State, PageSize: size, PageToken: token,
			})
			return answer.GetLeases(), answer.GetNextPageToken(), err
		},
	})
	if err != nil {
		return nil, err
	}
	return &gatewayv1.ListLeasesResponse{Leases: page.items, NextPageToken: page.token, Missing: page.missing}, nil
}

func pageSize(asked int32) int {
	if asked == 0 {
		return defaultPageSize
	}
	return min(int(asked), maxPageSize)
}

// run asks all replicas for their next page and merges what comes.
func run[T merge.Named](ctx context.Context, s *replicas, l list[T]) (merged[T], error) {
	at, err := merge.ParsePosition(l.token, l.arguments)
	if err != nil {
		return merged[T]{}, pageTokenError(err)
	}
	var missing []*gatewayv1.SourceStatus
	for range maxRounds {
		pages, failures, err := round(ctx, s, l, at.Token)
		if err != nil {
			return merged[T]{}, err
		}
		missing = statusesOf(failures)
		items, next, more := merge.Cut(pages, at, l.size)
		if len(items) == 0 && more {
			at = next
			continue
		}
		answer := merged[T]{items: items, missing: missing}
		if more {
			answer.token = next.Encode(l.arguments)
		}
		return answer, nil
	}
	return merged[T]{token: at.Encode(l.arguments), missing: missing}, nil // an empty page that goes on
}

// round asks every replica once. The error is one that every replica would give, or that none answered.
func round[T merge.Named](ctx context.Context, s *replicas, l list[T], token string) ([]merge.Page[T], []fanin.Failure, error) {
	members := s.members()
	size := int32(l.size)
	if !l.shared {
		size = int32(max(1, l.size/max(1, len(members)))) // together they fill a page
	}
	pages, errs, took := make([]merge.Page[T], len(members)), make([]error, len(members)), make([]time.Duration, len(members))
	var calls sync.WaitGroup
	for i, member := range members {
		calls.Go(func() {
			started := time.Now()
			pages[i], errs[i] = askForPage(ctx, s, member, l, size, token)
			took[i] = time.Since(started)
		})
	}
	calls.Wait()
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx) // else a caller that left would be told that nobody answered
	}
	var answered []merge.Page[T]
	var failures []fanin.Failure
	for i, member := range members {
		switch {
		case errs[i] == nil:
			answered = append(answered, pages[i])
		case status.Code(errs[i]) == codes.InvalidArgument:
			return nil, nil, errs[i]
		default:
			failures = append(failures, fanin.Failure{Err: errs[i], Status: fanout.Failure(member, errs[i], took[i])})
		}
	}
	if len(answered) == 0 {
		return nil, nil, s.noneTells(failures)
	}
	return answered, failures, nil
}

// askForPage asks one replica, and again where it shows nothing but says that there is more.
func askForPage[T merge.Named](ctx context.Context, s *replicas, member term.Member, l list[T], size int32, token string) (merge.Page[T], error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	conn, err := s.pool.Connection(member)
	if err != nil {
		return merge.Page[T]{}, err
	}
	for {
		items, next, err := l.ask(ctx, conn, size, token)
		if err != nil || len(items) > 0 || next == "" {
			return merge.Page[T]{Items: items, Token: next}, err
		}
		token = next
	}
}

// noneTells explains that no replica tells anything: because the loop is off at all that could be asked, or as it may be.
func (s *replicas) noneTells(failures []fanin.Failure) error {
	var disabled error
	for _, failure := range failures {
		switch rpcerror.ReasonOf(failure.Err) {
		case loopDisabledReason:
			disabled = failure.Err
		case "": // could not be asked
		default:
			return noSource(s.cluster, nobodyAnswered, statusesOf(failures), s.directory.Check())
		}
	}
	if disabled != nil {
		return disabled
	}
	return noSource(s.cluster, nobodyAnswered, statusesOf(failures), s.directory.Check())
}

func statusesOf(failures []fanin.Failure) []*gatewayv1.SourceStatus {
	var statuses []*gatewayv1.SourceStatus
	for _, failure := range failures {
		statuses = append(statuses, failure.Status)
	}
	return statuses
}

func pageTokenError(err error) error {
	if !errors.Is(err, merge.ErrToken) {
		return err
	}
	return rpcerror.New(codes.InvalidArgument, rpcerror.InvalidPageTokenReason, err.Error(), rpcerror.WithField("page_token", err.Error()))
}
