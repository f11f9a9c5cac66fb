package slicesvc

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	discoveryv1 "k8s.io/api/discovery/v1"

	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/engine"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// parseName reads "namespaces/{namespace}/services/{service}".
func parseName(name string) (engine.Key, bool) {
	parts := strings.Split(name, "/")
	if len(parts) != 4 || parts[0] != "namespaces" || parts[2] != "services" {
		return engine.Key{}, false
	}
	return engine.Key{Namespace: parts[1], Name: parts[3]}, true
}

func resourceName(namespace, service string) string {
	return "namespaces/" + namespace + "/services/" + service
}

// parseParent reads "namespaces/{namespace}"; "" stands for all of them.
func parseParent(parent string) (namespace string) {
	namespace = strings.TrimPrefix(parent, "namespaces/")
	if namespace == "-" {
		return ""
	}
	return namespace
}

// placeOf is where a Service belongs and how full its slices may be.
type placeOf struct {
	shard    int
	epoch    int64
	capacity int
}

func convertState(state engine.State, of placeOf) *slicev1.ServiceSlices {
	converted := &slicev1.ServiceSlices{
		Name:            resourceName(state.Service.Namespace, state.Service.Name),
		Uid:             string(state.Service.UID),
		Managed:         state.Unmanaged == index.Managed,
		UnmanagedReason: string(state.Unmanaged),
		LastSyncTime:    timestamp(state.History.LastSync),
		LastError:       valid(state.History.LastError),
		Failures:        int32(state.History.Failures),
		LastPlan:        convertLast(state.Last),
		Topology:        state.Topology,
		TopologyProblem: valid(state.TopologyProblem),
		ContendedBy:     valid(state.ContendedBy),
		Shard:           int32(of.shard),
		Epoch:           of.epoch,
	}
	if converted.Managed {
		converted.IdealSlices = int32(pack.MinSlices(state.Slices, len(desired.Families(state.Service)), of.capacity))
	}
	ordered := slices.Clone(state.Slices)
	slices.SortFunc(ordered, func(a, b *discoveryv1.EndpointSlice) int {
		return cmp.Or(cmp.Compare(a.AddressType, b.AddressType), cmp.Compare(a.Name, b.Name))
	})
	for _, slice := range ordered {
		one := convertSlice(slice, of.capacity)
		one.WriteTime = timestamp(state.Written[slice.Name])
		converted.Slices = append(converted.Slices, one)
		converted.Endpoints += one.Endpoints
		converted.ReadyEndpoints += one.ReadyEndpoints
	}
	return converted
}

func convertLast(last engine.LastPlan) *slicev1.ServiceSlices_LastPlan {
	if last.Time.IsZero() {
		return nil
	}
	converted := &slicev1.ServiceSlices_LastPlan{
		Time: timestamppb.New(last.Time), Trigger: string(last.Trigger),
		Creates: int32(last.Creates), Updates: int32(last.Updates), Deletes: int32(last.Deletes),
	}
	if last.Latency > 0 {
		converted.Latency = durationpb.New(last.Latency)
	}
	return converted
}

func convertSlice(slice *discoveryv1.EndpointSlice, capacity int) *slicev1.EndpointSlice {
	converted := &slicev1.EndpointSlice{
		Name:            slice.Name,
		AddressType:     string(slice.AddressType),
		Endpoints:       int32(len(slice.Endpoints)),
		Capacity:        int32(capacity),
		ResourceVersion: slice.ResourceVersion,
		CreateTime:      timestamp(slice.CreationTimestamp.Time),
	}
	for i := range slice.Endpoints {
		// An endpoint that does not say otherwise is ready.
		if ready := slice.Endpoints[i].Conditions.Ready; ready == nil || *ready {
			converted.ReadyEndpoints++
		}
		if hints := slice.Endpoints[i].Hints; hints != nil && len(hints.ForZones)+len(hints.ForNodes) > 0 {
			converted.HintedEndpoints++
		}
	}
	for _, port := range slice.Ports {
		converted.Ports = append(converted.Ports, convertPort(port))
	}
	slices.SortFunc(converted.Ports, func(a, b *slicev1.EndpointSlice_Port) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	return converted
}

func convertPort(port discoveryv1.EndpointPort) *slicev1.EndpointSlice_Port {
	return &slicev1.EndpointSlice_Port{
		Name:        valueOf(port.Name),
		Protocol:    string(valueOf(port.Protocol)),
		Port:        valueOf(port.Port),
		AppProtocol: valueOf(port.AppProtocol),
	}
}

func convertPlan(plan pack.Plan) []*statusv1.Change {
	changes := make([]*statusv1.Change, 0, len(plan.Changes))
	for _, change := range plan.Changes {
		changes = append(changes, &statusv1.Change{
			Verb: convertVerb(change.Verb),
			Object: &statusv1.ObjectReference{
				ApiVersion: "discovery.k8s.io/v1",
				Kind:       "EndpointSlice",
				Namespace:  change.Slice.Namespace,
				Name:       change.Slice.Name,
				Uid:        string(change.Slice.UID),
			},
			Reason: string(change.Reason),
			Detail: change.Detail(),
		})
	}
	return changes
}

func convertVerb(verb pack.Verb) statusv1.Change_Verb {
	switch verb {
	case pack.Create:
		return statusv1.Change_VERB_CREATE
	case pack.Update:
		return statusv1.Change_VERB_UPDATE
	case pack.Delete:
		return statusv1.Change_VERB_DELETE
	default:
		return statusv1.Change_VERB_UNSPECIFIED
	}
}

// waitingFor says in sentences what keeps a plan from being complete.
func waitingFor(preview engine.Preview) []string {
	var sentences []string
	for _, node := range preview.MissingNodes {
		sentences = append(sentences, fmt.Sprintf("Node %q does not exist, though pods of the Service are bound to it.", node))
	}
	if preview.Behind {
		sentences = append(sentences, "The cache does not show this replica's last write for the Service yet.")
	}
	return sentences
}

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// valid is what can be sent of what others wrote.
func valid(text string) string { return strings.ToValidUTF8(text, "\ufffd") }

func valueOf[T any](pointer *T) T {
	if pointer == nil {
		var zero T
		return zero
	}
	return *pointer
}
