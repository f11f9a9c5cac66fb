package api

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/term"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

const (
	defaultPageSize = 500
	maxPageSize     = 5000
	// maxRounds bounds how often the replicas are asked for one page. A second round is needed only
	// if a page starts in the middle of what was read before, or if a replica returns only a token.
	maxRounds = 4
)

// list is one List call.
type list[T merge.Named] struct {
	// arguments is everything in the request but the page size and the token.
	arguments string
	size      int
	token     string
	// replicated is whether each replica has the whole list.
	replicated bool
	// ask asks one replica for a page.
	ask func(ctx context.Context, conn grpc.ClientConnInterface, size int32, token string) ([]T, string, error)
}

// page is the answer to a List call.
type page[T merge.Named] struct {
	items   []T
	token   string
	missing []*gatewayv1.SourceStatus
}

// pageSize returns the size of a page: the requested one, or the default, but not more than the
// limit.
func pageSize(requested int32, normal, limit int) int {
	if requested == 0 {
		return normal
	}
	return min(int(requested), limit)
}

// listAll asks all replicas for their next page and merges the pages.
func listAll[T merge.Named](ctx context.Context, s *service, l list[T]) (page[T], error) {
	at, err := merge.ParsePosition(l.token, l.arguments)
	if err != nil {
		return page[T]{}, pageTokenError(err)
	}
	var missing []*gatewayv1.SourceStatus
	for range maxRounds {
		pages, failures, err := askRound(ctx, s, l, at.Token)
		if err != nil {
			return page[T]{}, err
		}
		missing = sourceStatuses(failures)
		items, next, more := merge.Cut(pages, at, l.size)
		if len(items) == 0 && more {
			at = next
			continue
		}
		answer := page[T]{items: items, missing: missing}
		if more {
			answer.token = next.Encode(l.arguments)
		}
		return answer, nil
	}
	return page[T]{token: at.Encode(l.arguments), missing: missing}, nil // an empty page in the middle
}

// askRound asks each replica once. The error is INVALID_ARGUMENT, which each replica would return,
// or that no replica answered.
func askRound[T merge.Named](ctx context.Context, s *service, l list[T], token string) ([]merge.Page[T], []fanout.Failure, error) {
	members := s.members()
	size := int32(l.size)
	if !l.replicated {
		size = int32(max(1, l.size/max(1, len(members)))) // together they fill a page
	}
	pages, failures := make([]merge.Page[T], len(members)), make([]fanout.Failure, len(members))
	var calls sync.WaitGroup
	for i, member := range members {
		calls.Go(func() {
			started := time.Now()
			page, err := askForPage(ctx, s, member, l, size, token)
			pages[i], failures[i] = page, fanout.Failure{Member: member, Err: err, After: time.Since(started)}
		})
	}
	calls.Wait()
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx) // the replicas did not fail: the caller left
	}
	var answered []merge.Page[T]
	var failed []fanout.Failure
	for i, failure := range failures {
		switch {
		case failure.Err == nil:
			answered = append(answered, pages[i])
		case status.Code(failure.Err) == codes.InvalidArgument:
			return nil, nil, failure.Err
		default:
			failed = append(failed, failure)
		}
	}
	if len(answered) == 0 {
		return nil, nil, s.allFailed(failed)
	}
	return answered, failed, nil
}

// askForPage asks one replica, and asks again while it returns a token without items.
func askForPage[T merge.Named](ctx context.Context, s *service, member term.Member, l list[T], size int32, token string) (merge.Page[T], error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return fanout.CallMember(ctx, s.connections, member, func(ctx context.Context, conn grpc.ClientConnInterface) (merge.Page[T], error) {
		for {
			items, next, err := l.ask(ctx, conn, size, token)
			if err != nil || len(items) > 0 || next == "" {
				return merge.Page[T]{Items: items, Token: next}, err
			}
			token = next
		}
	})
}
