package bootstrapsvc

import (
	"context"
	"time"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/auditor"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/herald"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/inventory"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/journal"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
)

// auditLoop is the name of the loop, as --loops takes it.
const auditLoop = "allocation-audit"

// auditStall is longer than a pass may take, and than the pause after one that failed.
const auditStall = 2 * time.Minute

// audit is what the service has of the audit.
type audit struct {
	*auditor.Auditor
	herald *herald.Herald
}

// auditParts are what an audit works with; New has the real ones, and a test others.
type auditParts struct {
	cluster auditor.Cluster
	ranges  auditor.Ranges
	journal auditor.Journal
}

func newAuditParts(cfg Config, deps Deps) auditParts {
	return auditParts{
		cluster: inventory.New(deps.Kube, deps.Logger),
		ranges:  rangestore.New(deps.Etcd, cfg.EtcdPrefix),
		journal: journal.New(deps.Etcd, term.Prefix(deps.Member.Cluster)),
	}
}

func newAudit(cfg AuditConfig, deps Deps, made auditParts) (audit, error) {
	told, err := herald.New(deps.Kube, deps.Metrics)
	if err != nil {
		return audit{}, err
	}
	return audit{herald: told, Auditor: auditor.New(cfg.auditor(), auditor.Deps{
		Cluster: made.cluster, Ranges: made.ranges, Journal: made.journal, Herald: told, Logger: deps.Logger,
	})}, nil
}

func (a audit) loop() loop.Loop {
	return loop.Loop{
		Name: auditLoop, Scope: loop.Leader, Stall: auditStall, Run: a.run,
		Doc: "Compares the ClusterIPs and node ports that Services use with what is allocated, and mends what is safe to mend.",
	}
}

// countInto adds how many findings stand, where that is known.
func (a audit) countInto(counts map[string]int64) {
	view, err := a.View()
	if err != nil {
		return
	}
	pending := int64(0)
	for _, finding := range view.Standing {
		if finding.State == allocation.Pending {
			pending++
		}
	}
	counts["pending_findings"], counts["open_findings"] = pending, int64(len(view.Standing))-pending
}

func (a audit) run(ctx context.Context, report loop.Report) error {
	defer a.herald.Forget()
	defer a.herald.Announce(ctx)()
	return a.Run(ctx, report)
}
