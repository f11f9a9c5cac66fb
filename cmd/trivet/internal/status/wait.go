package status

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// runWait polls until the verdict is OK or --wait-duration is over, and prints the last status.
func (c *command) runWait(ctx context.Context) error {
	waitCtx, cancel := context.WithTimeout(ctx, c.waitDuration)
	defer cancel()
	progress := c.Progress()
	defer progress.Stop()

	var last *gatewayv1.GetClusterStatusResponse
	var lastErr error
	for {
		response, err := c.get(waitCtx)
		switch {
		case err == nil && response.GetStatus().GetVerdict().GetState() == metav1.Verdict_STATE_OK:
			progress.Stop()
			return c.finish(response)
		case err == nil:
			last, lastErr = response, nil
			progress.Set("waiting: " + firstProblem(response.GetStatus().GetVerdict()))
		case waitCtx.Err() == nil: // else the call failed only because the wait is over
			lastErr = err
			progress.Set("waiting for " + c.Gateway.Where() + ": " + status.Convert(err).Message())
		}
		if !backoff.Sleep(waitCtx, c.interval) {
			progress.Stop()
			return c.timedOut(ctx, last, lastErr)
		}
	}
}

func (c *command) timedOut(ctx context.Context, last *gatewayv1.GetClusterStatusResponse, lastErr error) error {
	if ctx.Err() != nil {
		return client.Interrupted()
	}
	if last == nil {
		return c.NoAnswer(ctx, "status", lastErr)
	}
	if err := c.write(last); err != nil {
		return client.CannotPrint("status", err)
	}
	err := verdictError(last, fmt.Sprintf(" after %s", c.waitDuration))
	if failed, ok := errors.AsType[*exit.Error](err); ok {
		failed.Err = lastErr
	}
	return err
}

// firstProblem returns the worst problem of a verdict and the number of further ones.
func firstProblem(verdict *metav1.Verdict) string {
	problems := verdict.GetProblems()
	if len(problems) == 0 {
		return "the verdict is " + stateOf(verdict)
	}
	first := problems[0].GetMessage()
	if resource := problems[0].GetResource(); resource != "" {
		first = resource + ": " + first
	}
	if more := len(problems) - 1; more > 0 {
		return fmt.Sprintf("%s (and %d more)", first, more)
	}
	return first
}
