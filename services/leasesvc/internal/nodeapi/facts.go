package nodeapi

import (
	"context"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/explain"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// facts collects what this replica knows about a Node.
func (s *Server) facts(ctx context.Context, snapshot *nodehealthcontroller.Snapshot, node *nodehealthcontroller.Node) explain.Facts {
	lease := s.sessionOf(ctx, node)
	f := explain.Facts{
		NodeStatus: statusOfNode(snapshot, node), Now: snapshot.At.Wall, Epoch: node.Epoch,
		Sessions: s.Sessions() != nil, Session: sessionFacts(lease),
		Namespace: s.Namespace, Excluded: s.Excludes(node.Object),
		Pods: s.Store.Pods(node.Object.Name), Lease: s.Store.Lease(node.Object.Name),
	}
	addLastBeat(&f.NodeStatus, lease)
	f.Zone, _ = snapshot.Zone(node.Zone)
	f.Zone.Name = zoneName(f.Zone.Name)
	f.TaintsHeldBy = s.Publisher.TaintsHeldBy(node.Zone)
	pending, evicts := s.Evictions.Pending(node.Object.Name)
	f.Evicts = evicts
	for i := range pending {
		p := &pending[i]
		f.Pending = append(f.Pending, explain.Pending{
			Name: p.Namespace + "/" + p.Name, Taint: p.Taint, Due: p.Due, HeldBy: p.HeldBy, LastError: p.LastError,
		})
	}
	return f
}

// sessionOf returns the session of a Node; nil if it has none.
func (s *Server) sessionOf(ctx context.Context, node *nodehealthcontroller.Node) *sessioncontroller.Lease {
	sessions := s.Sessions()
	id, served := s.Catalog.ByName(class.Node)
	if sessions == nil || !served {
		return nil
	}
	lease, found, err := sessions.Get(ctx, session.Key{Class: id, Name: node.Object.Name}, node.Shard)
	if err != nil || !found {
		return nil
	}
	return &lease
}

// statusOfNode returns the published status of a Node. It has no time of the last beat if a session
// keeps the Node alive.
func statusOfNode(snapshot *nodehealthcontroller.Snapshot, node *nodehealthcontroller.Node) explain.NodeStatus {
	a := &node.Assessment
	nodeStatus := explain.NodeStatus{
		Node: node.Object, Health: explain.HealthOf(node.Object, a.Health), By: a.By, HeldBy: node.HeldBy,
	}
	if a.Heard > 0 || a.By == nodehealth.GraceStart {
		nodeStatus.Heard = snapshot.Wall(a.Heard)
	}
	if a.Deadline > 0 {
		nodeStatus.Deadline = snapshot.Wall(a.Deadline)
	}
	return nodeStatus
}

// addLastBeat adds the time of the last beat, which only the session has. lease may be nil.
func addLastBeat(nodeStatus *explain.NodeStatus, lease *sessioncontroller.Lease) {
	if lease == nil || nodeStatus.By != nodehealth.SessionBeat {
		return
	}
	if nodeStatus.Heard.IsZero() || lease.LastBeatTime.After(nodeStatus.Heard) {
		nodeStatus.Heard = lease.LastBeatTime
	}
}

func sessionFacts(lease *sessioncontroller.Lease) *explain.Session {
	if lease == nil {
		return nil
	}
	return &explain.Session{
		State: lease.State, Boot: lease.Holder.Boot, Epoch: lease.Epoch, Start: lease.StartTime,
		Beat: lease.LastBeatTime, Deadline: lease.Deadline, WriteError: lease.Write.LastError,
	}
}
