package merge

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// Source is one replica that was asked for its status, and the outcome.
type Source struct {
	// Replica is the replica that was asked, as its member key describes it.
	Replica *statusv1.Replica
	// Answer is its response; nil if the call failed.
	Answer *statusv1.GetStatusResponse
	// Code is the canonical name of the gRPC status code, for example "DEADLINE_EXCEEDED". It is
	// read only without an Answer.
	Code string
	// Message says why there is no Answer.
	Message string
	// Latency is the duration of the call.
	Latency time.Duration
}

// Status merges the sources of a cluster as of now. It lists leasesvc, bootstrapsvc, slicesvc and
// gateway in this order, with or without replicas; services of later versions follow by name.
func Status(cluster string, sources []Source, now time.Time) *gatewayv1.ClusterStatus {
	asked := make([]Source, len(sources))
	for i, source := range sources {
		asked[i] = verified(source)
	}
	slices.SortStableFunc(asked, compareSources)

	status := &gatewayv1.ClusterStatus{Cluster: cluster, Healthy: true, MergeTime: timestamppb.New(now)}
	for _, service := range serviceNames(asked) {
		merged := serviceStatus(service, sourcesOf(asked, service))
		status.Healthy = status.Healthy && merged.Healthy
		status.Services = append(status.Services, merged)
	}
	for _, source := range asked {
		status.Sources = append(status.Sources, sourceStatus(source))
	}
	return status
}

// Partial reports whether a source failed, so that the status may be incomplete.
func Partial(status *gatewayv1.ClusterStatus) bool {
	return slices.ContainsFunc(status.GetSources(), func(source *gatewayv1.SourceStatus) bool { return !source.GetOk() })
}

// Answered reports whether at least one source answered.
func Answered(status *gatewayv1.ClusterStatus) bool {
	return slices.ContainsFunc(status.GetSources(), (*gatewayv1.SourceStatus).GetOk)
}

// verified drops an answer that comes from another replica than the one that was asked.
func verified(source Source) Source {
	if source.Answer == nil {
		return source
	}
	want, got := source.Replica, source.Answer.GetReplica()
	if got.GetId() == want.GetId() && got.GetService() == want.GetService() {
		return source
	}
	source.Answer = nil
	source.Code = "NOT_FOUND"
	source.Message = fmt.Sprintf("%s answered as %s %q: the replica that was asked is gone and its address belongs to another",
		want.GetGrpcAddress(), got.GetService(), got.GetId())
	return source
}

func compareSources(a, b Source) int {
	return cmp.Or(
		cmp.Compare(a.Replica.GetService(), b.Replica.GetService()),
		cmp.Compare(a.Replica.GetId(), b.Replica.GetId()),
	)
}

func sourceStatus(source Source) *gatewayv1.SourceStatus {
	status := &gatewayv1.SourceStatus{
		Replica: source.Replica,
		Ok:      source.Answer != nil,
		Code:    "OK",
		Latency: durationpb.New(source.Latency),
	}
	if !status.Ok {
		status.Code, status.Message = cmp.Or(source.Code, "UNKNOWN"), source.Message
	}
	return status
}

// serviceNames returns the services of this version, then the other services that are registered.
func serviceNames(sources []Source) []string {
	names := []string{"leasesvc", "bootstrapsvc", "slicesvc", "gateway"}
	for _, source := range sources { // sorted by service
		if name := source.Replica.GetService(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func sourcesOf(sources []Source, service string) []Source {
	var own []Source
	for _, source := range sources {
		if source.Replica.GetService() == service {
			own = append(own, source)
		}
	}
	return own
}
