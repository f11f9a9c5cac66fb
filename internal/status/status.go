package status

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/term"
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
	Terms        func() []term.ShardStatus
	Loops        func() []loop.Status
	Dependencies func() []Dependency
	Counts       func() map[string]int64
	// ResourceVersion is the newest one in the caches that Counts is made from.
	ResourceVersion func() string
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
	unready := s.deps.Ready.Failed()
	terms := read(s.deps.Terms)
	return &statusv1.GetStatusResponse{
		Replica:        replica(s.deps.Member),
		Ready:          len(unready) == 0,
		UnreadyReasons: reasons(unready),
		Terms:          termList(terms),
		Loops:          loopList(read(s.deps.Loops)),
		Dependencies:   dependencyList(read(s.deps.Dependencies)),
		Counts:         read(s.deps.Counts),
		Freshness:      Freshness(s.deps.Member.ID, epochHere(terms), read(s.deps.ResourceVersion)),
	}, nil
}

// Freshness returns the origin of a response that is made now: the replica, the epoch of its term
// (0: none), and the newest resourceVersion of its caches (empty: no cache).
func Freshness(replicaID string, epoch int64, resourceVersion string) *statusv1.Freshness {
	return &statusv1.Freshness{
		ReplicaId:       replicaID,
		Epoch:           epoch,
		ReadTime:        timestamp(time.Now()),
		ResourceVersion: resourceVersion,
	}
}

func read[T any](from func() T) T {
	if from == nil {
		var nothing T
		return nothing
	}
	return from()
}

// epochHere returns the newest epoch of the terms held here.
func epochHere(terms []term.ShardStatus) int64 {
	var newest int64
	for _, t := range terms {
		if t.Here {
			newest = max(newest, t.Epoch)
		}
	}
	return newest
}
