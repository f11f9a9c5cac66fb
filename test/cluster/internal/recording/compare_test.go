package recording

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const second = time.Second

// recorded is a recording of one step of a minute.
func recorded(changes ...Change) Recording {
	r := Recording{Steps: []Step{{Name: "kubelet stopped", Duration: time.Minute}}}
	for _, c := range changes {
		c.Step = "kubelet stopped"
		r.Changes = append(r.Changes, c)
	}
	return r
}

func ready(after time.Duration, value string) Change {
	return Change{After: after, Kind: KindNode, Object: "w1", Field: "condition Ready", Value: value}
}

func taint(after time.Duration, value string) Change {
	return Change{After: after, Kind: KindNode, Object: "w1", Field: "taint unreachable", Value: value}
}

func renewed(count string) Change {
	return Change{After: time.Minute, Kind: KindLease, Object: "w1", Field: fieldRenewals, Value: count}
}

func event(after time.Duration, message string) Change {
	return Change{After: after, Kind: KindEvent, Object: "Node w1", Field: "Ready", Value: message}
}

var tolerance = Tolerance{Ratio: 1.5, Absolute: 2 * second}

func TestCompare_EachKindOfDifference(t *testing.T) {
	for name, c := range map[string]struct {
		upstream, ours []Change
		want           []string
	}{
		"equal":                          {[]Change{ready(second, "False")}, []Change{ready(second, "False")}, nil},
		"within the absolute tolerance":  {[]Change{ready(second, "False")}, []Change{ready(3*second, "False")}, nil},
		"within the ratio":               {[]Change{ready(20*second, "False")}, []Change{ready(29*second, "False")}, nil},
		"slower":                         {[]Change{ready(20*second, "False")}, []Change{ready(31*second, "False")}, []string{"slower Ready 20→31"}},
		"faster":                         {[]Change{ready(50*second, "False")}, []Change{ready(20*second, "False")}, []string{"faster Ready 50→20"}},
		"missing":                        {[]Change{taint(second, "present")}, nil, []string{"missing unreachable 1→0"}},
		"added":                          {nil, []Change{taint(second, "present")}, []string{"added unreachable 0→1"}},
		"other value":                    {[]Change{ready(second, "Unknown")}, []Change{ready(second, "False")}, []string{"other value Ready 1→1"}},
		"a flap more":                    {[]Change{ready(second, "True")}, []Change{ready(second, "True"), ready(2*second, "False"), ready(3*second, "True")}, []string{"added Ready 0→2", "added Ready 0→3"}},
		"a value between is missing":     {[]Change{ready(1*second, "a"), ready(2*second, "b"), ready(3*second, "c")}, []Change{ready(1*second, "a"), ready(3*second, "c")}, []string{"missing Ready 2→0"}},
		"the end of a field is missing":  {[]Change{taint(1*second, "present"), taint(4*second, "")}, []Change{taint(1*second, "present")}, []string{"missing unreachable 4→0"}},
		"the opposite order":             {[]Change{ready(10*second, "x"), taint(13*second, "y")}, []Change{taint(10*second, "y"), ready(13*second, "x")}, []string{"other order Ready before taint unreachable 10→13"}},
		"the opposite order, but nearly": {[]Change{ready(10*second, "x"), taint(11*second, "y")}, []Change{taint(10*second, "y"), ready(11*second, "x")}, nil},
		"events in another order":        {[]Change{event(second, "a"), event(second, "b"), event(second, "x")}, []Change{event(second, "b"), event(second, "a"), event(second, "y")}, []string{"other value Ready 1→1"}},
		"fewer renewals":                 {[]Change{renewed("6")}, []Change{renewed("1")}, []string{"slower renewals 60→60"}},
		"no renewals":                    {[]Change{renewed("6")}, nil, []string{"slower renewals 60→60"}},
		"more renewals":                  {[]Change{renewed("6")}, []Change{renewed("12")}, []string{"faster renewals 60→60"}},
		"a renewal less by chance":       {[]Change{renewed("2")}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := Compare(recorded(c.upstream...), recorded(c.ours...), Rules{Tolerance: tolerance})
			var summary []string
			for _, d := range got.Differences {
				name := strings.TrimPrefix(strings.TrimPrefix(d.Field, "condition "), "taint ")
				summary = append(summary, string(d.Difference)+" "+name+" "+whole(d.UpstreamAfter)+"→"+whole(d.OursAfter))
			}
			if diff := cmp.Diff(c.want, summary); diff != "" {
				t.Errorf("differences (-want +got):\n%s", diff)
			}
			if len(got.Problems()) != len(c.want) {
				t.Errorf("problems = %q, want one for each difference", got.Problems())
			}
		})
	}
}

func whole(d time.Duration) string { return strconv.Itoa(int(d / second)) }

func TestCompare_OtherStepsAreADifference(t *testing.T) {
	upstream := recorded(ready(second, "True"))
	ours := Recording{Steps: []Step{{Name: "another"}}}
	got := Compare(upstream, ours, Rules{Tolerance: tolerance})
	if len(got.Differences) != 1 || got.Differences[0].Difference != OtherSteps {
		t.Errorf("differences = %v, want other steps alone", got.Differences)
	}
}

func TestCompare_Allowances(t *testing.T) {
	slower := func(after time.Duration) Comparison {
		return Compare(recorded(ready(20*second, "Unknown")), recorded(ready(after, "Unknown")), Rules{
			Tolerance: tolerance,
			Allowances: []Allowance{{
				Difference: []DifferenceKind{Slower}, Step: "kubelet*", Kind: KindNode, Field: "condition *", AtMost: 2, Because: "the reason",
			}},
		})
	}
	if got := slower(39 * second); len(got.Problems()) > 0 || got.Differences[0].Because != "the reason" {
		t.Errorf("problems = %q, want none within the bound", got.Problems())
	}
	if got := slower(41 * second); len(got.Problems()) != 2 { // the difference, and the allowance that nothing uses
		t.Errorf("problems = %q, want the difference beyond the bound, and the unused allowance", got.Problems())
	}
}

func TestCompare_UnusedAllowanceIsAProblem(t *testing.T) {
	same := recorded(ready(second, "True"))
	allowances := []Allowance{{Kind: KindNode, Because: "never needed"}, {Kind: KindPod, Because: "chance", Sometimes: true}}
	problems := Compare(same, same, Rules{Tolerance: tolerance, Allowances: allowances}).Problems()
	if len(problems) != 1 || !strings.Contains(problems[0], "never needed") {
		t.Errorf("problems = %q, want the allowance that is not marked as rare", problems)
	}
}

func TestAllowance_EveryPatternMustMatch(t *testing.T) {
	difference := Difference{Difference: OtherValue, Step: "rollout", Kind: KindEvent, Object: "Node w1", Field: "NodeNotReady source", Upstream: "node-controller", Ours: "trivet"}
	for name, c := range map[string]struct {
		allowance Allowance
		want      bool
	}{
		"all":        {Allowance{}, true},
		"exact":      {Allowance{Difference: []DifferenceKind{OtherValue}, Step: "rollout", Kind: KindEvent, Object: "Node w1", Field: "NodeNotReady source", Upstream: "node-controller", Ours: "trivet"}, true},
		"wildcards":  {Allowance{Object: "Node *", Field: "* source"}, true},
		"part":       {Allowance{Field: "NodeNotReady"}, false},
		"no regexp":  {Allowance{Object: "Node .1"}, false},
		"difference": {Allowance{Difference: []DifferenceKind{Missing, Added}}, false},
		"step":       {Allowance{Step: "x"}, false},
		"kind":       {Allowance{Kind: KindNode}, false},
		"upstream":   {Allowance{Upstream: "kubelet"}, false},
		"ours":       {Allowance{Ours: "kubelet"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.allowance.matcher()(difference); got != c.want {
				t.Errorf("covers = %t, want %t", got, c.want)
			}
		})
	}
}

func TestPrint_ShowsWhatDiffersAndWhy(t *testing.T) {
	comparison := Compare(
		recorded(ready(50*second, "Unknown"), taint(51*second, "present")),
		recorded(ready(20*second, "Unknown"), Change{Kind: KindPod, Object: "web-1", Field: "phase", Value: "a|b"}),
		Rules{Tolerance: tolerance, Allowances: []Allowance{{Difference: []DifferenceKind{Faster}, Because: "Nodes are found dead sooner."}}})
	var text strings.Builder
	if err := comparison.Print(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| kubelet stopped | 60.0 s, 2 changes | 60.0 s, 2 changes |",
		"1 changes are the same. 1 differences are intended, 2 are not.",
		"| kubelet stopped | missing | Node w1: taint unreachable | present, 51.0 s | – |",
		`| kubelet stopped | added | Pod web-1: phase | – | a\|b, 0.00 s |`,
		"Nodes are found dead sooner.\n\n| step |",
		"| kubelet stopped | faster | Node w1: condition Ready | Unknown, 50.0 s | Unknown, 20.0 s |",
		"| kubelet stopped | Node w1: condition Ready | Unknown | 50.0 s | 20.0 s |",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no line %q in:\n%s", want, text.String())
		}
	}
}
