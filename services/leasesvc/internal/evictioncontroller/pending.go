package evictioncontroller

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// PendingEviction is a Pod that must leave its Node.
type PendingEviction struct {
	Namespace, Name string
	UID             types.UID
	// ResourceVersion of the Pod that was decided from.
	ResourceVersion string
	// Taint is "key=value:effect".
	Taint string
	// Since is when the toleration of the Pod begins to count, Due when it is over, by the wall
	// clock of this process.
	Since, Due time.Time
	// HeldBy is why the Pod is not evicted even if it is due, or "".
	HeldBy string
	// Evicted says that the Pod was just deleted.
	Evicted bool
	// Failures is how often the eviction failed, LastError the last failure.
	Failures  int
	LastError string
}

// snapshot is the state after a pass. It is immutable.
type snapshot struct {
	origin     time.Time
	nodes      map[string]eviction.NodeEvictions
	unreliable map[string]string
	attempts   map[types.UID]attempt
}

func (r *run) snapshot() *snapshot {
	s := &snapshot{origin: r.origin, unreliable: r.unreliable, nodes: maps.Clone(r.pending), attempts: map[types.UID]attempt{}}
	for uid, a := range r.attempts {
		if a.done || a.failures > 0 {
			s.attempts[uid] = a
		}
	}
	return s
}

func (s *snapshot) pending(node string) (pending []PendingEviction) {
	for _, p := range s.nodes[node].Pending {
		a := s.attempts[p.Pod.UID]
		e := PendingEviction{
			Namespace: p.Pod.Namespace, Name: p.Pod.Name, UID: p.Pod.UID, ResourceVersion: p.Pod.ResourceVersion,
			Taint: p.Taint.ToString(), Since: s.wall(p.Since), Due: s.wall(p.Due), Evicted: a.done, Failures: a.failures,
		}
		if eviction.FromNodeHealth(&p.Taint) {
			e.HeldBy = s.unreliable[node]
		}
		if a.err != nil {
			e.LastError = a.err.Error()
		}
		pending = append(pending, e)
	}
	return pending
}

func (s *snapshot) wall(i monotonic.Instant) time.Time { return s.origin.Add(i.Sub(0)).Round(0) }
