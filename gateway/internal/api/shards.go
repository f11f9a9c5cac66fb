package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/leader"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/answer"
	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/pagetoken"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

const (
	shardsPerPage    = 500
	maxShardsPerPage = 5000
	// leadersAge is for how long lists use the leaders that a replica told.
	leadersAge = time.Second
	// shardsKey is a key under which no leader is remembered: any replica knows the leaders.
	shardsKey = ""
)

var listShards = methodNamed("trivet.status.v1.StatusService.ListShards")

// ListShards returns the shards of all services and their leaders. It belongs to StatusService,
// whose GetStatus every process answers for itself.
func (s *Server) ListShards(ctx context.Context, request *statusv1.ListShardsRequest) (*statusv1.ListShardsResponse, error) {
	arguments := []string{"trivet.gateway.ListShards", strings.Join(request.GetServices(), ",")}
	after := ""
	if request.GetPageToken() != "" {
		var err error
		if after, err = pagetoken.Parse(request.GetPageToken(), arguments...); err != nil {
			return nil, rpcerror.New(codes.InvalidArgument, rpcerror.InvalidPageTokenReason, err.Error(), rpcerror.WithField("page_token", err.Error()))
		}
	}
	shards, response, err := s.askForShards(onBehalf(ctx, s.replicaID), request.GetServices())
	if err != nil {
		return nil, err
	}
	size := answer.PageSize(request.GetPageSize(), shardsPerPage, maxShardsPerPage)
	for _, shard := range shards {
		if shardPosition(shard) <= after {
			continue
		}
		if len(response.Shards) == size {
			response.NextPageToken = pagetoken.Encode(shardPosition(response.Shards[size-1]), arguments...)
			break
		}
		response.Shards = append(response.Shards, shard)
	}
	return response, nil
}

// shardPosition orders shards as text.
func shardPosition(shard *statusv1.ShardStatus) string {
	return fmt.Sprintf("%s/%010d", shard.GetService(), shard.GetShard())
}

// askForShards asks all replicas at once. The response has the sources and what is missing.
func (s *Server) askForShards(ctx context.Context, services []string) ([]*statusv1.ShardStatus, *statusv1.ListShardsResponse, error) {
	var mu sync.Mutex // guards the results below
	var reports []merge.ShardReport
	var sources []*metav1.Source
	var failures []fanout.Failure
	var absent []string
	var calls sync.WaitGroup
	for _, service := range s.services {
		if len(services) > 0 && !slices.Contains(services, service.name) {
			continue
		}
		members := service.members()
		if len(members) == 0 {
			absent = append(absent, service.name)
		}
		for _, member := range members {
			calls.Go(func() {
				started := time.Now()
				ctx, cancel := context.WithTimeout(ctx, service.timeout)
				defer cancel()
				answer, err := fanout.CallMember(ctx, service.connections, member, allShards)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					failures = append(failures, fanout.Failure{Member: member, Err: err, After: time.Since(started)})
					return
				}
				sources = append(sources, answer.GetSources()...)
				reports = append(reports, merge.ShardReport{Service: member.Service, Shards: answer.GetShards()})
			})
		}
	}
	calls.Wait()
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	byReplica := func(a, b term.Member) int { return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.ID, b.ID)) }
	slices.SortFunc(failures, func(a, b fanout.Failure) int { return byReplica(a.Member, b.Member) })
	if refusal := refusalIn(failures); len(reports) == 0 && refusal != nil {
		return nil, nil, refusal
	}
	if len(reports) == 0 && len(failures) > 0 {
		return nil, nil, s.services[0].unreachable(noAnswer, failures)
	}
	slices.SortFunc(sources, func(a, b *metav1.Source) int {
		return cmp.Or(cmp.Compare(a.GetService(), b.GetService()), cmp.Compare(a.GetReplicaId(), b.GetReplicaId()))
	})
	response := &statusv1.ListShardsResponse{Sources: sources}
	for _, failure := range failures {
		response.Missing = append(response.Missing, merge.Missing(failure.Member.Service, nil, nil, fanout.Parts([]fanout.Failure{failure}))...)
	}
	for _, service := range absent {
		response.Missing = append(response.Missing, merge.Absent(service))
	}
	shards := merge.Shards(reports)
	for _, service := range s.services {
		of := slices.DeleteFunc(slices.Clone(shards), func(shard *statusv1.ShardStatus) bool { return shard.GetService() != service.name })
		response.Missing = append(response.Missing, merge.Disowned(service.name, merge.Leaders(of), sources)...)
	}
	return shards, response, nil
}

// allShards asks one replica for all shards of its service.
func allShards(ctx context.Context, conn grpc.ClientConnInterface, member term.Member) (*statusv1.ListShardsResponse, error) {
	all := &statusv1.ListShardsResponse{}
	request := &statusv1.ListShardsRequest{PageSize: maxShardsPerPage}
	for {
		answer, err := call(listShards, request)(ctx, conn, member)
		if err != nil {
			return nil, err
		}
		page, ok := answer.(*statusv1.ListShardsResponse)
		if !ok {
			return nil, fmt.Errorf("the answer to ListShards is %T", answer)
		}
		all.Shards, all.Sources = append(all.Shards, page.GetShards()...), page.GetSources()
		if len(all.Shards) > merge.MaxShards {
			return nil, status.Error(codes.Internal, "it reports more shards than a service has")
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return all, nil
		}
	}
}

// askLeaders returns the leader of each shard as any replica knows it, or nil if none answers.
func (s *service) askLeaders(ctx context.Context) []string {
	answer, err := leader.AskAny(authn.NotForwarded(ctx), s.router, shardsKey, allShards)
	if err != nil {
		return nil
	}
	leaders := merge.Leaders(merge.Shards([]merge.ShardReport{{Service: s.name, Shards: answer.GetShards()}}))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaders, s.read = leaders, time.Now()
	return leaders
}

// leadersNow returns the leader of each shard, as a replica told a moment ago.
func (s *service) leadersNow(ctx context.Context) []string {
	s.mu.Lock()
	leaders, age := s.leaders, time.Since(s.read)
	s.mu.Unlock()
	if leaders != nil && age < leadersAge {
		return leaders
	}
	if now := s.askLeaders(ctx); now != nil {
		return now
	}
	return leaders // their number does not change
}
