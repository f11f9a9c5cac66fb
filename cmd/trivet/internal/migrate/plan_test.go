package migrate

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/clusterstate"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// seen returns facts with a running kube-controller-manager and one replica of a service.
func seen(service string, loops ...diagnosis.Loop) facts {
	return facts{
		now:     now,
		manager: diagnosis.Manager{LeaseFound: true, Holder: "cp1", Acquired: now.Add(-time.Hour), Renewed: now.Add(-time.Second)},
		installation: diagnosis.Installation{Services: []diagnosis.Service{{
			Name: service, Shards: 1, LedShards: 1, Replicas: []diagnosis.Replica{{ID: "r1", Ready: true, Loops: loops}},
		}}},
		upstream: diagnosis.Observation{Sentence: "nothing is known"},
	}
}

func loop(name string, state diagnosis.LoopState) diagnosis.Loop {
	return diagnosis.Loop{Name: name, State: state}
}

func probed(f facts, upstream, trivet int, watched time.Duration) facts {
	f.probe = &clusterstate.SliceProbe{Began: now.Add(-watched), Watched: watched, Upstream: upstream, Trivet: trivet}
	return f
}

func upstreamIs(f facts, activity diagnosis.Activity) facts {
	f.upstream.Activity = activity
	return f
}

func without(f facts, change func(*facts)) facts {
	change(&f)
	return f
}

// Each step is proven by the facts that show it, waits while they contradict it, and is unclear
// without them.
func TestSteps_Proofs(t *testing.T) {
	on, off := loop("endpointslices", diagnosis.LoopRunning), loop("endpointslices", diagnosis.LoopDisabled)
	slicesOn, slicesOff := seen("slicesvc", on), seen("slicesvc", off)
	nodesOn := seen("leasesvc", loop("node-health", diagnosis.LoopRunning))
	endpointsOn := seen("bootstrapsvc", loop("kubernetes-endpoints", diagnosis.LoopRunning))
	endpointsAlone := seen("bootstrapsvc", loop("kubernetes-endpoints", diagnosis.LoopRunning))
	endpointsOn.installation.Services[0].Replicas[0].Adopts = true
	gone := func(f *facts) { f.manager.Renewed = now.Add(-time.Hour) }
	mute := func(f *facts) { f.gatewayError = "the gateway: refused" }
	blind := func(f *facts) { f.kubeError = "kube-apiserver: refused" }
	hung := func(f *facts) {
		f.installation.Services[0].Replicas = []diagnosis.Replica{{ID: "r1", Missing: "no answer"}}
	}
	slicesThere := direction{diagnosis.Slices, true, true}
	slicesBack := direction{diagnosis.Slices, false, true}
	unprobed := direction{diagnosis.Slices, true, false}
	nodesThere, nodesBack := direction{diagnosis.Nodes, true, true}, direction{diagnosis.Nodes, false, true}
	endpointsThere, endpointsBack := direction{diagnosis.Endpoints, true, true}, direction{diagnosis.Endpoints, false, true}

	for _, c := range []struct {
		name  string
		d     direction
		step  int
		facts facts
		want  state
		says  string
	}{
		{"controller off, it created the slice", slicesThere, 0, probed(slicesOff, 1, 0, time.Second), pending, "created the EndpointSlice"},
		{"controller off, nothing came", slicesThere, 0, probed(slicesOff, 0, 0, probeTime), proven, "created no EndpointSlice"},
		{"controller off, ours created it", slicesThere, 0, probed(slicesOn, 0, 1, probeTime), proven, "created no EndpointSlice"},
		{"controller off, watched too short", slicesThere, 0, probed(slicesOff, 0, 0, time.Second), unclear, "long enough"},
		{"controller off, not yet probed", slicesThere, 0, slicesOff, unclear, "no probe"},
		{"controller off, just started", slicesThere, 0, probed(without(slicesOff, func(f *facts) { f.manager.Acquired = now.Add(-probeTime) }), 0, 0, probeTime), unclear, "just started"},
		{"controller off, it is down", slicesThere, 0, probed(without(slicesOff, gone), 0, 0, probeTime), pending, "does not run"},
		{"controller off, kube-apiserver is down", slicesThere, 0, without(slicesOff, blind), unclear, "refused"},
		{"controller off, the probe failed", slicesThere, 0, without(slicesOff, func(f *facts) { f.probeError = "forbidden" }), unclear, "forbidden"},
		{"controller off without probes, by its flag", unprobed, 0, upstreamIs(slicesOff, diagnosis.Inactive), proven, ""},
		{"controller off without probes, quiet", unprobed, 0, slicesOff, unclear, "nothing is known"},
		{"controller off without probes, it writes", unprobed, 0, upstreamIs(slicesOff, diagnosis.Active), pending, ""},
		{"ours on", slicesThere, 1, slicesOn, proven, "1 replica of slicesvc"},
		{"ours off", slicesThere, 1, slicesOff, pending, "in no replica"},
		{"ours on, a shard has no leader", slicesThere, 1, without(slicesOn, func(f *facts) {
			f.installation.Services = []diagnosis.Service{{Name: "slicesvc", Shards: 2, LedShards: 1, Replicas: f.installation.Services[0].Replicas}}
		}), pending, "1 of 2 shards"},
		{"ours on, it fails", slicesThere, 1, seen("slicesvc", loop("endpointslices", diagnosis.LoopFailing)), pending, "fails"},
		{"ours on, no gateway", slicesThere, 1, without(slicesOn, mute), unclear, "refused"},
		{"alone", slicesThere, 2, probed(slicesOn, 0, 1, probeTime), proven, "slicesvc alone"},
		{"alone, upstream came back", slicesThere, 2, probed(slicesOn, 1, 1, probeTime), pending, "too"},
		{"alone, ours does not write", slicesThere, 2, probed(slicesOn, 0, 0, probeTime), pending, "creates no"},

		{"ours off on the way back", slicesBack, 0, slicesOff, proven, "in no replica"},
		{"ours still on", slicesBack, 0, slicesOn, pending, "on in r1"},
		{"ours silent", slicesBack, 0, without(seen("slicesvc"), hung), unclear, "no answer of r1"},
		{"upstream back", slicesBack, 1, probed(slicesOff, 1, 0, time.Second), proven, "created the EndpointSlice"},
		{"upstream not back", slicesBack, 1, probed(slicesOff, 0, 0, probeTime), pending, "creates no"},

		{"node-lifecycle off", nodesThere, 0, upstreamIs(nodesOn, diagnosis.Inactive), proven, ""},
		{"node-lifecycle unclear", nodesThere, 0, nodesOn, unclear, ""},
		{"node-lifecycle off, it is down", nodesThere, 0, without(upstreamIs(nodesOn, diagnosis.Inactive), gone), pending, "does not run"},
		{"node-health on", nodesThere, 1, nodesOn, proven, "node-health"},
		{"node-health knows not all Nodes", nodesThere, 2, without(upstreamIs(nodesOn, diagnosis.Inactive), func(f *facts) { f.nodes, f.judged = 3, 2 }), pending, "2 of 3 Nodes"},
		{"node-health knows all Nodes", nodesThere, 2, without(upstreamIs(nodesOn, diagnosis.Inactive), func(f *facts) { f.nodes, f.judged = 3, 3 }), proven, "leasesvc alone"},
		{"node-lifecycle back", nodesBack, 1, upstreamIs(seen("leasesvc"), diagnosis.Active), proven, ""},

		{"adopting", endpointsThere, 0, without(endpointsOn, func(f *facts) { f.apiServers = 1 }), proven, "--adopt-master-leases"},
		{"not adopting", endpointsThere, 0, endpointsAlone, pending, "no replica"},
		{"a kube-apiserver without a sidecar", endpointsThere, 0, without(endpointsOn, func(f *facts) { f.unadopted = 1 }), pending, "1 kube-apiserver without"},
		{"fewer replicas than kube-apiservers", endpointsThere, 0, without(endpointsOn, func(f *facts) { f.apiServers = 3 }), pending, "1 replica for 3 kube-apiservers"},
		{"reconcilers off", endpointsThere, 1, upstreamIs(endpointsOn, diagnosis.Inactive), proven, ""},
		{"reconcilers on", endpointsThere, 1, upstreamIs(endpointsOn, diagnosis.Active), pending, ""},
		{"still adopting", endpointsThere, 2, upstreamIs(endpointsOn, diagnosis.Inactive), pending, "--adopt-master-leases"},
		{"endpoints alone", endpointsThere, 2, upstreamIs(endpointsAlone, diagnosis.Inactive), proven, "bootstrapsvc alone"},
		{"one reconciler is back", endpointsBack, 1, without(upstreamIs(endpointsOn, diagnosis.Active), func(f *facts) { f.keysRead, f.aliveKeys, f.apiServers = true, 1, 3 }), pending, "1 of 3"},
		{"all reconcilers are back", endpointsBack, 1, without(upstreamIs(endpointsOn, diagnosis.Active), func(f *facts) { f.keysRead, f.aliveKeys, f.apiServers = true, 3, 3 }), proven, ""},
		{"a kube-apiserver is restarted on the way there", endpointsThere, 1, without(upstreamIs(endpointsOn, diagnosis.Inactive), func(f *facts) { f.stoppedServers = []string{"cp1"} }), unclear, "kube-apiserver of cp1 does not run"},
		{"a kube-apiserver is restarted on the way back", endpointsBack, 1, without(upstreamIs(endpointsOn, diagnosis.Active), func(f *facts) {
			f.keysRead, f.aliveKeys, f.apiServers, f.stoppedServers = true, 1, 1, []string{"cp1"}
		}), unclear, "kube-apiserver of cp1 does not run"},
		{"no replica tells the switch", slicesBack, 0, seen("leasesvc"), unclear, "switches/slicesvc"},
		{"endpoints off", endpointsBack, 2, seen("bootstrapsvc", loop("kubernetes-endpoints", diagnosis.LoopDisabled)), proven, "in no replica"},
	} {
		got, saw := c.d.steps(c.facts)[c.step].prove(c.facts)
		if got != c.want || !strings.Contains(saw, c.says) || saw == "" {
			t.Errorf("%s: %s, %q; want %s with %q", c.name, got, saw, c.want, c.says)
		}
	}
}

// Replicas that stop leave no switch if their flags decided; otherwise it is not known.
func TestSteps_StoppedReplicasProveOffOnlyWithoutASwitch(t *testing.T) {
	d := direction{diagnosis.Slices, false, true}
	writing := loop("endpointslices", diagnosis.LoopRunning)
	for _, c := range []struct {
		switched time.Time
		want     state
	}{{time.Time{}, proven}, {now, unclear}} {
		writing.Switched = c.switched
		if got, saw := d.steps(seen("slicesvc", writing))[0].prove(seen("leasesvc")); got != c.want {
			t.Errorf("switched %v: %s, %s; want %s", c.switched, got, saw, c.want)
		}
	}
}

func TestControllers_ValueOfTheFlag(t *testing.T) {
	const name = "endpointslice-controller"
	for _, c := range []struct {
		value string
		given bool
		on    bool
		want  string
	}{
		{"", false, false, "*,-endpointslice-controller"},
		{"*,bootstrap-signer-controller", true, false, "*,bootstrap-signer-controller,-endpointslice-controller"},
		{"*,-endpointslice-controller,x", true, true, "*,x"},
		{"a,endpointslice-controller", true, false, "a"},
		{"a", true, true, "a,endpointslice-controller"},
	} {
		if got := controllers(c.value, c.given, name, c.on); got != c.want {
			t.Errorf("controllers(%q, %t, on %t) = %q, want %q", c.value, c.given, c.on, got, c.want)
		}
	}
}

func TestDescribe_EachPlan(t *testing.T) {
	for _, duty := range diagnosis.Duties() {
		service, name := diagnosis.LoopOf(duty)
		for to, toTrivet := range map[string]bool{"trivet": true, "upstream": false} {
			d := direction{duty, toTrivet, true}
			f := seen(service, loop(name, diagnosis.LoopDisabled))
			if duty == diagnosis.Slices {
				f.manager.Programs = []diagnosis.Program{{Pod: "kube-controller-manager-cp1", Flag: "*,bootstrap-signer-controller", Given: true}}
			}
			commandtest.Golden(t, string(duty)+"-to-"+to+".txt", describe(d, f, d.steps(f)))
		}
	}
}

// Replicas with the loop in dry run are switched by the command; if flags decide in one of them, a
// person changes flags.
func TestSteps_SwitchALoopInDryRun(t *testing.T) {
	for _, duty := range diagnosis.Duties() {
		service, name := diagnosis.LoopOf(duty)
		planning, writing := loop(name, diagnosis.LoopRunning), loop(name, diagnosis.LoopRunning)
		planning.Shadow, writing.Switched = true, now.Add(-time.Minute)
		for _, c := range []struct {
			toTrivet bool
			loop     diagnosis.Loop
			switches bool
		}{
			{true, planning, true},
			{true, loop(name, diagnosis.LoopDisabled), false},
			{false, writing, true},
			{false, loop(name, diagnosis.LoopRunning), false},
		} {
			f := seen(service, c.loop)
			f.installation.Services[0].Replicas[0].Adopts = true
			f.installation.Services[0].Replicas = append(f.installation.Services[0].Replicas, diagnosis.Replica{ID: "r2", Missing: "no answer"})
			d := direction{duty, c.toTrivet, true}
			var switched []loopSwitch
			for _, s := range d.steps(f) {
				if s.switches != nil && s.switches(f) != nil {
					switched = append(switched, *s.switches(f))
				}
			}
			var want []loopSwitch
			if c.switches {
				want = []loopSwitch{{service, name, c.toTrivet}}
			}
			if !slices.Equal(switched, want) {
				t.Errorf("%s to Trivet %t with %+v: the command switches %v, want %v", duty, c.toTrivet, c.loop, switched, want)
			}
			f.installation.Services[0].Replicas = append(f.installation.Services[0].Replicas, diagnosis.Replica{ID: "r3", Loops: []diagnosis.Loop{loop(name, diagnosis.LoopDisabled)}})
			for _, s := range d.steps(f) {
				if s.switches != nil && s.switches(f) != nil {
					t.Errorf("%s to Trivet %t: the command switches %v, which --loops turns off in r3", duty, c.toTrivet, *s.switches(f))
				}
			}
		}
	}
}

// The flags of visible Pods prove at once that a controller is off, unless an unseen program leads,
// a Pod is away, or a write contradicts them. Then a probe is needed.
func TestFlags_ProveOnlyForTheProgramThatLeads(t *testing.T) {
	d := direction{diagnosis.Slices, true, true}
	pod := func(flag string) diagnosis.Program {
		return diagnosis.Program{Pod: "kube-controller-manager-cp1", Node: "cp1", Started: now.Add(-time.Second), Flag: flag, Given: true}
	}
	const off = "*,-endpointslice-controller"
	for name, c := range map[string]struct {
		holder   string
		programs []diagnosis.Program
		absent   []string
		activity diagnosis.Activity
		want     state
		decide   bool
	}{
		"off":                              {"cp1_x", []diagnosis.Program{pod(off)}, nil, diagnosis.Inactive, proven, true},
		"off by its former name":           {"cp1_x", []diagnosis.Program{pod("*,-endpointslice")}, nil, diagnosis.Inactive, proven, true},
		"on by its former name":            {"cp1_x", []diagnosis.Program{pod("endpointslice")}, nil, diagnosis.Inactive, pending, true},
		"still on":                         {"cp1_x", []diagnosis.Program{pod("*")}, nil, diagnosis.Active, pending, true},
		"on, and does not renew":           {"cp1_x", []diagnosis.Program{pod("*")}, nil, diagnosis.Inactive, pending, true},
		"one of two still on":              {"cp1_x", []diagnosis.Program{pod(off), pod("*")}, nil, diagnosis.Unclear, pending, true},
		"a Pod of another machine is away": {"cp1_x", []diagnosis.Program{pod(off)}, []string{"kube-controller-manager-cp2"}, diagnosis.Inactive, unclear, true},
		"its Pod is replaced":              {"cp1_x", nil, []string{"kube-controller-manager-cp1"}, diagnosis.Unclear, unclear, true},
		"another machine leads":            {"cp2_x", []diagnosis.Program{pod(off)}, nil, diagnosis.Inactive, unclear, false},
		"no process leads":                 {"", []diagnosis.Program{pod(off)}, nil, diagnosis.Inactive, pending, false},
		"it wrote after its start":         {"cp1_x", []diagnosis.Program{pod(off)}, nil, diagnosis.Active, unclear, false},
		"no Pod is visible":                {"cp1_x", nil, nil, diagnosis.Unclear, unclear, false},
	} {
		f := upstreamIs(seen("slicesvc", loop("endpointslices", diagnosis.LoopDisabled)), c.activity)
		f.manager.Holder, f.manager.Programs, f.absentManagers = c.holder, c.programs, c.absent
		got, _ := d.steps(f)[0].prove(f)
		if decide := f.flagsDecide(d.duty); got != c.want || decide != c.decide {
			t.Errorf("%s: %s, flags decide %t; want %s, %t", name, got, decide, c.want, c.decide)
		}
		on := d.steps(f)[1]
		if waits := on.waits(f) != ""; waits != (c.want == pending) {
			t.Errorf("%s: the switch waits %t", name, waits)
		}
	}
}

func TestCommand_MistakesAreToldTogether(t *testing.T) {
	got := commandtest.Run(t, commandtest.Terminal{}, NewCommand, "pods", "--to=nowhere", "--wait-duration=0s", "--server=127.0.0.1:1")
	if got.Code != exit.Usage || got.Stdout != "" {
		t.Errorf("%s", got)
	}
	for _, text := range []string{"slices mirroring nodes evictions endpoints", "--to", "--wait-duration", "--kubeconfig"} {
		if !strings.Contains(got.Stderr, text) {
			t.Errorf("%q is not told: %s", text, got)
		}
	}
	if got := commandtest.Run(t, commandtest.Terminal{}, NewCommand, "slices", "--to=trivet"); got.Code != exit.Usage || !strings.Contains(got.Stderr, "KUBECONFIG") {
		t.Errorf("without a kubeconfig: %s", got)
	}
}
