package bootstrapsvc

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/testkit"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/auditor"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/journal"
)

// auditCalls are the calls that only the holder of the term answers.
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

func TestAudit_WithoutTheTermTheCallerIsSentOn(t *testing.T) {
	for name, err := range auditCalls(t, serve(t, newHouse(t))) {
		t.Run(name, func(t *testing.T) { wantError(t, err, codes.Unavailable, rpcerror.NotLeaderReason) })
	}
}

func TestAudit_SwitchedOffItSaysSo(t *testing.T) {
	h := newHouse(t, "*", "-"+auditLoop)
	client := serve(t, h)
	lead(t, h)
	for name, err := range auditCalls(t, client) {
		t.Run(name, func(t *testing.T) { wantError(t, err, codes.Unavailable, CacheNotSynced) })
	}
}

func TestAudit_EmptyClusterHasNothingWrong(t *testing.T) {
	h := newHouse(t)
	client := serve(t, h)
	lead(t, h)
	testkit.Eventually(t, 10*time.Second, func() error {
		answer, err := client.Audit(t.Context(), &bootstrapv1.AuditRequest{})
		if err != nil {
			return err
		}
		if len(answer.GetStores()) != 4 || !answer.GetStores()[0].GetPresent() || answer.GetStores()[1].GetPresent() {
			return fmt.Errorf("stores are %v, want IPAddresses alone to be there", answer.GetStores())
		}
		return nil
	})
	plan, err := client.PlanRepair(t.Context(), &bootstrapv1.PlanRepairRequest{})
	if err != nil || plan.GetToken() != "" || len(plan.GetSteps()) != 0 || plan.GetExpireTime() != nil {
		t.Errorf("plan is %v, %v, want an empty one", plan, err)
	}
	_, err = client.ApplyRepair(t.Context(), &bootstrapv1.ApplyRepairRequest{Token: "made up"})
	wantError(t, err, codes.InvalidArgument, InvalidRepairToken)
	_, err = client.PlanRepair(t.Context(), &bootstrapv1.PlanRepairRequest{Names: []string{"findings/none"}})
	wantError(t, err, codes.NotFound, FindingNotFound)
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

func TestPageToken_LeadsOnInItsOwnListOnly(t *testing.T) {
	list := listArguments{code: 4}
	at := position{firstSeen: time.Unix(7, 9), name: "findings/a/b"}
	got, ok := parsePageToken(list, pageToken(list, at))
	if !ok || comparePositions(got, at) != 0 {
		t.Errorf("position is %v, %t, want %v", got, ok, at)
	}
	for _, other := range []listArguments{{}, {code: 5}, {code: 4, showEnded: true}} {
		if _, ok := parsePageToken(other, pageToken(list, at)); ok {
			t.Errorf("the token is taken by %v", other)
		}
	}
}

func TestListed_IsOrderedByFirstSightAndFiltered(t *testing.T) {
	finding := func(name string, code allocation.Code, second int64) auditor.Finding {
		return auditor.Finding{Finding: journal.Finding{
			Finding: allocation.Finding{Name: name, Code: code}, FirstSeen: time.Unix(second, 0),
		}}
	}
	view := &auditor.View{
		Standing: []auditor.Finding{finding("b", allocation.Leaked, 2), finding("d", allocation.Orphan, 4)},
		Ended:    []auditor.Finding{finding("a", allocation.Leaked, 1), finding("c", allocation.Leaked, 3)},
	}
	for want, list := range map[string]listArguments{
		"bd": {}, "abcd": {showEnded: true}, "b": {code: int32(allocation.Leaked)}, "abc": {code: int32(allocation.Leaked), showEnded: true},
	} {
		got := ""
		for _, finding := range listed(view, list) {
			got += finding.Name
		}
		if got != want {
			t.Errorf("%+v lists %s, want %s", list, got, want)
		}
	}
	if len(view.Standing) != 2 || view.Standing[0].Name != "b" {
		t.Error("the view was changed")
	}
}
