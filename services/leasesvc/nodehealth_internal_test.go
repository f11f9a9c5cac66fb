package leasesvc

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/internal/shadow"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// nodeHealthOf returns node-health with the loops in dry run.
func nodeHealthOf(t *testing.T, dryRun ...string) *nodeHealth {
	t.Helper()
	dry := shadow.DefaultConfig(NodeHealthLoop)
	dry.Loops = dryRun
	trackers, err := shadow.New(dry, nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	nodes, err := newNodeHealth(&cfg, &state{
		catalog: class.NewCatalog(cfg.classes(), cfg.Shards), heldShards: sessioncontroller.NewHeldShards(),
	}, Deps{Logger: slog.New(slog.DiscardHandler), Decisions: decisions.NewLog(), Shadow: trackers, LoopSelection: []string{"*", NodeHealthLoop}})
	if err != nil {
		t.Fatal(err)
	}
	nodes.dryRun = func(loop string) bool { return slices.Contains(dryRun, loop) }
	return nodes
}

// While node-health only compares, upstream sets the taints, and its taints evict at once.
func TestDryRun_OfNodeHealthHoldsNoEvictions(t *testing.T) {
	t.Parallel()
	if !nodeHealthOf(t).TaintHold().Active() {
		t.Error("node-health that writes and has not judged any Node holds no evictions")
	}
	dry := nodeHealthOf(t, NodeHealthLoop)
	if hold := dry.TaintHold(); hold.Active() {
		t.Errorf("node-health in dry run holds evictions: %s", hold.Message)
	}
	if !dry.enabled || dry.writes() {
		t.Errorf("enabled = %v, writes = %v, want a loop that runs and does not write", dry.enabled, dry.writes())
	}
}

// What a dry run would do is not done: that marking resumes, for example, is no decision.
func TestDryRun_OfNodeHealthRecordsNoDecisions(t *testing.T) {
	t.Parallel()
	err := nodeHealthOf(t, NodeHealthLoop).judge(t.Context(), func(_ context.Context, cluster nodehealthcontroller.Cluster) error {
		if cluster.Decisions != nil {
			t.Error("the cluster of a dry run records decisions")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Upstream marks silent Nodes whether or not node-health would in dry run.
func TestDryRun_OfNodeHealthSuspendsNoMarking(t *testing.T) {
	t.Parallel()
	for want, nodes := range map[string]*nodeHealth{"MARKING_SUSPENDED": nodeHealthOf(t), "": nodeHealthOf(t, NodeHealthLoop)} {
		nodes.publisher.Publish(nodehealthcontroller.Snapshot{
			At:         nodehealth.Moment{Instant: monotonic.Instant(time.Hour), Wall: time.Now()},
			Suspension: nodehealth.Delay{Reason: nodehealth.APIServerUnreachable, Message: "x", Until: nodehealth.Open},
		}, nil, nil)
		var codes []string
		(&Service{nodeHealth: nodes}).nodeProblems(func(_ metav1.Problem_Severity, code, _, _, _ string) { codes = append(codes, code) })
		if got := strings.Join(codes, " "); got != want {
			t.Errorf("problems %q, want %q", got, want)
		}
	}
}

// A grace period that a kubelet cannot meet is refused, with the times.
func TestNewNodeHealth_RefusesAGracePeriodWithoutMargin(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	cfg.Classes[0].Grace = 17 * time.Second
	_, err := newNodeHealth(&cfg, &state{
		catalog: class.NewCatalog(cfg.classes(), cfg.Shards), heldShards: sessioncontroller.NewHeldShards(),
	}, Deps{Logger: slog.New(slog.DiscardHandler), LoopSelection: []string{"*", NodeHealthLoop}})
	if err == nil || !strings.Contains(err.Error(), "at least 17.4s") || !strings.Contains(err.Error(), "within 16.4s") {
		t.Errorf("a grace period of 17 s: %v", err)
	}
}
