package shards_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/shards"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func shard(service, name string, number int32, leader string) *statusv1.ShardStatus {
	s := &statusv1.ShardStatus{Name: "shards/" + name, Service: service, Shard: proto.Int32(number), LeaderId: leader}
	if leader == "" {
		s.ReleaseTime = commandtest.Ago(2 * time.Hour)
	} else {
		s.LeaderAddress, s.Epoch, s.AcquireTime = "10.0.0.7:7601", 18231+int64(number), commandtest.Ago(time.Hour)
		s.Remaining = durationpb.New(7654 * time.Millisecond)
	}
	return s
}

// all returns a led shard, two that move, and one without a leader.
func all() []*statusv1.ShardStatus {
	moving, leaving := shard("leasesvc", "leasesvc/1", 1, "node-1-h3d9c"), shard("leasesvc", "leasesvc/2", 2, "node-1-h3d9c")
	moving.Move = &statusv1.Move{ToReplicaId: "node-2-k2v9s", State: statusv1.Move_STATE_WAITING, StartTime: commandtest.Ago(time.Hour)}
	leaving.Move = &statusv1.Move{State: statusv1.Move_STATE_DRAINING, StartTime: commandtest.Ago(time.Hour)}
	return []*statusv1.ShardStatus{
		shard("bootstrapsvc", "bootstrapsvc/0", 0, ""), shard("leasesvc", "leasesvc/0", 0, "node-1-\x1b[2J"), moving, leaving,
	}
}

func TestShards_Transcripts(t *testing.T) {
	gateway := &commandtest.Gateway{Shards: all(), PageSize: 3}
	missing := []*metav1.MissingPart{{Service: "slicesvc", ReplicaId: "node-2-slow1", Message: "no answer within 1s"}}
	tests := []struct {
		name    string
		gateway *commandtest.Gateway
		args    []string
		code    int
	}{
		{name: "all", gateway: gateway, code: exit.Findings},
		{name: "wide", gateway: gateway, args: []string{"-o", "wide"}, code: exit.Findings},
		{name: "one-service", gateway: gateway, args: []string{"--service=leasesvc,slicesvc"}, code: exit.OK},
		{name: "one", gateway: gateway, args: []string{"shards/leasesvc/0"}, code: exit.OK},
		{name: "unknown", gateway: gateway, args: []string{"leasesvc/99"}, code: exit.Undetermined},
		{name: "names", gateway: gateway, args: []string{"-o", "name"}, code: exit.Findings},
		{name: "json", gateway: &commandtest.Gateway{Shards: []*statusv1.ShardStatus{{Name: "shards/leasesvc/0", Shard: proto.Int32(0), LeaderId: "a"}}, Missing: missing}, args: []string{"-o", "json"}, code: exit.Undetermined},
		{name: "none", gateway: &commandtest.Gateway{}, code: exit.Findings},
		{name: "missing", gateway: &commandtest.Gateway{Shards: all()[1:], Missing: missing}, code: exit.Undetermined},
		{name: "error", gateway: &commandtest.Gateway{Err: errors.New("broken")}, code: exit.Undetermined},
		{name: "usage", gateway: gateway, args: []string{"leasesvc", "--service=gateway", "-o", "xml"}, code: exit.Usage},
		{name: "no-watch", gateway: gateway, args: []string{"-w"}, code: exit.Usage},
		{name: "help", gateway: gateway, args: []string{"--help"}, code: exit.OK},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := commandtest.Run(t, commandtest.Terminal{}, shards.NewCommand, append(test.args, "--server", commandtest.Serve(t, test.gateway))...)
			if got.Code != test.code {
				t.Errorf("exit code = %d, want %d", got.Code, test.code)
			}
			commandtest.Golden(t, test.name+".txt", got.String())
		})
	}
}

func TestShards_ReadsEveryPage(t *testing.T) {
	gateway := &commandtest.Gateway{Shards: all(), PageSize: 3}
	commandtest.Run(t, commandtest.Terminal{}, shards.NewCommand, "--server", commandtest.Serve(t, gateway), "--service=leasesvc,bootstrapsvc")
	var want []*statusv1.ListShardsRequest
	for _, token := range []string{"", "3"} {
		want = append(want, &statusv1.ListShardsRequest{Services: []string{"leasesvc", "bootstrapsvc"}, PageSize: 5000, PageToken: token})
	}
	if diff := cmp.Diff(want, commandtest.RequestsOf[*statusv1.ListShardsRequest](gateway), protocmp.Transform()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}
