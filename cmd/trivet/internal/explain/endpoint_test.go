package explain_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/explain"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
)

func endpoint(included, settled bool, firstFailed int32, links ...*metav1.Evidence) *slicev1.ExplainEndpointResponse {
	return &slicev1.ExplainEndpointResponse{
		Included: included, Settled: settled, Evidence: links, BrokenIndex: index(firstFailed), Sources: sources("slicesvc", "EndpointSlice"),
	}
}

func TestExplainEndpoint_Transcripts(t *testing.T) {
	inSlice := object("EndpointSlice", "shop", "web-x7k2p")
	selected := link("SELECTOR", good, "It has the label app=web.", object("Pod", "shop", "web-0"))
	tests := []struct {
		name        string
		explanation *slicev1.ExplainEndpointResponse
		args        []string
		code        int
	}{
		{name: "endpoint-included", code: exit.OK, explanation: endpoint(true, true, none, selected, link("SLICE", good, "It is endpoint 3 of 57 in web-x7k2p.", inSlice))},
		{name: "endpoint-excluded", code: exit.Findings, explanation: endpoint(false, true, 0,
			link("SELECTOR", bad, `Its label app is "api"; the Service selects "web".`, next("Change the selector, or the labels in the Pod's template.")),
			link("SLICE", absent, "No IPv4 slice has it, and none should."))},
		{name: "endpoint-not-ready", code: exit.Findings, explanation: endpoint(true, true, 1, selected, link("READINESS", bad, "It is not ready since 11:58:48 UTC, so it gets no traffic."))},
		{name: "endpoint-not-settled", code: exit.Undetermined, explanation: endpoint(true, false, none, selected, link("SLICE", doubtful, "It is endpoint 3 of 57 in web-x7k2p, still as not ready.", inSlice))},
		{name: "endpoint-json", code: exit.OK, args: []string{"-o", "json"}, explanation: endpoint(true, true, none, selected)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := commandtest.Serve(t, &commandtest.Gateway{EndpointExplanation: test.explanation})
			args := append([]string{"endpoint", "web-0", "--service", "web", "-n", "shop", "--server", server}, test.args...)
			got := commandtest.Run(t, commandtest.Terminal{}, explain.NewCommand, args...)
			if got.Code != test.code {
				t.Errorf("exit code = %d, want %d", got.Code, test.code)
			}
			commandtest.Golden(t, test.name+".txt", got.String())
		})
	}
}

func TestExplainEndpoint_TakesAPodOrAnAddress(t *testing.T) {
	for _, test := range []struct{ argument, pod, address string }{
		{argument: "web-0", pod: "web-0"}, {argument: "pod/web-0", pod: "web-0"}, {argument: "10.244.1.17", address: "10.244.1.17"},
		{argument: "::ffff:10.244.1.17", address: "10.244.1.17"}, {argument: "fd00::17", address: "fd00::17"}, {argument: "pod/10.244.1.17", pod: "10.244.1.17"},
	} {
		gateway := &commandtest.Gateway{EndpointExplanation: endpoint(true, true, none)}
		got := commandtest.Run(t, commandtest.Terminal{}, explain.NewCommand, "pod", test.argument, "--service=shop/web", "--server", commandtest.Serve(t, gateway))
		requests := commandtest.RequestsOf[*slicev1.ExplainEndpointRequest](gateway)
		if got.Code != exit.OK || len(requests) != 1 || requests[0].GetPod() != test.pod || requests[0].GetAddress() != test.address {
			t.Errorf("%s: requests %v, want pod %q or address %q\n%s", test.argument, requests, test.pod, test.address, got)
		}
	}
}

func TestExplainEndpoint_WithoutAnAnswer(t *testing.T) {
	gateway := &commandtest.Gateway{Err: rpcerror.New(codes.NotFound, "POD_NOT_FOUND", `no pod "web-9" in namespace "shop"`)}
	server := commandtest.Serve(t, gateway)
	got := commandtest.Run(t, commandtest.Terminal{}, explain.NewCommand, "endpoint", "web-9", "--service", "shop/web", "--server", server)
	commandtest.Golden(t, "endpoint-not-found.txt", got.String())
	if got.Code != exit.Findings {
		t.Errorf("exit code = %d, want %d", got.Code, exit.Findings)
	}
}

func TestExplainEndpoint_WrongCommandLines(t *testing.T) {
	for _, args := range [][]string{
		{"endpoint"}, {"endpoint", "web-0"}, {"endpoint", "a", "b", "--service=shop/web"}, {"endpoint", "web-0", "--service=web"},
		{"endpoint", "../x", "--service=shop/web"}, {"endpoint", "fe80::1%eth0", "--service=shop/web"},
		{"endpoint", "web-0", "--service=shop/web", "-n", "else"}, {"endpoint", "web-0", "--service=shop/web", "-o", "table"},
	} {
		if got := commandtest.Run(t, commandtest.Terminal{}, explain.NewCommand, args...); got.Code != exit.Usage || got.Stdout != "" {
			t.Errorf("%q: exit code = %d, stdout %q; want %d and nothing", args, got.Code, got.Stdout, exit.Usage)
		}
	}
}
