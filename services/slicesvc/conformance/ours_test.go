package conformance

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// input is what slicesvc would plan from.
func (w world) input() pack.Input {
	var candidates []desired.Candidate
	affinities := map[string]uint32{}
	for _, pod := range w.pods {
		candidate := desired.Candidate{Pod: pod}
		if node := w.node(pod.Spec.NodeName); node != nil {
			candidate.NodeKnown, candidate.Zone = true, node.Labels[corev1.LabelTopologyZone]
		}
		candidates = append(candidates, candidate)
		affinities[pod.Name] = desired.AffinityOf(pod)
	}
	var topology hints.Topology
	for _, node := range w.nodes {
		topology.Add(hints.NodeOf(node))
	}
	return pack.Input{
		Service: w.service, Endpoints: desired.Resolve(w.service, candidates), Slices: w.slices,
		Affinity: func(pod string) uint32 { return affinities[pod] },
		Zones:    topology.Shares(), Limit: w.limit, ManagedBy: managedBy,
	}
}

// syncOurs plans and carries the plan out.
func syncOurs(w world) (*store, error) {
	result := newStore(w.slices)
	for _, change := range pack.Make(w.input()).Changes {
		if err := carryOut(result, change); err != nil {
			return nil, fmt.Errorf("%s: %w", change.Reason, err)
		}
	}
	return result, nil
}

func carryOut(s *store, change pack.Change) error {
	var err error
	switch ctx := context.Background(); change.Verb {
	case pack.Create:
		_, err = s.Create(ctx, change.Slice, metav1.CreateOptions{})
	case pack.Update:
		_, err = s.Update(ctx, change.Slice, metav1.UpdateOptions{})
	default:
		err = s.Delete(ctx, change.Slice.Name, metav1.DeleteOptions{})
	}
	return err
}
