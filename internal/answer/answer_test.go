package answer_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/internal/answer"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

func TestReplica_Source(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		got := answer.Replica{Service: "leasesvc", ID: "a"}.Source(7, []int{1, 3},
			answer.Cache{Kind: "Node", ResourceVersion: "12", Heard: now.Add(-time.Minute)}, answer.Cache{Kind: "Pod"},
			answer.Cache{Kind: "Lease", Heard: now.Add(time.Second)})
		want := &metav1.Source{
			Service: "leasesvc", ReplicaId: "a", Epoch: 7, Shards: []int32{1, 3}, ReadTime: timestamppb.New(now), Caches: []*metav1.CacheStatus{
				{Kind: "Node", ResourceVersion: "12", Lag: durationpb.New(time.Minute)}, {Kind: "Pod"}, {Kind: "Lease", Lag: durationpb.New(0)},
			},
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("source (-want +got):\n%s", diff)
		}
	})
}

func TestPageSize(t *testing.T) {
	for requested, want := range map[int32]int{-1: 500, 0: 500, 1: 1, 5000: 5000, 5001: 5000} {
		if got := answer.PageSize(requested, 500, 5000); got != want {
			t.Errorf("of %d: %d, want %d", requested, got, want)
		}
	}
}
