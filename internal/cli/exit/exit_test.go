package exit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	registryv1 "github.com/trivet-dev/trivet/proto/trivet/registry/v1alpha1"
)

// action returns the action of a reason as the command prints it: as the end of a sentence.
func action(t *testing.T, reason registryv1.ErrorReason) string {
	t.Helper()
	value := reason.Descriptor().Values().ByNumber(reason.Number())
	text := proto.GetExtension(value.Options(), registryv1.E_Reason).(*registryv1.ReasonInfo).GetAction()
	if len(text) < 2 {
		t.Fatalf("%s has no action", reason)
	}
	return strings.TrimSuffix(strings.ToLower(text[:1])+text[1:], ".")
}

func TestReport(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want []string
	}{
		{name: "nothing"},
		{name: "without text", err: &exit.Error{Code: exit.Interrupted}},
		{name: "summary alone", err: &exit.Error{Code: exit.Findings, Summary: "the verdict is FAILED: 2 problems"}, want: []string{"error: the verdict is FAILED: 2 problems"}},
		{name: "any other error", err: errors.New("unknown command"), want: []string{"error: unknown command"}},
		{
			name: "RPC error with a reason",
			err: &exit.Error{
				Code: exit.Undetermined, Summary: "no status from the gateway at 127.0.0.1:7600",
				Err: rpcerror.New(codes.Unavailable, "REPLICAS_UNREACHABLE", "no replica is registered in etcd"),
			},
			want: []string{
				"error[REPLICAS_UNREACHABLE]: no status from the gateway at 127.0.0.1:7600",
				"cause: no replica is registered in etcd",
				"try: look at the logs of the replicas; without any, start one, or check its connection to etcd",
			},
		},
		{
			name: "wrapped RPC error without a reason",
			err: &exit.Error{
				Code: exit.Undetermined, Summary: "no status from the gateway at 127.0.0.1:7600",
				Err: fmt.Errorf("ask: %w", status.Error(codes.Unavailable, "connection refused")),
			},
			want: []string{
				"error[UNAVAILABLE]: no status from the gateway at 127.0.0.1:7600",
				"cause: connection refused",
				"try: check that the gateway runs and that --server is its gRPC address; beyond loopback, give --ca-file, --cert-file and --key-file",
			},
		},
		{
			name: "reason with the action of the registry",
			err: &exit.Error{
				Code: exit.Undetermined, Summary: "no answer", Err: rpcerror.New(codes.OutOfRange, "WATCH_TOO_SLOW", "too slow"),
			},
			want: []string{"error[WATCH_TOO_SLOW]: no answer", "cause: too slow", "try: " + action(t, registryv1.ErrorReason_ERROR_REASON_WATCH_TOO_SLOW)},
		},
		{
			name: "several problems of a command line",
			err:  exit.UsageError(errors.New("--timeout=0s: must be positive"), nil, errors.New("--output=\"xml\": must be one of table")),
			want: []string{"error: --timeout=0s: must be positive", "error: --output=\"xml\": must be one of table"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got strings.Builder
			exit.Report(&got, test.err)

			want := ""
			for _, line := range test.want {
				want += line + "\n"
			}
			if got.String() != want {
				t.Errorf("Report() wrote\n%swant\n%s", got.String(), want)
			}
		})
	}
}

// Servers choose messages and reasons. They must neither change the terminal nor add lines that
// look like those of this program.
func TestReport_TextOfServersStaysText(t *testing.T) {
	const hostile = "\x1b[2Jno\ntry: run this\u202e"
	for name, err := range map[string]error{
		"RPC":           status.Error(codes.Internal, hostile),
		"cause of RPC":  &exit.Error{Code: exit.Undetermined, Summary: "no answer", Err: status.Error(codes.Internal, hostile)},
		"cause of HTTP": &exit.Error{Code: exit.Undetermined, Summary: "no answer", Err: errors.New(hostile)},
	} {
		var out strings.Builder
		exit.Report(&out, err)
		if strings.ContainsAny(out.String(), "\x1b\u202e") || strings.Contains(out.String(), "\ntry: run this") {
			t.Errorf("%s: %q", name, out.String())
		}
	}
}

func TestCodeOf(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want int
	}{
		{name: "nil", want: exit.OK},
		{name: "wrapped", err: fmt.Errorf("status: %w", &exit.Error{Code: exit.Findings}), want: exit.Findings},
		{name: "usage", err: exit.UsageError(errors.New("no")), want: exit.Usage},
		{name: "no code", err: errors.New("connection refused"), want: exit.Undetermined},
	}
	for _, test := range tests {
		if got := exit.CodeOf(test.err); got != test.want {
			t.Errorf("%s: CodeOf() = %d, want %d", test.name, got, test.want)
		}
	}
}

func TestExecute_OnlyTheCommandLineIsUsage(t *testing.T) {
	for args, want := range map[string]int{
		"run": exit.Undetermined, "run --x": exit.Usage, "run 1": exit.Usage, "other": exit.Usage, "run --help": exit.OK,
	} {
		root := &cobra.Command{Use: "root", SilenceUsage: true, SilenceErrors: true}
		root.AddCommand(&cobra.Command{Use: "run", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return errors.New("no answer") }})
		root.SetOut(io.Discard)
		root.SetArgs(strings.Fields(args))
		if err := exit.Execute(t.Context(), root); exit.CodeOf(err) != want {
			t.Errorf("%s: %v has code %d, want %d", args, err, exit.CodeOf(err), want)
		}
	}
}

func TestUsageError_WithoutProblemsIsNil(t *testing.T) {
	if err := exit.UsageError(nil, nil); err != nil {
		t.Errorf("UsageError() = %v, want nil", err)
	}
}

func TestCodeIn_OnlyAMissingAnswerIsInterrupted(t *testing.T) {
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		ctx  context.Context
		code int
		want int
	}{
		{interrupted, exit.Undetermined, exit.Interrupted},
		{interrupted, exit.Findings, exit.Findings},
		{interrupted, exit.Usage, exit.Usage},
		{t.Context(), exit.Undetermined, exit.Undetermined},
	} {
		if got := exit.CodeIn(test.ctx, &exit.Error{Code: test.code}); got != test.want {
			t.Errorf("CodeIn(%v, %d) = %d, want %d", test.ctx.Err(), test.code, got, test.want)
		}
	}
	if got := exit.CodeIn(interrupted, nil); got != exit.OK {
		t.Errorf("without an error: %d", got)
	}
}
