package leasesvc

import (
	"context"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/explain"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/keeper"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// facts gathers what this replica knows of a Node, all of it from memory.
func (s *Service) facts(ctx context.Context, edition *nodehealthcontroller.Snapshot, node *nodehealthcontroller.Node) explain.Facts {
	f := explain.Facts{
		NodeStatus: nodeStatusOf(edition, node), Now: edition.At.Wall, Shard: node.Shard, Epoch: node.Epoch,
		Sessions: s.keeper.Load() != nil, Namespace: s.nodeNamespace(), Excluded: s.nodeHealth.rules.Excludes(node.Object),
	}
	f.Zone, _ = edition.Zone(node.Zone)
	f.Zone.Name = zoneName(f.Zone.Name)
	f.TaintsHeldBy, _ = s.nodeHealth.TaintsUnreliable(node.Zone)
	kept := s.sessionOf(ctx, node)
	s.sharpen(&f.NodeStatus, kept)
	f.Session = sessionFacts(kept)
	s.gather(&f)
	return f
}

// gather adds what the objects say, and which pods have to leave.
func (s *Service) gather(f *explain.Facts) {
	name := f.Node.Name
	f.Pods = s.nodes.Pods(name)
	if lease, holder := s.nodes.Lease(name); lease != (nodehealth.Lease{}) {
		f.Lease = &explain.Lease{Version: lease.Version, RenewTime: lease.RenewTime, Duration: lease.Duration, Holder: holder}
	}
	pending, running := s.eviction.pending(name)
	if !running {
		return
	}
	f.Eviction = &explain.Eviction{}
	for _, p := range pending {
		f.Eviction.Pending = append(f.Eviction.Pending, explain.Pending{
			Name: p.Namespace + "/" + p.Name, Taint: p.Taint, Due: p.Due, HeldBy: p.HeldBy, LastError: p.LastError,
		})
	}
}

// sessionOf is the session of a Node as its owner has it now; nil when it has none.
func (s *Service) sessionOf(ctx context.Context, node *nodehealthcontroller.Node) *keeper.Lease {
	k := s.keeper.Load()
	class, served := s.server.catalog.byName[NodeClass]
	if k == nil || !served {
		return nil
	}
	lease, found, err := k.Get(ctx, session.Key{Class: class, Name: node.Object.Name}, node.Shard)
	if err != nil || !found {
		return nil
	}
	return &lease
}

// sharpen says when the session of a Node last beat, which its owner alone knows.
func (s *Service) sharpen(standing *explain.NodeStatus, kept *keeper.Lease) {
	if kept == nil || standing.By != nodehealth.SessionBeat {
		return
	}
	if standing.Heard.IsZero() || kept.LastBeatTime.After(standing.Heard) {
		standing.Heard = kept.LastBeatTime
	}
}

func sessionFacts(kept *keeper.Lease) *explain.Session {
	if kept == nil {
		return nil
	}
	return &explain.Session{
		State: nodeSessionOf(kept.State), Boot: kept.Holder.Boot, Epoch: kept.Epoch, Start: kept.StartTime,
		Beat: kept.LastBeatTime, Deadline: kept.Deadline, WriteError: kept.Write.LastError,
	}
}
