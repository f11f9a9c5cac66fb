package status

import (
	"context"
	"sync"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/watch"
	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// runWatch shows statuses until ctx is done. It reconnects to a lost gateway, but fails if the
// first connection fails.
func (c *command) runWatch(ctx context.Context) error {
	var goroutines sync.WaitGroup
	defer goroutines.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	updates := make(chan watch.Update[*gatewayv1.WatchClusterStatusResponse])
	// A gateway that hangs sends nothing; it must send a status in each interval.
	goroutines.Go(func() {
		watch.Watch[*gatewayv1.WatchClusterStatusResponse]{Open: c.open, Timeout: c.Timeout + c.interval}.Run(ctx, updates)
	})
	view := newView(c)
	if view.screen != nil {
		defer func() { _ = view.screen.Close() }()
	}
	for {
		var err error
		select {
		case <-ctx.Done():
			return client.Interrupted()
		case update := <-updates:
			switch {
			case update.Lost != nil && !view.shown:
				return c.NoAnswer(ctx, "status", update.Lost)
			case update.Lost != nil:
				err = view.disconnected(list.LostNotice(update.Lost))
			case update.Event != nil:
				response := update.Event.Item
				err = view.show(&gatewayv1.GetClusterStatusResponse{Status: response.GetStatus(), Sources: response.GetSources(), Missing: response.GetMissing()})
			}
		}
		if err != nil {
			return client.CannotPrint("status", err)
		}
	}
}

// open opens a stream of statuses. A status is whole, so there are no bookmarks and no resume
// tokens.
func (c *command) open(ctx context.Context, _ string) (watch.Receive[*gatewayv1.WatchClusterStatusResponse], error) {
	stream, err := c.client.WatchClusterStatus(ctx, &gatewayv1.WatchClusterStatusRequest{Interval: durationpb.New(c.interval)})
	if err != nil {
		return nil, err
	}
	return func() (watch.Event[*gatewayv1.WatchClusterStatusResponse], error) {
		response, err := stream.Recv()
		return watch.Event[*gatewayv1.WatchClusterStatusResponse]{Type: response.GetType(), Item: response, Message: response}, err
	}, nil
}

// view shows statuses in place on a terminal, elsewhere one after the other as they change.
type view struct {
	*command

	screen  *printer.Screen // nil where statuses follow each other
	shown   bool            // a status was shown
	lastKey string          // changeKey of the last status
	last    *gatewayv1.GetClusterStatusResponse
	// lostNotice is the last notice of a lost stream.
	lostNotice string
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
	return v.writeNext(response, first)
}

// disconnected shows that the last status is outdated, and the cause.
func (v *view) disconnected(notice string) error {
	if v.screen != nil {
		return v.draw(notice)
	}
	if v.lastKey != "" || notice != v.lostNotice { // each attempt may fail in the same way, for hours
		v.Warn(notice)
	}
	v.lastKey, v.lostNotice = "", notice // shows the next status, even without a change
	return nil
}

func (v *view) draw(notice string) error {
	v.shown = true
	text := v.drawTable(v.last)
	if notice != "" {
		text = v.Colors().Apply(printer.Warning, printer.Sanitize(notice)) + "\n" + text
	}
	return v.screen.Show(text)
}
