package evictioncontroller

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// Pending is a pod that has to leave its Node.
type PendingEviction struct {
	Namespace, Name string
	UID             types.UID
	// ResourceVersion of the pod as decided from.
	ResourceVersion string
	// Taint is "key=value:effect".
	Taint string
	// Since is from when the pod's toleration counts and Due when it is over, by the wall clock of this process.
	Since, Due time.Time
	// Held says why it is not evicted although it may be due; empty otherwise.
	HeldBy string
	// Evicted tells that it was deleted just now.
	Evicted bool
	// Failures is how often its eviction failed, LastError how the last time.
	Failures  int
	LastError string
}

// snapshot is what a round knew at the end of a pass. Nobody writes to it.
type snapshot struct {
	origin  time.Time
	tainted map[string]eviction.NodeEvictions
	doubted map[string]string
	tries   map[types.UID]try
}

func (r *round) snapshot() *snapshot {
	s := &snapshot{
		origin: r.origin, doubted: r.doubted,
		tainted: maps.Clone(r.tainted), tries: map[types.UID]try{},
	}
	for uid, t := range r.tries {
		if t.done || t.failures > 0 {
			s.tries[uid] = t
		}
	}
	return s
}

// Pending returns the pods that have to leave a Node, the first that is due first. running is false where the loop does not run,
// or has not listed the cluster yet: then nothing is known here.
func (l *Controller) Pending(node string) (pending []PendingEviction, running bool) {
	s := l.snapshot.Load()
	if s == nil {
		return nil, false
	}
	for _, wait := range s.tainted[node].Pending {
		t := s.tries[wait.Pod.UID]
		p := PendingEviction{
			Namespace: wait.Pod.Namespace, Name: wait.Pod.Name, UID: wait.Pod.UID, ResourceVersion: wait.Pod.ResourceVersion,
			Taint: wait.Taint.ToString(), Since: s.wall(wait.Since), Due: s.wall(wait.Due), Evicted: t.done, Failures: t.failures,
		}
		if eviction.FromNodeHealth(&wait.Taint) {
			p.HeldBy = s.doubted[node]
		}
		if t.err != nil {
			p.LastError = t.err.Error()
		}
		pending = append(pending, p)
	}
	return pending, true
}

func (s *snapshot) wall(i monotonic.Instant) time.Time { return s.origin.Add(i.Sub(0)).Round(0) }
