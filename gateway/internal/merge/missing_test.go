package merge_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trivet-dev/trivet/gateway/internal/merge"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

func covering(replica string, shards ...int32) *metav1.Source {
	return &metav1.Source{Service: "leasesvc", ReplicaId: replica, Shards: shards}
}

func part(replica string, code code.Code, message string, shards ...int32) *metav1.MissingPart {
	return &metav1.MissingPart{Service: "leasesvc", ReplicaId: replica, Code: code, Message: message, Shards: shards}
}

func TestMissing_NamesEachShardWithoutASource(t *testing.T) {
	down := merge.Failure{ReplicaID: "b", Code: code.Code_DEADLINE_EXCEEDED, Message: "no answer within 1s"}
	for name, c := range map[string]struct {
		leaders  []string
		sources  []*metav1.Source
		failures []merge.Failure
		want     []*metav1.MissingPart
	}{
		"nothing": {leaders: []string{"a", "b"}, sources: []*metav1.Source{covering("a", 0), covering("b", 1)}},
		"no leader, although each replica answers": {
			leaders: []string{"a", "", "a", ""}, sources: []*metav1.Source{covering("a", 0, 2), covering("b")},
			want: []*metav1.MissingPart{part("", code.Code_UNAVAILABLE, "no replica leads the shards", 1, 3)},
		},
		"the leader failed": {
			leaders: []string{"a", "b", "b"}, sources: []*metav1.Source{covering("a", 0)}, failures: []merge.Failure{down},
			want: []*metav1.MissingPart{part("b", code.Code_DEADLINE_EXCEEDED, "no answer within 1s", 1, 2)},
		},
		"a replica without shards failed": {
			leaders: []string{"a"}, sources: []*metav1.Source{covering("a", 0)}, failures: []merge.Failure{down},
			want: []*metav1.MissingPart{part("b", code.Code_DEADLINE_EXCEEDED, "no answer within 1s")},
		},
		"the leader has not read the shard yet": {
			leaders: []string{"a", "a"}, sources: []*metav1.Source{covering("a", 0)},
			want: []*metav1.MissingPart{part("a", code.Code_UNAVAILABLE, "it has not reported the shards wholly yet", 1)},
		},
		"the leader is not registered": {
			leaders: []string{"a", "z"}, sources: []*metav1.Source{covering("a", 0)},
			want: []*metav1.MissingPart{part("z", code.Code_UNAVAILABLE, "it leads the shards and is not registered", 1)},
		},
		"the number of shards is unknown": {
			sources: []*metav1.Source{covering("a", 0)}, failures: []merge.Failure{down},
			want: []*metav1.MissingPart{part("b", code.Code_DEADLINE_EXCEEDED, "no answer within 1s")},
		},
		"shards that do not exist": {leaders: []string{"a"}, sources: []*metav1.Source{covering("a", -1, 0, 2_000_000_000)}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, merge.Missing("leasesvc", c.leaders, c.sources, c.failures), protocmp.Transform()); diff != "" {
				t.Errorf("missing (-want +got):\n%s", diff)
			}
		})
	}
}

// shard is a report of a replica; only the leader knows how long it may act.
func shard(number int32, leader string, epoch int64, by string) *statusv1.ShardStatus {
	report := &statusv1.ShardStatus{Service: "leasesvc", Shard: &number, LeaderId: leader, Epoch: epoch, LeaderAddress: by}
	if by == "of "+leader {
		report.Remaining = durationpb.New(time.Second)
	}
	return report
}

func TestDisowned_NamesShardsThatTheirLeaderHasLost(t *testing.T) {
	other := &metav1.Source{Service: "slicesvc", ReplicaId: "s", Shards: []int32{0, 1, 2}}
	const lost = "it does not lead the shards any more, and no later leader is known"
	for name, c := range map[string]struct {
		leaders []string
		sources []*metav1.Source
		want    []*metav1.MissingPart
	}{
		"each leader has its shards": {leaders: []string{"a", "b"}, sources: []*metav1.Source{covering("a", 0), covering("b", 1), other}},
		"no leader":                  {leaders: []string{"a", ""}, sources: []*metav1.Source{covering("a", 0), covering("b"), other}},
		"the leader does not answer": {leaders: []string{"a", "b"}, sources: []*metav1.Source{covering("a", 0), other}},
		"both have lost their sessions": {
			leaders: []string{"b", "a", "b"}, sources: []*metav1.Source{covering("a"), covering("b"), other},
			want: []*metav1.MissingPart{part("a", code.Code_UNAVAILABLE, lost, 1), part("b", code.Code_UNAVAILABLE, lost, 0, 2)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, merge.Disowned("leasesvc", c.leaders, c.sources), protocmp.Transform()); diff != "" {
				t.Errorf("missing (-want +got):\n%s", diff)
			}
		})
	}
}

func TestShards_LaterReportWins(t *testing.T) {
	reports := []merge.ShardReport{
		{Service: "leasesvc", Shards: []*statusv1.ShardStatus{shard(1, "b", 4, "of a"), shard(0, "a", 7, "of a")}},
		{Service: "leasesvc", Shards: []*statusv1.ShardStatus{
			shard(0, "b", 5, "of b"), shard(1, "b", 4, "of b"), shard(-1, "b", 9, ""), shard(2_000_000_000, "b", 9, ""),
		}},
		{Service: "slicesvc", Shards: []*statusv1.ShardStatus{shard(0, "s", 99, "of another service")}},
	}
	got := merge.Shards(reports)
	want := []*statusv1.ShardStatus{shard(0, "a", 7, "of a"), shard(1, "b", 4, "of b")}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("shards (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"a", "b"}, merge.Leaders(got)); diff != "" {
		t.Errorf("leaders (-want +got):\n%s", diff)
	}
}
