package leasesvc

import (
	"cmp"
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writebackcontroller"
)

// Names of the loops in --loops.
const (
	SessionsLoop      = "sessions"
	WritebackLoop     = "lease-writeback"
	OrphansLoop       = "lease-orphans"
	NodeHealthLoop    = "node-health"
	TaintEvictionLoop = "taint-eviction"
)

const (
	// writeTimeout bounds one write of a Lease object with its reads, as in upstream's client.
	writeTimeout = 10 * time.Second
	// sessionsStall is far above the time between two passes, and below the duration of a Lease.
	sessionsStall = 15 * time.Second
	// writebackStall is far above a pass in which every write runs into writeTimeout twice.
	writebackStall = 2 * time.Minute
	// cacheStall is far above the second between two reports, and above the time between two while
	// objects are listed. A pass does not block.
	cacheStall = 4 * nodestore.ReportWaiting
	// orphansInterval is the time between two searches for orphaned Leases, which cost only their
	// storage.
	orphansInterval = 10 * time.Minute
	// sessionsPoll is how soon users of the session controller notice that its loop has started.
	sessionsPoll = 50 * time.Millisecond
)

// loopNames returns the loops that --loops can select.
func loopNames() []string {
	return []string{SessionsLoop, WritebackLoop, OrphansLoop, NodeHealthLoop, TaintEvictionLoop}
}

// loops returns the loops of this replica. One session controller and one set of writers serve all
// held shards.
func (s *Service) loops() []loop.Loop {
	orphans := &writebackcontroller.OrphanCollector{
		Classes: s.orphanClasses(), Shard: s.catalog.ShardOf, Leases: s.leases, Metrics: s.writes, Timeout: writeTimeout,
	}
	return []loop.Loop{
		{
			Name: SessionsLoop, Doc: "keeps the sessions of the held shards", Scope: loop.Always,
			Stall: sessionsStall, Run: s.runSessions,
		},
		{
			Name: WritebackLoop, Doc: "writes the Lease objects of the sessions", Scope: loop.Always,
			Stall: writebackStall, Run: s.writeback(),
		},
		{
			Name: OrphansLoop, Doc: "deletes the orphaned Leases of holders that are not Nodes", Scope: loop.Always,
			Stall: 3 * orphansInterval, Run: loop.Every(orphansInterval, func(ctx context.Context) error {
				sessions := s.sessions.Load()
				if sessions == nil || len(orphans.Classes) == 0 {
					return nil
				}
				return orphans.Collect(ctx, sessions)
			}),
		},
		{
			Name: NodeHealthLoop, Doc: "marks silent nodes as unknown, taints them and marks their pods", Scope: loop.Always,
			OffByDefault: true, Stall: cacheStall, Run: s.nodeHealth.run, Shadow: s.nodeHealth.compare,
		},
		{
			Name: TaintEvictionLoop, Doc: "deletes pods from nodes whose taints they do not tolerate", Scope: loop.Leader,
			OffByDefault: true, Stall: cacheStall, Run: s.eviction.run, Shadow: s.eviction.compare, ShadowScope: loop.Leader,
		},
	}
}

// orphanClasses returns the classes whose Leases have no Node as owner: Kubernetes' garbage
// collector deletes the others.
func (s *Service) orphanClasses() []writebackcontroller.OrphanClass {
	var orphans []writebackcontroller.OrphanClass
	for i, c := range s.cfg.classes() {
		if !c.OwnedByNode {
			orphans = append(orphans, writebackcontroller.OrphanClass{
				ID: session.ClassID(i), Name: c.Name, Namespace: c.Namespace, Retention: c.Retention + c.Grace,
			})
		}
	}
	return orphans
}

// runSessions starts without sessions, also after a failure.
func (s *Service) runSessions(ctx context.Context, report loop.Report) error {
	var classes []sessioncontroller.Class
	var interval time.Duration
	for _, c := range s.cfg.classes() {
		interval = max(interval, c.Session().Interval)
		classes = append(classes, sessioncontroller.Class{
			Namespace: c.Namespace, Unowned: !c.OwnedByNode, Session: c.Session(), Writes: s.cfg.Writes.For(&c),
		})
	}
	sessions := sessioncontroller.New(sessioncontroller.Config{
		Classes: classes, Shards: s.cfg.Shards, Limit: s.cfg.MaxSessions, AdoptLeases: true,
		SessionsPerOwner: s.cfg.MaxLeasesPerIdentity,
		FillTime:         cmp.Or(s.cfg.FillTime, interval+sessioncontroller.ReconnectTime),
		OnTick:           func() { report(nil) }, OnDuplicate: s.duplicates.report, Logger: s.logger, Decisions: s.decisions,
	})
	s.sessions.Store(sessions)
	defer s.sessions.CompareAndSwap(sessions, nil)
	return sessions.Run(ctx)
}

// writeback returns a loop that adopts and writes Leases for the current session controller and its
// successors.
func (s *Service) writeback() func(context.Context, loop.Report) error {
	adopter := writebackcontroller.NewAdopter(s.leases, s.logger)
	writer := writebackcontroller.New(writebackcontroller.Config{
		Workers: s.cfg.ConcurrentWrites, Timeout: writeTimeout, Metrics: s.writes, Logger: s.logger,
	}, s.leases)
	return func(ctx context.Context, report loop.Report) error {
		ticker := time.NewTicker(sessionsPoll)
		defer ticker.Stop()
		for {
			if sessions := s.sessions.Load(); sessions != nil {
				group, ctx := errgroup.WithContext(ctx)
				group.Go(func() error { return adopter.Run(ctx, sessions) })
				group.Go(func() error { return writer.Run(ctx, sessions, report) })
				if err := group.Wait(); err != nil {
					return err
				}
			}
			report(nil)
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
			}
		}
	}
}

// serveShard is the body of a term. It returns after all writes under the term have returned.
func (s *Service) serveShard(ctx context.Context, t *term.Term) error {
	if t.Shard() != nodehealthcontroller.ZoneShard {
		return s.holdShard(ctx, t)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.holdShard(ctx, t) })
	group.Go(func() error { return s.runner.RunTerm(ctx) })
	return group.Wait()
}

// holdShard holds the shard until its term ends. It fails with the session controller, so that
// another replica takes over. While the loop of the session controller does not run, the shard is
// held and has no sessions.
func (s *Service) holdShard(ctx context.Context, t *term.Term) error {
	held := sessioncontroller.NewHeldShard(ctx, t.Shard(), t.Epoch())
	defer held.Drain()
	s.heldShards.Add(held)
	defer s.heldShards.Remove(held)
	ticker := time.NewTicker(sessionsPoll)
	defer ticker.Stop()
	for {
		if sessions := s.sessions.Load(); sessions != nil {
			return s.serveSessions(ctx, t, sessions, held)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// serveSessions starts with the checkpoint of the shard's silent holders and keeps it up to date.
func (s *Service) serveSessions(ctx context.Context, t *term.Term, sessions *sessioncontroller.Controller, held *sessioncontroller.HeldShard) error {
	silences, empty := s.checkpoints.Restore(ctx, t)
	var saving sync.WaitGroup
	defer saving.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	saving.Go(func() { s.checkpoints.Save(ctx, t, sessions, empty) })
	return sessions.RunShard(held, silences...)
}
