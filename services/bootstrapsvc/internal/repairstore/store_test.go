package repairstore

import (
	"context"
	"errors"
	"fmt"
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

// fixture is a journal of its own in the shared etcd, with a term to write under.
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

func (d fixture) spoil(t *testing.T, key, value string) {
	t.Helper()
	if _, err := d.etcd.Put(t.Context(), d.prefix+key, value); err != nil {
		t.Fatal(err)
	}
}

var at = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

func leaked(port string) Finding {
	return Finding{
		Finding: allocation.Finding{
			Name: "findings/leaked.node-ports." + port, Code: allocation.Leaked, Store: allocation.NodePorts, Subject: port,
			Message: "port " + port + " is used by nobody", State: allocation.StateOpen, Since: at, Observations: 3, Safe: true,
			Owners:   []allocation.Owner{{Key: allocation.Key{Namespace: "a", Name: "b"}, UID: "u"}},
			Evidence: []allocation.Evidence{{Code: allocation.StoredBit, Broken: true, Finding: "it is set", Version: "7"}},
		},
		FirstSeen: at, LastSeen: at.Add(time.Minute),
	}
}

func (d fixture) wantFindings(t *testing.T, unreadable int, want ...Finding) {
	t.Helper()
	got, bad, err := d.Findings(t.Context())
	if err != nil || bad != unreadable {
		t.Errorf("unreadable = %d, %v, want %d", bad, err, unreadable)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

func TestFindings_AreKeptWrittenOverAndForgotten(t *testing.T) {
	d := newFixture(t)
	one, two := leaked("30001"), leaked("30002")
	withSteps := one
	withSteps.Steps = []allocation.Step{{Verb: allocation.ClearBit}}
	if err := d.WriteFindings(d.ctx, []Finding{withSteps, two}, nil); err != nil {
		t.Fatal(err)
	}
	d.wantFindings(t, 0, one, two)
	two.Ended, two.End, two.RepairedBy = at.Add(time.Hour), EndRepaired, "r1"
	if err := d.WriteFindings(d.ctx, []Finding{two}, []string{one.Name, "findings/never-written"}); err != nil {
		t.Fatal(err)
	}
	d.spoil(t, "findings/future", `{"Name":7}`)
	d.spoil(t, "findings/another", `{"Name":"findings/elsewhere"}`)
	d.wantFindings(t, 2, two)
}

func TestFindings_MoreThanOneTransactionHolds(t *testing.T) {
	d := newFixture(t)
	var many []Finding
	var names []string
	for i := range 250 {
		many = append(many, leaked(fmt.Sprint(30000+i)))
		names = append(names, many[i].Name)
	}
	if err := d.WriteFindings(d.ctx, many, nil); err != nil {
		t.Fatal(err)
	}
	d.wantFindings(t, 0, many...)
	if err := d.WriteFindings(d.ctx, nil, names); err != nil {
		t.Fatal(err)
	}
	d.wantFindings(t, 0)
}

func TestJournal_WritesOnlyUnderTheTerm(t *testing.T) {
	d := newFixture(t)
	writes := map[string]func(context.Context) error{
		"findings": func(ctx context.Context) error { return d.WriteFindings(ctx, []Finding{leaked("30001")}, nil) },
		"begin":    func(ctx context.Context) error { return d.Begin(ctx, RepairPlan{ID: "r1"}) },
		"record":   func(ctx context.Context) error { return d.Record(ctx, "r1", map[int]StepResult{0: {State: StepDone}}) },
		"end":      func(ctx context.Context) error { return d.End(ctx, "r1", at) },
		"forget":   func(ctx context.Context) error { return d.DeleteRepairs(ctx, []string{"r1"}) },
	}
	for name, write := range writes {
		if err := write(t.Context()); !errors.Is(err, term.ErrNone) {
			t.Errorf("%s without a term = %v, want %v", name, err, term.ErrNone)
		}
	}
	if _, err := d.etcd.Delete(t.Context(), termKey); err != nil {
		t.Fatal(err)
	}
	for name, write := range writes {
		if err := write(d.ctx); !errors.Is(err, term.ErrEnded) {
			t.Errorf("%s after the term's key went = %v, want %v", name, err, term.ErrEnded)
		}
	}
	d.wantFindings(t, 0)
}

func repair(id string, started time.Time) RepairPlan {
	return RepairPlan{ID: id, Requester: "auto", Started: started, Steps: []allocation.Step{
		{Finding: "findings/a", Verb: allocation.Create, Store: allocation.IPAddresses, Subject: "10.0.0.1", Object: allocation.IPAddress{Name: "10.0.0.1", Parent: allocation.Parent{Resource: "services", Namespace: "a", Name: "b"}}},
		{Finding: "findings/b", Verb: allocation.ClearBit, Store: allocation.NodePorts, Subject: "30001", Offset: 1, Range: "30000-32767", Guard: allocation.Guard{Revision: 7}},
	}}
}

func TestRepairs_AreWrittenOnceAndComeBackTheNewestFirst(t *testing.T) {
	d := newFixture(t)
	for i, id := range []string{"old", "new"} {
		if err := d.Begin(d.ctx, repair(id, at.Add(time.Duration(i)*time.Second))); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Begin(d.ctx, repair("old", at)); !errors.Is(err, ErrExists) {
		t.Errorf("begun twice = %v, want %v", err, ErrExists)
	}
	made := StepResult{State: StepDone, Time: at}
	if err := d.Record(d.ctx, "old", map[int]StepResult{0: made}); err != nil {
		t.Fatal(err)
	}
	if err := d.Record(d.ctx, "old", map[int]StepResult{0: {State: StepFailed}}); !errors.Is(err, ErrExists) {
		t.Errorf("recorded twice = %v, want %v", err, ErrExists)
	}
	failed := StepResult{State: StepFailed, Error: "it changed", Time: at}
	if err := d.Record(d.ctx, "old", map[int]StepResult{1: failed}); err != nil {
		t.Fatal(err)
	}
	if err := d.End(d.ctx, "old", at.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	want := []Repair{
		{RepairPlan: repair("new", at.Add(time.Second)), Results: make([]StepResult, 2)},
		{RepairPlan: repair("old", at), Results: []StepResult{made, failed}, Ended: at.Add(time.Minute)},
	}
	wantRepairs(t, d, 0, want...)
	if want[0].Complete() || want[1].Complete() {
		t.Error("a repair with a step that was not made counts as complete")
	}
	if err := d.DeleteRepairs(d.ctx, []string{"old"}); err != nil {
		t.Fatal(err)
	}
	wantRepairs(t, d, 0, want[0])
}

func TestRepairs_WhatCannotBeReadIsSkippedAndCounted(t *testing.T) {
	d := newFixture(t)
	if err := d.Begin(d.ctx, repair("good", at)); err != nil {
		t.Fatal(err)
	}
	d.spoil(t, "repairs/without-plan/00000", `{}`)
	d.spoil(t, "repairs/future/plan", `{"ID":{}}`)
	d.spoil(t, "repairs/renamed/plan", `{"ID":"other"}`)
	d.spoil(t, "repairs/more-steps/plan", `{"ID":"more-steps"}`)
	d.spoil(t, "repairs/more-steps/00000", `{}`)
	d.spoil(t, "repairs/bad-end/plan", `{"ID":"bad-end"}`)
	d.spoil(t, "repairs/bad-end/end", `7`)
	d.spoil(t, "repairs/stray", `7`)
	wantRepairs(t, d, 6, Repair{RepairPlan: repair("good", at), Results: make([]StepResult, 2)})
}

func wantRepairs(t *testing.T, d fixture, unreadable int, want ...Repair) {
	t.Helper()
	got, bad, err := d.Repairs(t.Context())
	if err != nil || bad != unreadable {
		t.Errorf("unreadable = %d, %v, want %d", bad, err, unreadable)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("repairs (-want +got):\n%s", diff)
	}
}

func TestJournal_EtcdThatDoesNotAnswerIsUnavailable(t *testing.T) {
	d := newFixture(t)
	ctx, cancel := context.WithCancel(d.ctx)
	cancel()
	if _, _, err := d.Findings(ctx); !errors.Is(err, ErrUnavailable) {
		t.Errorf("findings = %v, want %v", err, ErrUnavailable)
	}
	if _, _, err := d.Repairs(ctx); !errors.Is(err, ErrUnavailable) {
		t.Errorf("repairs = %v, want %v", err, ErrUnavailable)
	}
	if err := d.Begin(ctx, repair("r", at)); !errors.Is(err, ErrUnavailable) {
		t.Errorf("begin = %v, want %v", err, ErrUnavailable)
	}
}
