package nodehealthcontroller

import (
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// connectionWindow counts the connections of agents that were lost recently.
type connectionWindow struct {
	length  time.Duration
	samples []connectionSample
	last    nodehealth.Connections
}

type connectionSample struct {
	at   monotonic.Instant
	lost uint64 // since the process began
}

// next returns the connections now. It takes a sample every reportEvery.
func (w *connectionWindow) next(now monotonic.Instant, r sessioncontroller.Receipts) nodehealth.Connections {
	if n := len(w.samples); n == 0 || now.Sub(w.samples[n-1].at) >= reportEvery {
		w.samples = append(w.samples, connectionSample{at: now, lost: r.LostStreams})
	}
	w.samples = slices.DeleteFunc(w.samples, func(s connectionSample) bool { return now.Sub(s.at) > w.length })
	w.last = nodehealth.Connections{Open: r.Streams}
	if len(w.samples) > 0 {
		w.last.Lost = int(r.LostStreams - w.samples[0].lost)
	}
	return w.last
}
