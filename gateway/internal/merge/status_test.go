package merge_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/gateway/internal/merge"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

var noon = time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC)

func replica(service, id string) *statusv1.Replica {
	return &statusv1.Replica{Id: id, Service: service, Cluster: "test", GrpcAddress: id + ":7601"}
}

// answered is a ready replica that reports the given terms.
func answered(service, id string, terms ...*statusv1.Term) merge.Source {
	return merge.Source{
		Replica: replica(service, id),
		Answer:  &statusv1.GetStatusResponse{Replica: replica(service, id), Ready: true, Terms: terms},
		Latency: 2 * time.Millisecond,
	}
}

func unready(service, id string, reasons ...string) merge.Source {
	source := answered(service, id)
	source.Answer.Ready, source.Answer.UnreadyReasons = false, reasons
	return source
}

func silent(service, id string) merge.Source {
	return merge.Source{Replica: replica(service, id), Code: "DEADLINE_EXCEEDED", Message: "no answer within 1s", Latency: time.Second}
}

// held is the report of another replica than the holder.
func held(shard int32, holder string, epoch int64) *statusv1.Term {
	return &statusv1.Term{Shard: shard, ReplicaId: holder, Epoch: epoch}
}

// holding is the report of the holder itself.
func holding(shard int32, holder string, epoch int64) *statusv1.Term {
	return &statusv1.Term{Shard: shard, ReplicaId: holder, Epoch: epoch, HeldHere: true, Remaining: durationpb.New(4 * time.Second)}
}

// healthyCluster has one healthy replica of each service.
func healthyCluster() []merge.Source {
	return []merge.Source{
		answered("leasesvc", "l1", holding(0, "l1", 11)),
		answered("bootstrapsvc", "b1", holding(0, "b1", 12)),
		answered("slicesvc", "s1", holding(0, "s1", 13)),
		answered("gateway", "g1"),
	}
}

func TestStatus_HealthyCluster(t *testing.T) {
	sources := healthyCluster()
	want := &gatewayv1.ClusterStatus{
		Cluster: "test",
		Healthy: true,
		Services: []*gatewayv1.ServiceStatus{
			{Service: "leasesvc", Healthy: true, Leader: "l1", Terms: sources[0].Answer.Terms, Replicas: []*statusv1.GetStatusResponse{sources[0].Answer}},
			{Service: "bootstrapsvc", Healthy: true, Leader: "b1", Terms: sources[1].Answer.Terms, Replicas: []*statusv1.GetStatusResponse{sources[1].Answer}},
			{Service: "slicesvc", Healthy: true, Leader: "s1", Terms: sources[2].Answer.Terms, Replicas: []*statusv1.GetStatusResponse{sources[2].Answer}},
			{Service: "gateway", Healthy: true, Replicas: []*statusv1.GetStatusResponse{sources[3].Answer}},
		},
		Sources: []*gatewayv1.SourceStatus{
			{Replica: replica("bootstrapsvc", "b1"), Ok: true, Code: "OK", Latency: durationpb.New(2 * time.Millisecond)},
			{Replica: replica("gateway", "g1"), Ok: true, Code: "OK", Latency: durationpb.New(2 * time.Millisecond)},
			{Replica: replica("leasesvc", "l1"), Ok: true, Code: "OK", Latency: durationpb.New(2 * time.Millisecond)},
			{Replica: replica("slicesvc", "s1"), Ok: true, Code: "OK", Latency: durationpb.New(2 * time.Millisecond)},
		},
		MergeTime: timestamppb.New(noon),
	}

	got := merge.Status("test", sources, noon)

	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("Status() mismatch (-want +got):\n%s", diff)
	}
	if merge.Partial(got) {
		t.Error("Partial() is true although every source answered")
	}
}

// TestStatus_Problems compares leasesvc; the other services are healthy in each case.
func TestStatus_Problems(t *testing.T) {
	tests := []struct {
		name     string
		sources  []merge.Source
		leader   string
		problems []string
		partial  bool
	}{
		{
			name:     "no replica is registered",
			problems: []string{"no replica is registered"},
		},
		{
			name:    "a standby is healthy",
			sources: []merge.Source{answered("leasesvc", "l1", holding(0, "l1", 7)), answered("leasesvc", "l2", held(0, "l1", 7))},
			leader:  "l1",
		},
		{
			name:     "one replica is silent",
			sources:  []merge.Source{answered("leasesvc", "l1", holding(0, "l1", 7)), silent("leasesvc", "l2")},
			leader:   "l1",
			problems: []string{"replica l2 did not answer: DEADLINE_EXCEEDED: no answer within 1s"},
			partial:  true,
		},
		{
			name:     "all replicas are silent",
			sources:  []merge.Source{silent("leasesvc", "l1")},
			problems: []string{"replica l1 did not answer: DEADLINE_EXCEEDED: no answer within 1s"},
			partial:  true,
		},
		{
			name:     "silence without a cause",
			sources:  []merge.Source{{Replica: replica("leasesvc", "l1")}},
			problems: []string{"replica l1 did not answer: UNKNOWN"},
			partial:  true,
		},
		{
			name:     "not ready, and no shard known",
			sources:  []merge.Source{unready("leasesvc", "l1", "etcd: connection refused", "informers: not synced")},
			problems: []string{"replica l1 is not ready: etcd: connection refused; informers: not synced", "no replica reports a shard, so there is no leader"},
		},
		{
			name:     "not ready without a reason",
			sources:  []merge.Source{unready("leasesvc", "l1"), answered("leasesvc", "l2", holding(0, "l2", 9))},
			leader:   "l2",
			problems: []string{"replica l1 is not ready: it gives no reason"},
		},
		{
			name:     "a vacant shard",
			sources:  []merge.Source{answered("leasesvc", "l1", held(0, "", 0), holding(1, "l1", 8))},
			problems: []string{"shard 0 has no leader"},
		},
		{
			name: "ranges of vacant and missing shards",
			sources: []merge.Source{answered("leasesvc", "l1",
				holding(0, "l1", 8), held(1, "", 0), holding(4, "l1", 9), held(5, "", 0), holding(6, "l1", 9))},
			leader:   "l1",
			problems: []string{"shards 1-3, 5 have no leader"},
		},
		{
			name:     "shard numbers out of all bounds",
			sources:  []merge.Source{answered("leasesvc", "l1", holding(-2147483648, "l1", 1), holding(0, "l1", 8), holding(2147483647, "l1", 9))},
			leader:   "l1",
			problems: []string{"shards 1-2147483646 have no leader"},
		},
		{
			name:     "the holder is not registered",
			sources:  []merge.Source{answered("leasesvc", "l2", held(0, "l1", 8), held(1, "l1", 8), holding(2, "l2", 9))},
			leader:   "l1",
			problems: []string{"shards 0-1 are held by l1, which is not registered"},
		},
		{
			name: "another replica at the address of a dead one",
			sources: []merge.Source{
				{Replica: replica("leasesvc", "l1"), Answer: answered("leasesvc", "l2").Answer},
				answered("leasesvc", "l2", holding(0, "l2", 9)),
			},
			leader: "l2",
			problems: []string{
				`replica l1 did not answer: NOT_FOUND: l1:7601 answered as leasesvc "l2": the replica that was asked is gone and its address belongs to another`,
			},
			partial: true,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			status := merge.Status("test", append(healthyCluster()[1:], test.sources...), noon)

			got := status.Services[0]
			if got.Service != "leasesvc" {
				t.Fatalf("first service is %q, want leasesvc", got.Service)
			}
			if diff := cmp.Diff(test.problems, got.Problems); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			if got.Leader != test.leader {
				t.Errorf("leader = %q, want %q", got.Leader, test.leader)
			}
			if healthy := len(test.problems) == 0; got.Healthy != healthy || status.Healthy != healthy {
				t.Errorf("healthy = %v, cluster %v, want %v for both", got.Healthy, status.Healthy, healthy)
			}
			if partial := merge.Partial(status); partial != test.partial {
				t.Errorf("Partial() = %v, want %v", partial, test.partial)
			}
		})
	}
}

func TestStatus_HighestEpochWins(t *testing.T) {
	status := merge.Status("test", []merge.Source{
		answered("leasesvc", "l1", holding(0, "l1", 7), held(1, "l3", 20), held(2, "", 0)),
		answered("leasesvc", "l2", holding(0, "l2", 9), held(1, "l3", 20), held(2, "l3", 5)),
		answered("leasesvc", "l3", held(0, "l1", 7), holding(1, "l3", 20), holding(2, "l3", 5)),
	}, noon)

	want := []*statusv1.Term{holding(0, "l2", 9), holding(1, "l3", 20), holding(2, "l3", 5)}
	if diff := cmp.Diff(want, status.Services[0].Terms, protocmp.Transform()); diff != "" {
		t.Errorf("terms (-want +got):\n%s", diff)
	}
	if leader := status.Services[0].Leader; leader != "l2" {
		t.Errorf("leader = %q, want the one with the higher epoch, l2", leader)
	}
}

func TestStatus_UnknownServiceComesLast(t *testing.T) {
	status := merge.Status("test", append(healthyCluster(), answered("zonesvc", "z1", holding(0, "z1", 3)), answered("auditsvc", "a1", holding(0, "a1", 4))), noon)

	var names []string
	for _, service := range status.Services {
		names = append(names, service.Service)
	}
	want := []string{"leasesvc", "bootstrapsvc", "slicesvc", "gateway", "auditsvc", "zonesvc"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("services (-want +got):\n%s", diff)
	}
}

func TestAnswered(t *testing.T) {
	tests := []struct {
		name    string
		sources []merge.Source
		want    bool
	}{
		{name: "no source", sources: nil, want: false},
		{name: "no answer", sources: []merge.Source{silent("leasesvc", "l1"), silent("gateway", "g1")}, want: false},
		{name: "one answer", sources: []merge.Source{silent("leasesvc", "l1"), answered("gateway", "g1")}, want: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := merge.Answered(merge.Status("test", test.sources, noon)); got != test.want {
				t.Errorf("Answered() = %v, want %v", got, test.want)
			}
		})
	}
}
