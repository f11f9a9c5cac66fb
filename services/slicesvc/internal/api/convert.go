package api

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/internal/pagetoken"
	"github.com/trivet-dev/trivet/internal/prototime"
	"github.com/trivet-dev/trivet/internal/wording"
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
func (s *Server) convertState(state serviceState, leaders leaders) *slicev1.ServiceSlices {
	key := slicecontroller.Key{Namespace: state.Service.Namespace, Name: state.Service.Name}
	converted := &slicev1.ServiceSlices{
		Name:     resourceName(key),
		Uid:      string(state.Service.UID),
		Topology: state.Topology,
		Owner:    leaders.owner(key),
	}
	if state.Unmanaged == "" {
		converted.IdealSliceCount = int32(pack.MinSlices(state.Slices, len(desired.Families(state.Service)), s.cfg.MaxEndpointsPerSlice))
	}
	if state.mirrored() {
		converted.IdealSliceCount += int32(pack.MinSlices(state.mirror.Slices, 0, state.limits.PerSlice()))
	}
	converted.Slices = append(
		convertSlices(state.Slices, slicev1.SliceSource_SLICE_SOURCE_SELECTOR, s.cfg.MaxEndpointsPerSlice, state.WriteTimes, state.Failed),
		convertSlices(state.mirror.Slices, slicev1.SliceSource_SLICE_SOURCE_ENDPOINTS, state.limits.PerSlice(), state.mirror.WriteTimes, state.mirror.Failed)...)
	slices.SortFunc(converted.Slices, func(a, b *slicev1.SliceSummary) int {
		return cmp.Or(cmp.Compare(a.GetAddressType(), b.GetAddressType()), cmp.Compare(a.GetName(), b.GetName()))
	})
	leads := converted.GetOwner().GetEpoch() != 0
	for _, slice := range converted.Slices {
		converted.EndpointCount += slice.GetEndpointCount()
		converted.ReadyEndpointCount += slice.GetReadyEndpointCount()
		if !leads {
			slice.WriteTime, slice.LastError = nil, ""
		}
	}
	if leads {
		converted.Syncs = convertSyncs(state)
	}
	converted.Conditions = conditions(state, converted)
	return converted
}

// convertSyncs returns no sync of a source that the Service has no slices of.
func convertSyncs(state serviceState) []*slicev1.ServiceSlices_Sync {
	var syncs []*slicev1.ServiceSlices_Sync
	if state.Unmanaged == "" || len(state.Slices) > 0 || state.History.Failures > 0 {
		syncs = append(syncs, convertSync(slicev1.SliceSource_SLICE_SOURCE_SELECTOR, state.History, state.LastPlan))
	}
	if state.handlesMirrors() {
		sync := convertSync(slicev1.SliceSource_SLICE_SOURCE_ENDPOINTS, state.mirror.History, state.mirror.LastPlan)
		sync.DroppedAddressCount = int32(state.droppedAddresses())
		syncs = append(syncs, sync)
	}
	return syncs
}

func convertSync(source slicev1.SliceSource, history slicecontroller.SyncHistory, last slicecontroller.LastPlan) *slicev1.ServiceSlices_Sync {
	return &slicev1.ServiceSlices_Sync{
		Source:          source,
		LastSuccessTime: prototime.New(history.LastSuccess),
		LastError:       wording.Valid(history.LastError),
		FailureCount:    int32(history.Failures),
		LastPlan:        convertLastPlan(last),
	}
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

func convertSlices(all []*discoveryv1.EndpointSlice, source slicev1.SliceSource, capacity int,
	writeTimes map[string]time.Time, failed map[string]slicecontroller.SliceFailure) []*slicev1.SliceSummary {
	converted := make([]*slicev1.SliceSummary, 0, len(all))
	for _, slice := range all {
		one := convertSlice(slice)
		one.Source, one.Capacity, one.WriteTime = source, int32(capacity), prototime.New(writeTimes[slice.Name])
		if failure, ok := failed[slice.Name]; ok {
			one.LastError = wording.Valid(failure.Err.Error())
		}
		converted = append(converted, one)
	}
	return converted
}

// convertSlice leaves what the slice itself does not say to the caller.
func convertSlice(slice *discoveryv1.EndpointSlice) *slicev1.SliceSummary {
	converted := &slicev1.SliceSummary{
		Name:            slice.Name,
		AddressType:     string(slice.AddressType),
		EndpointCount:   int32(len(slice.Endpoints)),
		ResourceVersion: slice.ResourceVersion,
		CreateTime:      prototime.New(slice.CreationTimestamp.Time),
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

// convertChain leaves the sources to the caller.
func convertChain(chain explain.Chain, replicaID string) *slicev1.ExplainEndpointResponse {
	response := &slicev1.ExplainEndpointResponse{Included: chain.Included, Settled: chain.Settled}
	response.Evidence, response.BrokenIndex = chain.Proto(replicaID)
	return response
}

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
