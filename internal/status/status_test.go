package status_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/status"
	"github.com/trivet-dev/trivet/internal/term"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// moment is some seconds after a fixed time; in a synctest bubble the present is the year 2000.
func moment(seconds int) time.Time { return time.Unix(946684800+int64(seconds), 0) }

func pb(t time.Time) *timestamppb.Timestamp { return timestamppb.New(t) }

func checks(failures map[string]error) *observe.Checks {
	c := observe.NewChecks()
	for name, err := range failures {
		c.Add(name, func() error { return err })
	}
	return c
}

func TestGetStatus_ReturnsStateOfTheProcess(t *testing.T) {
	for name, c := range map[string]struct {
		deps   status.Deps
		want   *statusv1.ReplicaStatus
		source *metav1.Source
	}{
		"nothing known": {
			deps:   status.Deps{Member: term.Member{ID: "a-x7k2p", Service: "gateway"}},
			want:   &statusv1.ReplicaStatus{Replica: &statusv1.Replica{Id: "a-x7k2p", Service: "gateway"}, Ready: true},
			source: &metav1.Source{Service: "gateway", ReplicaId: "a-x7k2p"},
		},
		"a leader": {
			deps: leader(), want: leaderStatus(),
			source: &metav1.Source{Service: "leasesvc", ReplicaId: "a-x7k2p", Epoch: 43, Shards: []int32{0, 2, 3}},
		},
		"a standby": {
			deps: status.Deps{
				Member: term.Member{ID: "b-x7k2p", Service: "leasesvc"},
				Shards: func() []term.ShardStatus { return []term.ShardStatus{{ReplicaID: "a-x7k2p", Epoch: 40}} },
			},
			want:   &statusv1.ReplicaStatus{Replica: &statusv1.Replica{Id: "b-x7k2p", Service: "leasesvc"}, Ready: true, ShardCount: 1},
			source: &metav1.Source{Service: "leasesvc", ReplicaId: "b-x7k2p"},
		},
		"not ready, by checks in order of their names, after what is worse": {
			deps: status.Deps{
				Member: term.Member{ID: "c", Service: "slicesvc", AdminAddress: "10.0.0.7:7611"},
				Ready: checks(map[string]error{
					"kube-apiserver": errors.New("connection refused"), "etcd": errors.New("bad \xff"), "loops": nil,
				}),
				Problems: func() []*metav1.Problem {
					return []*metav1.Problem{
						{Code: "SYNC_FAILING", Severity: metav1.Problem_SEVERITY_ERROR, Message: "bad \xff"},
						{Code: "CONTENDED", Severity: metav1.Problem_SEVERITY_WARNING},
					}
				},
			},
			want: &statusv1.ReplicaStatus{
				Replica: &statusv1.Replica{Id: "c", Service: "slicesvc", AdminAddress: "10.0.0.7:7611"},
				Problems: []*metav1.Problem{
					{Code: "SYNC_FAILING", Severity: metav1.Problem_SEVERITY_ERROR, Service: "slicesvc", Message: "bad \uFFFD"},
					notReady("etcd: bad \uFFFD"), notReady("kube-apiserver: connection refused"),
					{Code: "CONTENDED", Severity: metav1.Problem_SEVERITY_WARNING, Service: "slicesvc"},
				},
			},
			source: &metav1.Source{Service: "slicesvc", ReplicaId: "c"},
		},
		"text that is not UTF-8": {
			deps: status.Deps{
				Loops:        func() []loop.Status { return []loop.Status{{Name: "l", State: loop.Failing, LastError: "bad \xff"}} },
				Dependencies: func() []status.Dependency { return []status.Dependency{{Name: "etcd", Reason: "bad \xff"}} },
			},
			want: &statusv1.ReplicaStatus{
				Replica: &statusv1.Replica{}, Ready: true,
				Loops:        []*statusv1.Loop{{Name: "l", State: statusv1.Loop_STATE_FAILING, Mode: metav1.Mode_MODE_ENFORCE, LastError: "bad \uFFFD"}},
				Dependencies: []*statusv1.Dependency{{Name: "etcd", Message: "bad \uFFFD"}},
			},
			source: &metav1.Source{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := statusv1.NewStatusServiceClient(testkit.Serve(t, status.New(c.deps).Register))
				c.source.ReadTime = pb(moment(0)) // the bubble's clock stands still
				want := &statusv1.GetStatusResponse{Status: c.want, Sources: []*metav1.Source{c.source}}
				for range 2 { // the same question gets the same answer
					got, err := client.GetStatus(t.Context(), &statusv1.GetStatusRequest{})
					if err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
						t.Errorf("status differs (-want +got):\n%s", diff)
					}
				}
			})
		})
	}
}

func notReady(message string) *metav1.Problem {
	return &metav1.Problem{
		Code: "REPLICA_NOT_READY", Severity: metav1.Problem_SEVERITY_WARNING, Resource: "replicas/c", Service: "slicesvc",
		Message: message, Next: "see its log and /readyz?verbose at 10.0.0.7:7611",
	}
}

func TestListShards_ReturnsShardsInOrder(t *testing.T) {
	client := statusv1.NewStatusServiceClient(testkit.Serve(t, status.New(leader()).Register))
	for name, c := range map[string]struct {
		request *statusv1.ListShardsRequest
		want    []*statusv1.ShardStatus
	}{
		"all":              {request: &statusv1.ListShardsRequest{}, want: leaderShards()},
		"of this service":  {request: &statusv1.ListShardsRequest{Services: []string{"slicesvc", "leasesvc"}}, want: leaderShards()},
		"of other service": {request: &statusv1.ListShardsRequest{Services: []string{"slicesvc"}}},
		"in pages":         {request: &statusv1.ListShardsRequest{PageSize: 3}, want: leaderShards()},
	} {
		t.Run(name, func(t *testing.T) {
			var got []*statusv1.ShardStatus
			for {
				page, err := client.ListShards(t.Context(), c.request)
				if err != nil {
					t.Fatal(err)
				}
				if size := int(c.request.PageSize); size > 0 && len(page.Shards) > size {
					t.Errorf("page of %d shards, want %d at most", len(page.Shards), size)
				}
				got = append(got, page.Shards...)
				if c.request.PageToken = page.NextPageToken; c.request.PageToken == "" {
					break
				}
			}
			if diff := cmp.Diff(c.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("shards differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestListShards_RefusesTokenOfAnotherList(t *testing.T) {
	client := statusv1.NewStatusServiceClient(testkit.Serve(t, status.New(leader()).Register))
	page, err := client.ListShards(t.Context(), &statusv1.ListShardsRequest{PageSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"x", page.NextPageToken[1:], page.NextPageToken} {
		_, err := client.ListShards(t.Context(), &statusv1.ListShardsRequest{PageToken: token, Services: []string{"leasesvc"}})
		if rpcerror.ReasonOf(err) != rpcerror.InvalidPageTokenReason {
			t.Errorf("token %q: %v, want INVALID_PAGE_TOKEN", token, err)
		}
	}
}

// leader leads three shards of four, two of which are to move; everything it knows is out of order.
func leader() status.Deps {
	return status.Deps{
		Member: term.Member{
			ID: "a-x7k2p", Service: "leasesvc", Cluster: "prod", Version: "v1.2.3",
			GRPCAddress: "10.0.0.7:7601", AdminAddress: "10.0.0.7:7611", StartTime: moment(1),
		},
		Ready: checks(nil),
		Shards: func() []term.ShardStatus {
			return []term.ShardStatus{
				{
					Shard: 2, ReplicaID: "a-x7k2p", Epoch: 41, AcquireTime: moment(2), Here: true, Remaining: -time.Second, GRPCAddress: "10.0.0.7:7601",
					Move: term.Move{State: term.Draining, Since: moment(5)},
				},
				{Shard: 3, ReplicaID: "a-x7k2p", Epoch: 42, Here: true, Move: term.Move{State: term.Waiting, To: "b-x7k2p", Since: moment(4)}},
				{Shard: 1, ReleaseTime: moment(7)},
				{Shard: 0, ReplicaID: "a-x7k2p", Epoch: 43, AcquireTime: moment(3), Here: true, Remaining: 3 * time.Second, GRPCAddress: "10.0.0.7:7601"},
			}
		},
		Loops: func() []loop.Status {
			return []loop.Status{
				{Name: "write-leases", State: loop.Failing, LastRun: moment(5), LastSuccess: moment(4), LastError: "conflict", Runs: 7, Failures: 2},
				{Name: "expire", State: loop.Running, LastRun: moment(5), LastSuccess: moment(5), Runs: 9},
				{Name: "audit", State: loop.Disabled}, {Name: "adopt", State: loop.Standby}, {Name: "watch", State: loop.Stalled},
				{Name: "future", State: loop.State(99)},
			}
		},
		Dependencies: func() []status.Dependency {
			return []status.Dependency{
				{Name: "kube-apiserver", Reason: "connection refused", LastContact: moment(6)},
				{Name: "etcd", Healthy: true},
			}
		},
		Counts: func() map[string]int64 { return map[string]int64{"leases": 20, "streams": 3} },
	}
}

func leaderStatus() *statusv1.ReplicaStatus {
	enforce := metav1.Mode_MODE_ENFORCE
	return &statusv1.ReplicaStatus{
		Replica: &statusv1.Replica{
			Id: "a-x7k2p", Service: "leasesvc", Cluster: "prod", Version: "v1.2.3",
			GrpcAddress: "10.0.0.7:7601", AdminAddress: "10.0.0.7:7611", StartTime: pb(moment(1)),
		},
		Ready: true, ShardCount: 4, LedShards: []int32{0, 2, 3},
		Loops: []*statusv1.Loop{
			{Name: "adopt", State: statusv1.Loop_STATE_STANDBY, Mode: enforce},
			{Name: "audit", State: statusv1.Loop_STATE_DISABLED, Mode: enforce},
			{Name: "expire", State: statusv1.Loop_STATE_RUNNING, Mode: enforce, LastRunTime: pb(moment(5)), LastSuccessTime: pb(moment(5)), RunCount: 9},
			{Name: "future", Mode: enforce},
			{Name: "watch", State: statusv1.Loop_STATE_STALLED, Mode: enforce},
			{
				Name: "write-leases", State: statusv1.Loop_STATE_FAILING, Mode: enforce, LastRunTime: pb(moment(5)), LastSuccessTime: pb(moment(4)),
				LastError: "conflict", RunCount: 7, FailureCount: 2,
			},
		},
		Dependencies: []*statusv1.Dependency{
			{Name: "etcd", Healthy: true},
			{Name: "kube-apiserver", Message: "connection refused", LastContactTime: pb(moment(6))},
		},
		Counts: map[string]int64{"leases": 20, "streams": 3},
	}
}

func leaderShards() []*statusv1.ShardStatus {
	shard := func(number int32, s *statusv1.ShardStatus) *statusv1.ShardStatus {
		s.Name, s.Service, s.Shard = fmt.Sprintf("shards/leasesvc/%d", number), "leasesvc", &number
		return s
	}
	return []*statusv1.ShardStatus{
		shard(0, &statusv1.ShardStatus{
			LeaderId: "a-x7k2p", Epoch: 43, AcquireTime: pb(moment(3)), Remaining: durationpb.New(3 * time.Second), LeaderAddress: "10.0.0.7:7601",
		}),
		shard(1, &statusv1.ShardStatus{ReleaseTime: pb(moment(7))}),
		shard(2, &statusv1.ShardStatus{
			LeaderId: "a-x7k2p", Epoch: 41, AcquireTime: pb(moment(2)), Remaining: durationpb.New(0), LeaderAddress: "10.0.0.7:7601",
			Move: &statusv1.Move{State: statusv1.Move_STATE_DRAINING, StartTime: pb(moment(5))},
		}),
		shard(3, &statusv1.ShardStatus{
			LeaderId: "a-x7k2p", Epoch: 42, Remaining: durationpb.New(0),
			Move: &statusv1.Move{ToReplicaId: "b-x7k2p", State: statusv1.Move_STATE_WAITING, StartTime: pb(moment(4))},
		}),
	}
}
