package bootstrapsvc

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/testkit"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
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
	finding := func(name string, code allocation.Code, second int64) allocation.Finding {
		return allocation.Finding{Name: name, Code: code, FirstSeen: time.Unix(second, 0)}
	}
	view := &allocationcontroller.Snapshot{
		Current: []allocation.Finding{finding("b", allocation.Leaked, 2), finding("d", allocation.Orphan, 4)},
		Ended:   []allocation.Finding{finding("a", allocation.Leaked, 1), finding("c", allocation.Leaked, 3)},
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
	if len(view.Current) != 2 || view.Current[0].Name != "b" {
		t.Error("the view was changed")
	}
}

// tape is a watch's wire that keeps what is sent.
type tape struct {
	grpc.ServerStream

	sent []*bootstrapv1.WatchFindingsResponse
}

func (t *tape) Send(event *bootstrapv1.WatchFindingsResponse) error {
	t.sent = append(t.sent, event)
	return nil
}

func TestWatchFindings_SaysOfWhatEndedWhatItWasAndHow(t *testing.T) {
	finding := func(name string, state allocation.FindingState, seen int64, change uint64) allocation.Finding {
		return allocation.Finding{
			Name: name, Code: allocation.Leaked, State: state, Message: "port of " + name,
			FirstSeen: time.Unix(seen, 0), Generation: change,
		}
	}
	mended := func(f allocation.Finding) allocation.Finding {
		f.End, f.RepairedBy = allocation.EndRepaired, "r"
		return f
	}
	wire := &tape{}
	w := &findingsWatcher{service: &Service{}, wire: wire, told: map[string]allocation.Finding{}}
	earlier := mended(finding("findings/unsure", allocation.StateOpen, 1, 0)) // it was there once before
	views := []*allocationcontroller.Snapshot{
		{Ended: []allocation.Finding{earlier}, Current: []allocation.Finding{
			finding("findings/unsure", allocation.StatePending, 7, 1), finding("findings/mended", allocation.StateOpen, 7, 2), finding("findings/forgotten", allocation.StateOpen, 7, 3),
		}},
		{Ended: []allocation.Finding{earlier, mended(finding("findings/mended", allocation.StateOpen, 7, 4))}},
	}
	for _, view := range views {
		if _, err := w.tell(view); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, event := range wire.sent[3:] {
		f := event.GetFinding()
		got = append(got, fmt.Sprintf("%s %s %s %s %q", event.GetType(), f.GetState(), f.GetCode(), f.GetRepairedBy(), f.GetMessage()))
	}
	want := []string{
		`TYPE_DELETED STATE_UNSPECIFIED CODE_LEAKED  "port of findings/forgotten"`,
		`TYPE_DELETED STATE_REPAIRED CODE_LEAKED repairs/r "port of findings/mended"`,
		`TYPE_DELETED STATE_GONE CODE_LEAKED  "port of findings/unsure"`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what was told of ends (-want +got):\n%s", diff)
	}
}

func TestStepOf_NamesTheRangeAsKubeAPIServerDoes(t *testing.T) {
	for store, want := range map[allocation.Store]string{
		allocation.NodePorts: "servicenodeports", allocation.ClusterIPs: "serviceips", allocation.SecondaryClusterIPs: "secondaryserviceips",
	} {
		step := stepOf(allocation.Step{Store: store, Verb: allocation.SetBit}, repairstore.StepResult{})
		if got := step.GetChange().GetObject().GetName(); got != want {
			t.Errorf("a step on %s is on range %q, want %q", store, got, want)
		}
	}
}

func TestStepOf_SaysWhatIsDoneWithABit(t *testing.T) {
	for verb, want := range map[allocation.Verb]string{
		allocation.SetBit: "set its bit: why", allocation.ClearBit: "clear its bit: why", allocation.Create: "why",
	} {
		step := stepOf(allocation.Step{Store: allocation.NodePorts, Verb: verb, Detail: "why"}, repairstore.StepResult{})
		if got := step.GetChange().GetDetail(); got != want {
			t.Errorf("detail of %s is %q, want %q", verb, got, want)
		}
	}
}
