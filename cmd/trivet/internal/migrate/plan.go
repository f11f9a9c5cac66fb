package migrate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/clusterstate"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/internal/cli/printer"
)

// state is the result of a proof.
type state string

const (
	// proven means that the step is done.
	proven state = "done"
	// pending means that the facts contradict the step.
	pending state = "pending"
	// unclear means that the facts neither prove nor contradict the step.
	unclear state = "unclear"
)

// facts are one observation of the cluster. A missing part has its reason in errors.
type facts struct {
	now          time.Time // when the observation ended
	took         time.Duration
	manager      diagnosis.Manager
	upstream     diagnosis.Observation
	installation diagnosis.Installation
	// probe is the last finished probe Service; nil before the first.
	probe *clusterstate.SliceProbe
	// nodes is the number of Nodes, and judged how many of them node health knows.
	nodes, judged int
	// apiServers is the number of kube-apiservers, aliveKeys of how many the endpoint reconciler
	// runs, if keysRead, and unadopted how many have no sidecar.
	apiServers, aliveKeys, unadopted int
	keysRead                         bool
	// absentManagers are Pods of kube-controller-manager that were seen and do not run now. Each
	// may return with any flag.
	absentManagers []string
	// stoppedServers are kube-apiservers that do not run now and may return with any flag.
	stoppedServers []string

	// Reasons why a part could not be read; empty if it was.
	kubeError, gatewayError, probeError string
}

// step is one change, and how it shows that it was made.
type step struct {
	Title string
	// Change says which flag of which program to change; empty if the step only waits.
	Change string
	// Proof says what proves the step.
	Proof string
	// needsProbe means that the proof is a probe Service, and needsSilence that it counts only if
	// kube-controller-manager had time to start before it.
	needsProbe, needsSilence bool
	// byFlags means that visible flags of kube-controller-manager prove the step without a probe.
	byFlags bool
	// switches returns the loop that the command itself switches; nil if flags decide. It is nil in
	// a step that a person makes. waits returns why the switch must not be made yet, or "".
	switches func(facts) *loopSwitch
	waits    func(facts) string
	switched bool
	prove    func(facts) (state, string)
}

// loopSwitch is a loop in --dry-run that is to write, or to plan only.
type loopSwitch struct {
	service, loop string
	writes        bool
}

// direction is where a duty moves.
type direction struct {
	duty diagnosis.Duty
	// toTrivet is false for the way back.
	toTrivet bool
	// probe says whether probe Services are allowed.
	probe bool
}

// steps returns the steps of a migration. They only depend on the facts for the values of flags.
// Upstream's controllers stop before Trivet's loops begin, and the reverse on the way back.
// kube-apiservers change one by one beside bootstrapsvc, which adopts the ones of the other kind.
func (d direction) steps(f facts) []step {
	switch {
	case d.duty == diagnosis.Endpoints && d.toTrivet:
		return []step{d.adopt(f), reconcilersOff(), d.alone("Remove --adopt-master-leases from bootstrapsvc.", "bootstrapsvc: remove --adopt-master-leases, one replica after the other")}
	case d.duty == diagnosis.Endpoints:
		return []step{d.adopt(f), reconcilersOn(), d.trivetOff(f)}
	case d.toTrivet:
		off := d.controllerOff(f)
		return []step{off, d.trivetOn(f, off), d.alone("See that Trivet alone writes.", "")}
	default:
		return []step{d.trivetOff(f), d.controllerOn(f)}
	}
}

// gap says what no program does between two steps; empty if there is no gap.
func (d direction) gap() string {
	switch d.duty {
	case diagnosis.Slices, diagnosis.Mirroring:
		return "Between steps 1 and 2 no program writes these EndpointSlices: published endpoints stay as they are."
	case diagnosis.Nodes:
		return "Between steps 1 and 2 no program judges Nodes: conditions and taints stay as they are."
	case diagnosis.Evictions:
		return "Between steps 1 and 2 no program evicts Pods for taints."
	default:
		return ""
	}
}

// controllers returns the value of --controllers with a controller on or off. The order of the
// other names stays.
func controllers(value string, given bool, name string, on bool) string {
	names := []string{"*"}
	if given {
		names = strings.Split(value, ",")
	}
	names = slices.DeleteFunc(names, func(n string) bool { return n == name || n == "-"+name })
	switch {
	case on && !slices.Contains(names, "*"):
		names = append(names, name)
	case !on && slices.Contains(names, "*"):
		names = append(names, "-"+name)
	}
	return strings.Join(names, ",")
}

// managerChange says how to change --controllers. Without visible Pods it shows the change of the
// default.
func (d direction) managerChange(f facts, on bool) string {
	name := diagnosis.ControllerOf(d.duty)
	if len(f.manager.Programs) == 0 {
		if on {
			return fmt.Sprintf("kube-controller-manager: remove -%s from --controllers, on every replica", name)
		}
		return fmt.Sprintf("kube-controller-manager: --controllers=*,-%s, on every replica; keep what your list has", name)
	}
	var changes []string
	for _, p := range f.manager.Programs {
		now := "not set"
		if p.Given {
			now = p.Flag
		}
		changes = append(changes, fmt.Sprintf("Pod %s: --controllers=%s (now %s)", p.Pod, controllers(p.Flag, p.Given, name, on), now))
	}
	return strings.Join(changes, "; ")
}

func (d direction) controllerOff(f facts) step {
	name := diagnosis.ControllerOf(d.duty)
	return step{
		Title:      "Turn off upstream's " + name + ".",
		Change:     d.managerChange(f, false),
		Proof:      d.upstreamProof("kube-controller-manager runs and creates no EndpointSlice for a new Service without Pods", "kube-controller-manager starts and registers no Node"),
		needsProbe: d.probes(), needsSilence: true, byFlags: true,
		prove: func(f facts) (state, string) {
			flags := f.flags(d.duty)
			switch {
			case f.kubeError != "":
				return unclear, f.kubeError
			case flags == pending && f.upstream.Activity != diagnosis.Active:
				return pending, fmt.Sprintf("--controllers of a Pod has %s on", name)
			case flags != unclear:
				return flags, f.upstream.Sentence
			case len(f.absentManagers) > 0:
				return unclear, fmt.Sprintf("Pod %s does not run and may return with any flag; if it was removed, run the command again", strings.Join(f.absentManagers, ", "))
			case !f.managerRuns():
				return pending, "kube-controller-manager does not run; start it with the changed flag"
			case d.probes():
				return f.probedUpstream(false)
			}
			return f.observed(diagnosis.Inactive)
		},
	}
}

func (d direction) controllerOn(f facts) step {
	name := diagnosis.ControllerOf(d.duty)
	return step{
		Title:      "Turn on upstream's " + name + ".",
		Change:     d.managerChange(f, true),
		Proof:      d.upstreamProof("kube-controller-manager creates the EndpointSlice of a new Service without Pods", "kube-controller-manager registers a Node after its start"),
		needsProbe: d.probes(),
		prove: func(f facts) (state, string) {
			switch {
			case f.kubeError != "":
				return unclear, f.kubeError
			case !f.managerRuns():
				return pending, "kube-controller-manager does not run"
			case d.probes():
				return f.probedUpstream(true)
			}
			return f.observed(diagnosis.Active)
		},
	}
}

// probes reports whether probe Services prove the steps. They prove only the duty of slices.
func (d direction) probes() bool { return d.probe && d.duty == diagnosis.Slices }

// isOptional reports whether Trivet's loop is off by default.
func (d direction) isOptional() bool {
	return d.duty == diagnosis.Mirroring || d.duty == diagnosis.Nodes || d.duty == diagnosis.Evictions
}

func (d direction) upstreamProof(probe, nodes string) string {
	switch {
	case d.probes():
		return probe
	case d.duty == diagnosis.Nodes:
		return nodes + ", or --controllers of its Pods"
	case d.duty == diagnosis.Evictions:
		return "--controllers of the Pods of kube-controller-manager"
	default:
		return "the managed fields of EndpointSlices, or --controllers of the Pods of kube-controller-manager"
	}
}

// switchOf returns the switch of a duty's loop if every replica that answers has the loop in
// --dry-run; nil if flags decide.
func switchOf(f facts, duty diagnosis.Duty, writes bool) *loopSwitch {
	service, loop := diagnosis.LoopOf(duty)
	inDryRun := false
	for _, replica := range f.installation.Service(service).Replicas {
		if replica.Missing != "" {
			continue
		}
		if inDryRun = slices.ContainsFunc(replica.Loops, func(l diagnosis.Loop) bool { return l.Name == loop && l.InDryRun() }); !inDryRun {
			return nil
		}
	}
	if !inDryRun {
		return nil
	}
	return &loopSwitch{service: service, loop: loop, writes: writes}
}

// change says what the command does.
func (s *loopSwitch) change() string {
	return fmt.Sprintf("none: the loop is in --dry-run, and this command switches it %s in every replica", map[bool]string{true: "on", false: "off"}[s.writes])
}

// trivetOn needs the step before it: what it found is looked at again before the switch.
func (d direction) trivetOn(f facts, before step) step {
	service, loop := diagnosis.LoopOf(d.duty)
	change := fmt.Sprintf("%s: start it with --loops=*, its default, on every replica", service)
	if d.isOptional() {
		change = fmt.Sprintf("%s: --loops=*,%s on every replica, with the roles of deploy/components/%s", service, loop, loop)
	}
	return step{
		Title: fmt.Sprintf("Turn on the loop %s of %s.", loop, service), Change: change,
		Proof: "the loop runs in every replica, and every shard has a leader",
		prove: func(f facts) (state, string) { return f.carried(d.duty) },
		waits: func(f facts) string {
			if result, saw := before.prove(f); result == pending {
				return "not switched on: " + saw
			}
			return ""
		},
	}.switching(f, d.duty, true)
}

// switching returns the step with a switch, where flags do not decide.
func (s step) switching(f facts, duty diagnosis.Duty, writes bool) step {
	s.switches = func(f facts) *loopSwitch { return switchOf(f, duty, writes) }
	if to := s.switches(f); to != nil {
		s.Change = to.change()
	}
	return s
}

func (d direction) trivetOff(f facts) step {
	service, loop := diagnosis.LoopOf(d.duty)
	// Where a replica was seen whose flags decide, there is no switch.
	noSwitch := len(diagnosis.CarrierOf(f.installation, d.duty).On) > 0 && switchOf(f, d.duty, false) == nil
	change := fmt.Sprintf("%s: --loops=*,-%s on every replica, or stop all replicas", service, loop)
	if d.isOptional() {
		change = fmt.Sprintf("%s: remove %s from --loops on every replica", service, loop)
	}
	if d.duty == diagnosis.Nodes {
		change += "; with --write-policy=on-change, first set --write-policy=relaxed and wait for half a minute"
	}
	return step{
		Title: fmt.Sprintf("Turn off the loop %s of %s.", loop, service), Change: change,
		Proof: "every replica says that its loop is off",
		prove: func(f facts) (state, string) {
			c := diagnosis.CarrierOf(f.installation, d.duty)
			switch {
			case f.gatewayError != "":
				return unclear, f.gatewayError
			case len(c.On) > 0:
				return pending, fmt.Sprintf("the loop is on in %s", strings.Join(c.On, ", "))
			case len(c.Silent) > 0:
				return unclear, fmt.Sprintf("no answer of %s", strings.Join(c.Silent, ", "))
			case len(c.Off) == 0 && !noSwitch:
				return unclear, fmt.Sprintf("no replica of %s is registered, so its switch in etcd is not known; start one, or delete the key switches/%s of docs/shadow.md", service, service)
			default:
				return proven, fmt.Sprintf("the loop %s runs in no replica of %s", loop, service)
			}
		},
	}.switching(f, d.duty, false)
}

func (d direction) alone(title, change string) step {
	service, loop := diagnosis.LoopOf(d.duty)
	proof := "upstream's loop is off, and the loop " + loop + " runs in every replica"
	switch {
	case d.probes():
		proof = "only " + service + " creates the EndpointSlice of a new Service without Pods"
	case d.duty == diagnosis.Nodes:
		proof += ", which knows all Nodes"
	}
	return step{
		Title: title, Change: change, Proof: proof, needsProbe: d.probes(), needsSilence: true,
		prove: func(f facts) (state, string) {
			if s, saw := f.carried(d.duty); s != proven {
				return s, saw
			}
			switch {
			case d.probes():
				return f.probedAlone(service)
			case d.duty == diagnosis.Nodes && f.judged < f.nodes:
				return pending, fmt.Sprintf("node-health knows %d of %d Nodes", f.judged, f.nodes)
			case d.duty == diagnosis.Endpoints && f.installation.Adopts():
				return pending, "a replica of bootstrapsvc runs with --adopt-master-leases"
			}
			if s, saw := f.observed(diagnosis.Inactive); s != proven {
				return s, saw
			}
			return proven, service + " alone writes"
		},
	}
}

func (d direction) adopt(f facts) step {
	s := step{
		Title:  "Run bootstrapsvc beside every kube-apiserver, with --adopt-master-leases.",
		Change: "bootstrapsvc: --adopt-master-leases and --loops=* on every replica",
		Proof:  "every kube-apiserver has a replica of bootstrapsvc, and the loop kubernetes-endpoints runs",
		prove: func(f facts) (state, string) {
			if s, saw := f.carried(diagnosis.Endpoints); s != proven {
				return s, saw
			}
			if why := f.notAdopted(); why != "" {
				return pending, why
			}
			return proven, fmt.Sprintf("bootstrapsvc has %s, with --adopt-master-leases", printer.Count(len(f.installation.Service("bootstrapsvc").Replicas), "replica"))
		},
		waits: facts.notAdopted,
	}
	if !d.toTrivet {
		return s // what is off now does not begin
	}
	return s.switching(f, diagnosis.Endpoints, true)
}

// notAdopted returns why bootstrapsvc does not keep the addresses of every kube-apiserver; empty if
// it does.
func (f facts) notAdopted() string {
	replicas := f.installation.Service("bootstrapsvc").Replicas
	adopting := 0
	for _, replica := range replicas {
		if replica.Adopts {
			adopting++
		}
	}
	switch {
	case adopting == 0:
		return "no replica of bootstrapsvc runs with --adopt-master-leases"
	case adopting < len(replicas):
		return fmt.Sprintf("%d of %s of bootstrapsvc with --adopt-master-leases", adopting, printer.Count(len(replicas), "replica"))
	case f.unadopted > 0:
		return printer.Count(f.unadopted, "kube-apiserver") + " without a replica of bootstrapsvc"
	case len(replicas) < f.apiServers:
		return fmt.Sprintf("bootstrapsvc has %s for %s", printer.Count(len(replicas), "replica"), printer.Count(f.apiServers, "kube-apiserver"))
	}
	return ""
}

func reconcilersOff() step {
	return step{
		Title:  "Turn off the endpoint reconciler of every kube-apiserver.",
		Change: "kube-apiserver: --endpoint-reconciler-type=none, one after the other",
		Proof:  "no kube-apiserver renews its key in etcd, or the flag of every kube-apiserver Pod",
		prove: func(f facts) (state, string) {
			if s, saw := f.observed(diagnosis.Inactive); s != proven || len(f.stoppedServers) == 0 {
				return s, saw
			}
			return f.stopped()
		},
	}
}

func reconcilersOn() step {
	return step{
		Title:  "Turn on the endpoint reconciler of every kube-apiserver.",
		Change: "kube-apiserver: remove --endpoint-reconciler-type=none, one after the other",
		Proof:  "every kube-apiserver renews its key in etcd, or the flag of every kube-apiserver Pod",
		prove: func(f facts) (state, string) {
			if f.keysRead && f.aliveKeys < f.apiServers {
				return pending, fmt.Sprintf("%d of %d kube-apiservers renew their keys", f.aliveKeys, f.apiServers)
			}
			if s, saw := f.observed(diagnosis.Active); s != proven || len(f.stoppedServers) == 0 {
				return s, saw
			}
			return f.stopped()
		},
	}
}
