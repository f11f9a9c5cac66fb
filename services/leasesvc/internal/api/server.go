package api

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	coordinationv1 "k8s.io/api/coordination/v1"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"

	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

const (
	// streamsPerRegistration is the number of new streams that are admitted for each admitted
	// registration. It is generous, because a rejected stream loses a beat.
	streamsPerRegistration = 2
	// graceShare is the share of the shortest grace period that a rejected stream may be asked to
	// wait: its holders do not beat meanwhile.
	graceShare = 4
)

// Config configures a Server. Fields are required unless they say otherwise.
type Config struct {
	// Service is the name of the service in errors.
	Service string
	// Cluster is the name of the cluster, Replica the ID of this replica, and Version that of its
	// build.
	Cluster, Replica, Version string
	Catalog                   *class.Catalog
	// MaxRegistrations is how many holders are registered per second over streams, and the burst.
	MaxRegistrations int
	// MaxMessages is how many heartbeat messages per second one identity may send.
	MaxMessages int
	// MaxLeasesPerIdentity is the bound that Sessions enforce for each Registration.Owner.
	MaxLeasesPerIdentity int
	// TokenReviewInterval is the longest time between two reviews of the token of an open stream.
	TokenReviewInterval time.Duration
	// Authorizer decides about classes with class.RuleAccessReview. Without one, their holders are
	// refused.
	Authorizer *authz.Authorizer
	// Sessions returns the session controller; nil while its loop does not run. It does not block.
	Sessions func() Sessions
	// Owners returns the owners of all shards, from memory.
	Owners func() Owners
	// Forwarder is nil if beats are not forwarded.
	Forwarder *Forwarder
	Leases    LeaseDeleter
	// OnDelete is called with the result of each attempt to delete a Lease object.
	OnDelete func(error)
	// Audit gets takeovers, releases and refused items; nil records nothing.
	Audit AuditWriter
	// Metrics gets the metrics of heartbeats and rejected streams; nil leaves them unregistered.
	Metrics prometheus.Registerer
}

// Sessions is the part of *sessioncontroller.Controller that the handlers use.
type Sessions interface {
	// Now, Beat and LastBeat neither block nor allocate; Process blocks while the controller is
	// behind.
	Now() (monotonic.Instant, bool)
	Beat(now monotonic.Instant, ref session.Ref, sequence uint64) bool
	LastBeat(ref session.Ref) (monotonic.Instant, bool)
	Process(ctx context.Context, batch *sessioncontroller.Batch) error
	// CheckTerms is called after Beat and before the acknowledgement.
	CheckTerms() error

	Get(ctx context.Context, key session.Key, shard int) (lease sessioncontroller.Lease, found bool, err error)
	List(ctx context.Context, options sessioncontroller.ListOptions) (sessioncontroller.Page, error)
	Watch(ctx context.Context, selection sessioncontroller.Selection, since sessioncontroller.Version) (*sessioncontroller.Subscription, error)

	CheckRelease(ctx context.Context, holder session.Holder, shard int, etag string) error
	BeginRelease(ctx context.Context, holder session.Holder, shard int, etag string) (*sessioncontroller.Release, error)
	AbortRelease(*sessioncontroller.Release)
	CompleteRelease(*sessioncontroller.Release)
	CheckAbsent(ctx context.Context, key session.Key, shard int, held time.Duration) (*sessioncontroller.HeldShard, error)

	Leadership() (lost <-chan struct{}, held bool)
	Epoch() int64
	InstanceID() uint64
	Done() <-chan struct{}
}

// LeaseDeleter deletes Lease objects. Its methods are safe for concurrent use and block until ctx
// ends at the latest. An object that is absent, or was last renewed by another writer, is no error.
// The context of a delete carries the term.
type LeaseDeleter interface {
	// Delete deletes the Lease object of a holder if this service was the last to renew it.
	Delete(ctx context.Context, namespace, name string) error
	// Own returns the Lease object of a holder if this service was the last to renew it, or nil.
	Own(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error)
	// DeleteUnchanged deletes an object in the version that was read, or returns a conflict.
	DeleteUnchanged(ctx context.Context, seen *coordinationv1.Lease) error
}

// Server implements HeartbeatService and PeerService. Its methods are safe for concurrent use.
type Server struct {
	leasev1.UnimplementedHeartbeatServiceServer
	leasev1.UnimplementedPeerServiceServer

	Config
	info          *metav1.ServerInfo
	metrics       *metrics
	convert       converter
	registrations *limiter
	newStreams    *limiter
	senders       *senders
	reviews       keptReviews
	openStreams   atomic.Int64
}

// New returns a Server. It starts nothing.
func New(cfg Config) *Server {
	return &Server{
		Config:  cfg,
		info:    &metav1.ServerInfo{Cluster: cfg.Cluster, ReplicaId: cfg.Replica, Version: cfg.Version},
		metrics: newMetrics(cfg.Metrics), convert: converter{cfg.Catalog},
		registrations: newLimiter(cfg.MaxRegistrations),
		newStreams:    newLimiter(streamsPerRegistration * cfg.MaxRegistrations),
		senders:       newSenders(cfg.MaxMessages, cfg.MaxRegistrations),
	}
}

// Unvalidated returns the methods whose requests the Server validates instead of the interceptor,
// for speed.
func Unvalidated() []string {
	return []string{leasev1.HeartbeatService_StreamHeartbeats_FullMethodName}
}

// Register adds the RPCs to a gRPC server.
func (s *Server) Register(registrar grpc.ServiceRegistrar) {
	leasev1.RegisterHeartbeatServiceServer(registrar, s)
	leasev1.RegisterPeerServiceServer(registrar, s)
	leasev1.RegisterLeaseServiceServer(registrar, &leaseServer{Server: s})
}

// OpenStreams returns the number of open heartbeat streams.
func (s *Server) OpenStreams() int64 { return s.openStreams.Load() }

// runningSessions returns the session controller, or sessioncontroller.ErrStopped while its loop
// does not run.
func (s *Server) runningSessions() (Sessions, error) {
	if sessions := s.Sessions(); sessions != nil {
		return sessions, nil
	}
	return nil, sessioncontroller.ErrStopped
}
