package status

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// reconnectPause is how long to wait before a broken stream is opened again.
const reconnectPause = time.Second

// watchOn shows status after status until it is interrupted. A gateway that goes away is waited for; one that was never
// there ends the command.
func (s *session) watchOn(ctx context.Context) error {
	display := newDisplay(s)
	for {
		err := s.follow(ctx, display)
		if ctx.Err() != nil {
			return client.Interrupted()
		}
		if errors.Is(err, errDisplay) {
			return client.Unprinted("status", err)
		}
		if !display.shown {
			return s.Unanswered(ctx, "status", err)
		}
		if err := display.lost(err); err != nil {
			return client.Unprinted("status", err)
		}
		if !client.Pause(ctx, reconnectPause) {
			return client.Interrupted()
		}
	}
}

// follow shows one stream until it ends. How it ended is the error, never nil.
func (s *session) follow(ctx context.Context, display *display) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A gateway that hangs says nothing; silence for longer than it may take ends the stream.
	patience := s.Timeout + s.interval
	silence := time.AfterFunc(patience, func() { cancel(fmt.Errorf("the gateway said nothing for %s", patience)) })
	defer silence.Stop()
	stream, err := s.client.WatchClusterStatus(ctx, &gatewayv1.WatchClusterStatusRequest{Interval: durationpb.New(s.interval)})
	if err != nil {
		return err
	}
	for {
		response, err := stream.Recv()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		silence.Reset(patience)
		if err := display.show(&gatewayv1.GetClusterStatusResponse{Status: response.GetStatus(), Partial: response.GetPartial()}); err != nil {
			return err
		}
	}
}

// errDisplay marks failures to write, after which watching is pointless.
var errDisplay = errors.New("standard output is gone")

// display shows statuses in place on a terminal, and elsewhere one after the other as they change.
type display struct {
	session *session
	// screen is where each status replaces the one before; nil where they follow one another.
	screen *printer.Screen
	// shown is whether there was one yet.
	shown bool
	// last is what was shown last, without what changes all the time.
	last string
	// response is the newest status.
	response *gatewayv1.GetClusterStatusResponse
}

func newDisplay(s *session) *display {
	d := &display{session: s}
	if s.streams.OutIsTerminal && s.Output == "table" {
		d.screen = printer.NewScreen(s.streams)
	}
	return d
}

func (d *display) show(response *gatewayv1.GetClusterStatusResponse) error {
	d.response = response
	if d.screen != nil {
		return d.replace("")
	}
	essence := essenceOf(response)
	if d.shown && essence == d.last {
		return nil
	}
	separated := d.shown
	d.shown, d.last = true, essence
	if err := d.session.encoder.printNext(d.session.streams.Out, response, separated); err != nil {
		return fmt.Errorf("%w: %w", errDisplay, err)
	}
	return nil
}

// lost says that what is shown is old, and why.
func (d *display) lost(err error) error {
	notice := fmt.Sprintf("no longer live: %s; trying again", status.Convert(err).Message())
	if errors.Is(err, io.EOF) {
		notice = "no longer live: the gateway ended the stream; trying again"
	}
	if d.screen != nil {
		return d.replace(notice)
	}
	d.last = "" // the next status is news, even if nothing changed
	_, err = fmt.Fprintln(d.session.streams.Err, notice)
	return err
}

func (d *display) replace(notice string) error {
	text, err := d.session.encoder.frame(d.response, notice)
	if err == nil {
		err = d.screen.Show(text)
	}
	d.shown = true
	if err != nil {
		return fmt.Errorf("%w: %w", errDisplay, err)
	}
	return nil
}
