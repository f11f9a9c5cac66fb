package allocation_test

import (
	"math/big"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

// planned returns the steps that repair a set of objects.
func stepsFor(t *testing.T, settings allocation.Settings, s objects) []allocation.Step {
	t.Helper()
	s.CIDRs = append(s.CIDRs, defaultCIDR())
	x := load(settings, s)
	runPasses(x, start)
	steps := allocation.PlanRepair(x.Findings()).Steps
	if len(steps) == 0 {
		t.Fatal("nothing is planned")
	}
	return steps
}

// checkCase is a live state and the expected result of Check.
type checkCase struct {
	live allocation.LiveState
	want allocation.CheckResult
	why  string
}

func expectChecks(t *testing.T, step allocation.Step, tries map[string]checkCase) {
	t.Helper()
	for name, test := range tries {
		t.Run(name, func(t *testing.T) {
			result, why := allocation.Check(step, test.live)
			if result != test.want || why != test.why {
				t.Errorf("result %d %q, want %d %q", result, why, test.want, test.why)
			}
		})
	}
}

func pointer(a allocation.IPAddress) *allocation.IPAddress { return &a }

func TestCheck_Create(t *testing.T) {
	a := service("a", "10.0.1.1")
	steps := stepsFor(t, addressSettings(), objects{Services: []allocation.Service{a}})
	reborn, external := a, a
	reborn.UID, external.Type = "another", allocation.ExternalName
	expectChecks(t, steps[0], map[string]checkCase{
		"as planned": {live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{a})}, want: allocation.CheckPassed},
		"made by another writer": {
			live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{a}), IPAddress: pointer(object("10.0.1.1", "a"))},
			want: allocation.CheckUnneeded, why: "the ipaddress is as it should be already",
		},
		"made for another service": {
			live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{a}), IPAddress: pointer(object("10.0.1.1", "b"))},
			want: allocation.CheckOutdated, why: "there is an ipaddress of that name by now, of service bar/b",
		},
		"the service is gone": {
			live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{service("b")})},
			want: allocation.CheckOutdated, why: "service bar/a does not use 10.0.1.1 any more",
		},
		"the service is another one": {
			live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{reborn})},
			want: allocation.CheckOutdated, why: "service bar/a is another one by now",
		},
		"the service uses none any more": {
			live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{external})},
			want: allocation.CheckOutdated, why: "service bar/a does not use 10.0.1.1 any more",
		},
		"a second service uses it": {
			live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{a, service("b", "10.0.1.1")})},
			want: allocation.CheckOutdated, why: "service bar/b uses 10.0.1.1 too",
		},
	})
}

func TestCheck_DeleteOfWrongReference(t *testing.T) {
	a, wrong := service("a", "10.0.1.1"), object("10.0.1.1", "b")
	steps := stepsFor(t, addressSettings(), objects{
		Services: []allocation.Service{a}, IPAddresses: []allocation.IPAddress{wrong},
	})
	external := service("b", "10.0.1.1")
	external.Type = allocation.ExternalName
	expectChecks(t, steps[0], map[string]checkCase{
		"as planned": {live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{a}), IPAddress: &wrong}, want: allocation.CheckPassed},
		"gone already": {
			live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{a})},
			want: allocation.CheckUnneeded, why: "there is no such ipaddress any more",
		},
		"replaced already": {
			live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{a}), IPAddress: pointer(object("10.0.1.1", "a"))},
			want: allocation.CheckUnneeded, why: "the ipaddress is as it should be already",
		},
		"changed": {
			live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{a}), IPAddress: pointer(with(wrong, func(a *allocation.IPAddress) {
				a.ResourceVersion, a.Parent.Name = "8", "c"
			}))},
			want: allocation.CheckOutdated, why: "the ipaddress has changed: resourceVersion 8, planned from 7",
		},
		"annotated": {
			live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{a}), IPAddress: pointer(with(wrong, func(a *allocation.IPAddress) {
				a.ResourceVersion = "8"
			}))},
			want: allocation.CheckPassed,
		},
		"created again": {
			live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{a}), IPAddress: pointer(with(wrong, func(a *allocation.IPAddress) {
				a.UID = "another"
			}))},
			want: allocation.CheckOutdated, why: "there is another ipaddress of that name by now, of service bar/b",
		},
		"its parent uses it by now": {
			live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{a, service("b", "10.0.1.1")}), IPAddress: &wrong},
			want: allocation.CheckOutdated, why: "service bar/b uses 10.0.1.1 too",
		},
		"its parent names it and is ExternalName": {
			live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{a, external}), IPAddress: &wrong},
			want: allocation.CheckOutdated, why: "service bar/b uses 10.0.1.1 too",
		},
		"another one was read": {
			live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{a}), IPAddress: pointer(object("10.0.1.2", "b"))},
			want: allocation.CheckOutdated, why: "ipaddress 10.0.1.2 was read for 10.0.1.1",
		},
	})
	if steps[1].Verb != planned.Create || steps[1].Reason != allocation.ReasonReference {
		t.Errorf("after the delete comes %s", steps[1].Material())
	}
}

func TestCheck_DeleteOfOrphan(t *testing.T) {
	orphan, kubernetes := object("10.0.1.1", "gone"), service("kubernetes", "10.0.0.1")
	step := stepsFor(t, addressSettings(), objects{
		Services:    []allocation.Service{kubernetes},
		IPAddresses: []allocation.IPAddress{orphan, object("10.0.0.1", "kubernetes")},
	})[0]
	external := service("x", "10.0.1.1")
	external.Type = allocation.ExternalName
	expectChecks(t, step, map[string]checkCase{
		"as planned": {live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{kubernetes}), IPAddress: &orphan}, want: allocation.CheckPassed},
		"counted before": {
			live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{kubernetes}), IPAddress: &orphan}, want: allocation.CheckPassed,
		},
		"nothing was listed": {
			live: allocation.LiveState{Usage: allocation.CountUsage(nil), IPAddress: &orphan},
			want: allocation.CheckOutdated, why: "no service at all was listed, which cannot be",
		},
		"its service came": {
			live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{kubernetes, service("gone")}), IPAddress: &orphan},
			want: allocation.CheckOutdated, why: "service bar/gone exists by now",
		},
		"a service uses it, written in another way": {
			live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{kubernetes, service("b", "010.0.01.1")}), IPAddress: &orphan},
			want: allocation.CheckOutdated, why: "service bar/b uses 10.0.1.1",
		},
		"an ExternalName service names it": {
			live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{kubernetes, external}), IPAddress: &orphan},
			want: allocation.CheckOutdated, why: "service bar/x uses 10.0.1.1",
		},
		"gone": {
			live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{kubernetes})},
			want: allocation.CheckUnneeded, why: "there is no such ipaddress any more",
		},
	})
	damaged := step
	damaged.Subject = "10.0.1.01"
	odd := orphan
	odd.Name = damaged.Subject
	if result, _ := allocation.Check(damaged, allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{kubernetes}), IPAddress: &odd}); result != allocation.CheckOutdated {
		t.Error("a step whose subject is not an address passes")
	}
}

func TestCheck_Relabel(t *testing.T) {
	a := service("a", "10.0.1.1")
	bare := with(object("10.0.1.1", "a"), func(a *allocation.IPAddress) { a.ManagedBy = "" })
	step := stepsFor(t, addressSettings(), objects{
		Services: []allocation.Service{a}, IPAddresses: []allocation.IPAddress{bare},
	})[0]
	expectChecks(t, step, map[string]checkCase{
		"as planned": {live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{a}), IPAddress: &bare}, want: allocation.CheckPassed},
		"done": {
			live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{a}), IPAddress: pointer(object("10.0.1.1", "a"))},
			want: allocation.CheckUnneeded, why: "the ipaddress is as it should be already",
		},
		"gone": {
			live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{a})},
			want: allocation.CheckOutdated, why: "there is no such ipaddress any more",
		},
	})
}

func TestCheck_Bits(t *testing.T) {
	a, kubernetes := nodePorts("a", 112), service("kubernetes", "10.0.0.1")
	stored := bitmap(allocation.NodePorts, "100-200", 11)
	steps := stepsFor(t, portSettings(), objects{
		Services: []allocation.Service{a, kubernetes}, Bitmaps: []allocation.Bitmap{stored},
	})
	all := []allocation.Service{a, kubernetes}
	t.Run("set", func(t *testing.T) {
		expectChecks(t, steps[0], map[string]checkCase{
			"as planned": {live: allocation.LiveState{Usage: allocation.CountUsage(all), Bitmap: stored}, want: allocation.CheckPassed},
			"done": {
				live: allocation.LiveState{Usage: allocation.CountUsage(all), Bitmap: bitmap(allocation.NodePorts, "100-200", 12)},
				want: allocation.CheckUnneeded, why: "the bit is as it should be already",
			},
			"not used any more": {
				live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{kubernetes}), Bitmap: stored},
				want: allocation.CheckOutdated, why: "service bar/a does not use 112 any more",
			},
			"another range": {
				live: allocation.LiveState{Usage: allocation.CountUsage(all), Bitmap: bitmap(allocation.NodePorts, "101-200")},
				want: allocation.CheckOutdated, why: "the stored range is 101-200, and 100-200 is expected",
			},
			"unread": {
				live: allocation.LiveState{Usage: allocation.CountUsage(all), Bitmap: allocation.Bitmap{Store: allocation.NodePorts, Problem: "truncated"}},
				want: allocation.CheckOutdated, why: "the stored value cannot be read: truncated",
			},
			"another store": {
				live: allocation.LiveState{Usage: allocation.CountUsage(all), Bitmap: bitmap(allocation.ClusterIPs, "10.0.0.0/24")},
				want: allocation.CheckOutdated, why: "the bitmap of cluster-ips was read for node-ports",
			},
		})
	})
	t.Run("clear", func(t *testing.T) {
		checked := service("b")
		checked.HealthCheckNodePort = 111
		expectChecks(t, steps[1], map[string]checkCase{
			"as planned": {live: allocation.LiveState{Usage: allocation.CountUsage(all), Bitmap: stored}, want: allocation.CheckPassed},
			"used by a health check": {
				live: allocation.LiveState{Usage: allocation.CountUsage(append(all, checked)), Bitmap: stored},
				want: allocation.CheckOutdated, why: "service bar/b uses 111",
			},
			"done": {
				live: allocation.LiveState{Usage: allocation.CountUsage(all), Bitmap: bitmap(allocation.NodePorts, "100-200")},
				want: allocation.CheckUnneeded, why: "the bit is as it should be already",
			},
		})
		moved := steps[1]
		moved.Offset = 13
		if _, why := allocation.Check(moved, allocation.LiveState{Usage: allocation.CountUsage(all), Bitmap: stored}); why != "bit 13 of range 100-200 does not stand for 111" {
			t.Errorf("a step that contradicts itself: %q", why)
		}
	})
}

func TestBitmapWrite_UsesUpstreamEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := new(big.Int).SetBytes(rapid.SliceOfN(rapid.Byte(), 0, 13).Draw(t, "data"))
		before.And(before, new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 101), big.NewInt(1)))
		stored := bitmap(allocation.NodePorts, "100-200")
		stored.Data = before.Bytes()
		want := new(big.Int).Set(before)
		var steps []allocation.Step
		for range rapid.IntRange(0, 8).Draw(t, "steps") {
			offset, verb := rapid.IntRange(0, 100).Draw(t, "offset"), planned.ClearBit
			if rapid.Bool().Draw(t, "set") {
				verb = planned.SetBit
			}
			steps = append(steps, allocation.Step{Store: allocation.NodePorts, Range: "100-200", Offset: offset, Verb: verb})
			want.SetBit(want, offset, map[planned.Verb]uint{planned.SetBit: 1}[verb])
		}
		data, err := stored.Write(steps)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want.Bytes(), data); diff != "" {
			t.Fatalf("data differs (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(before.Bytes(), stored.Data); diff != "" {
			t.Fatalf("the bitmap was changed:\n%s", diff)
		}
	})
}

func TestBitmapWrite_RejectsStepsOfOtherRanges(t *testing.T) {
	stored := bitmap(allocation.NodePorts, "100-200", 11)
	good := allocation.Step{Store: allocation.NodePorts, Range: "100-200", Offset: 11, Verb: planned.ClearBit}
	for name, change := range map[string]func(*allocation.Step, *allocation.Bitmap){
		"another store":   func(s *allocation.Step, _ *allocation.Bitmap) { s.Store = allocation.ClusterIPs },
		"another range":   func(s *allocation.Step, _ *allocation.Bitmap) { s.Range = "100-201" },
		"behind the end":  func(s *allocation.Step, _ *allocation.Bitmap) { s.Offset = 101 },
		"before the end":  func(s *allocation.Step, _ *allocation.Bitmap) { s.Offset = -1 },
		"no bit":          func(s *allocation.Step, _ *allocation.Bitmap) { s.Verb = planned.Delete },
		"unread":          func(_ *allocation.Step, b *allocation.Bitmap) { b.Problem = "truncated" },
		"missing":         func(_ *allocation.Step, b *allocation.Bitmap) { b.Missing = true },
		"unlike a bitmap": func(_ *allocation.Step, b *allocation.Bitmap) { b.Range = "odd" },
	} {
		t.Run(name, func(t *testing.T) {
			step, b := good, stored
			change(&step, &b)
			if data, err := b.Write([]allocation.Step{step}); err == nil {
				t.Errorf("it was written: %x", data)
			}
		})
	}
}

// The first step alone does not tell whether anything is left to do.
func TestCheckFinding_IsAboutAllSteps(t *testing.T) {
	a, wrong := service("a", "10.0.1.1"), object("10.0.1.1", "b")
	x := load(addressSettings(), objects{
		CIDRs: []allocation.CIDR{defaultCIDR()}, Services: []allocation.Service{a}, IPAddresses: []allocation.IPAddress{wrong},
	})
	runPasses(x, start)
	finding := x.Findings()[0]
	usage := allocation.CountUsage([]allocation.Service{a})
	for name, test := range map[string]struct {
		live allocation.LiveState
		want bool
	}{
		"as it was":         {live: allocation.LiveState{Usage: usage, IPAddress: &wrong}, want: true},
		"right already":     {live: allocation.LiveState{Usage: usage, IPAddress: pointer(object("10.0.1.1", "a"))}},
		"half replaced":     {live: allocation.LiveState{Usage: usage}, want: true},
		"gone with its use": {live: allocation.LiveState{Usage: allocation.CountUsage([]allocation.Service{service("c")})}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := allocation.CheckFinding(finding, test.live); got != test.want {
				t.Errorf("%s is %t, want %t", finding.Name, got, test.want)
			}
		})
	}
}

func TestReproduces_ComparesWhatWasReadLive(t *testing.T) {
	a, ports := service("a", "10.9.0.1"), nodePorts("p", 300)
	objectOfOthers := with(object("10.0.1.1", "b"), func(a *allocation.IPAddress) { a.ManagedBy = "else" })
	settings := allocation.Settings{Stores: []allocation.Store{allocation.IPAddresses, allocation.NodePorts}}
	x := load(settings, objects{
		CIDRs: []allocation.CIDR{defaultCIDR()}, Services: []allocation.Service{a, ports, service("c", "10.0.1.1")},
		IPAddresses: []allocation.IPAddress{objectOfOthers}, Bitmaps: []allocation.Bitmap{bitmap(allocation.NodePorts, "100-200")},
	})
	runPasses(x, start)
	outside := allocation.Finding{Name: "findings/out-of-range.ip-addresses.10.9.0.1"}
	port := allocation.Finding{Name: "findings/out-of-range.node-ports.300"}
	foreign := allocation.Finding{Name: "findings/wrong-reference.ip-addresses.10.0.1.1"}
	for _, finding := range []*allocation.Finding{&outside, &port, &foreign} {
		found, ok := x.Finding(finding.Name)
		if !ok || len(found.Steps) > 0 || !found.SpansWatches() {
			t.Fatalf("finding is %+v, %t, want one without steps", found, ok)
		}
		*finding = found
	}
	reborn := a
	reborn.UID = "another"
	usage := func(services ...allocation.Service) *allocation.Usage { return allocation.CountUsage(services) }
	cidrs := []allocation.CIDR{defaultCIDR()}
	wider := append(cidrs, allocation.CIDR{Name: "more", Prefixes: []string{"10.9.0.0/24"}})
	for name, test := range map[string]struct {
		finding allocation.Finding
		live    allocation.LiveObjects
		want    bool
	}{
		"no servicecidr holds it":      {finding: outside, live: allocation.LiveObjects{Usage: usage(a), CIDRs: cidrs}, want: true},
		"a new servicecidr holds it":   {finding: outside, live: allocation.LiveObjects{Usage: usage(a), CIDRs: wider}},
		"no service uses it":           {finding: outside, live: allocation.LiveObjects{Usage: usage(service("c")), CIDRs: cidrs}},
		"another service uses it":      {finding: outside, live: allocation.LiveObjects{Usage: usage(reborn), CIDRs: cidrs}},
		"the range does not hold it":   {finding: port, live: allocation.LiveObjects{Usage: usage(ports), Bitmaps: []allocation.Bitmap{bitmap(allocation.NodePorts, "100-200")}}, want: true},
		"the range holds it now":       {finding: port, live: allocation.LiveObjects{Usage: usage(ports), Bitmaps: []allocation.Bitmap{bitmap(allocation.NodePorts, "100-400")}}},
		"the object is another one's":  {finding: foreign, live: allocation.LiveObjects{Usage: usage(service("c", "10.0.1.1")), CIDRs: cidrs, IPAddress: &objectOfOthers}, want: true},
		"the object is the service's":  {finding: foreign, live: allocation.LiveObjects{Usage: usage(service("c", "10.0.1.1")), CIDRs: cidrs, IPAddress: pointer(object("10.0.1.1", "c"))}},
		"the parent uses it after all": {finding: foreign, live: allocation.LiveObjects{Usage: usage(service("c", "10.0.1.1"), service("b", "10.0.1.1")), CIDRs: cidrs, IPAddress: &objectOfOthers}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := settings.Reproduces(test.finding, test.live); got != test.want {
				t.Errorf("%s is reproduced: %t, want %t", test.finding.Name, got, test.want)
			}
		})
	}
}
