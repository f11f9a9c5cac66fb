package bootstrapsvc

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/api"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func (emptyStore) Plan(context.Context, string) (repairstore.Plan, bool, error) {
	return repairstore.Plan{}, false, nil
}

func (emptyStore) Repair(context.Context, string) (repairstore.Repair, bool, error) {
	return repairstore.Repair{}, false, nil
}

// auditClient calls the RPCs of findings and repairs.
type auditClient struct {
	bootstrapv1.FindingServiceClient
	bootstrapv1.RepairServiceClient
}

func serveAudit(t *testing.T, f *fixture) auditClient {
	t.Helper()
	connection := testkit.Serve(t, f.Register)
	return auditClient{bootstrapv1.NewFindingServiceClient(connection), bootstrapv1.NewRepairServiceClient(connection)}
}

// callsOfTheLeader are the calls that only the leader answers.
func callsOfTheLeader(t *testing.T, client auditClient) map[string]error {
	t.Helper()
	ctx := t.Context()
	_, audit := client.AuditAllocations(ctx, &bootstrapv1.AuditAllocationsRequest{})
	_, get := client.GetFinding(ctx, &bootstrapv1.GetFindingRequest{Name: "findings/a"})
	_, list := client.ListFindings(ctx, &bootstrapv1.ListFindingsRequest{})
	_, explain := client.ExplainFinding(ctx, &bootstrapv1.ExplainFindingRequest{Name: "findings/a"})
	_, ignore := client.IgnoreFinding(ctx, &bootstrapv1.IgnoreFindingRequest{Name: "findings/a"})
	_, unignore := client.UnignoreFinding(ctx, &bootstrapv1.UnignoreFindingRequest{Name: "findings/a"})
	_, plan := client.CreateRepairPlan(ctx, &bootstrapv1.CreateRepairPlanRequest{})
	_, apply := client.ApplyRepairPlan(ctx, &bootstrapv1.ApplyRepairPlanRequest{Name: "repairplans/a", Etag: "e"})
	_, cancel := client.CancelRepair(ctx, &bootstrapv1.CancelRepairRequest{Name: "repairs/a"})
	stream, watch := client.WatchFindings(ctx, &bootstrapv1.WatchFindingsRequest{})
	if watch == nil {
		_, watch = stream.Recv()
	}
	return map[string]error{
		"AuditAllocations": audit, "GetFinding": get, "ListFindings": list, "ExplainFinding": explain, "IgnoreFinding": ignore, "UnignoreFinding": unignore,
		"CreateRepairPlan": plan, "ApplyRepairPlan": apply, "CancelRepair": cancel, "WatchFindings": watch,
	}
}

func TestAudit_WithoutTheTermIsNotLeader(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	want := rpcerror.ReasonOf(rpcerror.NotLeader("bootstrapsvc", f.leadership.LeaderAddress()))
	for name, err := range callsOfTheLeader(t, serveAudit(t, f)) {
		if got := rpcerror.ReasonOf(err); got != want {
			t.Errorf("%s = %v with reason %q, want %q", name, err, got, want)
		}
	}
}

func TestAudit_DisabledLoopIsNotSynced(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "*", "-"+allocationcontroller.AuditLoop)
	client := serveAudit(t, f)
	lead(t, f)
	for name, err := range callsOfTheLeader(t, client) {
		t.Run(name, func(t *testing.T) { wantError(t, err, codes.Unavailable, rpcerror.CacheNotSyncedReason) })
	}
}

func TestAudit_EmptyClusterHasNoFindings(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	client := serveAudit(t, f)
	lead(t, f)
	testkit.Eventually(t, time.Minute, func() error {
		answer, err := client.AuditAllocations(t.Context(), &bootstrapv1.AuditAllocationsRequest{})
		if err != nil {
			return err
		}
		if len(answer.GetStores()) != 4 || !answer.GetStores()[0].GetPresent() || answer.GetStores()[1].GetPresent() {
			return fmt.Errorf("stores are %v, want only IPAddresses to exist", answer.GetStores())
		}
		return nil
	})
	plan, err := client.CreateRepairPlan(t.Context(), &bootstrapv1.CreateRepairPlanRequest{ValidateOnly: true})
	if err != nil || plan.GetRepairPlan().GetName() != "" || len(plan.GetRepairPlan().GetSteps()) != 0 || plan.GetRepairPlan().GetEtag() == "" {
		t.Errorf("plan is %v, %v, want an empty one", plan, err)
	}
	answer, err := client.ListFindings(t.Context(), &bootstrapv1.ListFindingsRequest{})
	if err != nil || len(answer.GetSources()) != 1 || answer.GetSources()[0].GetEpoch() == 0 || len(answer.GetSources()[0].GetShards()) != 1 || answer.GetResumeToken() == "" {
		t.Errorf("findings are %v, %v, want one source with shard 0", answer, err)
	}
	if caches := answer.GetSources()[0].GetCaches(); len(caches) != 3 || caches[2].GetKind() != "ServiceCIDR" || caches[2].GetLag() == nil {
		t.Errorf("caches are %v, want three kinds", caches)
	}
	ctx := t.Context()
	_, err = client.CreateRepairPlan(ctx, &bootstrapv1.CreateRepairPlanRequest{Findings: []string{"findings/none"}})
	wantError(t, err, codes.NotFound, api.FindingNotFound)
	_, err = client.CreateRepairPlan(ctx, &bootstrapv1.CreateRepairPlanRequest{Findings: []string{"leases/none"}})
	wantError(t, err, codes.InvalidArgument, rpcerror.ValidationFailedReason)
	_, err = client.GetFinding(ctx, &bootstrapv1.GetFindingRequest{Name: "findings/none"})
	wantError(t, err, codes.NotFound, api.FindingNotFound)
	_, err = client.ExplainFinding(ctx, &bootstrapv1.ExplainFindingRequest{Name: "findings/none"})
	wantError(t, err, codes.NotFound, api.FindingNotFound)
	_, err = client.IgnoreFinding(ctx, &bootstrapv1.IgnoreFindingRequest{Name: "findings/none"})
	wantError(t, err, codes.NotFound, api.FindingNotFound)
	_, err = client.ApplyRepairPlan(ctx, &bootstrapv1.ApplyRepairPlanRequest{Name: "repairplans/none", Etag: "e"})
	wantError(t, err, codes.NotFound, api.PlanNotFound)
	_, err = client.ApplyRepairPlan(ctx, &bootstrapv1.ApplyRepairPlanRequest{Name: "repairplans/none"})
	wantError(t, err, codes.InvalidArgument, rpcerror.ValidationFailedReason)
	_, err = client.CancelRepair(ctx, &bootstrapv1.CancelRepairRequest{Name: "repairs/none"})
	wantError(t, err, codes.NotFound, api.RepairNotFound)
	for _, token := range []string{"x", "AAAA", "AAAAAAAAAAAAAAAAAAAA"} {
		_, err = client.ListFindings(ctx, &bootstrapv1.ListFindingsRequest{PageToken: token})
		wantError(t, err, codes.InvalidArgument, rpcerror.InvalidPageTokenReason)
		_, err = client.ListRepairs(ctx, &bootstrapv1.ListRepairsRequest{PageToken: token})
		wantError(t, err, codes.InvalidArgument, rpcerror.InvalidPageTokenReason)
		_, err = client.ListRepairPlans(ctx, &bootstrapv1.ListRepairPlansRequest{PageToken: token})
		wantError(t, err, codes.InvalidArgument, rpcerror.InvalidPageTokenReason)
	}
	stream, err := client.WatchFindings(ctx, &bootstrapv1.WatchFindingsRequest{ResumeToken: answer.GetResumeToken()})
	if err != nil {
		t.Fatal(err)
	}
	event := receive(t, stream)
	if event.GetType() != metav1.EventType_EVENT_TYPE_BOOKMARK || !event.GetBookmark().GetInitialEventsEnd() || len(event.GetBookmark().GetSources()) != 1 {
		t.Errorf("the first event is %v, want a bookmark", event)
	}
	f.candidate.Lose()
	if _, err = stream.Recv(); rpcerror.ReasonOf(err) != rpcerror.NotLeaderReason && rpcerror.ReasonOf(err) != rpcerror.NoLeaderReason {
		t.Errorf("the watch ends with %v after the term", err)
	}
	stream, err = client.WatchFindings(ctx, &bootstrapv1.WatchFindingsRequest{Codes: []string{"LEAKED"}, ResumeToken: answer.GetResumeToken()})
	if err == nil {
		_, err = stream.Recv()
	}
	if err == nil {
		t.Error("a replica without the term serves a watch")
	}
}

func receive[T any](t *testing.T, stream grpc.ServerStreamingClient[T]) *T {
	t.Helper()
	event, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return event
}

// Every replica answers reads of plans and repairs.
func TestRepairs_AreReadWithoutTheTerm(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.candidate.Lose()
	client := serveAudit(t, f)
	f.start(t)
	t.Cleanup(func() { f.end(t) })
	plans, err := client.ListRepairPlans(t.Context(), &bootstrapv1.ListRepairPlansRequest{})
	if err != nil || len(plans.GetRepairPlans()) != 0 || len(plans.GetSources()) != 1 {
		t.Errorf("plans are %v, %v, want none", plans, err)
	}
	_, err = client.GetRepairPlan(t.Context(), &bootstrapv1.GetRepairPlanRequest{Name: "repairplans/none"})
	wantError(t, err, codes.NotFound, api.PlanNotFound)
	_, err = client.GetRepair(t.Context(), &bootstrapv1.GetRepairRequest{Name: "repairs/none"})
	wantError(t, err, codes.NotFound, api.RepairNotFound)
}
