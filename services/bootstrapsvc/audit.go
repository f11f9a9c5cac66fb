package bootstrapsvc

import (
	"context"
	"time"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
)

// auditLoop is the name of the loop, as --loops takes it.
const auditLoop = "allocation-audit"

// auditStall is longer than a pass may take, and than the backoff after one that failed.
const auditStall = 2 * time.Minute

// audit is the allocation controller with its Events and metrics.
type audit struct {
	*allocationcontroller.Controller

	telemetry *allocationcontroller.Telemetry
}

func (a audit) loop() loop.Loop {
	return loop.Loop{
		Name: auditLoop, Scope: loop.Leader, Stall: auditStall, Run: a.run,
		Doc: "Compares the ClusterIPs and node ports that Services use with the allocated ones, and repairs what is safe to repair.",
	}
}

func (a audit) run(ctx context.Context, report loop.Report) error {
	defer a.telemetry.ResetLeaderMetrics()
	defer a.telemetry.StartEvents(ctx)()
	return a.Run(ctx, report)
}

// countInto adds the number of findings to counts if it is known.
func (a audit) countInto(counts map[string]int64) {
	snapshot, err := a.Snapshot()
	if err != nil {
		return
	}
	pending := int64(0)
	for _, finding := range snapshot.Current {
		if finding.State == allocation.StatePending {
			pending++
		}
	}
	counts["pending_findings"], counts["open_findings"] = pending, int64(len(snapshot.Current))-pending
}
