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

// Dependency is how something stands without which the process cannot work.
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

// Deps are where the answers come from. Functions are called for every answer, from many goroutines at once, and answer
// from memory; one that is nil answers nothing.
type Deps struct {
	Member       term.Member
	Ready        *observe.Checks
	Terms        func() []term.Holding
	Loops        func() []loop.Status
	Dependencies func() []Dependency
	Counts       func() map[string]int64
	// ResourceVersion is the newest one in the caches that Counts is made from.
	ResourceVersion func() string
}

// Server implements StatusService. It holds no state of its own.
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

// GetStatus implements StatusService.
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

// Freshness says that an answer is made now by a replica, under the term of epoch (0: none), from caches whose newest
// object has resourceVersion (empty: no cache).
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

// epochHere is the newest of the terms held here: with many shards an answer is made under all of them.
func epochHere(terms []term.Holding) int64 {
	var newest int64
	for _, t := range terms {
		if t.Here {
			newest = max(newest, t.Epoch)
		}
	}
	return newest
}
