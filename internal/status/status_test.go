package status_test

import (
	"errors"
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
	"github.com/trivet-dev/trivet/internal/status"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/testkit"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
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
		deps status.Deps
		want *statusv1.GetStatusResponse
	}{
		"nothing known": {
			deps: status.Deps{Member: term.Member{ID: "a-x7k2p", Service: "gateway"}},
			want: &statusv1.GetStatusResponse{
				Replica:   &statusv1.Replica{Id: "a-x7k2p", Service: "gateway"},
				Ready:     true,
				Freshness: &statusv1.Freshness{ReplicaId: "a-x7k2p"},
			},
		},
		"a leader": {deps: leader(), want: leaderStatus()},
		"a standby of a leader known by name": {
			deps: status.Deps{
				Member: term.Member{ID: "b-x7k2p"},
				Terms: func() []term.ShardStatus {
					return []term.ShardStatus{{ReplicaID: "a-x7k2p", Epoch: 40, AcquireTime: moment(1), Remaining: time.Second, GRPCAddress: "10.0.0.7:7601"}}
				},
			},
			want: &statusv1.GetStatusResponse{
				Replica: &statusv1.Replica{Id: "b-x7k2p"},
				Ready:   true,
				// Only the holder knows how long it remains.
				Terms:     []*statusv1.Term{{ReplicaId: "a-x7k2p", Epoch: 40, AcquireTime: pb(moment(1)), GrpcAddress: "10.0.0.7:7601"}},
				Freshness: &statusv1.Freshness{ReplicaId: "b-x7k2p"},
			},
		},
		"not ready, by checks in order of their names": {
			deps: status.Deps{Ready: checks(map[string]error{
				"kube-apiserver": errors.New("connection refused"), "etcd": errors.New("no session"), "loops": nil,
			})},
			want: &statusv1.GetStatusResponse{
				Replica:        &statusv1.Replica{},
				UnreadyReasons: []string{"etcd: no session", "kube-apiserver: connection refused"},
				Freshness:      &statusv1.Freshness{},
			},
		},
		"text that is not UTF-8": {
			deps: status.Deps{
				Ready:        checks(map[string]error{"etcd": errors.New("bad \xff")}),
				Loops:        func() []loop.Status { return []loop.Status{{Name: "l", State: loop.Failing, LastError: "bad \xff"}} },
				Dependencies: func() []status.Dependency { return []status.Dependency{{Name: "etcd", Reason: "bad \xff"}} },
			},
			want: &statusv1.GetStatusResponse{
				Replica:        &statusv1.Replica{},
				UnreadyReasons: []string{"etcd: bad \uFFFD"},
				Loops:          []*statusv1.Loop{{Name: "l", State: statusv1.Loop_STATE_FAILING, LastError: "bad \uFFFD"}},
				Dependencies:   []*statusv1.Dependency{{Name: "etcd", Reason: "bad \uFFFD"}},
				Freshness:      &statusv1.Freshness{},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := statusv1.NewStatusServiceClient(testkit.Serve(t, status.New(c.deps).Register))
				for range 2 { // the same question gets the same answer
					got, err := client.GetStatus(t.Context(), &statusv1.GetStatusRequest{})
					if err != nil {
						t.Fatal(err)
					}
					c.want.Freshness.ReadTime = pb(moment(0)) // the bubble's clock stands still
					if diff := cmp.Diff(c.want, got, protocmp.Transform()); diff != "" {
						t.Errorf("status differs (-want +got):\n%s", diff)
					}
				}
			})
		})
	}
}

// leader holds three shards of four, two of which are to move; everything it knows is out of order.
func leader() status.Deps {
	return status.Deps{
		Member: term.Member{
			ID: "a-x7k2p", Service: "leasesvc", Cluster: "prod", Version: "v1.2.3",
			GRPCAddress: "10.0.0.7:7601", AdminAddress: "10.0.0.7:7611", StartTime: moment(1),
		},
		Ready: checks(nil),
		Terms: func() []term.ShardStatus {
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
		Counts:          func() map[string]int64 { return map[string]int64{"leases": 20, "streams": 3} },
		ResourceVersion: func() string { return "1234" },
	}
}

func leaderStatus() *statusv1.GetStatusResponse {
	return &statusv1.GetStatusResponse{
		Replica: &statusv1.Replica{
			Id: "a-x7k2p", Service: "leasesvc", Cluster: "prod", Version: "v1.2.3",
			GrpcAddress: "10.0.0.7:7601", AdminAddress: "10.0.0.7:7611", StartTime: pb(moment(1)),
		},
		Ready: true,
		Terms: []*statusv1.Term{
			{Shard: 0, ReplicaId: "a-x7k2p", Epoch: 43, AcquireTime: pb(moment(3)), HeldHere: true, Remaining: durationpb.New(3 * time.Second), GrpcAddress: "10.0.0.7:7601"},
			{Shard: 1, ReleaseTime: pb(moment(7))},
			{
				Shard: 2, ReplicaId: "a-x7k2p", Epoch: 41, AcquireTime: pb(moment(2)), HeldHere: true, Remaining: durationpb.New(0), GrpcAddress: "10.0.0.7:7601",
				Move: &statusv1.Move{State: statusv1.Move_STATE_DRAINING, StartTime: pb(moment(5))},
			},
			{
				Shard: 3, ReplicaId: "a-x7k2p", Epoch: 42, HeldHere: true, Remaining: durationpb.New(0),
				Move: &statusv1.Move{ToReplicaId: "b-x7k2p", State: statusv1.Move_STATE_WAITING, StartTime: pb(moment(4))},
			},
		},
		Loops: []*statusv1.Loop{
			{Name: "adopt", State: statusv1.Loop_STATE_STANDBY},
			{Name: "audit", State: statusv1.Loop_STATE_DISABLED},
			{Name: "expire", State: statusv1.Loop_STATE_RUNNING, LastRunTime: pb(moment(5)), LastSuccessTime: pb(moment(5)), Runs: 9},
			{Name: "future"},
			{Name: "watch", State: statusv1.Loop_STATE_STALLED},
			{Name: "write-leases", State: statusv1.Loop_STATE_FAILING, LastRunTime: pb(moment(5)), LastSuccessTime: pb(moment(4)), LastError: "conflict", Runs: 7, Failures: 2},
		},
		Dependencies: []*statusv1.Dependency{
			{Name: "etcd", Healthy: true},
			{Name: "kube-apiserver", Reason: "connection refused", LastContactTime: pb(moment(6))},
		},
		Counts:    map[string]int64{"leases": 20, "streams": 3},
		Freshness: &statusv1.Freshness{ReplicaId: "a-x7k2p", Epoch: 43, ResourceVersion: "1234"},
	}
}
