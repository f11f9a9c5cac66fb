package version_test

import (
	"context"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/commandtest"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/version"
	"github.com/trivet-dev/trivet/internal/identity"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gateway answers with a status.
type gateway struct {
	gatewayv1.UnimplementedClusterServiceServer

	status *gatewayv1.ClusterStatus
}

func (g gateway) GetClusterStatus(context.Context, *gatewayv1.GetClusterStatusRequest) (*gatewayv1.GetClusterStatusResponse, error) {
	return &gatewayv1.GetClusterStatusResponse{Status: g.status}, nil
}

func TestVersion(t *testing.T) {
	replica := func(id, version string, answers bool) *gatewayv1.ReplicaResult {
		result := &gatewayv1.ReplicaResult{Replica: &statusv1.Replica{Id: id, Version: version}}
		if answers {
			result.Status = &statusv1.ReplicaStatus{}
		}
		return result
	}
	server := func(replicas ...*gatewayv1.ReplicaResult) string {
		return commandtest.ServeCluster(t, gateway{status: &gatewayv1.ClusterStatus{
			Services: []*gatewayv1.ServiceStatus{{Service: "leasesvc", Replicas: replicas}},
		}})
	}
	run := func(args ...string) commandtest.Transcript {
		return commandtest.Run(t, commandtest.Terminal{}, version.NewCommand, args...)
	}

	got := run("--server", server(replica("a", identity.Version(), true), replica("b", "v0.0.1", true)))
	if got.Code != exit.OK || !strings.Contains(got.Stdout, "leasesvc   v0.0.1") {
		t.Errorf("two replicas: %s", got)
	}
	got = run("--server", server(replica("a", identity.Version(), true), replica("b", "", false)))
	if got.Code != exit.Undetermined || !strings.Contains(got.Stdout, "no answer") || !strings.Contains(got.Stderr, "1 replica gave no answer") {
		t.Errorf("a silent replica: %s", got)
	}
	got = run("--server", "127.0.0.1:1", "--timeout", "1s")
	if got.Code != exit.Undetermined || !strings.Contains(got.Stdout, "this program") {
		t.Errorf("no gateway: %s; want the version of the program all the same", got)
	}
	got = run("--client")
	if got.Code != exit.OK || !strings.Contains(got.Stdout, identity.Version()) {
		t.Errorf("--client: %s", got)
	}
	if got = run("extra"); got.Code != exit.Usage {
		t.Errorf("an argument: %s", got)
	}
}
