package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/pagetoken"
	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	registryv1 "github.com/trivet-dev/trivet/proto/trivet/registry/v1alpha1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// noTerm is the leadership of a replica that does not lead.
type noTerm struct{}

func (noTerm) Term() *term.Term          { return nil }
func (noTerm) LeaderAddress() string     { return "" }
func (noTerm) Stopping() <-chan struct{} { return nil }

func newAllocationServer() *allocationServer {
	return &allocationServer{AllocationConfig{Service: "bootstrapsvc", ReplicaID: "self-1", Leadership: noTerm{}}}
}

func TestFindingFilter_PageTokenIsAcceptedByItsOwnListOnly(t *testing.T) {
	leaked := []string{"LEAKED"}
	open := []bootstrapv1.Finding_State{bootstrapv1.Finding_STATE_OPEN}
	filter := newFindingFilter(leaked, open)
	at := position{firstSeen: time.Unix(7, 9), name: "findings/a/b"}
	got, err := filter.parsePageToken(filter.pageToken(at))
	if err != nil || comparePositions(got, at) != 0 {
		t.Errorf("position is %v, %v, want %v", got, err, at)
	}
	for _, other := range []findingFilter{newFindingFilter(nil, open), newFindingFilter([]string{"ORPHAN"}, open), newFindingFilter(leaked, nil)} {
		if _, err := other.parsePageToken(filter.pageToken(at)); !errors.Is(err, pagetoken.ErrInvalid) {
			t.Errorf("the token of %v is taken by %v", filter, other)
		}
	}
	same := newFindingFilter([]string{"LEAKED", "LEAKED"}, slices.Concat(open, open))
	if _, err := same.parsePageToken(filter.pageToken(at)); err != nil {
		t.Errorf("the token is not taken by an equal list: %v", err)
	}
}

func TestFindingFilter_SelectsByCodeAndState(t *testing.T) {
	finding := func(name string, code allocation.Code, second int64, change ...func(*allocation.Finding)) allocation.Finding {
		f := allocation.Finding{Name: name, Code: code, FirstSeen: time.Unix(second, 0), State: allocation.StateOpen}
		for _, how := range change {
			how(&f)
		}
		return f
	}
	end := func(end allocation.FindingEnd) func(*allocation.Finding) {
		return func(f *allocation.Finding) { f.End = end }
	}
	snapshot := &allocationcontroller.Snapshot{
		Current: []allocation.Finding{
			finding("b", allocation.Leaked, 2), finding("d", allocation.Orphan, 4),
			finding("e", allocation.Leaked, 5, func(f *allocation.Finding) { f.State = allocation.StatePending }),
			finding("f", allocation.Leaked, 6, func(f *allocation.Finding) {
				f.State, f.Ignore = allocation.StatePending, &allocation.Ignore{}
			}),
		},
		Ended: []allocation.Finding{
			finding("a", allocation.Leaked, 1, end(allocation.EndRepaired)), finding("c", allocation.Orphan, 3, end(allocation.EndResolved)),
		},
	}
	const (
		pending, open, ignored = bootstrapv1.Finding_STATE_PENDING, bootstrapv1.Finding_STATE_OPEN, bootstrapv1.Finding_STATE_IGNORED
		repaired, resolved     = bootstrapv1.Finding_STATE_REPAIRED, bootstrapv1.Finding_STATE_RESOLVED
	)
	for _, test := range []struct {
		codes  []string
		states []bootstrapv1.Finding_State
		want   string
	}{
		{want: "bdef"},
		{codes: []string{"LEAKED"}, want: "bef"},
		{codes: []string{"ORPHAN", "NOT_ALLOCATED"}, want: "d"},
		{states: []bootstrapv1.Finding_State{open}, want: "bd"},
		{states: []bootstrapv1.Finding_State{pending}, want: "e"},
		{states: []bootstrapv1.Finding_State{ignored}, want: "f"},
		{states: []bootstrapv1.Finding_State{repaired, resolved}, want: "ac"},
		{codes: []string{"LEAKED"}, states: []bootstrapv1.Finding_State{open, repaired}, want: "ab"},
	} {
		got := ""
		for _, finding := range newFindingFilter(test.codes, test.states).selectFrom(snapshot) {
			got += finding.Name
		}
		if got != test.want {
			t.Errorf("%v %v lists %s, want %s", test.codes, test.states, got, test.want)
		}
	}
}

func TestPageOf_HasTheNextItemsThatFit(t *testing.T) {
	items := []int{1, 2, 3, 4, 5}
	convert := func(int) *bootstrapv1.Finding { return &bootstrapv1.Finding{} }
	page, last, more := pageOf(items, 2, func(i int) bool { return i > 2 }, convert)
	if len(page) != 2 || last != 4 || !more {
		t.Errorf("page of %d until %d, more: %t", len(page), last, more)
	}
	if page, last, more = pageOf(items, 2, func(i int) bool { return i > 4 }, convert); len(page) != 1 || last != 5 || more {
		t.Errorf("last page of %d until %d, more: %t", len(page), last, more)
	}
	large := func(int) *bootstrapv1.Finding {
		return &bootstrapv1.Finding{Message: string(make([]byte, maxPageBytes/2))}
	}
	if page, last, more = pageOf(items, 100, func(int) bool { return true }, large); len(page) != 1 || last != 1 || !more {
		t.Errorf("page of %d large items until %d, more: %t", len(page), last, more)
	}
}

func TestFindingOf_RepairMode(t *testing.T) {
	s := newAllocationServer()
	for want, finding := range map[bootstrapv1.Finding_RepairMode]allocation.Finding{
		bootstrapv1.Finding_REPAIR_MODE_AUTO:   {Safe: true, Repair: "clear it", State: allocation.StateOpen},
		bootstrapv1.Finding_REPAIR_MODE_PLAN:   {Repair: "clear it", UnsafeReason: "it waits", State: allocation.StatePending},
		bootstrapv1.Finding_REPAIR_MODE_MANUAL: {UnsafeReason: "a person must choose", State: allocation.StateOpen},
	} {
		got := s.findingOf(finding, time.Time{})
		if got.GetRepairMode() != want || (got.GetRepairModeMessage() == "") != (want == bootstrapv1.Finding_REPAIR_MODE_AUTO) {
			t.Errorf("%v: mode %s, message %q", finding, got.GetRepairMode(), got.GetRepairModeMessage())
		}
	}
}

func TestFindingOf_StandsUntilTheLastAuditUnlessItHasEnded(t *testing.T) {
	s, audited := newAllocationServer(), time.Unix(9, 0)
	stands := allocation.Finding{LastSeen: time.Unix(7, 0), State: allocation.StateOpen, Code: allocation.RangeFull}
	ended := stands
	ended.End, ended.Ended, ended.RepairedBy = allocation.EndRepaired, time.Unix(8, 0), "r"
	got := s.findingOf(stands, audited)
	if got.GetLastObserveTime().AsTime().Unix() != 9 || got.GetCode() != "RANGE_FULL" || got.GetEndTime() != nil || got.GetOwner().Shard == nil {
		t.Errorf("finding is %v", got)
	}
	if got := s.findingOf(ended, audited); got.GetLastObserveTime().AsTime().Unix() != 7 || got.GetRepairedBy() != "repairs/r" || got.GetEtag() == s.findingOf(stands, audited).GetEtag() {
		t.Errorf("ended finding is %v", got)
	}
}

func TestStepOf_RangeHasTheNameOfKubeAPIServer(t *testing.T) {
	for store, want := range map[allocation.Store]string{
		allocation.NodePorts: "servicenodeports", allocation.ClusterIPs: "serviceips", allocation.SecondaryClusterIPs: "secondaryserviceips",
	} {
		step := stepOf(allocation.Step{Store: store, Verb: planned.SetBit, Guard: allocation.Guard{Revision: 7}})
		if got := step.GetChange(); got.GetObject().GetName() != want || got.GetBaseVersion() != "7" {
			t.Errorf("a step on %s is %v, want range %q", store, got, want)
		}
	}
}

func TestStepOf_MessageSaysWhatHappensToABit(t *testing.T) {
	for verb, want := range map[planned.Verb]string{
		planned.SetBit: "set its bit: why", planned.ClearBit: "clear its bit: why", planned.Create: "why",
	} {
		step := stepOf(allocation.Step{Store: allocation.NodePorts, Verb: verb, Detail: "why"})
		if got := step.GetChange().GetMessage(); got != want {
			t.Errorf("message of %s is %q, want %q", verb, got, want)
		}
	}
}

func TestStepsOf_FieldChanges(t *testing.T) {
	parent := func(name string) allocation.Parent {
		return allocation.Parent{Resource: "services", Namespace: "default", Name: name}
	}
	steps := stepsOf([]allocation.Step{
		{Finding: "findings/a", Verb: planned.Delete, Reason: allocation.ReasonReference, Object: allocation.IPAddress{Parent: parent("old")}},
		{Finding: "findings/a", Verb: planned.Create, Reason: allocation.ReasonReference, Object: allocation.IPAddress{Parent: parent("new")}},
		{Finding: "findings/b", Verb: planned.Create, Reason: allocation.ReasonInUse, Object: allocation.IPAddress{Parent: parent("new")}},
		{Verb: planned.Relabel, Previous: &allocation.Labels{ManagedBy: "ipallocator.k8s.io"}, Object: allocation.IPAddress{ManagedBy: "ipallocator.k8s.io", Family: "IPv4"}},
		{Verb: planned.Relabel, Object: allocation.IPAddress{Family: "IPv4"}},
	})
	var got []string
	for i, step := range steps {
		for _, change := range step.GetChange().GetFieldChanges() {
			got = append(got, fmt.Sprintf("%d %s: %s -> %s", i, change.GetPath(), change.GetBefore(), change.GetAfter()))
		}
	}
	want := []string{
		`1 spec.parentRef: {"resource":"services","namespace":"default","name":"old"} -> {"resource":"services","namespace":"default","name":"new"}`,
		`3 metadata.labels["ipaddress.kubernetes.io/ip-family"]:  -> "IPv4"`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("field changes (-want +got):\n%s", diff)
	}
}

func TestRepairOf_StepsHaveTheirOutcomes(t *testing.T) {
	at := time.Unix(7, 0)
	repair := repairstore.Repair{
		Start: repairstore.Start{ID: "r", Plan: "r", Started: at, Steps: make([]allocation.Step, 6)},
		Results: []repairstore.StepResult{
			{State: repairstore.StepDone, Time: at}, {State: repairstore.StepUnneeded, Time: at}, {State: repairstore.StepFailed, Error: "no", Time: at},
			{State: repairstore.StepSkipped, Error: "why", Time: at}, {}, {},
		},
		Progress: repairstore.Progress{Attempts: 2, Steps: map[int]repairstore.StepProgress{4: {Attempts: 2, Error: "away"}}},
	}
	outcomes := func() (list []string) {
		for _, step := range repairOf(repair).GetSteps() {
			change := step.GetChange()
			list = append(list, fmt.Sprintf("%s %q %t %d", change.GetOutcome(), change.GetError(), change.GetApplyTime() != nil, step.GetAttemptCount()))
		}
		return list
	}
	want := []string{
		`OUTCOME_APPLIED "" true 0`, `OUTCOME_NOT_NEEDED "" false 0`, `OUTCOME_FAILED "no" false 0`, `OUTCOME_SKIPPED "" false 0`,
		`OUTCOME_FAILED "away" false 2`, `OUTCOME_PLANNED "" false 0`,
	}
	if diff := cmp.Diff(want, outcomes()); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	if got := repairOf(repair); got.GetState() != bootstrapv1.Repair_STATE_RUNNING || got.GetEndTime() != nil || got.GetAttemptCount() != 2 || got.GetPlan() != "repairplans/r" {
		t.Errorf("repair is %v", got)
	}
	repair.Cancelled, repair.Ended = &repairstore.Cancellation{Caller: allocation.Caller{User: "admin"}}, at
	want[5] = `OUTCOME_SKIPPED "" false 0`
	if diff := cmp.Diff(want, outcomes()); diff != "" {
		t.Errorf("outcomes of the cancelled repair (-want +got):\n%s", diff)
	}
	if got := repairOf(repair); got.GetState() != bootstrapv1.Repair_STATE_CANCELLED || got.GetCanceller().GetUser() != "admin" {
		t.Errorf("cancelled repair is %v", got)
	}
}

func TestNewestFirst_TokenGoesOnAfterTheLastObject(t *testing.T) {
	token := newestFirst{list: "l", arguments: "a"}
	at := time.Unix(7, 5)
	place, err := token.parse(token.format(at, "m"))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		at   time.Time
		id   string
		want bool
	}{{at, "m", false}, {at, "n", true}, {at, "l", false}, {at.Add(1), "z", false}, {at.Add(-1), "a", true}} {
		if got := place.before(test.at, test.id); got != test.want {
			t.Errorf("%s at %s comes after: %t, want %t", test.id, test.at, got, test.want)
		}
	}
	if first, err := token.parse(""); err != nil || !first.before(at, "a") {
		t.Errorf("the first page lacks an object, %v", err)
	}
	if _, err := (newestFirst{list: "l", arguments: "b"}).parse(token.format(at, "m")); !errors.Is(err, pagetoken.ErrInvalid) {
		t.Errorf("a token of another list = %v", err)
	}
}

// Errors of repairs often wrap the error of the dependency that caused them.
func TestStatusOf_ReasonOfARepairCountsBeforeItsCause(t *testing.T) {
	s := newAllocationServer()
	for want, err := range map[rpcerror.Reason]error{
		RepairRunning:                       fmt.Errorf("%w: repairs/r: %w", allocationcontroller.ErrRepairRunning, guarded.ErrUnavailable),
		PlanDrifted:                         fmt.Errorf("%w: %w", allocationcontroller.ErrPlanDrifted, guarded.ErrConflict),
		rpcerror.CacheNotSyncedReason:       fmt.Errorf("%w: %w", allocationcontroller.ErrNotSynced, guarded.ErrUnavailable),
		rpcerror.APIServerUnreachableReason: fmt.Errorf("list: %w", guarded.ErrUnavailable),
		rpcerror.EtcdUnreachableReason:      fmt.Errorf("read: %w", rangestore.ErrUnavailable),
		rpcerror.NoLeaderReason:             fmt.Errorf("%w: %w", term.ErrEnded, repairstore.ErrUnavailable),
		rpcerror.ShuttingDownReason:         errStopping,
		rpcerror.ETagMismatchReason:         allocationcontroller.ErrEtagMismatch,
		RepairNotCancellable:                allocationcontroller.ErrRepairNotCancellable,
		PlanExpired:                         allocationcontroller.ErrPlanExpired,
		rpcerror.ConflictReason:             repairstore.ErrExists,
		EtcdDenied:                          fmt.Errorf("%w: read: %w", repairstore.ErrUnavailable, guarded.ErrEtcdDenied),
	} {
		if got := rpcerror.ReasonOf(s.statusOf(context.Background(), err)); got != want {
			t.Errorf("%v has the reason %s, want %s", err, got, want)
		}
	}
	for err, want := range map[error]codes.Code{
		allocationcontroller.ErrRepairRunning: codes.Aborted, allocationcontroller.ErrPlanDrifted: codes.Aborted, allocationcontroller.ErrEtagMismatch: codes.Aborted,
		allocationcontroller.ErrPlanExpired: codes.FailedPrecondition, allocationcontroller.ErrRepairNotCancellable: codes.FailedPrecondition,
		allocationcontroller.ErrPlanNotFound: codes.NotFound, allocationcontroller.ErrRepairNotFound: codes.NotFound, allocationcontroller.ErrFindingNotFound: codes.NotFound,
	} {
		if got := status.Code(s.statusOf(context.Background(), err)); got != want {
			t.Errorf("%v has the code %s, want %s", err, got, want)
		}
	}
}

func TestCallerOf_IsTheOriginalCallerAndTheGatewayThatForwards(t *testing.T) {
	alice := authn.User{Name: "alice", Groups: []string{"ops", authn.AuthenticatedGroup}}
	gateway := authn.User{Name: "trivet:gateway", Groups: []string{certs.GatewayGroup}}
	for want, caller := range map[string]*authn.Caller{
		"alice [ops system:authenticated] gateway-1": {User: alice, Peer: gateway, Role: authn.Gateway, Forwarded: true, Gateway: "gateway-1"},
		"alice [ops system:authenticated] ":          {User: alice, Peer: alice},
		" [] ":                                       {User: authn.Anonymous(), Peer: authn.Anonymous(), Unchecked: true},
	} {
		got := callerOf(authn.NewContext(t.Context(), caller))
		if text := fmt.Sprintf("%s %v %s", got.User, got.Groups, got.Gateway); text != want {
			t.Errorf("caller is %q, want %q", text, want)
		}
	}
}

func TestEvidenceOf_ABrokenLinkHasFailed(t *testing.T) {
	for broken, want := range map[bool]metav1.Evidence_Result{true: metav1.Evidence_RESULT_FAILED, false: metav1.Evidence_RESULT_OK} {
		got := evidenceOf(allocation.Evidence{Code: allocation.StoredBit, Broken: broken, Finding: "it is set"}, time.Unix(7, 0), "self-1")
		if got.GetResult() != want || got.GetMessage() != "it is set" || got.GetReplicaId() != "self-1" {
			t.Errorf("evidence is %v, want %s", got, want)
		}
	}
}

// docs/reasons.md is generated from these enums.
func TestReasons_AreRegistered(t *testing.T) {
	for _, code := range allocation.Codes() {
		if _, ok := registryv1.FindingCode_value["FINDING_CODE_"+code.APIName()]; !ok {
			t.Errorf("code %s is not registered", code.APIName())
		}
	}
	for _, code := range []allocation.EvidenceCode{
		allocation.ServiceUse, allocation.AddressObject, allocation.ParentService, allocation.StoredBit, allocation.StoredRange,
	} {
		if _, ok := registryv1.FindingEvidenceCode_value["FINDING_EVIDENCE_CODE_"+string(code)]; !ok {
			t.Errorf("evidence %s is not registered", code)
		}
	}
	for _, reason := range []allocation.Reason{
		allocation.ReasonInUse, allocation.ReasonReference, allocation.ReasonLabels, allocation.ReasonLeaked, allocation.ReasonOrphan,
	} {
		if _, ok := registryv1.RepairChangeReason_value["REPAIR_CHANGE_REASON_"+string(reason)]; !ok {
			t.Errorf("reason %s is not registered", reason)
		}
	}
	for _, reason := range []rpcerror.Reason{
		FindingNotFound, PlanNotFound, PlanExpired, PlanDrifted, RepairNotFound, RepairRunning, RepairNotCancellable,
	} {
		if _, ok := registryv1.ErrorReason_value["ERROR_REASON_"+string(reason)]; !ok {
			t.Errorf("reason %s is not registered", reason)
		}
	}
}

func TestListedOf_LeavesOutWhatOnlyOneObjectHas(t *testing.T) {
	steps := []allocation.Step{{
		Verb: planned.Relabel, Object: allocation.IPAddress{ManagedBy: "new"}, Previous: &allocation.Labels{ManagedBy: "old"},
	}}
	server, plan := newAllocationServer(), repairstore.Plan{Steps: steps, Skipped: []allocation.Finding{{Name: "findings/x"}}, SkippedCount: 1}
	repair := repairstore.Repair{Start: repairstore.Start{Steps: steps}, Results: make([]repairstore.StepResult, 1)}
	if len(server.planOf(plan).GetSteps()[0].GetChange().GetFieldChanges()) == 0 {
		t.Fatal("the plan itself has no field changes")
	}
	listed := server.listedPlanOf(plan)
	if listed.GetSkippedFindings() != nil || listed.GetSkippedFindingCount() != 1 || listed.GetSteps()[0].GetChange().GetFieldChanges() != nil {
		t.Errorf("a listed plan has %v", listed)
	}
	if listed := listedRepairOf(repair); listed.GetSteps()[0].GetChange().GetFieldChanges() != nil {
		t.Errorf("a listed repair has %v", listed)
	}
}
