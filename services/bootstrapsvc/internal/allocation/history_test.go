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

// nameRule is the API's rule for names of findings.
var nameRule = regexp.MustCompile(`^findings/[-a-z0-9._:]{1,247}$`)

func TestIndex_EqualsAFullComparisonAfterAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newModel(noGracePeriods())
		mirror := map[string]allocation.Finding{} // built from deltas only
		now := start
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			c.change(t)
			if rapid.IntRange(0, 19).Draw(t, "gap") == 0 {
				c.index.RecordGap()
			}
			if rapid.Bool().Draw(t, "more") {
				continue
			}
			now = now.Add(time.Second)
			delta := c.index.Compare(now)
			for _, f := range delta.Ended {
				delete(mirror, f.Name)
			}
			for _, f := range delta.Changed {
				mirror[f.Name] = f
			}
			c.index.Observe(now)
		}
		delta := c.index.Compare(now)
		for _, f := range delta.Ended {
			delete(mirror, f.Name)
		}
		for _, f := range delta.Changed {
			mirror[f.Name] = f
		}

		timeless := cmpopts.IgnoreFields(allocation.Finding{}, "Since", "Observations")
		want := compareAll(noGracePeriods(), c.objects(), now)
		if diff := cmp.Diff(want, c.index.Findings(), timeless); diff != "" {
			t.Fatalf("the index differs from a full comparison (-full +index):\n%s", diff)
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
			t.Fatalf("deltas do not add up (-full +deltas):\n%s", diff)
		}
	})
}

func TestIndex_OrderOfObjectsDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newModel(noGracePeriods())
		for range 30 {
			c.change(t)
		}
		one := c.objects()
		other := objects{
			Services:    rapid.Permutation(one.Services).Draw(t, "services"),
			IPAddresses: rapid.Permutation(one.IPAddresses).Draw(t, "objects"),
			CIDRs:       rapid.Permutation(one.CIDRs).Draw(t, "cidrs"),
			Bitmaps:     rapid.Permutation(one.Bitmaps).Draw(t, "bitmaps"),
		}
		first, second := compareAll(noGracePeriods(), one, start), compareAll(noGracePeriods(), other, start)
		if diff := cmp.Diff(first, second); diff != "" {
			t.Fatalf("findings differ by order:\n%s", diff)
		}
		slices.Reverse(second)
		if diff := cmp.Diff(allocation.PlanRepair(first), allocation.PlanRepair(append(second, first...))); diff != "" {
			t.Fatalf("plans differ by order:\n%s", diff)
		}
	})
}

// An applied plan leaves no safe step, and everything that a Service names stays allocated.
func TestPlanRepair_AppliedPlanLeavesNothingSafeAndFreesNothingUsed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newModel(allSettings())
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			c.change(t)
		}
		c.putService(service("kubernetes", "10.0.0.1")) // a real cluster always has it
		now := runPasses(c.index, start)
		plan := allocation.PlanRepair(c.index.Findings()).Safe()
		for i, s := range plan.Steps {
			if i > 0 && plan.Steps[i-1].Frees() && !s.Frees() {
				t.Fatalf("%s %s comes after something was freed", s.Verb, s.Subject)
			}
			done, err := c.apply(s)
			if err != nil || !done {
				t.Fatalf("step %s was not applied: %v", s.Material(), err)
			}
			if users := c.users(s.Store, s.Subject); s.Frees() && len(users) > 0 {
				t.Fatalf("%s was freed, and %v use it", s.Subject, users)
			}
		}
		// Each step is unneeded now, as after a crash between its write and its record.
		for _, s := range plan.Steps {
			if result, why := allocation.Check(s, c.live(s)); result != allocation.CheckUnneeded {
				t.Fatalf("step %s again: result %d, %s", s.Material(), result, why)
			}
		}
		runPasses(c.index, now)
		for _, f := range c.index.Findings() {
			if f.Safe {
				t.Fatalf("after the repair there is still: %+v", f)
			}
		}
	})
}

// Between planning and applying, random changes happen. Nothing in use is freed, and no object of
// another manager is written.
func TestCheck_FreesNothingUsedAfterRandomChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newModel(allSettings())
		for range rapid.IntRange(1, 30).Draw(t, "before") {
			c.change(t)
		}
		runPasses(c.index, start)
		plan := allocation.PlanRepair(c.index.Findings())
		for _, s := range plan.Steps {
			for range rapid.IntRange(0, 3).Draw(t, "meanwhile") {
				c.change(t)
			}
			before, existed := c.addresses[s.Subject]
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
				t.Fatalf("%s %s wrote an object of another manager: %+v", s.Verb, s.Subject, before)
			}
		}
	})
}
