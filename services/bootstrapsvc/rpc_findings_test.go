package bootstrapsvc

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/testkit"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/api"
)

// auditCalls are the calls that only the leader answers.
func auditCalls(t *testing.T, client bootstrapv1.BootstrapServiceClient) map[string]error {
	t.Helper()
	_, audit := client.Audit(t.Context(), &bootstrapv1.AuditRequest{})
	_, list := client.ListFindings(t.Context(), &bootstrapv1.ListFindingsRequest{})
	_, plan := client.PlanRepair(t.Context(), &bootstrapv1.PlanRepairRequest{})
	_, apply := client.ApplyRepair(t.Context(), &bootstrapv1.ApplyRepairRequest{Token: "t"})
	stream, watch := client.WatchFindings(t.Context(), &bootstrapv1.WatchFindingsRequest{})
	if watch == nil {
		_, watch = stream.Recv()
	}
	return map[string]error{"Audit": audit, "ListFindings": list, "PlanRepair": plan, "ApplyRepair": apply, "WatchFindings": watch}
}

func TestAudit_WithoutTheTermIsNotLeader(t *testing.T) {
	for name, err := range auditCalls(t, serve(t, newFixture(t))) {
		t.Run(name, func(t *testing.T) { wantError(t, err, codes.Unavailable, rpcerror.NotLeaderReason) })
	}
}

func TestAudit_DisabledLoopIsNotSynced(t *testing.T) {
	f := newFixture(t, "*", "-"+allocationcontroller.AuditLoop)
	client := serve(t, f)
	lead(t, f)
	for name, err := range auditCalls(t, client) {
		t.Run(name, func(t *testing.T) { wantError(t, err, codes.Unavailable, api.CacheNotSynced) })
	}
}

func TestAudit_EmptyClusterHasNoFindings(t *testing.T) {
	f := newFixture(t)
	client := serve(t, f)
	lead(t, f)
	testkit.Eventually(t, 10*time.Second, func() error {
		answer, err := client.Audit(t.Context(), &bootstrapv1.AuditRequest{})
		if err != nil {
			return err
		}
		if len(answer.GetStores()) != 4 || !answer.GetStores()[0].GetPresent() || answer.GetStores()[1].GetPresent() {
			return fmt.Errorf("stores are %v, want only IPAddresses to exist", answer.GetStores())
		}
		return nil
	})
	plan, err := client.PlanRepair(t.Context(), &bootstrapv1.PlanRepairRequest{})
	if err != nil || plan.GetToken() != "" || len(plan.GetSteps()) != 0 || plan.GetExpireTime() != nil {
		t.Errorf("plan is %v, %v, want an empty one", plan, err)
	}
	_, err = client.ApplyRepair(t.Context(), &bootstrapv1.ApplyRepairRequest{Token: "invalid"})
	wantError(t, err, codes.InvalidArgument, api.InvalidRepairToken)
	_, err = client.PlanRepair(t.Context(), &bootstrapv1.PlanRepairRequest{Names: []string{"findings/none"}})
	wantError(t, err, codes.NotFound, api.FindingNotFound)
	_, err = client.PlanRepair(t.Context(), &bootstrapv1.PlanRepairRequest{Names: []string{"leases/none"}})
	wantError(t, err, codes.InvalidArgument, rpcerror.ValidationFailedReason)
	for _, token := range []string{"x", "AAAA", "AAAAAAAAAAAAAAAAAAAA"} {
		_, err = client.ListFindings(t.Context(), &bootstrapv1.ListFindingsRequest{PageToken: token})
		wantError(t, err, codes.InvalidArgument, rpcerror.InvalidPageTokenReason)
	}
	repairs, err := client.ListRepairs(t.Context(), &bootstrapv1.ListRepairsRequest{})
	if err != nil || len(repairs.GetRepairs()) != 0 {
		t.Errorf("repairs are %v, %v, want none", repairs, err)
	}
}
