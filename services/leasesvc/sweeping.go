package leasesvc

import (
	"context"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writebackcontroller"
)

// sweepEvery is the time between two looks for Leases that nobody needs any more. They do no harm but that of their number.
const sweepEvery = 10 * time.Minute

// newSweep is for the classes whose Leases belong to no Node: for those of Nodes there is a garbage collector.
func newSweep(s *Service) *writebackcontroller.OrphanCollector {
	sweep := &writebackcontroller.OrphanCollector{
		Shard: newCatalog(&s.cfg).shardOfKey, Leases: s.writer, Metrics: s.writes, Timeout: writeTimeout,
	}
	for i, class := range s.cfg.classes() {
		if !class.OwnedByNode {
			sweep.Classes = append(sweep.Classes, writebackcontroller.OrphanClass{
				ID: session.ClassID(i), Name: class.Name, Namespace: class.Namespace, Retention: class.Retention + class.Grace,
			})
		}
	}
	return sweep
}

// sweep looks for them while there is a keeper who knows whom it hears of.
func (s *Service) sweep(ctx context.Context) error {
	k := s.keeper.Load()
	if k == nil || len(s.orphans.Classes) == 0 {
		return nil
	}
	return s.orphans.Collect(ctx, k)
}
