package events

import (
	"fmt"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/watch"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// gaps tells of decisions that a watch missed, because they were not kept any more when it was to
// send them. The numbers of the decisions of a ring have no gaps.
type gaps struct {
	streams printer.Streams
	last    map[ring]int64
}

type ring struct {
	replica string
	ring    statusv1.Decision_Ring
}

func newGaps(streams printer.Streams) *gaps { return &gaps{streams: streams, last: map[ring]int64{}} }

func (g *gaps) look(event watch.Event[*statusv1.Decision]) {
	decision := event.Item
	if event.Type != metav1.EventType_EVENT_TYPE_ADDED || decision.GetNumber() == 0 {
		return
	}
	of := ring{replica: decision.GetReplicaId(), ring: decision.GetRing()}
	last := g.last[of]
	if decision.GetNumber() <= last {
		return // all decisions come again
	}
	if missed := decision.GetNumber() - last - 1; last > 0 && missed > 0 {
		fmt.Fprintln(g.streams.Err, printer.Sanitize(fmt.Sprintf(
			"missed: %s of %s replica %s came faster than they were read",
			printer.Count(int(missed), "decision"), decision.GetService(), decision.GetReplicaId())))
	}
	g.last[of] = decision.GetNumber()
}
