package fault

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var inventory = Inventory{
	Zones:      map[string][]string{"a": {"n1", "n3"}, "b": {"n2"}},
	Replicas:   []string{"leasesvc-1", "leasesvc-2", "slicesvc-1", "slicesvc-2"},
	APIServers: []string{"kube-apiserver-2"},
	Services:   []string{"demo/web", "demo/db"},
	ClusterIPs: []string{"demo/web"},
}

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

// script runs lines against a set and returns what each gives: the state of the set, or an error.
//
//	break KIND [NAME] [HOW] [SECONDS]   restore [KIND] [NAME]
//	start SECONDS                       the due actions begin
//	ok KIND NAME SECONDS                the action of a target ends; fail KIND NAME SECONDS: with an error
func script(lines ...string) []string {
	s, open := NewSet(inventory), map[Target]Action{}
	var got []string
	for _, line := range lines {
		words := append(strings.Fields(line), "", "", "", "")
		target := Target{Kind: Kind(words[1]), Name: words[2]}
		var seconds float64
		var err error
		switch words[0] {
		case "break":
			_, _ = fmt.Sscan(words[4], &seconds)
			_, err = s.Add(Request{Kind: target.Kind, Name: strings.Trim(words[2], "-"), How: strings.Trim(words[3], "-"), Seconds: seconds}, start)
		case "restore":
			_, err = s.Restore(target)
		case "start":
			_, _ = fmt.Sscan(words[1], &seconds)
			for _, action := range s.Start(at(int(seconds))) {
				open[action.Fault.Target] = action
			}
		default:
			_, _ = fmt.Sscan(words[3], &seconds)
			var failure error
			if words[0] == "fail" {
				failure = errors.New("no")
			}
			s.Done(open[target], Effect{Address: "10.0.0.1", Pod: "web-1"}, failure, at(int(seconds)))
			delete(open, target)
		}
		got = append(got, describe(s, open, err))
	}
	return got
}

func describe(s *Set, open map[Target]Action, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	var parts []string
	for _, f := range s.List() {
		part := fmt.Sprintf("%s %s %s", f.Target, f.How, f.Phase)
		if action, busy := open[f.Target]; busy {
			part += map[bool]string{true: "+restore", false: "+break"}[action.Restore]
		}
		if f.Problem != "" {
			part += " problem=" + f.Problem
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; ")
}

func TestSet_States(t *testing.T) {
	for name, c := range map[string]struct{ lines, want []string }{
		"break and restore": {
			[]string{"break node n1", "start 0", "ok node n1 0", "restore node n1", "start 1", "ok node n1 1"},
			[]string{"node n1 silent breaking", "node n1 silent breaking+break", "node n1 silent broken", "node n1 silent broken", "node n1 silent restoring+restore", ""},
		},
		"one action at a time": {
			[]string{"break service leasesvc-1 kill", "start 0", "start 0", "restore service leasesvc-1", "start 0", "ok service leasesvc-1 1", "start 1"},
			[]string{
				"service leasesvc-1 kill breaking", "service leasesvc-1 kill breaking+break", "service leasesvc-1 kill breaking+break",
				"service leasesvc-1 kill breaking+break", "service leasesvc-1 kill breaking+break", "service leasesvc-1 kill broken", "service leasesvc-1 kill restoring+restore",
			},
		},
		"a break that fails is restored": {
			[]string{"break apiserver", "start 0", "fail apiserver kube-apiserver-2 1", "start 1", "ok apiserver kube-apiserver-2 1"},
			[]string{"apiserver kube-apiserver-2 hang breaking", "apiserver kube-apiserver-2 hang breaking+break", "apiserver kube-apiserver-2 hang restoring", "apiserver kube-apiserver-2 hang restoring+restore", ""},
		},
		"a restore that fails is tried again after a pause": {
			[]string{"break address", "start 0", "ok address demo/web 0", "restore", "start 1", "fail address demo/web 1", "start 5", "start 6", "ok address demo/web 6"},
			[]string{
				"address demo/web delete breaking", "address demo/web delete breaking+break", "address demo/web delete broken", "address demo/web delete broken",
				"address demo/web delete restoring+restore", "address demo/web delete restoring problem=no", "address demo/web delete restoring problem=no",
				"address demo/web delete restoring+restore problem=no", "",
			},
		},
		"a person's restore does not wait for the pause": {
			[]string{"break address", "start 0", "ok address demo/web 0", "restore", "start 1", "fail address demo/web 1", "restore address", "start 2"},
			[]string{
				"address demo/web delete breaking", "address demo/web delete breaking+break", "address demo/web delete broken", "address demo/web delete broken",
				"address demo/web delete restoring+restore", "address demo/web delete restoring problem=no", "address demo/web delete restoring", "address demo/web delete restoring+restore",
			},
		},
		"a fault ends at its time": {
			[]string{"break zone a silent 30", "start 0", "ok zone a 0", "start 29", "start 30"},
			[]string{"zone a silent breaking", "zone a silent breaking+break", "zone a silent broken", "zone a silent broken", "zone a silent restoring+restore"},
		},
		"names": {
			[]string{"break node", "break node", "break service leasesvc", "break service leasesvc", "break service leasesvc", "break pods web", "break zone sim:b", "restore pods web"},
			[]string{
				"node n1 silent breaking", "node n1 silent breaking; node n2 silent breaking",
				"node n1 silent breaking; node n2 silent breaking; service leasesvc-2 hang breaking",
				"node n1 silent breaking; node n2 silent breaking; service leasesvc-2 hang breaking; service leasesvc-1 hang breaking",
				"error: every replica of leasesvc is broken already",
				"node n1 silent breaking; node n2 silent breaking; service leasesvc-2 hang breaking; service leasesvc-1 hang breaking; pods demo/web flap breaking",
				"node n1 silent breaking; node n2 silent breaking; service leasesvc-2 hang breaking; service leasesvc-1 hang breaking; pods demo/web flap breaking; zone b silent breaking",
				"node n1 silent breaking; node n2 silent breaking; service leasesvc-2 hang breaking; service leasesvc-1 hang breaking; pods demo/web flap breaking; zone b silent breaking",
			},
		},
		"wrong requests": {
			[]string{
				"break disk", "break node n9", "break node n1 kill", "break node n1 silent 3601", "break node n1 silent -1", "break node n1 silent NaN",
				"restore node n1", "restore", "break address", "break address", "break address demo/web",
			},
			[]string{
				`error: "disk" is none of node, zone, service, apiserver, address, pods`, `error: there is no node "n9"; there are n1, n2, n3`,
				`error: how: "kill" is none of silent`, "error: for: 3601 s is not between 0 and 1h0m0s", "error: for: -1 s is not between 0 and 1h0m0s",
				"error: for: NaN s is not between 0 and 1h0m0s", "error: node n1 is not broken", "", "address demo/web delete breaking",
				"error: every address is broken already", "error: address demo/web is breaking already (delete); restore it first",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, script(c.lines...)); diff != "" {
				t.Errorf("states (-want +got):\n%s", diff)
			}
		})
	}
}

// A Node of a silent zone may have a fault of its own. Each alone keeps it silent.
func TestSilentNodes_ANodeStaysSilentWhileOneCauseLasts(t *testing.T) {
	s := NewSet(inventory)
	check := func(when string, want ...string) {
		t.Helper()
		got := slices.Sorted(func(yield func(string) bool) {
			for node := range s.SilentNodes() {
				if !yield(node) {
					return
				}
			}
		})
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v are silent, want %v", when, got, want)
		}
	}
	for _, request := range []Request{{Kind: Node, Name: "n1"}, {Kind: Zone, Name: "a"}} {
		if _, err := s.Add(request, start); err != nil {
			t.Fatal(err)
		}
	}
	check("both", "n1", "n3")
	if _, err := s.Restore(Target{Kind: Zone}); err != nil {
		t.Fatal(err)
	}
	check("the zone is restored", "n1")
	if _, err := s.Restore(Target{}); err != nil {
		t.Fatal(err)
	}
	check("all is restored")
}

func TestNext_IsTheEarliestOfEndsAndRetries(t *testing.T) {
	s := NewSet(inventory)
	if !s.Next().IsZero() {
		t.Errorf("Next() = %v of an empty set", s.Next())
	}
	for name, seconds := range map[string]float64{"n1": 60, "n2": 30, "n3": 0} {
		if _, err := s.Add(Request{Kind: Node, Name: name, Seconds: seconds}, start); err != nil {
			t.Fatal(err)
		}
	}
	for _, action := range s.Start(start) {
		s.Done(action, Effect{}, nil, start)
	}
	if got := s.Next(); !got.Equal(at(30)) {
		t.Errorf("Next() = %v, want the end of n2", got)
	}
	for _, action := range s.Start(at(30)) {
		s.Done(action, Effect{}, errors.New("no"), at(31))
	}
	if got := s.Next(); !got.Equal(at(31).Add(retryPause)) {
		t.Errorf("Next() = %v, want the retry of n2", got)
	}
}

func TestAdd_ADurationRoundsToATimeAfterNow(t *testing.T) {
	s := NewSet(inventory)
	target, err := s.Add(Request{Kind: Node, Seconds: math.SmallestNonzeroFloat64}, start)
	if f, _ := s.Find(target); err != nil || !f.Until.After(start) {
		t.Errorf("Add = %v, until %v; want after %v", err, f.Until, start)
	}
}

// Each way of each kind tells a person what to look at.
func TestSteps_EveryWayHasSomeAndNoPlaceholder(t *testing.T) {
	s := NewSet(inventory)
	for _, info := range s.Kinds() {
		if len(info.Targets) == 0 || info.Text == "" {
			t.Errorf("kind %s: targets %v, text %q", info.Kind, info.Targets, info.Text)
		}
		for _, how := range info.Hows {
			steps := s.steps(Fault{Target: Target{info.Kind, info.Targets[0]}, How: how, Effect: Effect{Address: "10.0.0.1", Pod: "web-1"}})
			if len(steps) < 2 {
				t.Errorf("%s %s: steps %v", info.Kind, how, steps)
			}
			for _, step := range steps {
				if step.Command == "" || step.Expect == "" || step.Seconds < 1 || step.Seconds > 60 || strings.HasSuffix(step.Command, ".") {
					t.Errorf("%s %s: step %+v", info.Kind, how, step)
				}
			}
		}
	}
}
