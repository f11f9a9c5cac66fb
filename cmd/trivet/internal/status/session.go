package status

import (
	"context"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// session is one run of the command.
type session struct {
	options

	client  gatewayv1.GatewayServiceClient
	streams printer.Streams
	encoder encoder
}

// showOnce asks, prints and judges.
func (s *session) showOnce(ctx context.Context) error {
	response, err := s.ask(ctx)
	if err != nil {
		return s.Unanswered(ctx, "status", err)
	}
	return s.conclude(response)
}

func (s *session) ask(ctx context.Context) (*gatewayv1.GetClusterStatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	return s.client.GetClusterStatus(ctx, &gatewayv1.GetClusterStatusRequest{})
}

// conclude prints the status and turns it into the verdict.
func (s *session) conclude(response *gatewayv1.GetClusterStatusResponse) error {
	if err := s.encoder.print(s.streams.Out, response); err != nil {
		return client.Unprinted("status", err)
	}
	if response.GetStatus().GetHealthy() {
		return nil
	}
	return &exit.Error{Code: exit.Findings, Summary: "the cluster is not healthy: " + printer.Count(len(problemsOf(response.GetStatus())), "problem")}
}
