package merge_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/gateway/internal/merge"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// drawSources draws replicas with unique ids whose answers may contradict each other.
func drawSources(t *rapid.T) []merge.Source {
	ids := rapid.SliceOfNDistinct(rapid.IntRange(0, 9), 0, 8, rapid.ID).Draw(t, "ids")
	var sources []merge.Source
	for _, n := range ids {
		id := fmt.Sprintf("r%d", n)
		service := rapid.SampledFrom([]string{"leasesvc", "bootstrapsvc", "slicesvc", "gateway", "newsvc"}).Draw(t, "service")
		source := merge.Source{Replica: replica(service, id), Latency: time.Duration(n)}
		switch rapid.IntRange(0, 3).Draw(t, "outcome") {
		case 0:
			source.Code, source.Message = code.Code_UNAVAILABLE, "connection refused"
		case 1:
			source.Answer = &statusv1.GetStatusResponse{Status: &statusv1.ReplicaStatus{Replica: replica(service, "another-replica"), Ready: true}}
		default:
			source.Shards = rapid.SliceOfN(rapid.Custom(drawShard), 0, 5).Draw(t, "shards")
			source.Answer = &statusv1.GetStatusResponse{
				Status: &statusv1.ReplicaStatus{
					Replica: replica(service, id), Ready: rapid.Bool().Draw(t, "ready"), ShardCount: rapid.Int32Range(0, 6).Draw(t, "count"),
					LedShards: rapid.SliceOfN(rapid.Int32Range(-1, 4), 0, 3).Draw(t, "led"),
				},
				Sources: []*metav1.Source{{Service: service, ReplicaId: id}},
			}
		}
		sources = append(sources, source)
	}
	return sources
}

// drawShard keeps an invariant of etcd: an epoch is one transaction, so it has one leader.
func drawShard(t *rapid.T) *statusv1.ShardStatus {
	epoch := rapid.Int64Range(0, 6).Draw(t, "epoch")
	shard := &statusv1.ShardStatus{Shard: proto.Int32(rapid.Int32Range(-1, 4).Draw(t, "shard")), Epoch: epoch}
	if epoch > 0 {
		shard.LeaderId = fmt.Sprintf("r%d", epoch)
		if rapid.Bool().Draw(t, "own report") {
			shard.Remaining = durationpb.New(time.Second)
		}
	}
	return shard
}

func TestStatus_IndependentOfOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sources := drawSources(t)
		shuffled := rapid.Permutation(sources).Draw(t, "shuffled")

		one, other := merge.Status("test", sources, noon), merge.Status("test", shuffled, noon)

		if diff := cmp.Diff(one, other, protocmp.Transform()); diff != "" {
			t.Fatalf("the status depends on the order of the sources:\n%s", diff)
		}
	})
}

func TestStatus_DoesNotChangeItsInputs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sources := drawSources(t)
		before := slices.Clone(sources)
		for i, source := range sources {
			before[i].Replica = proto.CloneOf(source.Replica)
			before[i].Answer = proto.CloneOf(source.Answer)
			before[i].Shards = nil
			for _, shard := range source.Shards {
				before[i].Shards = append(before[i].Shards, proto.CloneOf(shard))
			}
		}

		merge.Status("test", sources, noon)

		if diff := cmp.Diff(before, sources, protocmp.Transform(), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("the input changed:\n%s", diff)
		}
	})
}

func TestStatus_IsOKOnlyWithoutProblemsAndWithoutMissingParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sources := drawSources(t)

		got := merge.Status("test", sources, noon)

		ok := metav1.Verdict_STATE_OK
		replicas, bad := 0, 0
		for _, service := range got.Status.Services {
			replicas += len(service.Replicas)
			bad += len(service.Verdict.Problems)
			if (service.Verdict.State == ok) != (len(service.Verdict.Problems) == 0) {
				t.Fatalf("%s is %s with problems %v", service.Service, service.Verdict.State, service.Verdict.Problems)
			}
			checkShards(t, service, got.Missing)
		}
		if replicas != len(sources) {
			t.Fatalf("%d replicas were asked, %d are named", len(sources), replicas)
		}
		if state := got.Status.Verdict.State; (state == ok) != (bad == 0) || len(got.Status.Verdict.Problems) != bad {
			t.Fatalf("the cluster is %s with %d problems, its services have %d", state, len(got.Status.Verdict.Problems), bad)
		}
		if len(got.Missing) > 0 && got.Status.Verdict.State == ok {
			t.Fatal("a part is missing and the cluster is OK")
		}
	})
}

// checkShards checks that each shard is either led or missing.
func checkShards(t *rapid.T, service *gatewayv1.ServiceStatus, missing []*metav1.MissingPart) {
	vacant := map[int32]bool{}
	answered := false
	for _, result := range service.Replicas {
		answered = answered || result.Status != nil
	}
	for _, part := range missing {
		if part.Service == service.Service && part.ReplicaId == "" {
			for _, shard := range part.Shards {
				if shard < 0 || shard >= service.ShardCount || vacant[shard] {
					t.Fatalf("%s: shard %d of %d is missing twice or out of bounds", service.Service, shard, service.ShardCount)
				}
				vacant[shard] = true
			}
		}
	}
	if answered && int(service.ShardCount-service.LedShardCount) != len(vacant) {
		t.Fatalf("%s: %d of %d shards are led, and %d are missing", service.Service, service.LedShardCount, service.ShardCount, len(vacant))
	}
}
