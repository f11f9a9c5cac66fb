package repairstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/internal/testkit"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
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
	withSteps.Steps = []allocation.Step{{Verb: allocation.ClearBit}}
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
		"begin":  func(ctx context.Context) error { return f.Begin(ctx, RepairPlan{ID: "r1"}) },
		"record": func(ctx context.Context) error { return f.Record(ctx, "r1", map[int]StepResult{0: {State: StepDone}}) },
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

func repair(id string, started time.Time) RepairPlan {
	return RepairPlan{ID: id, Requester: "auto", Started: started, Steps: []allocation.Step{
		{Finding: "findings/a", Verb: allocation.Create, Store: allocation.IPAddresses, Subject: "10.0.0.1", Object: allocation.IPAddress{Name: "10.0.0.1", Parent: allocation.Parent{Resource: "services", Namespace: "a", Name: "b"}}},
		{Finding: "findings/b", Verb: allocation.ClearBit, Store: allocation.NodePorts, Subject: "30001", Offset: 1, Range: "30000-32767", Guard: allocation.Guard{Revision: 7}},
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
	made := StepResult{State: StepDone, Time: at}
	if err := f.Record(f.ctx, "old", map[int]StepResult{0: made}); err != nil {
		t.Fatal(err)
	}
	if err := f.Record(f.ctx, "old", map[int]StepResult{0: {State: StepFailed}}); !errors.Is(err, ErrExists) {
		t.Errorf("recorded twice = %v, want %v", err, ErrExists)
	}
	failed := StepResult{State: StepFailed, Error: "it changed", Time: at}
	if err := f.Record(f.ctx, "old", map[int]StepResult{1: failed}); err != nil {
		t.Fatal(err)
	}
	if err := f.End(f.ctx, "old", at.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	want := []Repair{
		{RepairPlan: repair("new", at.Add(time.Second)), Results: make([]StepResult, 2)},
		{RepairPlan: repair("old", at), Results: []StepResult{made, failed}, Ended: at.Add(time.Minute)},
	}
	wantRepairs(t, f, 0, want...)
	if want[0].Complete() || want[1].Complete() {
		t.Error("a repair with a step that was not applied counts as complete")
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
	f.put(t, "repairs/bad-end/plan", `{"ID":"bad-end"}`)
	f.put(t, "repairs/bad-end/end", `7`)
	f.put(t, "repairs/stray", `7`)
	wantRepairs(t, f, 6, Repair{RepairPlan: repair("good", at), Results: make([]StepResult, 2)})
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
