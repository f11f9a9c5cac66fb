package leasesvc

import (
	"context"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// nodeSessions are the sessions of Nodes that this replica keeps. Those that other replicas keep show in their Leases only.
type nodeSessions struct {
	service *Service

	mu      sync.Mutex // guards what follows
	known   map[string]nodeSession
	changed map[string]struct{}
}

type nodeSession struct {
	state   nodehealth.Session
	written string
}

func newNodeSessions(s *Service) *nodeSessions {
	return &nodeSessions{service: s, known: map[string]nodeSession{}, changed: map[string]struct{}{}}
}

// Changed returns the names of the Nodes whose session changed since the last call.
func (n *nodeSessions) Changed() map[string]struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	changed := n.changed
	n.changed = map[string]struct{}{}
	return changed
}

// Session returns how the session of a Node stands, and the version of its Lease that was last written here.
func (n *nodeSessions) Session(node string) (state nodehealth.Session, written string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	known := n.known[node]
	return known.state, known.written
}

// run follows one keeper after the other until ctx ends.
func (n *nodeSessions) run(ctx context.Context) {
	ticker := time.NewTicker(keeperPoll)
	defer ticker.Stop()
	for ctx.Err() == nil {
		if k := n.service.keeper.Load(); k != nil {
			n.follow(ctx, k)
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// follow takes in the sessions of a keeper until it ends or cuts us off; then nothing is known any more.
func (n *nodeSessions) follow(ctx context.Context, k *sessioncontroller.Controller) {
	subscription, err := k.Watch(ctx, n.service.server.catalog.within("namespaces/"+n.service.nodeNamespace()), sessioncontroller.Version{})
	if err != nil {
		return // the keeper has ended, or ctx has
	}
	defer subscription.Close()
	defer n.clear()
	for {
		events, err := subscription.Next(ctx)
		if err != nil {
			return
		}
		for i := range events {
			n.take(&events[i])
		}
	}
}

func (n *nodeSessions) take(e *sessioncontroller.Event) {
	switch e.Type {
	case sessioncontroller.Added, sessioncontroller.Modified:
		n.put(&e.Lease)
	case sessioncontroller.Deleted:
		n.remove(&e.Lease)
	case sessioncontroller.Bookmark:
	}
}

func (n *nodeSessions) put(lease *sessioncontroller.Lease) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name, known := lease.Holder.Key.Name, nodeSession{state: nodeSessionOf(lease.State)}
	if !lease.Write.WriteTime.IsZero() { // else the Lease was only found, and somebody else has written it
		known.written = lease.Write.ResourceVersion
	}
	n.known[name] = known
	n.changed[name] = struct{}{}
}

func (n *nodeSessions) remove(lease *sessioncontroller.Lease) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.known, lease.Holder.Key.Name)
	n.changed[lease.Holder.Key.Name] = struct{}{}
}

func (n *nodeSessions) clear() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name := range n.known {
		n.changed[name] = struct{}{}
	}
	clear(n.known)
}

func nodeSessionOf(state session.State) nodehealth.Session {
	switch state {
	case session.Alive:
		return nodehealth.SessionAlive
	case session.Suspect:
		return nodehealth.SessionSuspect
	case session.Expired:
		return nodehealth.SessionExpired
	}
	return nodehealth.NoSession
}
