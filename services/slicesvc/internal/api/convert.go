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
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/explain"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

// parseName parses "namespaces/{namespace}/serviceslices/{service}".
func parseName(name string) (slicecontroller.Key, bool) {
	parts := strings.Split(name, "/")
	if len(parts) != 4 || parts[0] != "namespaces" || parts[2] != "serviceslices" {
		return slicecontroller.Key{}, false
	}
	return slicecontroller.Key{Namespace: parts[1], Name: parts[3]}, true
}

func resourceName(service slicecontroller.Key) string {
	return "namespaces/" + service.Namespace + "/serviceslices/" + service.Name
}

// parseParent parses "namespaces/{namespace}". It returns "" for all namespaces.
func parseParent(parent string) (namespace string) {
	namespace = strings.TrimPrefix(parent, "namespaces/")
	if namespace == "-" {
		return ""
	}
	return namespace
}

// convertState omits the syncs unless this replica leads the shard of the Service: another
// replica's syncs are not known here.
func (s *Server) convertState(state slicecontroller.ServiceState, leaders leaders) *slicev1.ServiceSlices {
	key := slicecontroller.Key{Namespace: state.Service.Namespace, Name: state.Service.Name}
	capacity := s.cfg.MaxEndpointsPerSlice
	converted := &slicev1.ServiceSlices{
		Name:     resourceName(key),
		Uid:      string(state.Service.UID),
		Topology: state.Topology,
		Owner:    leaders.owner(key),
	}
	if state.Unmanaged == "" {
		converted.IdealSliceCount = int32(pack.MinSlices(state.Slices, len(desired.Families(state.Service)), capacity))
	}
	ordered := slices.Clone(state.Slices)
	slices.SortFunc(ordered, func(a, b *discoveryv1.EndpointSlice) int {
		return cmp.Or(cmp.Compare(a.AddressType, b.AddressType), cmp.Compare(a.Name, b.Name))
	})
	leads := converted.GetOwner().GetEpoch() != 0
	for _, slice := range ordered {
		one := convertSlice(slice, capacity)
		if leads {
			one.WriteTime = timestamp(state.WriteTimes[slice.Name])
		}
		converted.Slices = append(converted.Slices, one)
		converted.EndpointCount += one.GetEndpointCount()
		converted.ReadyEndpointCount += one.GetReadyEndpointCount()
	}
	if leads {
		converted.Syncs = convertSyncs(state)
	}
	converted.Conditions = conditions(state, converted)
	return converted
}

// convertSyncs returns nothing for a Service without slices that slicesvc leaves alone.
func convertSyncs(state slicecontroller.ServiceState) []*slicev1.ServiceSlices_Sync {
	if state.Unmanaged != "" && len(state.Slices) == 0 && state.History.Failures == 0 {
		return nil
	}
	return []*slicev1.ServiceSlices_Sync{{
		Source:          slicev1.SliceSource_SLICE_SOURCE_SELECTOR,
		LastSuccessTime: timestamp(state.History.LastSuccess),
		LastError:       validUTF8(state.History.LastError),
		FailureCount:    int32(state.History.Failures),
		LastPlan:        convertLastPlan(state.LastPlan),
	}}
}

func convertLastPlan(last slicecontroller.LastPlan) *slicev1.ServiceSlices_LastPlan {
	if last.Time.IsZero() {
		return nil
	}
	converted := &slicev1.ServiceSlices_LastPlan{
		StartTime: timestamppb.New(last.Time), Trigger: string(last.Trigger),
		CreateCount: int32(last.Creates), UpdateCount: int32(last.Updates), DeleteCount: int32(last.Deletes),
	}
	if last.Latency > 0 {
		converted.Latency = durationpb.New(last.Latency)
	}
	return converted
}

// convertSlice leaves the time of the last write to the caller. No address is dropped: a Pod has
// few addresses, and kube-apiserver accepts no invalid one.
func convertSlice(slice *discoveryv1.EndpointSlice, capacity int) *slicev1.SliceSummary {
	converted := &slicev1.SliceSummary{
		Name:            slice.Name,
		AddressType:     string(slice.AddressType),
		EndpointCount:   int32(len(slice.Endpoints)),
		Capacity:        int32(capacity),
		ResourceVersion: slice.ResourceVersion,
		CreateTime:      timestamp(slice.CreationTimestamp.Time),
		Source:          slicev1.SliceSource_SLICE_SOURCE_SELECTOR,
	}
	for i := range slice.Endpoints {
		// The API defines a missing condition as ready.
		if ready := slice.Endpoints[i].Conditions.Ready; ready == nil || *ready {
			converted.ReadyEndpointCount++
		}
		if hints := slice.Endpoints[i].Hints; hints != nil && len(hints.ForZones)+len(hints.ForNodes) > 0 {
			converted.HintedEndpointCount++
		}
	}
	for _, port := range slice.Ports {
		converted.Ports = append(converted.Ports, convertPort(port))
	}
	slices.SortFunc(converted.Ports, func(a, b *slicev1.SliceSummary_Port) int {
		return cmp.Or(cmp.Compare(a.GetName(), b.GetName()), cmp.Compare(a.GetProtocol(), b.GetProtocol()), cmp.Compare(a.GetPort(), b.GetPort()))
	})
	return converted
}

func convertPort(port discoveryv1.EndpointPort) *slicev1.SliceSummary_Port {
	converted := &slicev1.SliceSummary_Port{
		Name:        valueOf(port.Name),
		Protocol:    string(valueOf(port.Protocol)),
		AppProtocol: valueOf(port.AppProtocol),
	}
	if port.Port != nil {
		number := *port.Port
		converted.Port = &number
	}
	return converted
}

// Types of conditions, and their reasons.
const (
	conditionContended       = "Contended"
	conditionCreationRefused = "CreationRefused"
	conditionManaged         = "Managed"
	conditionTopologyHints   = "TopologyHints"

	reasonAnotherWriter = "ANOTHER_WRITER"
	reasonSelector      = "SELECTOR"
	reasonHinted        = "HINTED"
	reasonNotAllocated  = "NOT_ENOUGH_NODES_OR_ENDPOINTS"
	reasonNoZones       = "NO_ZONES"

	reasonNamespaceTerminating = "NAMESPACE_TERMINATING"
)

// conditions returns the conditions of a Service, ordered by type.
func conditions(state slicecontroller.ServiceState, of *slicev1.ServiceSlices) []*metav1.Condition {
	var all []*metav1.Condition
	leads := of.GetOwner().GetEpoch() != 0
	if state.ContendedBy != "" && leads {
		all = append(all, &metav1.Condition{
			Type:           conditionContended,
			Status:         metav1.Condition_STATUS_TRUE,
			Reason:         reasonAnotherWriter,
			Message:        validUTF8(fmt.Sprintf("%q keeps reverting the slices. Changes of endpoints are still written; changes of labels, zones and hints wait up to a minute.", state.ContendedBy)),
			TransitionTime: timestamp(state.ContendedSince),
		})
	}
	if !state.CreationRefusedSince.IsZero() && leads {
		all = append(all, &metav1.Condition{
			Type:           conditionCreationRefused,
			Status:         metav1.Condition_STATUS_TRUE,
			Reason:         reasonNamespaceTerminating,
			Message:        "The namespace is being deleted, so kube-apiserver refuses new slices. Endpoints that need one are in none.",
			TransitionTime: timestamp(state.CreationRefusedSince),
		})
	}
	all = append(all, managedCondition(state))
	if hints := hintsCondition(state, of); hints != nil {
		all = append(all, hints)
	}
	return all
}

func managedCondition(state slicecontroller.ServiceState) *metav1.Condition {
	if state.Unmanaged == "" {
		return &metav1.Condition{
			Type: conditionManaged, Status: metav1.Condition_STATUS_TRUE, Reason: reasonSelector,
			Message: "The Service has a selector, so slicesvc writes its slices.",
		}
	}
	return &metav1.Condition{
		Type: conditionManaged, Status: metav1.Condition_STATUS_FALSE, Reason: string(state.Unmanaged),
		Message: fmt.Sprintf("slicesvc writes no slices: %s.", unmanagedText(string(state.Unmanaged))),
	}
}

// hintsCondition returns nil if no hints are asked for, or if there is no ready endpoint yet that
// could have one.
func hintsCondition(state slicecontroller.ServiceState, of *slicev1.ServiceSlices) *metav1.Condition {
	if state.Unmanaged != "" || state.Topology == "" {
		return nil
	}
	var hinted int32
	for _, slice := range of.GetSlices() {
		hinted += slice.GetHintedEndpointCount()
	}
	ready := of.GetReadyEndpointCount()
	condition := &metav1.Condition{Type: conditionTopologyHints, Status: metav1.Condition_STATUS_FALSE}
	switch {
	case state.TopologyProblem != "":
		condition.Reason = reasonNotAllocated
		condition.Message = validUTF8(fmt.Sprintf("The Service asks for %s, and has no hints: %s.", state.Topology, state.TopologyProblem))
	case ready == 0:
		return nil
	case hinted >= ready:
		condition.Status, condition.Reason = metav1.Condition_STATUS_TRUE, reasonHinted
		condition.Message = fmt.Sprintf("The ready endpoints have hints because of %s.", state.Topology)
	default:
		condition.Reason = reasonNoZones
		condition.Message = fmt.Sprintf("The Service asks for %s, and %d of %d ready endpoints have no hint; kube-proxy uses hints only if each has one.",
			state.Topology, ready-hinted, ready)
	}
	return condition
}

// convertChain leaves the sources to the caller.
func convertChain(chain explain.Chain, replicaID string) *slicev1.ExplainEndpointResponse {
	response := &slicev1.ExplainEndpointResponse{Included: chain.Included, Settled: chain.Settled}
	if chain.BrokenIndex >= 0 {
		broken := int32(chain.BrokenIndex)
		response.BrokenIndex = &broken
	}
	for i := range chain.Links {
		response.Evidence = append(response.Evidence, convertLink(&chain.Links[i], replicaID))
	}
	return response
}

func convertLink(link *explain.Link, replicaID string) *metav1.Evidence {
	converted := &metav1.Evidence{
		Code: link.Code, Result: convertResult(link.Result), Message: validUTF8(link.Message), Next: validUTF8(link.Next),
		Source: link.Source, ReplicaId: replicaID, Version: link.Version, ObserveTime: timestamp(link.Time),
	}
	if of := link.Object; of != (explain.Object{}) {
		converted.Object = &metav1.ObjectReference{ApiVersion: of.APIVersion, Kind: of.Kind, Namespace: of.Namespace, Name: of.Name, Uid: of.UID}
	}
	return converted
}

func convertResult(result explain.Result) metav1.Evidence_Result {
	switch result {
	case explain.OK:
		return metav1.Evidence_RESULT_OK
	case explain.Warning:
		return metav1.Evidence_RESULT_WARNING
	case explain.Failed:
		return metav1.Evidence_RESULT_FAILED
	case explain.NotApplicable:
		return metav1.Evidence_RESULT_NOT_APPLICABLE
	}
	return metav1.Evidence_RESULT_UNSPECIFIED
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

func pageToken(namespace string, last slicecontroller.Key) string {
	return pagetoken.Encode(last.Namespace+"/"+last.Name, slicev1.SliceService_ListServiceSlices_FullMethodName, namespace)
}

// parsePageToken returns the Service after which a list continues, the zero Key for an empty token.
// It fails with pagetoken.ErrInvalid.
func parsePageToken(token, namespace string) (slicecontroller.Key, error) {
	if token == "" {
		return slicecontroller.Key{}, nil
	}
	position, err := pagetoken.Parse(token, slicev1.SliceService_ListServiceSlices_FullMethodName, namespace)
	if err != nil {
		return slicecontroller.Key{}, err
	}
	serviceNamespace, name, ok := strings.Cut(position, "/")
	if !ok {
		return slicecontroller.Key{}, pagetoken.ErrInvalid
	}
	return slicecontroller.Key{Namespace: serviceNamespace, Name: name}, nil
}
