package explain_test

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/commandtest"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/explain"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

func endpoint(included, settled bool, firstBroken int32, links ...*statusv1.Evidence) *gatewayv1.ExplainEndpointResponse {
	return &gatewayv1.ExplainEndpointResponse{
		Included: included, Settled: settled, Evidence: links, FirstBroken: firstBroken,
		Freshness: &statusv1.Freshness{ReplicaId: "node-1-x7k2p", Epoch: 18231, ReadTime: timestamppb.New(noon), ResourceVersion: "9001"},
	}
}

func TestExplainPod_Transcripts(t *testing.T) {
	inSlice := object("EndpointSlice", "shop", "web-x7k2p")
	selected := link("SELECTOR", good, "It has the label app=web.", object("Pod", "shop", "web-0"))
	tests := []struct {
		name        string
		explanation *gatewayv1.ExplainEndpointResponse
		args        []string
		code        int
	}{
		{name: "pod-included", code: exit.OK, explanation: endpoint(true, true, -1, selected, link("SLICE", good, "It is endpoint 3 of 57 in web-x7k2p.", inSlice))},
		{name: "pod-excluded", code: exit.Findings, explanation: endpoint(false, true, 0,
			link("SELECTOR", bad, `Its label app is "api"; the Service selects "web".`, next("Change the selector, or the labels in the Pod's template.")),
			link("SLICE", absent, "No IPv4 slice has it, and none should."))},
		{name: "pod-not-ready", code: exit.Findings, explanation: endpoint(true, true, 1, selected, link("READINESS", bad, "It is not ready since 11:58:48 UTC, so it gets no traffic."))},
		{name: "pod-not-settled", code: exit.Undetermined, explanation: endpoint(true, false, -1, selected, link("SLICE", doubtful, "It is endpoint 3 of 57 in web-x7k2p, still as not ready.", inSlice))},
		{name: "pod-json", code: exit.OK, args: []string{"-o", "json"}, explanation: endpoint(true, true, -1, selected)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := commandtest.Serve(t, &commandtest.Gateway{Slices: &commandtest.Slices{Explanation: test.explanation}})
			args := append([]string{"pod", "web-0", "--service", "web", "-n", "shop", "--server", server}, test.args...)
			got := commandtest.Run(t, commandtest.Terminal{}, explain.NewCommand, args...)
			if got.Code != test.code {
				t.Errorf("exit code = %d, want %d", got.Code, test.code)
			}
			commandtest.Golden(t, test.name+".txt", got.String())
		})
	}
}

func TestExplainPod_WithoutAnAnswer(t *testing.T) {
	slices := &commandtest.Slices{Err: rpcerror.New(codes.NotFound, "POD_NOT_FOUND", `no pod "web-9" in namespace "shop"`)}
	server := commandtest.Serve(t, &commandtest.Gateway{Slices: slices})
	got := commandtest.Run(t, commandtest.Terminal{}, explain.NewCommand, "pod", "web-9", "--service", "shop/web", "--server", server)
	commandtest.Golden(t, "pod-not-found.txt", got.String())
	if got.Code != exit.Undetermined {
		t.Errorf("exit code = %d, want %d", got.Code, exit.Undetermined)
	}
}

func TestExplainPod_WrongCommandLines(t *testing.T) {
	for _, args := range [][]string{
		{"pod"}, {"pod", "web-0"}, {"pod", "a", "b", "--service=shop/web"}, {"pod", "web-0", "--service=web"}, {"pod", "../x", "--service=shop/web"},
		{"pod", "web-0", "--service=shop/web", "-n", "else"}, {"pod", "web-0", "--service=shop/web", "-o", "yaml"},
	} {
		if got := commandtest.Run(t, commandtest.Terminal{}, explain.NewCommand, args...); got.Code != exit.Usage || got.Stdout != "" {
			t.Errorf("%q: exit code = %d, stdout %q; want %d and nothing", args, got.Code, got.Stdout, exit.Usage)
		}
	}
}
