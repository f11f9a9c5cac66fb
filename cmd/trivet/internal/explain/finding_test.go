package explain_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/explain"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
)

func TestExplainFinding_Transcripts(t *testing.T) {
	leaked := func(edit func(*bootstrapv1.Finding)) *commandtest.Gateway {
		response := &bootstrapv1.ExplainFindingResponse{BrokenIndex: index(1), Finding: &bootstrapv1.Finding{
			Name: "findings/leaked.node-ports.30080", Code: "LEAKED", State: bootstrapv1.Finding_STATE_PENDING,
			Message: "Node port 30080 is allocated and no Service uses it.",
			Objects: []*metav1.ObjectReference{{Kind: "Service", Namespace: "shop", Name: "web"}},
			Repair:  "clear its bit", RepairModeMessage: "it was observed 2 times of 3",
		}}
		response.Evidence = []*metav1.Evidence{
			{Code: "STORED_BIT", Result: metav1.Evidence_RESULT_OK, Message: "Its bit is set.", Source: "etcd", Version: "4711",
				ObserveTime: timestamppb.New(time.Now().Add(-time.Hour - 30*time.Second))},
			{Code: "SERVICE_USE", Result: metav1.Evidence_RESULT_FAILED, Message: "None of 2000 Services uses it.", Next: "Wait for the third observation.", Source: "service"},
		}
		if edit != nil {
			edit(response.Finding)
		}
		return &commandtest.Gateway{FindingExplanation: response}
	}
	tests := []struct {
		name   string
		serves *commandtest.Gateway
		args   []string
		code   int
	}{
		{name: "finding", serves: leaked(nil), code: exit.Findings},
		{name: "finding-manual", serves: leaked(func(f *bootstrapv1.Finding) {
			f.State, f.Repair, f.RepairModeMessage = bootstrapv1.Finding_STATE_OPEN, "", ""
		}), code: exit.Findings},
		{name: "finding-repaired", serves: leaked(func(f *bootstrapv1.Finding) {
			f.State, f.RepairedBy = bootstrapv1.Finding_STATE_REPAIRED, "repairs/a1"
		}), code: exit.OK},
		{name: "finding-ignored", serves: leaked(func(f *bootstrapv1.Finding) {
			f.State, f.Ignore = bootstrapv1.Finding_STATE_IGNORED, &bootstrapv1.Finding_Ignore{Comment: "wanted"}
		}), code: exit.OK},
		{name: "finding-json", serves: &commandtest.Gateway{FindingExplanation: &bootstrapv1.ExplainFindingResponse{
			Finding: &bootstrapv1.Finding{Name: "findings/leaked.node-ports.30080", State: bootstrapv1.Finding_STATE_PENDING}, BrokenIndex: index(0),
		}}, args: []string{"-o", "json"}, code: exit.Findings},
		{name: "finding-not-found", serves: &commandtest.Gateway{}, code: exit.Findings},
		{name: "finding-no-leader", serves: &commandtest.Gateway{
			Err: rpcerror.New(codes.Unavailable, "NO_LEADER", "no replica of bootstrapsvc leads shard 0"),
		}, code: exit.Undetermined},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := commandtest.Serve(t, test.serves)
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
