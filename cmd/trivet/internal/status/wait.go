package status

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// awaitHealth asks until the cluster is healthy or the time is up, and prints the last status there was.
func (s *session) awaitHealth(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, s.waitDuration)
	defer cancel()
	progress := newProgress(s.streams)

	var last *gatewayv1.GetClusterStatusResponse
	var failure error
	for {
		response, err := s.ask(waiting)
		switch {
		case err == nil && response.GetStatus().GetHealthy():
			progress.end()
			return s.conclude(response)
		case err == nil:
			last, failure = response, nil
			progress.say("waiting: " + firstProblem(response.GetStatus()))
		case waiting.Err() == nil: // an answer that was cut short tells nothing
			failure = err
			progress.say("waiting for the gateway at " + s.Gateway.Server + ": " + status.Convert(err).Message())
		}
		if !client.Pause(waiting, s.interval) {
			progress.end()
			return s.waitedInVain(ctx, last, failure)
		}
	}
}

func (s *session) waitedInVain(ctx context.Context, last *gatewayv1.GetClusterStatusResponse, failure error) error {
	if ctx.Err() != nil {
		return client.Interrupted()
	}
	if last == nil {
		return s.Unanswered(ctx, "status", failure)
	}
	if err := s.conclude(last); err == nil || exit.CodeOf(err) != exit.Findings {
		return err
	}
	return &exit.Error{
		Code:    exit.Findings,
		Summary: fmt.Sprintf("the cluster is not healthy after %s: %s", s.waitDuration, printer.Count(len(problemsOf(last.GetStatus())), "problem")),
		Err:     failure,
	}
}

// progress tells on standard error what is waited for: in one line on a terminal, else a line per change, and the same line
// again at most every ten seconds.
type progress struct {
	streams printer.Streams
	said    string
	at      time.Time
}

const sameAgain = 10 * time.Second

func newProgress(streams printer.Streams) *progress { return &progress{streams: streams} }

func (p *progress) say(text string) {
	text = printer.Plain(text)
	if p.streams.ErrIsTerminal {
		fmt.Fprint(p.streams.Err, "\r\x1b[K"+text)
		p.said = text
		return
	}
	if text == p.said && time.Since(p.at) < sameAgain {
		return
	}
	p.said, p.at = text, time.Now()
	fmt.Fprintln(p.streams.Err, text)
}

// end clears the line, so that it does not stand beside what follows. It may be called again.
func (p *progress) end() {
	if p.streams.ErrIsTerminal && p.said != "" {
		fmt.Fprint(p.streams.Err, "\r\x1b[K")
	}
	p.said = ""
}
