package status

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// runWait polls until the verdict is OK or --wait-duration is over, and prints the last
// status.
func (c *command) runWait(ctx context.Context) error {
	waitCtx, cancel := context.WithTimeout(ctx, c.waitDuration)
	defer cancel()
	progress := &progress{streams: c.streams}

	var last *gatewayv1.GetClusterStatusResponse
	var lastErr error
	for {
		response, err := c.get(waitCtx)
		switch {
		case err == nil && response.GetStatus().GetVerdict().GetState() == metav1.Verdict_STATE_OK:
			progress.clear()
			return c.finish(response)
		case err == nil:
			last, lastErr = response, nil
			progress.show("waiting: " + firstProblem(response.GetStatus().GetVerdict()))
		case waitCtx.Err() == nil: // else the call failed only because the wait is over
			lastErr = err
			progress.show("waiting for " + c.Gateway.Where() + ": " + status.Convert(err).Message())
		}
		if !client.Sleep(waitCtx, c.interval) {
			progress.clear()
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
	if err := c.encoder.write(c.streams.Out, last); err != nil {
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

// progress shows on standard error what the command waits for: in one line on a terminal, elsewhere
// a line for each change, and the same line again after repeatAfter.
type progress struct {
	streams printer.Streams
	text    string
	shownAt time.Time
}

const repeatAfter = 10 * time.Second

func (p *progress) show(text string) {
	text = printer.Sanitize(text)
	if p.streams.ErrIsTerminal {
		fmt.Fprint(p.streams.Err, "\r\x1b[K"+text)
		p.text = text
		return
	}
	if text == p.text && time.Since(p.shownAt) < repeatAfter {
		return
	}
	p.text, p.shownAt = text, time.Now()
	fmt.Fprintln(p.streams.Err, text)
}

// clear clears the line of a terminal before other output. It may be called again.
func (p *progress) clear() {
	if p.streams.ErrIsTerminal && p.text != "" {
		fmt.Fprint(p.streams.Err, "\r\x1b[K")
	}
	p.text = ""
}
