package allocation_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

func damaged() objects {
	return objects{
		CIDRs: []allocation.CIDR{defaultCIDR()},
		Services: []allocation.Service{
			service("kubernetes", "10.0.0.1"),
			service("missing", "10.0.0.20"), service("missing-too", "10.0.0.3"),
			service("named-wrong", "10.0.0.4"), service("labelled-wrong", "10.0.0.5"),
			service("one", "10.0.0.6"), service("two", "10.0.0.6"),
			nodePorts("ports", 105, 103),
		},
		IPAddresses: []allocation.IPAddress{
			object("10.0.0.1", "kubernetes"), object("10.0.0.4", "gone"),
			with(object("10.0.0.5", "labelled-wrong"), func(a *allocation.IPAddress) { a.Family = "" }),
			object("10.0.0.6", "two"), object("10.0.0.7", "gone"), object("10.0.0.8", "two"),
		},
		Bitmaps: []allocation.Bitmap{bitmap(allocation.NodePorts, "100-200", 3, 7)},
	}
}

func TestPlanRepair_AllocatesFirstAndFreesLast(t *testing.T) {
	x := load(allSettings(), damaged())
	runPasses(x, start)
	plan := allocation.PlanRepair(x.Findings())
	var steps []string
	for _, s := range plan.Steps {
		steps = append(steps, string(s.Verb)+" "+s.Subject+" "+string(s.Reason))
	}
	want := []string{
		"create 10.0.0.3 IN_USE_NOT_ALLOCATED",
		"create 10.0.0.20 IN_USE_NOT_ALLOCATED",
		"set 105 IN_USE_NOT_ALLOCATED",
		"relabel 10.0.0.5 WRONG_LABELS",
		"delete 10.0.0.4 WRONG_REFERENCE",
		"create 10.0.0.4 WRONG_REFERENCE",
		"delete 10.0.0.7 ORPHAN",
		"delete 10.0.0.8 LEAKED",
		"clear 107 LEAKED",
	}
	if diff := cmp.Diff(want, steps); diff != "" {
		t.Errorf("steps differ (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"duplicate-owner 10.0.0.6 two one:"}, briefly(plan.Left)); diff != "" {
		t.Errorf("what is left differs (-want +got):\n%s", diff)
	}
}

func TestPlanRepair_PendingFindingsAreLeft(t *testing.T) {
	x := load(allSettings(), damaged())
	x.Compare(start)
	plan := allocation.PlanRepair(x.Findings())
	if len(plan.Steps) > 0 {
		t.Errorf("it plans %s", plan.Material())
	}
	for _, f := range plan.Left {
		if f.UnsafeReason == "" {
			t.Errorf("%s is left without a reason", f.Name)
		}
	}
}

func TestPlan_SafeOmitsStepsThatNeedApproval(t *testing.T) {
	all := damaged()
	all.IPAddresses = all.IPAddresses[:3] // the address of two services is missing
	x := load(allSettings(), all)
	runPasses(x, start)
	plan := allocation.PlanRepair(x.Findings())
	var asked []string
	for _, s := range plan.Steps {
		if !s.Safe {
			asked = append(asked, string(s.Verb)+" "+s.Subject)
		}
	}
	if diff := cmp.Diff([]string{"create 10.0.0.6"}, asked); diff != "" {
		t.Errorf("unsafe steps differ (-want +got):\n%s", diff)
	}
	if all, safe := len(plan.Steps), len(plan.Safe().Steps); safe != all-1 {
		t.Errorf("%d of %d steps are safe, want all but one", safe, all)
	}
}

func TestMaterial_DiffersOnlyIfThePlanDiffers(t *testing.T) {
	material := func(change func(*objects)) string {
		all := damaged()
		change(&all)
		x := load(allSettings(), all)
		runPasses(x, start)
		return allocation.PlanRepair(x.Findings()).Material()
	}
	planned := material(func(*objects) {})
	if lines := strings.Count(planned, "\n"); lines != 9 {
		t.Errorf("%d lines, want one for each of 9 steps:\n%s", lines, planned)
	}
	same := map[string]func(*objects){
		"a port was taken elsewhere": func(s *objects) {
			s.Bitmaps[0] = bitmap(allocation.NodePorts, "100-200", 3, 7, 50)
			s.Bitmaps[0].Revision = 41
			s.Services = append(s.Services, nodePorts("else", 150))
		},
		"a service was made and is well": func(s *objects) {
			s.Services = append(s.Services, service("else", "10.0.9.9"))
			s.IPAddresses = append(s.IPAddresses, object("10.0.9.9", "else"))
		},
		"an object was annotated": func(s *objects) { s.IPAddresses[4].ResourceVersion = "8" },
	}
	for name, change := range same {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(planned, material(change)); diff != "" {
				t.Errorf("material differs (-planned +now):\n%s", diff)
			}
		})
	}
	other := map[string]func(*objects){
		"another owner":    func(s *objects) { s.Services[1].UID = "another" },
		"another object":   func(s *objects) { s.IPAddresses[4].UID = "another" },
		"another parent":   func(s *objects) { s.IPAddresses[4].Parent.Name = "gone-too" },
		"another range":    func(s *objects) { s.Bitmaps[0].Range = "100-300" },
		"one finding less": func(s *objects) { s.IPAddresses = append(s.IPAddresses, object("10.0.0.3", "missing-too")) },
	}
	for name, change := range other {
		t.Run(name, func(t *testing.T) {
			if planned == material(change) {
				t.Error("material is the same")
			}
		})
	}
}

func TestIndex_StepsHaveTheCurrentRevision(t *testing.T) {
	x := load(portSettings(), objects{
		Services: []allocation.Service{nodePorts("a", 105)}, Bitmaps: []allocation.Bitmap{bitmap(allocation.NodePorts, "100-200")},
	})
	now := runPasses(x, start)
	later := bitmap(allocation.NodePorts, "100-200", 50)
	later.Revision = 41
	x.PutService(nodePorts("b", 150))
	x.PutBitmap(later)
	if delta := x.Compare(now.Add(time.Second)); len(delta.Changed)+len(delta.Ended) > 0 {
		t.Errorf("another port's bit changed a finding: %+v", delta)
	}
	if revision := x.Findings()[0].Steps[0].Guard.Revision; revision != 41 {
		t.Errorf("the step carries revision %d, want 41", revision)
	}
}

func TestIndex_StoreStates(t *testing.T) {
	x := load(allocation.Settings{Stores: []allocation.Store{allocation.IPAddresses, allocation.NodePorts, allocation.ClusterIPs}}, damaged())
	want := []allocation.StoreState{
		{
			Store: allocation.IPAddresses, Present: true, Ranges: []string{"10.0.0.0/16", "2001:db8::/64"},
			Counts: []allocation.RangeCount{
				{Range: "10.0.0.0/16", Family: allocation.FamilyIPv4, Allocated: 6, Capacity: 65534},
				{Range: "2001:db8::/64", Family: allocation.FamilyIPv6, Capacity: 1<<63 - 1},
			},
			Services: 8,
		},
		{
			Store: allocation.NodePorts, Present: true, Ranges: []string{"100-200"},
			Counts: []allocation.RangeCount{{Range: "100-200", Allocated: 2, Capacity: 101}}, Services: 8,
		},
		{Store: allocation.ClusterIPs, Services: 8, Problem: "it has not been read yet"},
		{Store: allocation.SecondaryClusterIPs},
	}
	if diff := cmp.Diff(want, x.StoreStates()); diff != "" {
		t.Errorf("states differ (-want +got):\n%s", diff)
	}
	if allocated, capacity := want[0].Total(); allocated != 6 || capacity != 1<<63-1 {
		t.Errorf("total is %d of %d", allocated, capacity)
	}
}
