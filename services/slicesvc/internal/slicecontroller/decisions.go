package slicecontroller

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
)

// recordSync records what a sync wrote, and the first failure in a row. It makes no text for a sync
// that succeeded, because a roll-out syncs thousands of Services.
func (c *Syncer) recordSync(owned *ownedShard, key Key, object Object, result *syncResult, failedBefore bool) {
	if c.deps.Decisions == nil {
		return
	}
	decision := decisions.Decision{Action: decisions.SlicesWritten, Object: recordedObject(key, object)}
	if versioned, ok := object.(interface{ GetResourceVersion() string }); ok {
		decision.ResourceVersion = versioned.GetResourceVersion()
	}
	if held, ok := term.FromContext(owned.ctx); ok {
		decision.Shard, decision.Epoch = int32(held.Shard()), held.Epoch()
	}
	for i := range result.outcomes {
		if outcome := result.outcomes[i]; outcome.State != Applied && !errors.Is(outcome.Err, kube.ErrStoredOtherwise) {
			continue
		}
		switch result.plan.Changes[i].Verb {
		case planned.Create:
			decision.Created++
		case planned.Update:
			decision.Updated++
		case planned.Delete:
			decision.Deleted++
		}
	}
	if decision.Created+decision.Updated+decision.Deleted > 0 {
		c.deps.Decisions.Record(decision)
	}
	if result.err != nil && !failedBefore && !errors.Is(result.err, kube.ErrConflict) && result.throttled == 0 {
		decision.Action, decision.Message = decisions.WriteRefused, fmt.Sprintf("write of its EndpointSlices: %v; it is tried again", result.err)
		decision.Created, decision.Updated, decision.Deleted = 0, 0, 0
		c.deps.Decisions.Record(decision)
	}
}

// recordedObject names a Service, or an Endpoints object that is mirrored.
func recordedObject(key Key, object Object) decisions.Object {
	recorded := decisions.Object{APIVersion: "v1", Kind: "Endpoints", Namespace: key.Namespace, Name: key.Name, UID: string(object.GetUID())}
	if _, isService := object.(*corev1.Service); isService {
		recorded.Kind = "Service"
	}
	return recorded
}
