package mirrorcontroller

import (
	"context"

	"github.com/trivet-dev/trivet/internal/shadow/difference"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/shadow"
)

// Keys returns the objects of a shard whose slices may be compared. It includes slices
// without an Endpoints object.
func (c *Controller) Keys(shard int) []Key { return c.ShardKeys(shard) }

// Compared returns the mirrored slices of an Endpoints object and the plan of all of them. It needs
// no term, and reads the object if the cache has only its name. It returns false if there is
// nothing to compare.
func (c *Controller) Compared(ctx context.Context, key Key) (shadow.Input, bool, error) {
	of := c.subject(key)
	if of.reason() == "" && !of.whole {
		if err := c.readEndpoints(ctx, key, of.object); err != nil {
			return shadow.Input{}, false, err
		}
		of = c.subject(key)
	}
	existing := c.Index().SlicesOf(key)
	if of.object == nil && len(existing) == 0 {
		return shadow.Input{}, false, nil
	}
	plan, resolved, err := c.plan(key, of, 0)
	if err != nil {
		return shadow.Input{}, false, err
	}
	in := shadow.Input{
		Slices: existing, Plan: plan, Spills: c.cfg.Limits.Spill && exceeds(resolved, c.cfg.Limits.PerSubset),
		Subject: difference.Object{APIVersion: "v1", Kind: "Endpoints", Namespace: key.Namespace, Name: key.Name},
	}
	if of.object != nil {
		in.Subject.UID = string(of.object.UID)
	}
	return in, true, nil
}

// exceeds returns whether a set of ports has more addresses than the limit, both families together.
func exceeds(resolved mirror.Resolved, limit int) bool {
	addresses := map[desired.PortKey]int{}
	for _, family := range resolved.Families {
		for i := range family.Groups {
			addresses[family.Groups[i].Key] += len(family.Groups[i].Endpoints)
			if addresses[family.Groups[i].Key] > limit {
				return true
			}
		}
	}
	return false
}
