package nodeapi

import (
	"context"
	"strings"
	"unique"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/api"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/explain"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// nodeView is one Node as it is shown. lease is nil in watches, and if the Node has none.
type nodeView struct {
	snapshot *nodehealthcontroller.Snapshot
	node     *nodehealthcontroller.Node
	lease    *sessioncontroller.Lease
}

func newNodeView(snapshot *nodehealthcontroller.Snapshot, node *nodehealthcontroller.Node) nodeView {
	return nodeView{snapshot: snapshot, node: node}
}

// leaseOf returns the session of a Node; nil if it has none.
func (s *Server) leaseOf(ctx context.Context, node *nodehealthcontroller.Node) *sessioncontroller.Lease {
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

// leasesOf returns the sessions of Nodes by their names. Without a session, or if the sessions
// cannot be read, a Node is missing.
func (s *Server) leasesOf(ctx context.Context, nodes []*nodehealthcontroller.Node) map[string]*sessioncontroller.Lease {
	sessions := s.Sessions()
	id, served := s.Catalog.ByName(class.Node)
	if sessions == nil || !served {
		return nil
	}
	keys := make([]session.Key, len(nodes))
	for i, node := range nodes {
		keys[i] = session.Key{Class: id, Name: node.Object.Name}
	}
	found, err := sessions.GetAll(ctx, keys)
	if err != nil {
		return nil
	}
	leases := make(map[string]*sessioncontroller.Lease, len(found))
	for i := range found {
		leases[found[i].Holder.Key.Name] = &found[i]
	}
	return leases
}

// agent returns the agent of the Node; nil if it has none, or none that is known.
func (v *nodeView) agent() *leasev1.Lease_Agent {
	switch {
	case v.lease != nil:
		return api.AgentOf(v.lease.Agent)
	case v.node.Agent != (unique.Handle[session.Agent]{}):
		return api.AgentOf(v.node.Agent.Value())
	}
	return nil
}

// status returns the status of the Node. Without a lease it has no time of the last beat if a
// session keeps the Node alive.
func (v *nodeView) status() explain.NodeStatus {
	a := &v.node.Assessment
	status := explain.NodeStatus{
		Node: v.node.Object, Health: explain.HealthOf(v.node.Object, a.Health), By: a.By, Delay: a.Delay, CutOff: a.CutOff, Session: v.node.Session,
	}
	if a.Heard > 0 || a.By == nodehealth.GraceStart {
		status.Heard = v.snapshot.Wall(a.Heard)
	}
	if a.Delay.Since > 0 {
		status.DelaySince = v.snapshot.Wall(a.Delay.Since)
	}
	if a.Deadline > 0 {
		status.Deadline = v.snapshot.Wall(a.Deadline)
	}
	if v.lease != nil && a.By == nodehealth.SessionBeat && v.lease.ObserveTime.After(status.Heard) {
		status.Heard = v.lease.ObserveTime
	}
	return status
}

func (s *Server) status(v *nodeView) explain.NodeStatus {
	status := v.status()
	status.DryRun = s.DryRun()
	return status
}

// facts collects what this replica knows about a Node.
func (s *Server) facts(v *nodeView) explain.Facts {
	name := v.node.Object.Name
	f := explain.Facts{
		NodeStatus: s.status(v), Now: v.snapshot.At.Wall, Epoch: v.node.Epoch,
		Sessions: s.Sessions() != nil, Lease: leaseFacts(v.lease),
		Namespace: s.Namespace, Excluded: s.Excludes(v.node.Object),
		Pods: s.Store.Pods(name), LeaseObject: s.Store.Lease(name), TaintHold: s.Publisher.TaintHold(),
	}
	zone, _ := v.snapshot.Zone(v.node.Zone)
	f.Zone = zone.Zone
	pending, evicts := s.Evictions.Pending(name)
	f.Evicts = evicts
	for i := range pending {
		p := &pending[i]
		f.Pending = append(f.Pending, explain.Pending{
			Name: p.Namespace + "/" + p.Name, Taint: p.Taint, Due: p.Due, Hold: p.Hold, LastError: p.LastError,
		})
	}
	return f
}

func leaseFacts(lease *sessioncontroller.Lease) *explain.Lease {
	if lease == nil {
		return nil
	}
	return &explain.Lease{
		State: lease.State, Boot: lease.Holder.Boot, Epoch: lease.Epoch, Start: lease.StartTime,
		Beat: lease.ObserveTime, AgentHeard: lease.AgentHeard(), ExpireTime: lease.Deadline, WriteError: lease.Write.LastError,
		Agent: agentName(lease.Agent), Observes: lease.Observed, CutOff: lease.CutOffTime,
	}
}

// agentName returns the name of an agent, with its version and mode; empty if it is not known.
func agentName(a session.Agent) string {
	name := strings.TrimSpace(a.Name + " " + a.Version)
	if a.Mode != "" {
		name = strings.TrimSpace(name + " in mode " + a.Mode)
	}
	return name
}
