package bootstrapsvc

import (
	"fmt"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// recordChange records a write of the baseline, and each kube-apiserver whose address it added to
// the endpoints or removed from them.
func recordChange(log *decisions.Log, change baseline.Change, epoch int64) {
	apiVersion, kind := change.Kind().ToAPIVersionAndKind()
	log.Record(decisions.Decision{
		Action: decisions.BaselineWritten, Epoch: epoch, ResourceVersion: versionBefore(change),
		Object: decisions.Object{
			APIVersion: apiVersion, Kind: kind, Namespace: change.Object.GetNamespace(), Name: change.Object.GetName(), UID: string(change.Object.GetUID()),
		},
		Message: fmt.Sprintf("%s (%s): %s", change.Reason, change.Verb, change.Detail),
	})
	before, after := publishedBefore(change), publishedAfter(change)
	record := func(action decisions.Action, address string) {
		log.Record(decisions.Decision{
			Action: action, Epoch: epoch, Object: decisions.Object{Kind: "APIServer", Name: address},
			Message: fmt.Sprintf("EndpointSlice %s: %s", change.Object.GetName(), change.Detail),
		})
	}
	for _, address := range after {
		if !slices.Contains(before, address) {
			record(decisions.APIServerAdded, address)
		}
	}
	for _, address := range before {
		if !slices.Contains(after, address) {
			record(decisions.APIServerRemoved, address)
		}
	}
}

func versionBefore(change baseline.Change) string {
	if change.Before == nil {
		return ""
	}
	return change.Before.GetResourceVersion()
}

// publishedBefore returns the ready addresses of a slice before a change; none for other objects.
// The Endpoints object has the same addresses, so its changes are not looked at.
func publishedBefore(change baseline.Change) []string {
	object := change.Before
	if change.Verb == planned.Delete {
		object = change.Object
	}
	return publishedIn(object)
}

func publishedAfter(change baseline.Change) []string {
	if change.Verb == planned.Delete {
		return nil
	}
	return publishedIn(change.Object)
}

func publishedIn(object baseline.Object) []string {
	slice, ok := object.(*discoveryv1.EndpointSlice)
	if !ok || slice == nil {
		return nil
	}
	return apiservers.PublishedInSlices([]*discoveryv1.EndpointSlice{slice})
}
