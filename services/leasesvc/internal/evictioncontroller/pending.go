package evictioncontroller

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
)

// PendingEviction is a Pod that must leave its Node.
type PendingEviction struct {
	Namespace, Name string
	// Taint is "key=value:effect".
	Taint string
	// Due is when the toleration of the Pod is over, by the wall clock of this process.
	Due time.Time
	// HeldBy is why the Pod is not evicted even if it is due, or "".
	HeldBy string
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
		if a.failures > 0 {
			s.attempts[uid] = a
		}
	}
	return s
}

func (s *snapshot) pending(node string) (pending []PendingEviction) {
	for _, p := range s.nodes[node].Pending {
		a := s.attempts[p.Pod.UID]
		e := PendingEviction{
			Namespace: p.Pod.Namespace, Name: p.Pod.Name, Taint: p.Taint.ToString(),
			Due: s.origin.Add(p.Due.Sub(0)).Round(0), Failures: a.failures,
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
