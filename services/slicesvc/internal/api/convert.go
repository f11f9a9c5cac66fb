package api

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/internal/pagetoken"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/explain"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

// parseServiceName parses "namespaces/{namespace}/services/{service}".
func parseServiceName(name string) (slicecontroller.Key, bool) {
	parts := strings.Split(name, "/")
	if len(parts) != 4 || parts[0] != "namespaces" || parts[2] != "services" {
		return slicecontroller.Key{}, false
	}
	return slicecontroller.Key{Namespace: parts[1], Name: parts[3]}, true
}

func resourceName(service slicecontroller.Key) string {
	return "namespaces/" + service.Namespace + "/services/" + service.Name
}

// parseParent parses "namespaces/{namespace}". It returns "" for all namespaces.
func parseParent(parent string) (namespace string) {
	namespace = strings.TrimPrefix(parent, "namespaces/")
	if namespace == "-" {
		return ""
	}
	return namespace
}

// convertState leaves the shard and the epoch to the caller.
func convertState(state slicecontroller.ServiceState, capacity int) *slicev1.ServiceSlices {
	converted := &slicev1.ServiceSlices{
		Name:            resourceName(slicecontroller.Key{Namespace: state.Service.Namespace, Name: state.Service.Name}),
		Uid:             string(state.Service.UID),
		Managed:         state.Unmanaged == "",
		UnmanagedReason: string(state.Unmanaged),
		LastSyncTime:    timestamp(state.History.LastSync),
		LastError:       validUTF8(state.History.LastError),
		Failures:        int32(state.History.Failures),
		LastPlan:        convertLastPlan(state.LastPlan),
		Topology:        state.Topology,
		TopologyProblem: validUTF8(state.TopologyProblem),
		ContendedBy:     validUTF8(state.ContendedBy),
	}
	if converted.Managed {
		converted.IdealSlices = int32(pack.MinSlices(state.Slices, len(desired.Families(state.Service)), capacity))
	}
	ordered := slices.Clone(state.Slices)
	slices.SortFunc(ordered, func(a, b *discoveryv1.EndpointSlice) int {
		return cmp.Or(cmp.Compare(a.AddressType, b.AddressType), cmp.Compare(a.Name, b.Name))
	})
	for _, slice := range ordered {
		one := convertSlice(slice, capacity)
		one.WriteTime = timestamp(state.WriteTimes[slice.Name])
		converted.Slices = append(converted.Slices, one)
		converted.Endpoints += one.Endpoints
		converted.ReadyEndpoints += one.ReadyEndpoints
	}
	return converted
}

func convertLastPlan(last slicecontroller.LastPlan) *slicev1.ServiceSlices_LastPlan {
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
		// The API defines a missing condition as ready.
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

// waitingFor returns a sentence for each thing that a plan lacks.
func waitingFor(preview slicecontroller.Preview) []string {
	var sentences []string
	for _, node := range preview.MissingNodes {
		sentences = append(sentences, fmt.Sprintf("Node %q does not exist, though pods of the Service are bound to it.", node))
	}
	if preview.CatchingUp {
		sentences = append(sentences, "The cache does not show this replica's last write for the Service yet.")
	}
	return sentences
}

// convertChain leaves the freshness to the caller.
func convertChain(chain explain.Chain, replicaID string) *slicev1.ExplainEndpointResponse {
	response := &slicev1.ExplainEndpointResponse{Included: chain.Included, Settled: chain.Settled, FirstBroken: int32(chain.FirstBroken)}
	for i := range chain.Links {
		response.Evidence = append(response.Evidence, convertLink(&chain.Links[i], replicaID))
	}
	return response
}

func convertLink(link *explain.Link, replicaID string) *statusv1.Evidence {
	converted := &statusv1.Evidence{
		Code: link.Code, Verdict: convertVerdict(link.Verdict), Finding: validUTF8(link.Finding), Next: validUTF8(link.Next),
		Source: link.Source, ReplicaId: replicaID, Version: link.Version, ObserveTime: timestamp(link.Time),
	}
	if of := link.Object; of != (explain.Object{}) {
		converted.Object = &statusv1.ObjectReference{ApiVersion: of.APIVersion, Kind: of.Kind, Namespace: of.Namespace, Name: of.Name, Uid: of.UID}
	}
	return converted
}

func convertVerdict(verdict explain.Verdict) statusv1.Evidence_Verdict {
	switch verdict {
	case explain.Good:
		return statusv1.Evidence_VERDICT_GOOD
	case explain.Doubtful:
		return statusv1.Evidence_VERDICT_DOUBTFUL
	case explain.Broken:
		return statusv1.Evidence_VERDICT_BROKEN
	case explain.Absent:
		return statusv1.Evidence_VERDICT_ABSENT
	}
	return statusv1.Evidence_VERDICT_UNSPECIFIED
}

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// validUTF8 makes text of Kubernetes objects and errors sendable: proto strings must be UTF-8.
func validUTF8(text string) string { return strings.ToValidUTF8(text, "\ufffd") }

func valueOf[T any](pointer *T) T {
	if pointer == nil {
		var zero T
		return zero
	}
	return *pointer
}

// listServices names the list in page tokens.
const listServices = "trivet.slice.v1.ListServiceSlices"

func pageToken(namespace string, last slicecontroller.Key) string {
	return pagetoken.Encode(last.Namespace+"/"+last.Name, listServices, namespace)
}

// parsePageToken returns the Service after which a list continues, the zero Key for an empty token.
// It fails with pagetoken.ErrInvalid.
func parsePageToken(token, namespace string) (slicecontroller.Key, error) {
	if token == "" {
		return slicecontroller.Key{}, nil
	}
	position, err := pagetoken.Parse(token, listServices, namespace)
	if err != nil {
		return slicecontroller.Key{}, err
	}
	serviceNamespace, name, ok := strings.Cut(position, "/")
	if !ok {
		return slicecontroller.Key{}, pagetoken.ErrInvalid
	}
	return slicecontroller.Key{Namespace: serviceNamespace, Name: name}, nil
}
