package leasesvc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/api"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodeapi"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writebackcontroller"
)

// ServiceName is the name of the service in etcd keys and errors.
const ServiceName = "leasesvc"

// state is what the loops and the RPC handlers share. It is safe for concurrent use.
type state struct {
	catalog    *class.Catalog
	heldShards *sessioncontroller.HeldShards
	// sessions is the session controller; nil while its loop does not run.
	sessions atomic.Pointer[sessioncontroller.Controller]
}

func (s *state) sessionCounts() session.Counts {
	if sessions := s.sessions.Load(); sessions != nil {
		return sessions.Counts()
	}
	return session.Counts{}
}

// Service is leasesvc. Its methods are safe for concurrent use; Run is called once.
type Service struct {
	*state
	cfg        Config
	member     string // the ID of this replica
	leadership Leadership
	logger     *slog.Logger
	decisions  *decisions.Log

	leases     *writebackcontroller.LeaseWriter
	writes     *writebackcontroller.Metrics
	nodeHealth *nodeHealth
	eviction   *taintEviction
	// checkpoints is nil without etcd, and forwarder without Deps.Dial.
	checkpoints *sessioncontroller.Checkpoints
	forwarder   *api.Forwarder
	duplicates  *duplicateEvents

	leaseAPI *api.Server
	nodeAPI  *nodeapi.Server
	runner   *loop.Runner
}

// New returns a service. It starts nothing and sends no requests.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := errors.Join(cfg.Validate()...); err != nil {
		return nil, err
	}
	if shards := len(deps.Leadership.Status().Shards); shards != cfg.Shards {
		return nil, fmt.Errorf("--shards is %d and leadership is for %d shards: they must agree", cfg.Shards, shards)
	}
	s := &Service{
		state: &state{catalog: class.NewCatalog(cfg.classes(), cfg.Shards, cfg.AgentServiceAccounts...), heldShards: sessioncontroller.NewHeldShards()},
		cfg:   cfg, member: deps.Member.ID, leadership: deps.Leadership, logger: deps.Logger, decisions: deps.Decisions,
	}
	var err error
	if s.nodeHealth, err = newNodeHealth(&s.cfg, s.state, deps); err != nil {
		return nil, err
	}
	if s.eviction, err = newTaintEviction(cfg.TaintEviction, s.nodeHealth, deps); err != nil {
		return nil, err
	}
	s.nodeHealth.evictions = s.eviction.controller
	s.nodeHealth.dryRun = func(loop string) bool { return s.runner.DryRun(loop) }
	s.writes = writebackcontroller.NewMetrics(deps.Metrics)
	s.leases = writebackcontroller.NewLeaseWriter(deps.Kube.CoordinationV1(), s.nodeHealth.store)
	s.checkpoints = newCheckpoints(s, deps)
	s.duplicates = newDuplicateEvents(s, deps.Kube)
	if deps.Dial != nil {
		s.forwarder = newForwarder(deps)
	}
	s.leaseAPI, s.nodeAPI = s.newLeaseAPI(deps), s.newNodeAPI(deps)
	s.runner, err = loop.NewRunner(loop.Config{
		Loops: s.loops(), Selection: deps.LoopSelection, DryRun: deps.Shadow.Loops(), Logger: deps.Logger, Metrics: deps.Metrics,
	})
	if err != nil {
		return nil, err
	}
	if deps.Ready != nil {
		deps.Ready.Add("nodes", s.nodeHealth.store.Check)
	}
	registerMetrics(deps.Metrics, s.state, s.leaseAPI.OpenStreams)
	return s, nil
}

// newCheckpoints returns nil without etcd.
func newCheckpoints(s *Service, deps Deps) *sessioncontroller.Checkpoints {
	if deps.Etcd == nil {
		return nil
	}
	return sessioncontroller.NewCheckpoints(sessioncontroller.CheckpointsConfig{
		Store:   sessioncontroller.NewCheckpointStore(deps.Etcd, deps.Member.Cluster, ServiceName),
		Catalog: s.catalog, Classes: s.cfg.classes(), Logger: deps.Logger, Metrics: deps.Metrics,
	})
}

func newForwarder(deps Deps) *api.Forwarder {
	return api.NewForwarder(api.ForwarderConfig{
		Dial: func(address string) (api.Connection, error) {
			connection, err := deps.Dial(address)
			if err != nil {
				return nil, err
			}
			return api.NewPeerConnection(connection, deps.Member.ID), nil
		},
		Metrics: deps.Metrics, Logger: deps.Logger,
	})
}

func (s *Service) newLeaseAPI(deps Deps) *api.Server {
	return api.New(api.Config{
		Service: ServiceName, Cluster: deps.Member.Cluster, Replica: deps.Member.ID, Version: identity.Version(), Catalog: s.catalog,
		MaxRegistrations: s.cfg.MaxRegistrations, MaxMessages: s.cfg.MaxMessages,
		MaxLeasesPerIdentity: s.cfg.MaxLeasesPerIdentity, TokenReviewInterval: s.cfg.TokenReviewInterval, Authorizer: deps.Authorizer,
		Audit: deps.Audit,
		Sessions: func() api.Sessions {
			if sessions := s.sessions.Load(); sessions != nil {
				return sessions
			}
			return nil // not a typed nil
		},
		Owners: s.owners, Leases: s.leases, Metrics: deps.Metrics,
		OnDelete: func(err error) { s.writes.Deleted(writebackcontroller.Released, err) }, Forwarder: s.forwarder,
	})
}

func (s *Service) newNodeAPI(deps Deps) *nodeapi.Server {
	return nodeapi.New(nodeapi.Config{
		Service: ServiceName, Replica: deps.Member.ID, Loop: NodeHealthLoop, Enabled: s.nodeHealth.enabled, DryRun: func() bool { return s.nodeHealth.dryRun(NodeHealthLoop) },
		Catalog: s.catalog, Namespace: s.nodeHealth.namespace, Excludes: s.nodeHealth.rules.Excludes,
		Owners: s.owners, HeldShards: s.heldShards, Publisher: s.nodeHealth.publisher, Store: s.nodeHealth.store,
		Evictions: s.eviction,
		Sessions: func() nodeapi.Sessions {
			if sessions := s.sessions.Load(); sessions != nil {
				return sessions
			}
			return nil
		},
	})
}

func (s *Service) owners() api.Owners { return s.leadership.Status().Shards }

// Register adds the RPCs to a gRPC server.
func (s *Service) Register(registrar grpc.ServiceRegistrar) {
	s.leaseAPI.Register(registrar)
	s.nodeAPI.Register(registrar)
}

// Holders decides about calls before their messages are read.
func (s *Service) Holders() rpcserver.HolderAccess { return s.leaseAPI }

// Unvalidated returns the methods whose requests the service validates instead of the interceptor.
func Unvalidated() []string { return api.Unvalidated() }

// Loops returns the service's loops, for the process to show and to supervise.
func (s *Service) Loops() *loop.Runner { return s.runner }

// Counts returns the number of sessions by state in the held shards, so that the counts of all
// replicas add up. lease_writes counts written Lease objects since the start of the process, and
// streams is the number of open streams.
func (s *Service) Counts() map[string]int64 {
	c := s.sessionCounts()
	return map[string]int64{
		"leases": int64(c.Total()), "alive": int64(c.Alive), "suspect": int64(c.Suspect), "expired": int64(c.Expired),
		"lease_writes": s.writes.Written(), "streams": s.leaseAPI.OpenStreams(),
	}
}

// Run watches Nodes, runs the loops, and serves the shards that leadership assigns to this replica.
// It returns after ctx has ended and all its goroutines have returned.
func (s *Service) Run(ctx context.Context) error {
	s.cfg.warn(s.logger, s.nodeHealth.writes())
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.nodeHealth.store.Run(ctx) })
	// The loops outlive the terms, because the session controller must end the sessions of a shard
	// before its term ends.
	loops, endLoops := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error { return s.runner.Run(loops) })
	group.Go(func() error { return s.duplicates.run(loops) })
	if s.forwarder != nil {
		group.Go(func() error { return s.forwarder.Run(loops) })
	}
	group.Go(func() error {
		defer endLoops()
		return s.leadership.Run(ctx, s.serveShard)
	})
	return group.Wait()
}
