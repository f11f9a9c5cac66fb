package version_test

import (
	"context"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/version"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/identity"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
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
	if got.Code != exit.OK || !strings.Contains(got.Stdout, "leasesvc   v0.0.1   not-released") {
		t.Errorf("two replicas: %s", got)
	}
	apart := server(replica("a", "v0.1.0", true), replica("b", "v0.3.0", true))
	got = run("--server", apart)
	if got.Code != exit.Findings || !strings.Contains(got.Stderr, "unsupported skew between the versions v0.1.0 and v0.3.0") {
		t.Errorf("two minor versions apart: %s", got)
	}
	got = run("--server", apart, "-o", `jsonpath={.skew} {.servers[1].version}`)
	if got.Code != exit.Findings || got.Stdout != "unsupported v0.3.0" {
		t.Errorf("the document: %s", got)
	}
	got = run("--server", server(replica("a", identity.Version(), true), replica("b", "", false)))
	if got.Code != exit.Undetermined || !strings.Contains(got.Stdout, "no answer") || !strings.Contains(got.Stderr, "1 replica gave no answer") {
		t.Errorf("a silent replica: %s", got)
	}
	got = run("--server", "127.0.0.1:1", "--timeout", "1s")
	if got.Code != exit.Undetermined || !strings.Contains(got.Stdout, "this program") {
		t.Errorf("no gateway: %s; want the version of the program all the same", got)
	}
	got = run("--client", "-o", "yaml")
	if got.Code != exit.OK || !strings.Contains(got.Stdout, "version: "+identity.Version()) || !strings.Contains(got.Stdout, "servers: []") {
		t.Errorf("--client: %s", got)
	}
	if got = run("extra"); got.Code != exit.Usage {
		t.Errorf("an argument: %s", got)
	}
}

func TestSkewOf(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want version.Skew
	}{
		{"v0.3.1", "v0.3.1", version.None},
		{"9e79ee60", "9e79ee60", version.None},
		{"v0.3.1", "v0.4.0", version.Supported},
		{"v0.4.0-2-gabcdef0", "v0.3.9", version.Supported},
		{"v0.5.0", "v0.3.9", version.Unsupported},
		{"v1.0.0", "v0.9.0", version.Unsupported},
		{"v0.3.1", "9e79ee60", version.NotReleased},
		{"v0.3.1", "\x1b[2J", version.NotReleased},
		{"v0.3.1", "", version.Unknown},
	} {
		if got, back := version.SkewOf(test.a, test.b), version.SkewOf(test.b, test.a); got != test.want || back != test.want {
			t.Errorf("SkewOf(%q, %q) = %s and %s, want %s", test.a, test.b, got, back, test.want)
		}
	}
}
