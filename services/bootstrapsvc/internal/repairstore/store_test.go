package repairstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// fixture is a store with its own prefix in the shared etcd, and a context with a term.
type fixture struct {
	*Store
	etcd   *clientv3.Client
	prefix string
	ctx    context.Context
}

const termKey = "/trivet/termtest/terms/termtest/0"

func newFixture(t *testing.T) fixture {
	t.Helper()
	etcd, prefix := testkit.Etcd(t), "/trivet/"+t.Name()+"/"
	if _, err := etcd.Delete(t.Context(), termKey); err != nil {
		t.Fatal(err)
	}
	response, err := etcd.Put(t.Context(), termKey, "")
	if err != nil {
		t.Fatal(err)
	}
	_, ctx, end := termtest.NewTerm(0, response.Header.Revision)
	t.Cleanup(end)
	return fixture{Store: New(etcd, prefix), etcd: etcd, prefix: prefix, ctx: ctx}
}

func (f fixture) put(t *testing.T, key, value string) {
	t.Helper()
	if _, err := f.etcd.Put(t.Context(), f.prefix+key, value); err != nil {
		t.Fatal(err)
	}
}

var at = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

func leaked(port string) allocation.Finding {
	return allocation.Finding{
		Name: "findings/leaked.node-ports." + port, Code: allocation.Leaked, Store: allocation.NodePorts, Subject: port,
		Message: "port " + port + " has no user", State: allocation.StateOpen, Since: at, Observations: 3, Safe: true,
		Owners:    []allocation.Owner{{Key: allocation.Key{Namespace: "a", Name: "b"}, UID: "u"}},
		Evidence:  []allocation.Evidence{{Code: allocation.StoredBit, Broken: true, Finding: "it is set", Version: "7"}},
		FirstSeen: at, LastSeen: at.Add(time.Minute),
	}
}

func (f fixture) wantFindings(t *testing.T, unreadable int, want ...allocation.Finding) {
	t.Helper()
	got, bad, err := f.Findings(t.Context())
	if err != nil || bad != unreadable {
		t.Errorf("unreadable = %d, %v, want %d", bad, err, unreadable)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

func TestFindings_AreWrittenOverwrittenAndDeleted(t *testing.T) {
	f := newFixture(t)
	one, two := leaked("30001"), leaked("30002")
	withSteps := one
	withSteps.Steps = []allocation.Step{{Verb: planned.ClearBit}}
	if err := f.WriteFindings(f.ctx, []allocation.Finding{withSteps, two}, nil); err != nil {
		t.Fatal(err)
	}
	f.wantFindings(t, 0, one, two)
	two.Ended, two.End, two.RepairedBy = at.Add(time.Hour), allocation.EndRepaired, "r1"
	if err := f.WriteFindings(f.ctx, []allocation.Finding{two}, []string{one.Name, "findings/never-written"}); err != nil {
		t.Fatal(err)
	}
	f.put(t, "findings/future", `{"Name":7}`)
	f.put(t, "findings/another", `{"Name":"findings/elsewhere"}`)
	f.wantFindings(t, 2, two)
}

func TestFindings_MoreThanOneTransactionHolds(t *testing.T) {
	f := newFixture(t)
	var many []allocation.Finding
	var names []string
	for i := range 250 {
		many = append(many, leaked(fmt.Sprint(30000+i)))
		names = append(names, many[i].Name)
	}
	if err := f.WriteFindings(f.ctx, many, nil); err != nil {
		t.Fatal(err)
	}
	f.wantFindings(t, 0, many...)
	if err := f.WriteFindings(f.ctx, nil, names); err != nil {
		t.Fatal(err)
	}
	f.wantFindings(t, 0)
}

func TestStore_WritesOnlyUnderTheTerm(t *testing.T) {
	f := newFixture(t)
	writes := map[string]func(context.Context) error{
		"findings": func(ctx context.Context) error {
			return f.WriteFindings(ctx, []allocation.Finding{leaked("30001")}, nil)
		},
		"ignores": func(ctx context.Context) error {
			return f.WriteIgnores(ctx, []allocation.Ignore{{Finding: "findings/a"}}, nil)
		},
		"plan":         func(ctx context.Context) error { return f.CreatePlan(ctx, Plan{ID: "p1"}, nil) },
		"delete plans": func(ctx context.Context) error { return f.DeletePlans(ctx, []string{"p1"}) },
		"begin":        func(ctx context.Context) error { return f.Begin(ctx, Start{ID: "r1", Plan: "p1"}) },
		"record": func(ctx context.Context) error {
			return f.Record(ctx, "r1", map[int]StepResult{0: {State: StepDone}}, Progress{Attempts: 1})
		},
		"cancel": func(ctx context.Context) error { return f.Cancel(ctx, "r1", Cancellation{Time: at}) },
		"end":    func(ctx context.Context) error { return f.End(ctx, "r1", at) },
		"delete": func(ctx context.Context) error { return f.DeleteRepairs(ctx, []string{"r1"}) },
	}
	for name, write := range writes {
		if err := write(t.Context()); !errors.Is(err, term.ErrNone) {
			t.Errorf("%s without a term = %v, want %v", name, err, term.ErrNone)
		}
	}
	if _, err := f.etcd.Delete(t.Context(), termKey); err != nil {
		t.Fatal(err)
	}
	for name, write := range writes {
		if err := write(f.ctx); !errors.Is(err, term.ErrEnded) {
			t.Errorf("%s after the term's key went = %v, want %v", name, err, term.ErrEnded)
		}
	}
	f.wantFindings(t, 0)
}

func repair(id string, started time.Time) Start {
	return Start{ID: id, Requester: allocation.Caller{User: allocation.AutomaticUser}, Started: started, Steps: []allocation.Step{
		{Finding: "findings/a", Verb: planned.Create, Store: allocation.IPAddresses, Subject: "10.0.0.1", Object: allocation.IPAddress{Name: "10.0.0.1", Parent: allocation.Parent{Resource: "services", Namespace: "a", Name: "b"}}},
		{Finding: "findings/b", Verb: planned.ClearBit, Store: allocation.NodePorts, Subject: "30001", Offset: 1, Range: "30000-32767", Guard: allocation.Guard{Revision: 7}},
	}}
}

func TestRepairs_AreWrittenOnceAndReadTheNewestFirst(t *testing.T) {
	f := newFixture(t)
	for i, id := range []string{"old", "new"} {
		if err := f.Begin(f.ctx, repair(id, at.Add(time.Duration(i)*time.Second))); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Begin(f.ctx, repair("old", at)); !errors.Is(err, ErrExists) {
		t.Errorf("begun twice = %v, want %v", err, ErrExists)
	}
	made, progress := StepResult{State: StepDone, Time: at}, Progress{Attempts: 1}
	if err := f.Record(f.ctx, "old", map[int]StepResult{0: made}, progress); err != nil {
		t.Fatal(err)
	}
	if err := f.Record(f.ctx, "old", map[int]StepResult{0: {State: StepFailed}}, Progress{Attempts: 9}); !errors.Is(err, ErrExists) {
		t.Errorf("recorded twice = %v, want %v", err, ErrExists)
	}
	progress = Progress{Attempts: 2, Steps: map[int]StepProgress{1: {Attempts: 1, Error: "away"}}}
	if err := f.Record(f.ctx, "old", nil, progress); err != nil {
		t.Fatal(err)
	}
	failed := StepResult{State: StepFailed, Error: "it changed", Time: at}
	if err := f.Record(f.ctx, "old", map[int]StepResult{1: failed}, progress); err != nil {
		t.Fatal(err)
	}
	if err := f.End(f.ctx, "old", at.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	want := []Repair{
		{Start: repair("new", at.Add(time.Second)), Results: make([]StepResult, 2)},
		{Start: repair("old", at), Results: []StepResult{made, failed}, Progress: progress, Ended: at.Add(time.Minute)},
	}
	wantRepairs(t, f, 0, want...)
	if want[0].State() != Running || want[1].State() != Failed {
		t.Errorf("states are %d and %d, want running and failed", want[0].State(), want[1].State())
	}
	if got, exists, err := f.Repair(f.ctx, "old"); err != nil || !exists || got.Etag() != want[1].Etag() || got.Etag() == want[0].Etag() {
		t.Errorf("Repair(old) = %+v, %t, %v", got, exists, err)
	}
	if _, exists, err := f.Repair(f.ctx, "none"); err != nil || exists {
		t.Errorf("Repair(none) exists: %t, %v", exists, err)
	}
	if err := f.DeleteRepairs(f.ctx, []string{"old"}); err != nil {
		t.Fatal(err)
	}
	wantRepairs(t, f, 0, want[0])
}

func TestRepairs_UnreadableOnesAreSkippedAndCounted(t *testing.T) {
	f := newFixture(t)
	if err := f.Begin(f.ctx, repair("good", at)); err != nil {
		t.Fatal(err)
	}
	f.put(t, "repairs/without-plan/00000", `{}`)
	f.put(t, "repairs/future/plan", `{"ID":{}}`)
	f.put(t, "repairs/renamed/plan", `{"ID":"other"}`)
	f.put(t, "repairs/more-steps/plan", `{"ID":"more-steps"}`)
	f.put(t, "repairs/more-steps/00000", `{}`)
	f.put(t, "repairs/good/part-of-a-newer-version", `7`)
	f.put(t, "repairs/bad-end/plan", `{"ID":"bad-end"}`)
	f.put(t, "repairs/bad-end/end", `7`)
	f.put(t, "repairs/stray", `7`)
	wantRepairs(t, f, 6, Repair{Start: repair("good", at), Results: make([]StepResult, 2)})
}

func wantRepairs(t *testing.T, f fixture, unreadable int, want ...Repair) {
	t.Helper()
	got, bad, err := f.Repairs(t.Context())
	if err != nil || bad != unreadable {
		t.Errorf("unreadable = %d, %v, want %d", bad, err, unreadable)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("repairs (-want +got):\n%s", diff)
	}
}

func TestStore_EtcdThatDoesNotAnswerIsUnavailable(t *testing.T) {
	f := newFixture(t)
	ctx, cancel := context.WithCancel(f.ctx)
	cancel()
	if _, _, err := f.Findings(ctx); !errors.Is(err, ErrUnavailable) {
		t.Errorf("findings = %v, want %v", err, ErrUnavailable)
	}
	if _, _, err := f.Repairs(ctx); !errors.Is(err, ErrUnavailable) {
		t.Errorf("repairs = %v, want %v", err, ErrUnavailable)
	}
	if err := f.Begin(ctx, repair("r", at)); !errors.Is(err, ErrUnavailable) {
		t.Errorf("begin = %v, want %v", err, ErrUnavailable)
	}
}

// deniedClient is an etcd that denies every read and watch.
type deniedClient struct{ Client }

func (deniedClient) Get(context.Context, string, ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return nil, rpctypes.ErrPermissionDenied
}

func TestStore_EtcdThatDeniesAccessIsNoOutage(t *testing.T) {
	store := New(deniedClient{}, "/trivet/test/")
	_, _, findings := store.Findings(t.Context())
	_, _, one := store.Repair(t.Context(), "r")
	for read, err := range map[string]error{
		"findings": findings, "one repair": one, "watch": store.watchRepairs(t.Context(), &follower{}),
	} {
		if !errors.Is(err, guarded.ErrEtcdDenied) || errors.Is(err, ErrUnavailable) {
			t.Errorf("%s = %v, want %v", read, err, guarded.ErrEtcdDenied)
		}
	}
}

// Other versions read these values, so the stored names must not change with the names in the code.
func TestFindings_StoredFormatDoesNotChange(t *testing.T) {
	f := newFixture(t)
	finding := leaked("30001")
	finding.GraceEnds, finding.Generation = at, 7
	finding.Ended, finding.End, finding.RepairedBy = at, allocation.EndRepaired, "r1"
	if err := f.WriteFindings(f.ctx, []allocation.Finding{finding}, nil); err != nil {
		t.Fatal(err)
	}
	response, err := f.etcd.Get(t.Context(), f.prefix+"findings/leaked.node-ports.30001")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/finding.json")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(response.Kvs[0].Value)+"\n"); diff != "" {
		t.Errorf("stored finding (-want +got):\n%s", diff)
	}
}

// An earlier version wrote the requester as a text, and neither progress nor plan.
func TestRepairs_OfAnEarlierVersionAreRead(t *testing.T) {
	f := newFixture(t)
	f.put(t, "repairs/a/plan", `{"ID":"a","Requester":"auto","Started":"2026-01-02T03:04:05.000000006Z","Steps":[{"Finding":"findings/b","Verb":"clear","Store":2,"Subject":"30001","Object":{"Name":"","UID":"","ResourceVersion":"","Created":"0001-01-01T00:00:00Z","Deleting":false,"Parent":{"Group":"","Resource":"","Namespace":"","Name":""},"ManagedBy":"","Family":""},"Offset":1,"Range":"30000-32767","Guard":{"Absent":false,"UID":"","ResourceVersion":"","Revision":7},"Owner":{"Namespace":"","Name":"","UID":""},"Sole":true,"Reason":"LEAKED","Detail":"why","Safe":true,"Risk":""}]}`)
	f.put(t, "repairs/a/00000", `{"State":"done","Time":"2026-01-02T03:04:05.000000006Z"}`)
	f.put(t, "repairs/a/end", `"2026-01-02T03:04:05.000000006Z"`)
	f.put(t, "repairs/b/plan", `{"ID":"b","Requester":"local","Started":"2026-01-01T00:00:00Z","Steps":null}`)
	step := allocation.Step{
		Finding: "findings/b", Verb: planned.ClearBit, Store: allocation.NodePorts, Subject: "30001", Offset: 1, Range: "30000-32767",
		Guard: allocation.Guard{Revision: 7}, Sole: true, Reason: allocation.ReasonLeaked, Detail: "why", Safe: true,
	}
	want := []Repair{
		{
			Start:   Start{ID: "a", Requester: allocation.Caller{User: "trivet:auto"}, Started: at, Steps: []allocation.Step{step}},
			Results: []StepResult{{State: StepDone, Time: at}}, Ended: at,
		},
		{Start: Start{ID: "b", Started: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}, Results: []StepResult{}},
	}
	wantRepairs(t, f, 0, want...)
	if want[0].State() != Succeeded {
		t.Errorf("state is %d, want succeeded", want[0].State())
	}
}

func TestCancel_EndsARepairOnce(t *testing.T) {
	f := newFixture(t)
	if err := f.Begin(f.ctx, repair("r", at)); err != nil {
		t.Fatal(err)
	}
	cancellation := Cancellation{Caller: allocation.Caller{User: "admin", Groups: []string{"ops"}}, Time: at}
	if err := f.Cancel(f.ctx, "r", cancellation); err != nil {
		t.Fatal(err)
	}
	want := Repair{Start: repair("r", at), Results: make([]StepResult, 2), Cancelled: &cancellation, Ended: at}
	wantRepairs(t, f, 0, want)
	if want.State() != Cancelled {
		t.Errorf("state is %d, want cancelled", want.State())
	}
	for name, err := range map[string]error{"again": f.Cancel(f.ctx, "r", cancellation), "after its end": f.End(f.ctx, "r", at)} {
		if !errors.Is(err, ErrExists) {
			t.Errorf("%s = %v, want %v", name, err, ErrExists)
		}
	}
}

func plan(id string, created time.Time) Plan {
	return Plan{
		ID: id, Requester: allocation.Caller{User: "admin", Groups: []string{"ops"}, Gateway: "gateway-1"}, Etag: "e", Created: created,
		Expires: created.Add(time.Minute), Steps: repair(id, at).Steps, Skipped: []allocation.Finding{leaked("30009")}, SkippedCount: 7,
	}
}

func TestNewID_IsShortAndIsCheckedForOthers(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := NewID()
		if seen[id] || !regexp.MustCompile(`^[a-z2-7]{8}$`).MatchString(id) {
			t.Fatalf("id %q, want another one of 8 lower-case letters and digits", id)
		}
		seen[id] = true
	}
	f := newFixture(t)
	if err := f.Begin(f.ctx, repair("taken", at)); err != nil {
		t.Fatal(err)
	}
	if err := f.CreatePlan(f.ctx, plan("taken", at), nil); !errors.Is(err, ErrExists) {
		t.Errorf("plan under the ID of a repair = %v, want %v", err, ErrExists)
	}
	wantPlans(t, f, 0)
}

func TestPlans_AreAppliedOnceAndDeletedWithTheirRepair(t *testing.T) {
	f := newFixture(t)
	first, second := plan("first", at), plan("second", at.Add(time.Second))
	if err := f.CreatePlan(f.ctx, first, nil); err != nil {
		t.Fatal(err)
	}
	if err := f.CreatePlan(f.ctx, second, nil); err != nil {
		t.Fatal(err)
	}
	if err := f.CreatePlan(f.ctx, first, nil); !errors.Is(err, ErrExists) {
		t.Errorf("created twice = %v, want %v", err, ErrExists)
	}
	if err := f.Begin(f.ctx, repair("first", at)); !errors.Is(err, ErrExists) {
		t.Errorf("begun without a plan under the ID of one = %v, want %v", err, ErrExists)
	}
	first.Skipped[0].Steps = nil
	wantPlans(t, f, 0, second, first)
	start := repair("first", at)
	start.Plan, start.PlanEtag = "first", "e"
	if err := f.Begin(f.ctx, start); err != nil {
		t.Fatal(err)
	}
	again := start
	again.ID = "another"
	if err := f.Begin(f.ctx, again); !errors.Is(err, ErrExists) {
		t.Errorf("applied twice = %v, want %v", err, ErrExists)
	}
	first.Repair = "first"
	wantPlans(t, f, 0, second, first)
	wantRepairs(t, f, 0, Repair{Start: start, Results: make([]StepResult, 2)})
	if got, exists, err := f.Plan(f.ctx, "first"); err != nil || !exists || got.Repair != "first" {
		t.Errorf("Plan(first) = %+v, %t, %v", got, exists, err)
	}
	if err := f.DeleteRepairs(f.ctx, []string{"first"}); err != nil {
		t.Fatal(err)
	}
	wantPlans(t, f, 0, second)
	third := plan("third", at.Add(time.Minute))
	if err := f.CreatePlan(f.ctx, third, []string{"second"}); err != nil {
		t.Fatal(err)
	}
	f.put(t, "repairplans/future/plan", `{"Version":2,"ID":"future"}`)
	f.put(t, "repairplans/renamed/plan", `{"Version":1,"ID":"other"}`)
	wantPlans(t, f, 2, third)
	if err := f.DeletePlans(f.ctx, []string{"third"}); err != nil {
		t.Fatal(err)
	}
	wantPlans(t, f, 2)
}

func wantPlans(t *testing.T, f fixture, unreadable int, want ...Plan) {
	t.Helper()
	got, bad, err := f.Plans(t.Context())
	if err != nil || bad != unreadable {
		t.Errorf("unreadable = %d, %v, want %d", bad, err, unreadable)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("plans (-want +got):\n%s", diff)
	}
}

func TestIgnores_AreWrittenAndDeleted(t *testing.T) {
	f := newFixture(t)
	one := allocation.Ignore{Finding: "findings/a", Caller: allocation.Caller{User: "admin"}, Created: at, Expires: at.Add(time.Hour), Comment: "known"}
	two := allocation.Ignore{Finding: "findings/b", Created: at}
	if err := f.WriteIgnores(f.ctx, []allocation.Ignore{one, two}, nil); err != nil {
		t.Fatal(err)
	}
	f.put(t, "ignores/future", `{"Finding":7}`)
	for _, deleted := range [][]string{nil, {"findings/a", "findings/never"}} {
		want := []allocation.Ignore{one, two}
		if deleted != nil {
			want = want[1:]
			if err := f.WriteIgnores(f.ctx, nil, deleted); err != nil {
				t.Fatal(err)
			}
		}
		got, unreadable, err := f.Ignores(t.Context())
		if err != nil || unreadable != 1 {
			t.Errorf("unreadable = %d, %v, want 1", unreadable, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("marks (-want +got):\n%s", diff)
		}
	}
}

// The stored forms do not change with the names of the API or of the code.
func TestPlansAndRepairs_StoredFormatDoesNotChange(t *testing.T) {
	f := newFixture(t)
	start := Start{ID: "p", Plan: "p", PlanEtag: "e", Requester: plan("p", at).Requester, Started: at}
	empty := plan("p", at)
	empty.Steps, empty.Skipped = nil, nil
	writes := []error{
		f.CreatePlan(f.ctx, empty, nil), f.Begin(f.ctx, start),
		f.Record(f.ctx, "p", map[int]StepResult{0: {State: StepSkipped, Error: "why", Time: at}}, Progress{Attempts: 2, Steps: map[int]StepProgress{0: {Attempts: 1, Error: "away"}}}),
		f.Cancel(f.ctx, "p", Cancellation{Caller: allocation.Caller{User: "admin"}, Time: at}),
		f.WriteIgnores(f.ctx, []allocation.Ignore{{Finding: "findings/a", Caller: allocation.Caller{User: "admin"}, Created: at, Comment: "known"}}, nil),
	}
	if err := errors.Join(writes...); err != nil {
		t.Fatal(err)
	}
	const time = `"2026-01-02T03:04:05.000000006Z"`
	want := map[string]string{
		"ignores/a":            `{"Finding":"findings/a","Caller":{"User":"admin"},"Created":` + time + `,"Comment":"known"}`,
		"repairplans/p/plan":   `{"Version":1,"ID":"p","Requester":{"User":"admin","Groups":["ops"],"Gateway":"gateway-1"},"Etag":"e","Created":` + time + `,"Expires":"2026-01-02T03:05:05.000000006Z","Steps":null,"Skipped":null,"SkippedCount":7}`,
		"repairplans/p/repair": `"p"`,
		"repairs/p/00000":      `{"State":"skipped","Error":"why","Time":` + time + `}`,
		"repairs/p/cancel":     `{"Caller":{"User":"admin"},"Time":` + time + `}`,
		"repairs/p/end":        time,
		"repairs/p/plan":       `{"ID":"p","Plan":"p","PlanEtag":"e","Requester":"admin","RequesterGroups":["ops"],"RequesterGateway":"gateway-1","Started":` + time + `,"Steps":null}`,
		"repairs/p/progress":   `{"Attempts":2,"Steps":{"0":{"Attempts":1,"Error":"away"}}}`,
	}
	response, err := f.etcd.Get(t.Context(), f.prefix, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, kv := range response.Kvs {
		got[string(kv.Key[len(f.prefix):])] = string(kv.Value)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
}
