package bootstrapsvc

import (
	"context"
	"time"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// auditLoop is the name of the loop, as --loops takes it.
const auditLoop = "allocation-audit"

// auditStall is longer than a pass may take, and than the pause after one that failed.
const auditStall = 2 * time.Minute

// audit is what the service has of the audit.
type audit struct {
	*allocationcontroller.Controller
	herald *allocationcontroller.Telemetry
}

// auditParts are what an audit works with; New has the real ones, and a test others.
type auditParts struct {
	cluster allocationcontroller.Cluster
	ranges  allocationcontroller.Ranges
	journal allocationcontroller.RepairStore
}

func realAuditParts(cfg Config, deps Deps) auditParts {
	return auditParts{
		cluster: allocationcontroller.NewKubeCluster(deps.Kube, deps.Logger),
		ranges:  rangestore.New(deps.Etcd, cfg.EtcdPrefix),
		journal: repairstore.New(deps.Etcd, term.Prefix(deps.Member.Cluster)),
	}
}

func newAudit(cfg AuditConfig, deps Deps, made auditParts) (audit, error) {
	told, err := allocationcontroller.NewTelemetry(deps.Kube, deps.Metrics)
	if err != nil {
		return audit{}, err
	}
	return audit{herald: told, Controller: allocationcontroller.New(cfg.auditor(), allocationcontroller.Deps{
		Cluster: made.cluster, Ranges: made.ranges, Store: made.journal, Reporter: told, Logger: deps.Logger,
	})}, nil
}

func (a audit) loop() loop.Loop {
	return loop.Loop{
		Name: auditLoop, Scope: loop.Leader, Stall: auditStall, Run: a.run,
		Doc: "Compares the ClusterIPs and node ports that Services use with what is allocated, and mends what is safe to mend.",
	}
}

// countInto adds how many findings stand, where that is known.
func (a audit) countInto(all facts) {
	view, err := a.Snapshot()
	if err != nil {
		return
	}
	pending := int64(0)
	for _, finding := range view.Current {
		if finding.State == allocation.StatePending {
			pending++
		}
	}
	all["pending_findings"], all["open_findings"] = pending, int64(len(view.Current))-pending
}

func (a audit) run(ctx context.Context, report loop.Report) error {
	defer a.herald.ResetLeaderMetrics()
	defer a.herald.StartEvents(ctx)()
	return a.Run(ctx, report)
}
