package allocation_test

import (
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

// nameRule is the one that the API has for names of findings.
var nameRule = regexp.MustCompile(`^findings/[-a-z0-9._:]{1,247}$`)

func TestLedger_IsTheWholeAuditAfterAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(atOnce())
		mirror := map[string]allocation.Finding{} // what somebody knows who only ever saw deltas
		now := start
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			c.happen(t)
			if rapid.IntRange(0, 19).Draw(t, "gap") == 0 {
				c.ledger.RecordGap()
			}
			if rapid.Bool().Draw(t, "more") {
				continue
			}
			now = now.Add(time.Second)
			delta := c.ledger.Compare(now)
			for _, f := range delta.Ended {
				delete(mirror, f.Name)
			}
			for _, f := range delta.Changed {
				mirror[f.Name] = f
			}
			c.ledger.Observe(now)
		}
		delta := c.ledger.Compare(now)
		for _, f := range delta.Ended {
			delete(mirror, f.Name)
		}
		for _, f := range delta.Changed {
			mirror[f.Name] = f
		}

		timeless := cmpopts.IgnoreFields(allocation.Finding{}, "Since", "Observations")
		want := allocation.Whole(atOnce(), c.snapshot(), now)
		if diff := cmp.Diff(want, c.ledger.Findings(), timeless); diff != "" {
			t.Fatalf("the ledger differs from a whole audit (-whole +ledger):\n%s", diff)
		}
		unstamped := cmpopts.IgnoreFields(allocation.Guard{}, "Revision")
		byName := map[string]allocation.Finding{}
		for _, f := range want {
			byName[f.Name] = f
			if !nameRule.MatchString(f.Name) {
				t.Fatalf("name %q is none of the API", f.Name)
			}
			if f.Safe == (f.UnsafeReason != "") || f.Safe && len(f.Steps) == 0 || (f.Repair == "") != (len(f.Steps) == 0) {
				t.Fatalf("finding contradicts itself: %+v", f)
			}
		}
		if diff := cmp.Diff(byName, mirror, timeless, unstamped); diff != "" {
			t.Fatalf("deltas do not add up (-whole +deltas):\n%s", diff)
		}
	})
}

func TestWhole_OrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(atOnce())
		for range 30 {
			c.happen(t)
		}
		one := c.snapshot()
		other := allocation.Snapshot{
			Services:    rapid.Permutation(one.Services).Draw(t, "services"),
			IPAddresses: rapid.Permutation(one.IPAddresses).Draw(t, "objects"),
			CIDRs:       rapid.Permutation(one.CIDRs).Draw(t, "cidrs"),
			Bitmaps:     rapid.Permutation(one.Bitmaps).Draw(t, "bitmaps"),
		}
		first, second := allocation.Whole(atOnce(), one, start), allocation.Whole(atOnce(), other, start)
		if diff := cmp.Diff(first, second); diff != "" {
			t.Fatalf("findings differ by order:\n%s", diff)
		}
		slices.Reverse(second)
		if diff := cmp.Diff(allocation.PlanRepair(first), allocation.PlanRepair(append(second, first...))); diff != "" {
			t.Fatalf("plans differ by order:\n%s", diff)
		}
	})
}

// What is safe is done, in order, and leaves nothing safe to do; whatever a Service names stays allocated.
func TestPlanRepair_AppliedLeavesNothingSafeAndFreesNothingUsed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(allSettings())
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			c.happen(t)
		}
		c.putService(service("kubernetes", "10.0.0.1")) // there is always one
		now := ripen(c.ledger, start)
		plan := allocation.PlanRepair(c.ledger.Findings()).Safe()
		for i, s := range plan.Steps {
			if i > 0 && plan.Steps[i-1].Frees() && !s.Frees() {
				t.Fatalf("%s %s comes after something was freed", s.Verb, s.Subject)
			}
			done, err := c.apply(s)
			if err != nil || !done {
				t.Fatalf("step %s was not made: %v", s.Material(), err)
			}
			if users := c.users(s.Store, s.Subject); s.Frees() && len(users) > 0 {
				t.Fatalf("%s was freed, and %v use it", s.Subject, users)
			}
		}
		// Each step is needless now, as after a crash between doing and recording it.
		for _, s := range plan.Steps {
			if outcome, why := allocation.Check(s, c.live(s)); outcome != allocation.CheckUnneeded {
				t.Fatalf("step %s made twice: outcome %d, %s", s.Material(), outcome, why)
			}
		}
		ripen(c.ledger, now)
		for _, f := range c.ledger.Findings() {
			if f.Safe {
				t.Fatalf("after the repair there is still: %+v", f)
			}
		}
	})
}

// Whatever happens between planning and doing, what is used is not freed, and nothing of others is touched.
func TestCheck_NothingUsedIsFreedWhateverHappensMeanwhile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(allSettings())
		for range rapid.IntRange(1, 30).Draw(t, "before") {
			c.happen(t)
		}
		ripen(c.ledger, start)
		plan := allocation.PlanRepair(c.ledger.Findings())
		for _, s := range plan.Steps {
			for range rapid.IntRange(0, 3).Draw(t, "meanwhile") {
				c.happen(t)
			}
			before, existed := c.objects[s.Subject]
			done, err := c.apply(s)
			if err != nil {
				t.Fatal(err)
			}
			if !done {
				continue
			}
			if users := c.users(s.Store, s.Subject); s.Frees() && len(users) > 0 {
				t.Fatalf("%s was freed, and %v use it", s.Subject, users)
			}
			foreign := before.ManagedBy != "" && before.ManagedBy != allocation.AllocatorName || before.Parent.Group != ""
			if s.Store == allocation.IPAddresses && existed && foreign {
				t.Fatalf("%s %s touched what is somebody else's: %+v", s.Verb, s.Subject, before)
			}
		}
	})
}
