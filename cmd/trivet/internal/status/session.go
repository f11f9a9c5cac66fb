package status

import (
	"context"
	"fmt"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/terminal"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// session is one run of the command.
type session struct {
	options

	client  gatewayv1.GatewayServiceClient
	streams terminal.Streams
	printer printer
}

// showOnce asks, prints and judges.
func (s *session) showOnce(ctx context.Context) error {
	response, err := s.ask(ctx)
	if err != nil {
		return s.undetermined(ctx, err)
	}
	return s.conclude(response)
}

func (s *session) ask(ctx context.Context) (*gatewayv1.GetClusterStatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.client.GetClusterStatus(ctx, &gatewayv1.GetClusterStatusRequest{})
}

// conclude prints the status and turns it into the verdict.
func (s *session) conclude(response *gatewayv1.GetClusterStatusResponse) error {
	if err := s.printer.print(s.streams.Out, response); err != nil {
		return &exit.Error{Code: exit.Undetermined, Summary: "print the status", Err: err}
	}
	if response.GetStatus().GetHealthy() {
		return nil
	}
	return &exit.Error{Code: exit.Findings, Summary: "the cluster is not healthy: " + plural(len(problemsOf(response.GetStatus())), "problem")}
}

// undetermined ends the command without a status.
func (s *session) undetermined(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return interrupted()
	}
	return &exit.Error{
		Code:    exit.Undetermined,
		Summary: fmt.Sprintf("no status from the gateway at %s", s.gateway.Server),
		Err:     err,
	}
}

// interrupted ends the command without a word: whoever pressed Ctrl-C knows.
func interrupted() error { return &exit.Error{Code: exit.Interrupted} }
