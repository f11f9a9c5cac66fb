package explain_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/commandtest"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/explain"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

func TestExplainFinding_Transcripts(t *testing.T) {
	leaked := func(edit func(*bootstrapv1.Finding)) *commandtest.Bootstrap {
		finding := &bootstrapv1.Finding{
			Name: "findings/leaked.node-ports.30080", Code: bootstrapv1.Finding_CODE_LEAKED, State: bootstrapv1.Finding_STATE_PENDING,
			Message: "Node port 30080 is allocated and no Service uses it.",
			Owners:  []*statusv1.ObjectReference{{Kind: "Service", Namespace: "shop", Name: "web"}},
			Repair:  "clear its bit", UnsafeReason: "it was seen 2 times of 3",
			Evidence: []*statusv1.Evidence{
				{Code: "ALLOCATED", Verdict: statusv1.Evidence_VERDICT_GOOD, Finding: "Its bit is set.", Source: "etcd", Version: "4711",
					ObserveTime: timestamppb.New(time.Now().Add(-time.Hour - 30*time.Second))},
				{Code: "OWNER", Verdict: statusv1.Evidence_VERDICT_BROKEN, Finding: "None of 2000 Services uses it.", Next: "Wait for the third observation.", Source: "service"},
			},
		}
		if edit != nil {
			edit(finding)
		}
		return &commandtest.Bootstrap{Findings: []*bootstrapv1.Finding{finding}}
	}
	tests := []struct {
		name   string
		serves *commandtest.Bootstrap
		args   []string
		code   int
	}{
		{name: "finding", serves: leaked(nil), code: exit.Findings},
		{name: "finding-manual", serves: leaked(func(f *bootstrapv1.Finding) {
			f.State, f.Repair, f.UnsafeReason, f.Evidence = bootstrapv1.Finding_STATE_OPEN, "", "", nil
		}), code: exit.Findings},
		{name: "finding-repaired", serves: leaked(func(f *bootstrapv1.Finding) {
			f.State, f.RepairedBy = bootstrapv1.Finding_STATE_REPAIRED, "repairs/a1"
		}), code: exit.OK},
		{name: "finding-json", serves: leaked(func(f *bootstrapv1.Finding) { f.Evidence, f.Owners = nil, nil }), args: []string{"-o", "json"}, code: exit.Findings},
		{name: "finding-not-found", serves: &commandtest.Bootstrap{}, code: exit.Undetermined},
		{name: "finding-no-leader", serves: &commandtest.Bootstrap{
			Err: rpcerror.New(codes.Unavailable, rpcerror.NotLeaderReason, "no replica of bootstrapsvc holds the term"),
		}, code: exit.Undetermined},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := commandtest.Serve(t, &commandtest.Gateway{Bootstrap: test.serves})
			args := append([]string{"finding", "leaked.node-ports.30080", "--server", server}, test.args...)
			got := commandtest.Run(t, commandtest.Terminal{}, explain.NewCommand, args...)
			if got.Code != test.code {
				t.Errorf("exit code = %d, want %d", got.Code, test.code)
			}
			commandtest.Golden(t, test.name+".txt", got.String())
		})
	}
	for _, args := range [][]string{{"finding"}, {"finding", "a", "b"}, {"finding", "A"}, {"finding", "a", "-o", "table"}} {
		if got := commandtest.Run(t, commandtest.Terminal{}, explain.NewCommand, args...); got.Code != exit.Usage || got.Stdout != "" {
			t.Errorf("%q: exit code = %d, stdout %q; want %d and nothing", args, got.Code, got.Stdout, exit.Usage)
		}
	}
}
