package slicecontroller

import (
	"context"

	"github.com/trivet-dev/trivet/internal/shadow/difference"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/shadow"
)

// ComparedKeys returns the Services of a shard whose slices may be compared.
func (c *Controller) ComparedKeys(shard int) []Key { return c.index.ShardKeys(shard) }

// Compared returns the slices of a Service, and the plan of the whole Service that is made from
// them. It needs no term. It returns false for a Service that gets no slices, and never fails.
func (c *Controller) Compared(_ context.Context, key Key) (shadow.Input, bool, error) {
	snapshot, ok := c.index.Snapshot(key)
	if !ok || !c.handles(snapshot.Service) {
		return shadow.Input{}, false, nil
	}
	in := shadow.Input{
		Slices:  snapshot.Slices,
		Subject: difference.Object{APIVersion: "v1", Kind: "Service", Namespace: key.Namespace, Name: key.Name, UID: string(snapshot.Service.UID)},
	}
	if !index.Managed(snapshot.Service) {
		in.Plan = c.planUnmanaged(snapshot)
		return in, true, nil
	}
	in.Plan = pack.Make(c.planInput(snapshot))
	in.Least = pack.MinSlices(snapshot.Slices, len(snapshot.Service.Spec.IPFamilies), c.cfg.MaxEndpointsPerSlice)
	in.AllocatesHints = hints.ModeOf(snapshot.Service) == hints.Auto
	return in, true, nil
}
