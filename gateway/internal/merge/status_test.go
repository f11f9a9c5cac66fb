package merge_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/gateway/internal/merge"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

var noon = time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC)

func replica(service, id string) *statusv1.Replica {
	return &statusv1.Replica{Id: id, Service: service, Cluster: "test", GrpcAddress: id + ":7601"}
}

// answered is a ready replica that reports the given shards of count, and leads those with a
// remaining time.
func answered(service, id string, count int32, shards ...*statusv1.ShardStatus) merge.Source {
	status := &statusv1.ReplicaStatus{Replica: replica(service, id), Ready: true, ShardCount: count}
	for _, shard := range shards {
		if shard.Remaining != nil {
			status.LedShards = append(status.LedShards, shard.GetShard())
		}
	}
	return merge.Source{
		Replica: replica(service, id),
		Answer: &statusv1.GetStatusResponse{
			Status: status, Sources: []*metav1.Source{{Service: service, ReplicaId: id, Shards: status.LedShards}},
		},
		Shards: shards, Latency: 2 * time.Millisecond,
	}
}

func silent(service, id string) merge.Source {
	return merge.Source{Replica: replica(service, id), Code: code.Code_DEADLINE_EXCEEDED, Message: "no answer within 1s", Latency: time.Second}
}

// led is the report of another replica than the leader.
func led(shard int32, leader string, epoch int64) *statusv1.ShardStatus {
	return &statusv1.ShardStatus{Shard: &shard, LeaderId: leader, Epoch: epoch}
}

// leads is the report of the leader itself.
func leads(shard int32, leader string, epoch int64) *statusv1.ShardStatus {
	return &statusv1.ShardStatus{Shard: &shard, LeaderId: leader, Epoch: epoch, Remaining: durationpb.New(4 * time.Second)}
}

// goodCluster has one replica of each service, and nothing is wrong.
func goodCluster() []merge.Source {
	return []merge.Source{
		answered("leasesvc", "l1", 1, leads(0, "l1", 11)),
		answered("bootstrapsvc", "b1", 1, leads(0, "b1", 12)),
		answered("slicesvc", "s1", 1, leads(0, "s1", 13)),
		answered("gateway", "g1", 0),
	}
}

func TestStatus_GoodCluster(t *testing.T) {
	sources := goodCluster()
	ok := &metav1.Verdict{State: metav1.Verdict_STATE_OK}
	result := func(s merge.Source) []*gatewayv1.ReplicaResult {
		return []*gatewayv1.ReplicaResult{{Replica: s.Replica, Status: s.Answer.Status, Latency: durationpb.New(2 * time.Millisecond)}}
	}
	want := &gatewayv1.GetClusterStatusResponse{
		Status: &gatewayv1.ClusterStatus{
			Cluster: "test", Verdict: ok, MergeTime: timestamppb.New(noon),
			Services: []*gatewayv1.ServiceStatus{
				{Service: "leasesvc", Verdict: ok, ShardCount: 1, LedShardCount: 1, Replicas: result(sources[0])},
				{Service: "bootstrapsvc", Verdict: ok, ShardCount: 1, LedShardCount: 1, Replicas: result(sources[1])},
				{Service: "slicesvc", Verdict: ok, ShardCount: 1, LedShardCount: 1, Replicas: result(sources[2])},
				{Service: "gateway", Verdict: ok, Replicas: result(sources[3])},
			},
		},
		Sources: []*metav1.Source{
			sources[1].Answer.Sources[0], sources[3].Answer.Sources[0], sources[0].Answer.Sources[0], sources[2].Answer.Sources[0],
		},
	}
	got := merge.Status("test", sources, noon)
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("Status() mismatch (-want +got):\n%s", diff)
	}
}

// TestStatus_NamesWhatIsMissing looks at leasesvc; the other services are well in each case.
func TestStatus_NamesWhatIsMissing(t *testing.T) {
	noLeader := func(shards ...int32) *metav1.MissingPart {
		return &metav1.MissingPart{Service: "leasesvc", Shards: shards, Code: code.Code_UNAVAILABLE, Message: "no replica leads the shards"}
	}
	noAnswer := func(id string, shards ...int32) *metav1.MissingPart {
		return &metav1.MissingPart{Service: "leasesvc", ReplicaId: id, Shards: shards, Code: code.Code_DEADLINE_EXCEEDED, Message: "no answer within 1s"}
	}
	for name, test := range map[string]struct {
		sources []merge.Source
		state   metav1.Verdict_State
		missing []*metav1.MissingPart
		led     int32
	}{
		"no replica is registered": {
			state:   metav1.Verdict_STATE_FAILED,
			missing: []*metav1.MissingPart{{Service: "leasesvc", Code: code.Code_UNAVAILABLE, Message: "no replica is registered"}},
		},
		"a standby is well": {
			sources: []merge.Source{answered("leasesvc", "l1", 1, leads(0, "l1", 7)), answered("leasesvc", "l2", 1, led(0, "l1", 7))},
			state:   metav1.Verdict_STATE_OK, led: 1,
		},
		"a standby is silent": {
			sources: []merge.Source{answered("leasesvc", "l1", 1, leads(0, "l1", 7)), silent("leasesvc", "l2")},
			state:   metav1.Verdict_STATE_WARNING, led: 1, missing: []*metav1.MissingPart{noAnswer("l2")},
		},
		"a leader is silent": {
			sources: []merge.Source{answered("leasesvc", "l1", 3, leads(0, "l1", 7), led(1, "l2", 8), led(2, "l2", 9)), silent("leasesvc", "l2")},
			state:   metav1.Verdict_STATE_UNKNOWN, led: 3, missing: []*metav1.MissingPart{noAnswer("l2", 1, 2)},
		},
		"all replicas are silent": {
			sources: []merge.Source{silent("leasesvc", "l1")},
			state:   metav1.Verdict_STATE_UNKNOWN, missing: []*metav1.MissingPart{noAnswer("l1")},
		},
		"silence without a cause": {
			sources: []merge.Source{{Replica: replica("leasesvc", "l1")}},
			state:   metav1.Verdict_STATE_UNKNOWN,
			missing: []*metav1.MissingPart{{Service: "leasesvc", ReplicaId: "l1", Code: code.Code_UNKNOWN}},
		},
		"no replica knows a shard": {
			sources: []merge.Source{answered("leasesvc", "l1", 0)},
			state:   metav1.Verdict_STATE_FAILED, missing: []*metav1.MissingPart{noLeader(0)},
		},
		"vacant shards, reported and not": {
			sources: []merge.Source{answered("leasesvc", "l1", 4, leads(0, "l1", 8), led(2, "", 0), leads(3, "l1", 9))},
			state:   metav1.Verdict_STATE_FAILED, led: 2, missing: []*metav1.MissingPart{noLeader(1, 2)},
		},
		"the leader's list of shards is missing": {
			sources: []merge.Source{func() merge.Source {
				source := answered("leasesvc", "l1", 2, leads(0, "l1", 8), leads(1, "l1", 9))
				source.Shards = nil
				return source
			}()},
			state: metav1.Verdict_STATE_OK, led: 2,
		},
		"another replica at the address of a dead one": {
			sources: []merge.Source{
				{Replica: replica("leasesvc", "l1"), Answer: answered("leasesvc", "l2", 1).Answer},
				answered("leasesvc", "l2", 1, leads(0, "l2", 9)),
			},
			state: metav1.Verdict_STATE_WARNING, led: 1,
			missing: []*metav1.MissingPart{{
				Service: "leasesvc", ReplicaId: "l1", Code: code.Code_NOT_FOUND,
				Message: `l1:7601 answered as leasesvc "l2": the replica that was asked is gone and its address belongs to another`,
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := merge.Status("test", append(goodCluster()[1:], test.sources...), noon)
			service := got.Status.Services[0]
			if service.Service != "leasesvc" {
				t.Fatalf("first service is %q, want leasesvc", service.Service)
			}
			if service.Verdict.State != test.state || got.Status.Verdict.State != test.state {
				t.Errorf("state = %s, cluster %s, want %s for both", service.Verdict.State, got.Status.Verdict.State, test.state)
			}
			if diff := cmp.Diff(test.missing, got.Missing, protocmp.Transform()); diff != "" {
				t.Errorf("missing (-want +got):\n%s", diff)
			}
			if service.LedShardCount != test.led {
				t.Errorf("led shards = %d, want %d", service.LedShardCount, test.led)
			}
		})
	}
}

func TestStatus_BoundsShardNumbersOfTheWire(t *testing.T) {
	source := answered("leasesvc", "l1", 2147483647, leads(-2147483648, "l1", 1), leads(0, "l1", 8), leads(2147483647, "l1", 9))
	got := merge.Status("test", append(goodCluster()[1:], source), noon)
	if count := got.Status.Services[0].ShardCount; count != 4096 {
		t.Errorf("shard count = %d, want the bound 4096", count)
	}
	if missing := got.Missing[0].Shards; len(missing) != 4095 || missing[0] != 1 {
		t.Errorf("%d shards are missing, from %d; want 4095, from 1", len(missing), missing[0])
	}
}

func TestShards_HighestEpochWins(t *testing.T) {
	var reports []merge.ShardReport
	for _, source := range []merge.Source{
		answered("leasesvc", "l1", 3, leads(0, "l1", 7), led(1, "l3", 20), led(2, "", 0)),
		answered("leasesvc", "l2", 3, leads(0, "l2", 9), led(1, "l3", 20), led(2, "l3", 5)),
		answered("leasesvc", "l3", 3, led(0, "l1", 7), leads(1, "l3", 20), leads(2, "l3", 5)),
	} {
		for _, shard := range source.Shards {
			shard.Service = "leasesvc"
		}
		reports = append(reports, merge.ShardReport{Service: "leasesvc", Shards: source.Shards})
	}
	want := []*statusv1.ShardStatus{leads(0, "l2", 9), leads(1, "l3", 20), leads(2, "l3", 5)}
	for _, shard := range want {
		shard.Service = "leasesvc"
	}
	if diff := cmp.Diff(want, merge.Shards(reports), protocmp.Transform()); diff != "" {
		t.Errorf("shards (-want +got):\n%s", diff)
	}
}

func TestStatus_UnknownServiceComesLast(t *testing.T) {
	got := merge.Status("test", append(goodCluster(),
		answered("zonesvc", "z1", 1, leads(0, "z1", 3)), answered("auditsvc", "a1", 1, leads(0, "a1", 4))), noon)
	var names []string
	for _, service := range got.Status.Services {
		names = append(names, service.Service)
	}
	want := []string{"leasesvc", "bootstrapsvc", "slicesvc", "gateway", "auditsvc", "zonesvc"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("services (-want +got):\n%s", diff)
	}
}
