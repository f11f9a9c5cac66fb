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

// reconnectDelay is the pause before a broken stream is opened again.
const reconnectDelay = time.Second

// runWatch shows statuses until ctx is done. It reconnects to a lost gateway, but fails if the
// first connection fails.
func (c *command) runWatch(ctx context.Context) error {
	view := newView(c)
	for {
		err := c.followStream(ctx, view)
		if ctx.Err() != nil {
			return client.Interrupted()
		}
		if errors.Is(err, errOutput) {
			return client.CannotPrint("status", err)
		}
		if !view.shown {
			return c.NoAnswer(ctx, "status", err)
		}
		if err := view.disconnected(err); err != nil {
			return client.CannotPrint("status", err)
		}
		if !client.Sleep(ctx, reconnectDelay) {
			return client.Interrupted()
		}
	}
}

// followStream shows one stream until it ends. The returned error is the reason and never nil.
func (c *command) followStream(ctx context.Context, view *view) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A gateway that hangs sends nothing; it must send a status in each interval.
	limit := c.Timeout + c.interval
	timeout := time.AfterFunc(limit, func() { cancel(fmt.Errorf("no message from the gateway for %s", limit)) })
	defer timeout.Stop()
	stream, err := c.client.WatchClusterStatus(ctx, &gatewayv1.WatchClusterStatusRequest{Interval: durationpb.New(c.interval)})
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
		timeout.Reset(limit)
		if err := view.show(&gatewayv1.GetClusterStatusResponse{Status: response.GetStatus(), Partial: response.GetPartial()}); err != nil {
			return err
		}
	}
}

// errOutput marks errors of writing, which end the watch.
var errOutput = errors.New("standard output is closed")

// view shows statuses in place on a terminal, elsewhere one after the other as they change.
type view struct {
	*command

	screen  *printer.Screen // nil where statuses follow each other
	shown   bool            // a status was shown
	lastKey string          // changeKey of the last status
	last    *gatewayv1.GetClusterStatusResponse
}

func newView(c *command) *view {
	v := &view{command: c}
	if c.streams.OutIsTerminal && c.Output == "table" {
		v.screen = printer.NewScreen(c.streams)
	}
	return v
}

func (v *view) show(response *gatewayv1.GetClusterStatusResponse) error {
	v.last = response
	if v.screen != nil {
		return v.draw("")
	}
	key := changeKey(response)
	if v.shown && key == v.lastKey {
		return nil
	}
	first := !v.shown
	v.shown, v.lastKey = true, key
	if err := v.encoder.writeNext(v.streams.Out, response, first); err != nil {
		return fmt.Errorf("%w: %w", errOutput, err)
	}
	return nil
}

// disconnected shows that the last status is outdated, and the cause.
func (v *view) disconnected(err error) error {
	notice := fmt.Sprintf("stream lost: %s; reconnecting", status.Convert(err).Message())
	if errors.Is(err, io.EOF) {
		notice = "stream lost: the gateway ended the stream; reconnecting"
	}
	if v.screen != nil {
		return v.draw(notice)
	}
	v.lastKey = "" // show the next status, even without a change
	_, err = fmt.Fprintln(v.streams.Err, notice)
	return err
}

func (v *view) draw(notice string) error {
	text, err := v.encoder.encodeWithNotice(v.last, notice)
	if err == nil {
		err = v.screen.Show(text)
	}
	v.shown = true
	if err != nil {
		return fmt.Errorf("%w: %w", errOutput, err)
	}
	return nil
}
