package merge

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/gateway/internal/verdict"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// maxShards bounds the shards of a service. The numbers come from the wire, and one that is wrong
// must not make the list of shards without a leader endless.
const maxShards = 4096

// Source is one replica that was asked for its status, and the outcome.
type Source struct {
	// Replica is the replica that was asked, as its member key describes it.
	Replica *statusv1.Replica
	// Answer is its response; nil if the call failed.
	Answer *statusv1.GetStatusResponse
	// Shards is its list of shards; empty if that call failed.
	Shards []*statusv1.ShardStatus
	// Code and Message say why there is no Answer.
	Code    code.Code
	Message string
	// Latency is the duration of the call.
	Latency time.Duration
}

// Status merges the sources of a cluster as of now. The response lists leasesvc, bootstrapsvc,
// slicesvc and gateway in this order, with or without replicas; services of later versions follow
// by name.
func Status(cluster string, sources []Source, now time.Time) *gatewayv1.GetClusterStatusResponse {
	asked := make([]Source, len(sources))
	for i, source := range sources {
		asked[i] = verified(source)
	}
	slices.SortStableFunc(asked, compareSources)

	response := &gatewayv1.GetClusterStatusResponse{
		Status: &gatewayv1.ClusterStatus{Cluster: cluster, MergeTime: timestamppb.New(now)},
	}
	var services []verdict.Service
	for _, name := range serviceNames(asked) {
		own := sourcesOf(asked, name)
		service, count := factsOf(name, own)
		services = append(services, service)
		response.Status.Services = append(response.Status.Services, &gatewayv1.ServiceStatus{
			Service: name, ShardCount: count, LedShardCount: count - size(service.Vacant), Replicas: resultsOf(own),
		})
		response.Missing = append(response.Missing, missingOf(service, own)...)
	}
	response.Status.Verdict = verdict.Of(services)
	for i, service := range response.Status.Services { // not from the whole, which may leave problems out
		service.Verdict = verdict.Of(services[i : i+1])
	}
	for _, source := range asked {
		if source.Answer != nil {
			response.Sources = append(response.Sources, source.Answer.GetSources()...)
		}
	}
	return response
}

// verified drops an answer that comes from another replica than the one that was asked.
func verified(source Source) Source {
	if source.Answer == nil {
		return source
	}
	want, got := source.Replica, source.Answer.GetStatus().GetReplica()
	if got.GetId() == want.GetId() && got.GetService() == want.GetService() {
		return source
	}
	source.Answer, source.Shards = nil, nil
	source.Code = code.Code_NOT_FOUND
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

// factsOf returns what the sources of one service say, and its number of shards.
func factsOf(name string, sources []Source) (service verdict.Service, shardCount int32) {
	service = verdict.Service{Name: name, Sharded: name != "gateway"}
	for _, source := range sources {
		service.Replicas = append(service.Replicas, verdict.Replica{
			ID: source.Replica.GetId(), Status: source.Answer.GetStatus(), Failure: failure(source),
		})
		shardCount = max(shardCount, min(source.Answer.GetStatus().GetShardCount(), maxShards))
	}
	service.Shards = serviceShards(sources)
	led := map[int32]bool{}
	for _, shard := range service.Shards {
		led[shard.GetShard()] = shard.GetLeaderId() != ""
	}
	for _, source := range sources { // the leader's own word, also if its list of shards is missing
		for _, shard := range source.Answer.GetStatus().GetLedShards() {
			led[shard] = true
		}
	}
	if service.Sharded && shardCount == 0 {
		shardCount = 1 // no replica knows a shard, so at least one has no leader
	}
	for shard := range shardCount {
		if !led[shard] {
			service.Vacant = service.Vacant.With(shard)
		}
	}
	return service, shardCount
}

func failure(source Source) string {
	if source.Answer != nil {
		return ""
	}
	name := cmp.Or(source.Code, code.Code_UNKNOWN).String()
	if source.Message == "" {
		return name
	}
	return name + ": " + source.Message
}

// serviceShards returns the best report about each shard of one service, ordered by shard. Numbers
// out of bounds are dropped.
func serviceShards(sources []Source) []*statusv1.ShardStatus {
	best := map[int32]*statusv1.ShardStatus{}
	for _, source := range sources {
		for _, shard := range source.Shards {
			number := shard.GetShard()
			if number < 0 || number >= maxShards {
				continue
			}
			if known, ok := best[number]; !ok || better(shard, known) {
				best[number] = shard
			}
		}
	}
	shards := make([]*statusv1.ShardStatus, 0, len(best))
	for _, shard := range best {
		shards = append(shards, shard)
	}
	slices.SortFunc(shards, func(a, b *statusv1.ShardStatus) int { return cmp.Compare(a.GetShard(), b.GetShard()) })
	return shards
}

// better prefers the higher epoch and, for equal epochs, the report of the leader itself, which is
// the only one with a remaining time.
func better(shard, known *statusv1.ShardStatus) bool {
	if shard.GetEpoch() != known.GetEpoch() {
		return shard.GetEpoch() > known.GetEpoch()
	}
	return shard.GetRemaining() != nil && known.GetRemaining() == nil
}

func resultsOf(sources []Source) []*gatewayv1.ReplicaResult {
	var results []*gatewayv1.ReplicaResult
	for _, source := range sources {
		results = append(results, &gatewayv1.ReplicaResult{
			Replica: source.Replica, Status: source.Answer.GetStatus(), Latency: durationpb.New(source.Latency),
		})
	}
	return results
}

// missingOf names the replicas that did not answer, with the shards that they lead, and the shards
// without a leader. Without an answer, it is unknown which these are.
func missingOf(service verdict.Service, sources []Source) []*metav1.MissingPart {
	if len(sources) == 0 {
		return []*metav1.MissingPart{{Service: service.Name, Code: code.Code_UNAVAILABLE, Message: "no replica is registered"}}
	}
	var failures []Failure
	lacking := map[string][]int32{}
	for _, source := range sources {
		if source.Answer != nil {
			continue
		}
		id := source.Replica.GetId()
		failures = append(failures, Failure{ReplicaID: id, Code: cmp.Or(source.Code, code.Code_UNKNOWN), Message: source.Message})
		for _, shard := range service.Shards {
			if id != "" && shard.GetLeaderId() == id {
				lacking[id] = append(lacking[id], shard.GetShard())
			}
		}
	}
	if len(failures) < len(sources) {
		for _, shards := range service.Vacant {
			for shard := shards[0]; shard <= shards[1]; shard++ {
				lacking[""] = append(lacking[""], shard)
			}
		}
	}
	return missingParts(service.Name, lacking, nil, failures)
}

func size(ranges verdict.Shards) int32 {
	var n int32
	for _, shards := range ranges {
		n += shards[1] - shards[0] + 1
	}
	return n
}
