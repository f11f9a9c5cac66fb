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
	now          time.Time
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
	prove                    func(facts) (state, string)
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
		return []step{adopt(), reconcilersOff(), d.alone("Remove --adopt-master-leases from bootstrapsvc.", "bootstrapsvc: remove --adopt-master-leases, one replica after the other")}
	case d.duty == diagnosis.Endpoints:
		return []step{adopt(), reconcilersOn(), d.trivetOff()}
	case d.toTrivet:
		return []step{d.controllerOff(f), d.trivetOn(), d.alone("See that Trivet alone writes.", "")}
	default:
		return []step{d.trivetOff(), d.controllerOn(f)}
	}
}

// gap says what no program does between two steps; empty if there is no gap.
func (d direction) gap() string {
	switch d.duty {
	case diagnosis.Slices:
		return "Between steps 1 and 2 no program writes EndpointSlices: published endpoints stay as they are."
	case diagnosis.Nodes:
		return "Between steps 1 and 2 no program judges Nodes: conditions and taints stay as they are."
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
		needsProbe: d.probes(), needsSilence: true,
		prove: func(f facts) (state, string) {
			switch {
			case f.kubeError != "":
				return unclear, f.kubeError
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

func (d direction) upstreamProof(probe, nodes string) string {
	switch {
	case d.probes():
		return probe
	case d.duty == diagnosis.Nodes:
		return nodes + ", or --controllers of its Pods"
	default:
		return "the managed fields of EndpointSlices, or --controllers of the Pods of kube-controller-manager"
	}
}

func (d direction) trivetOn() step {
	service, loop := diagnosis.LoopOf(d.duty)
	change := fmt.Sprintf("%s: start it with --loops=*, its default, on every replica", service)
	if d.duty == diagnosis.Nodes {
		change = fmt.Sprintf("%s: --loops=*,%s on every replica, with the roles of deploy/components/%s", service, loop, loop)
	}
	return step{
		Title: fmt.Sprintf("Turn on the loop %s of %s.", loop, service), Change: change,
		Proof: "the loop runs in every replica, and every shard has a leader",
		prove: func(f facts) (state, string) { return f.carried(d.duty) },
	}
}

func (d direction) trivetOff() step {
	service, loop := diagnosis.LoopOf(d.duty)
	change := fmt.Sprintf("%s: --loops=*,-%s on every replica, or stop all replicas", service, loop)
	if d.duty == diagnosis.Nodes {
		change = fmt.Sprintf("%s: remove %s from --loops on every replica; with --write-policy=on-change, first set --write-policy=relaxed and wait for half a minute", service, loop)
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
			default:
				return proven, fmt.Sprintf("the loop %s runs in no replica of %s", loop, service)
			}
		},
	}
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

func adopt() step {
	return step{
		Title:  "Run bootstrapsvc beside every kube-apiserver, with --adopt-master-leases.",
		Change: "bootstrapsvc: --adopt-master-leases and --loops=* on every replica",
		Proof:  "every kube-apiserver has a replica of bootstrapsvc, and the loop kubernetes-endpoints runs",
		prove: func(f facts) (state, string) {
			s, saw := f.carried(diagnosis.Endpoints)
			replicas := len(f.installation.Service("bootstrapsvc").Replicas)
			switch {
			case s != proven:
				return s, saw
			case !f.installation.Adopts():
				return pending, "no replica of bootstrapsvc runs with --adopt-master-leases"
			case f.unadopted > 0:
				return pending, printer.Count(f.unadopted, "kube-apiserver") + " without a replica of bootstrapsvc"
			case replicas < f.apiServers:
				return pending, fmt.Sprintf("bootstrapsvc has %s for %s", printer.Count(replicas, "replica"), printer.Count(f.apiServers, "kube-apiserver"))
			default:
				return proven, fmt.Sprintf("bootstrapsvc has %s, with --adopt-master-leases", printer.Count(replicas, "replica"))
			}
		},
	}
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
