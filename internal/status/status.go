package status

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/answer"
	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/pagetoken"
	"github.com/trivet-dev/trivet/internal/prototime"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// Dependency is the state of a server that the process needs.
type Dependency struct {
	// Name is stable, for example "etcd".
	Name string
	// Healthy says whether the last contact succeeded.
	Healthy bool
	// Reason says why not; empty when healthy.
	Reason string
	// LastContact is when it was last contacted; zero when unknown.
	LastContact time.Time
}

// Deps are the sources of a response. Functions are called concurrently and must only read memory.
// A nil function leaves its field empty.
type Deps struct {
	Member       term.Member
	Ready        *observe.Checks
	Shards       func() []term.ShardStatus
	Loops        func() []loop.Status
	Dependencies func() []Dependency
	Counts       func() map[string]int64
	// Problems returns what is wrong with the duties of the service.
	Problems func() []*metav1.Problem
	// ListShards answers ListShards for other services, too. It may call them. Nil answers from
	// Shards.
	ListShards func(context.Context, *statusv1.ListShardsRequest) (*statusv1.ListShardsResponse, error)
}

// Server implements StatusService. It has no state.
type Server struct {
	statusv1.UnimplementedStatusServiceServer
	deps Deps
}

// New returns a server that answers from deps.
func New(deps Deps) *Server {
	return &Server{deps: deps}
}

// Register adds the service to registrar.
func (s *Server) Register(registrar grpc.ServiceRegistrar) {
	statusv1.RegisterStatusServiceServer(registrar, s)
}

// GetStatus returns the status of this process.
func (s *Server) GetStatus(context.Context, *statusv1.GetStatusRequest) (*statusv1.GetStatusResponse, error) {
	failed := s.deps.Ready.Failed()
	shards := read(s.deps.Shards)
	return &statusv1.GetStatusResponse{
		Status: &statusv1.ReplicaStatus{
			Replica:      replica(s.deps.Member),
			Ready:        len(failed) == 0,
			Problems:     problems(s.deps.Member, failed, read(s.deps.Problems)),
			ShardCount:   int32(len(shards)),
			LedShards:    ledHere(shards),
			Loops:        loopList(read(s.deps.Loops)),
			Dependencies: dependencyList(read(s.deps.Dependencies)),
			Counts:       read(s.deps.Counts),
		},
		Sources: []*metav1.Source{s.source(shards)},
	}, nil
}

const (
	defaultPageSize = 500
	maxPageSize     = 5000
	// listShards names the list in page tokens.
	listShards = "trivet.status.v1.ListShards"
)

// ListShards returns the shards of this process's service, or what Deps.ListShards answers.
func (s *Server) ListShards(ctx context.Context, request *statusv1.ListShardsRequest) (*statusv1.ListShardsResponse, error) {
	if s.deps.ListShards != nil {
		return s.deps.ListShards(ctx, request)
	}
	arguments := strings.Join(request.GetServices(), ",")
	after, err := afterToken(request.GetPageToken(), arguments)
	if err != nil {
		return nil, rpcerror.New(codes.InvalidArgument, rpcerror.InvalidPageTokenReason, err.Error())
	}
	all := read(s.deps.Shards)
	response := &statusv1.ListShardsResponse{Sources: []*metav1.Source{s.source(all)}}
	if selected := request.GetServices(); len(selected) > 0 && !slices.Contains(selected, s.deps.Member.Service) {
		return response, nil
	}
	size := answer.PageSize(request.GetPageSize(), defaultPageSize, maxPageSize)
	for _, shard := range shardList(s.deps.Member.Service, all) {
		if *shard.Shard <= after {
			continue
		}
		if len(response.Shards) == size {
			last := *response.Shards[size-1].Shard
			response.NextPageToken = pagetoken.Encode(strconv.Itoa(int(last)), listShards, arguments)
			break
		}
		response.Shards = append(response.Shards, shard)
	}
	return response, nil
}

// afterToken returns the last shard of the page before; -1 for the first page.
func afterToken(token, arguments string) (int32, error) {
	if token == "" {
		return -1, nil
	}
	text, err := pagetoken.Parse(token, listShards, arguments)
	if err != nil {
		return 0, err
	}
	shard, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0, pagetoken.ErrInvalid
	}
	return int32(shard), nil
}

func (s *Server) source(shards []term.ShardStatus) *metav1.Source {
	return &metav1.Source{
		Service: s.deps.Member.Service, ReplicaId: s.deps.Member.ID, Epoch: epochHere(shards), Shards: ledHere(shards),
		ReadTime: prototime.New(time.Now()),
	}
}

func read[T any](from func() T) T {
	if from == nil {
		var nothing T
		return nothing
	}
	return from()
}

// epochHere returns the newest epoch of the shards that this replica leads.
func epochHere(shards []term.ShardStatus) int64 {
	var newest int64
	for _, shard := range shards {
		if shard.Here {
			newest = max(newest, shard.Epoch)
		}
	}
	return newest
}

// ledHere returns the shards that this replica leads, ordered.
func ledHere(shards []term.ShardStatus) []int32 {
	var led []int32
	for _, shard := range shards {
		if shard.Here {
			led = append(led, int32(shard.Shard))
		}
	}
	slices.Sort(led)
	return led
}
