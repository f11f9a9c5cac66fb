package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	shadowv1 "github.com/trivet-dev/trivet/proto/trivet/shadow/v1"
)

var (
	listDifferences = methodNamed("trivet.shadow.v1.ShadowService.ListDifferences")
	switchLoop      = methodNamed("trivet.shadow.v1.ShadowService.SwitchLoop")
)

// shadowServer answers ShadowService for all services.
type shadowServer struct {
	shadowv1.UnimplementedShadowServiceServer
	server *Server
}

// SwitchLoop hands the request to any replica of the service. A second try repeats nothing.
func (s shadowServer) SwitchLoop(ctx context.Context, request *shadowv1.SwitchLoopRequest) (*shadowv1.SwitchLoopResponse, error) {
	at := slices.IndexFunc(s.server.services, func(of *service) bool { return of.name == request.GetService() })
	if at < 0 {
		return nil, rpcerror.New(codes.InvalidArgument, rpcerror.ValidationFailedReason, fmt.Sprintf("service %q has no loops", request.GetService()),
			rpcerror.WithField("service", "must be a service with loops, for example slicesvc"))
	}
	of := s.server.services[at]
	answer, err := of.any(constant(leaderKey), of.timeout)(onBehalf(ctx, s.server.replicaID), switchLoop, request)
	if err != nil {
		return nil, err
	}
	switched, ok := answer.(*shadowv1.SwitchLoopResponse)
	if !ok {
		return nil, fmt.Errorf("the answer to SwitchLoop is %T", answer)
	}
	return switched, nil
}

// ListDifferences asks all replicas at once. Each answers for the shards that it leads.
func (s shadowServer) ListDifferences(ctx context.Context, request *shadowv1.ListDifferencesRequest) (*shadowv1.ListDifferencesResponse, error) {
	ctx = onBehalf(ctx, s.server.replicaID)
	response := &shadowv1.ListDifferencesResponse{}
	var mu sync.Mutex // guards response and failures
	var failures []fanout.Failure
	var calls sync.WaitGroup
	for _, service := range s.server.services {
		members := service.members()
		if len(members) == 0 {
			mu.Lock()
			response.Missing = append(response.Missing, &metav1.MissingPart{
				Service: service.name, Code: code.Code_UNAVAILABLE, Message: "no replica is registered",
			})
			mu.Unlock()
		}
		for _, member := range members {
			calls.Go(func() {
				started := time.Now()
				ctx, cancel := context.WithTimeout(ctx, service.timeout)
				defer cancel()
				answer, err := fanout.CallMember(ctx, service.connections, member, differencesOf(request))
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					failures = append(failures, fanout.Failure{Member: member, Err: err, After: time.Since(started)})
					return
				}
				response.Differences = append(response.Differences, answer.GetDifferences()...)
				response.Comparisons = append(response.Comparisons, answer.GetComparisons()...)
				response.Sources = append(response.Sources, answer.GetSources()...)
			})
		}
	}
	calls.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if refusal := refusalIn(failures); len(response.Sources) == 0 && refusal != nil {
		return nil, refusal
	}
	if len(response.Sources) == 0 && len(failures) > 0 {
		return nil, s.server.services[0].unreachable(noAnswer, failures)
	}
	sortDifferences(response, failures)
	return response, nil
}

// sortDifferences orders an answer, so that equal answers are the same, and adds what is missing.
func sortDifferences(response *shadowv1.ListDifferencesResponse, failures []fanout.Failure) {
	slices.SortFunc(failures, func(a, b fanout.Failure) int {
		return cmp.Or(cmp.Compare(a.Member.Service, b.Member.Service), cmp.Compare(a.Member.ID, b.Member.ID))
	})
	for _, failure := range failures {
		response.Missing = append(response.Missing, merge.Missing(failure.Member.Service, nil, nil, fanout.Parts([]fanout.Failure{failure}))...)
	}
	slices.SortFunc(response.Differences, func(a, b *shadowv1.Difference) int {
		return cmp.Or(cmp.Compare(a.GetLoop(), b.GetLoop()), cmp.Compare(a.GetSubject(), b.GetSubject()), cmp.Compare(a.GetName(), b.GetName()), cmp.Compare(a.GetReplicaId(), b.GetReplicaId()))
	})
	slices.SortFunc(response.Comparisons, func(a, b *shadowv1.Comparison) int {
		return cmp.Or(cmp.Compare(a.GetLoop(), b.GetLoop()), cmp.Compare(a.GetReplicaId(), b.GetReplicaId()))
	})
	slices.SortFunc(response.Sources, func(a, b *metav1.Source) int {
		return cmp.Or(strings.Compare(a.GetService(), b.GetService()), strings.Compare(a.GetReplicaId(), b.GetReplicaId()))
	})
}

// differencesOf asks one replica.
func differencesOf(request *shadowv1.ListDifferencesRequest) fanout.Call[*shadowv1.ListDifferencesResponse] {
	return func(ctx context.Context, conn grpc.ClientConnInterface, member term.Member) (*shadowv1.ListDifferencesResponse, error) {
		answer, err := call(listDifferences, request)(ctx, conn, member)
		if err != nil {
			return nil, err
		}
		found, ok := answer.(*shadowv1.ListDifferencesResponse)
		if !ok {
			return nil, fmt.Errorf("the answer to ListDifferences is %T", answer)
		}
		return found, nil
	}
}
