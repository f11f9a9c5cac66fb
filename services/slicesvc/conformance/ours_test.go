package conformance

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// input is what slicesvc plans from.
func (w clusterState) input() pack.Input {
	snapshot := index.Snapshot{Service: w.service, Slices: w.slices}
	var candidates []desired.Candidate
	for _, pod := range w.pods {
		candidate := desired.Candidate{Pod: pod}
		if node := w.node(pod.Spec.NodeName); node != nil {
			candidate.NodeKnown, candidate.Zone = true, node.Labels[corev1.LabelTopologyZone]
		}
		candidates = append(candidates, candidate)
		snapshot.Pods = append(snapshot.Pods, index.SelectedPod{
			Pod: index.NewPod(pod), NodeKnown: candidate.NodeKnown, Zone: candidate.Zone, Affinity: desired.AffinityOf(pod),
		})
	}
	var topology hints.Topology
	for _, node := range w.nodes {
		topology.Add(hints.NodeOf(node))
	}
	snapshot.Shares = topology.Shares()
	return pack.Input{
		Snapshot: snapshot, Owner: pack.ServiceOwner(w.service), Endpoints: desired.Resolve(w.service, candidates), Limit: w.limit, ManagedBy: managedBy,
	}
}

// syncOurs plans and applies the plan.
func syncOurs(w clusterState) (*store, error) {
	result := newStore(w.slices)
	for _, change := range pack.Make(w.input()).Changes {
		if err := applyChange(result, change); err != nil {
			return nil, fmt.Errorf("%s: %w", change.Reason, err)
		}
	}
	return result, nil
}

func applyChange(s *store, change pack.Change) error {
	var err error
	switch ctx := context.Background(); change.Verb {
	case planned.Create:
		_, err = s.Create(ctx, change.Slice, metav1.CreateOptions{})
	case planned.Update:
		_, err = s.Update(ctx, change.Slice, metav1.UpdateOptions{})
	default:
		err = s.Delete(ctx, change.Slice.Name, metav1.DeleteOptions{})
	}
	return err
}
