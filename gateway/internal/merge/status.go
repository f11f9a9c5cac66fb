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

// Source is one replica that was asked, and how that went.
type Source struct {
	// Replica is whom the question was meant for, as its member key describes it.
	Replica *statusv1.Replica
	// Answer is what came back; nil when nothing did.
	Answer *statusv1.GetStatusResponse
	// Code is the canonical name of the gRPC status code, for example "DEADLINE_EXCEEDED". It is read only without an Answer.
	Code string
	// Message says for people why there is no Answer.
	Message string
	// Latency is how long asking took.
	Latency time.Duration
}

// Status merges the sources of a cluster as of now.
//
// Services come in the order leasesvc, bootstrapsvc, slicesvc, gateway, each of them also when it has no replica at
// all; services of later versions follow by name.
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

// Partial says whether a source failed, so that something may be missing from the status.
func Partial(status *gatewayv1.ClusterStatus) bool {
	return slices.ContainsFunc(status.GetSources(), func(source *gatewayv1.SourceStatus) bool { return !source.GetOk() })
}

// Answered says whether any source answered at all.
func Answered(status *gatewayv1.ClusterStatus) bool {
	return slices.ContainsFunc(status.GetSources(), (*gatewayv1.SourceStatus).GetOk)
}

// verified drops an answer that another replica gave.
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

// serviceNames gives every service that has to stand, then whatever else is registered.
func serviceNames(sources []Source) []string {
	names := []string{"leasesvc", "bootstrapsvc", "slicesvc", "gateway"}
	for _, source := range sources { // sorted, so the strangers come by name
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
