package diagnosis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// lagWarning and lagFailure limit how late a write may be.
	lagWarning = 2 * time.Second
	lagFailure = 30 * time.Second
	// handOver is how long after a hand-over the last write of the former writer is a warning.
	handOver = time.Hour
)

// LoopState is the state of a loop in one word, as the API names it.
type LoopState string

// The states of loops.
const (
	LoopDisabled LoopState = "disabled"
	LoopStandby  LoopState = "standby"
	LoopRunning  LoopState = "running"
	LoopFailing  LoopState = "failing"
	LoopStalled  LoopState = "stalled"
)

// Loop is a loop of a replica.
type Loop struct {
	Name  string
	State LoopState
	// Shadow means that the loop plans and does not write.
	Shadow bool
	// Switched is since when a loop in --dry-run writes; zero if it does not. Succeeded is when its
	// last successful pass ended.
	Switched, Succeeded time.Time
	Error               string
}

// InDryRun reports whether --dry-run names the loop: a switch decides whether it writes.
func (l *Loop) InDryRun() bool { return l.Shadow || !l.Switched.IsZero() }

// Dependency is what a replica cannot work without.
type Dependency struct {
	Name, Message string
	Healthy       bool
}

// Replica is a replica of a service.
type Replica struct {
	ID, Version string
	// Missing says why there is no answer of it; empty if it answered.
	Missing string
	// Answered means that the failure in Missing is an answer of the replica's machine.
	Answered bool
	Ready    bool
	Problem  string
	Started  time.Time
	// Adopts means that it runs with --adopt-master-leases.
	Adopts       bool
	Loops        []Loop
	Dependencies []Dependency
}

// Service is a service of Trivet.
type Service struct {
	Name              string
	Shards, LedShards int
	Replicas          []Replica
}

// Installation is the state of all services as the gateway merges it.
type Installation struct {
	Services []Service
	// Verdict is "OK", "WARNING", "UNKNOWN" or "FAILED", with the texts of its problems.
	Verdict  string
	Problems []string
}

func (i Installation) each(visit func(service Service, replica Replica)) {
	for _, service := range i.Services {
		for _, replica := range service.Replicas {
			visit(service, replica)
		}
	}
}

// Service returns a service; the zero value if the gateway does not know it.
func (i Installation) Service(name string) Service {
	at := slices.IndexFunc(i.Services, func(s Service) bool { return s.Name == name })
	if at < 0 {
		return Service{Name: name}
	}
	return i.Services[at]
}

// Replicas judges whether every replica answers and is ready.
func Replicas(i Installation) Result {
	var failed, silent []string
	answered := 0
	i.each(func(s Service, r Replica) {
		name := s.Name + " " + r.ID
		switch {
		case r.Missing != "" && r.Answered:
			failed = append(failed, name+": "+r.Missing)
		case r.Missing != "":
			silent = append(silent, name+": "+r.Missing)
		case !r.Ready:
			failed = append(failed, name+" is not ready: "+r.Problem)
		default:
			answered++
		}
	})
	for _, s := range i.Services {
		if len(s.Replicas) == 0 {
			failed = append(failed, s.Name+" has no replica")
		}
	}
	switch {
	case len(failed) > 0:
		return fail("%s", list(failed))
	case len(silent) > 0:
		return Undetermined("%s", list(silent))
	case answered == 0:
		return fail("No replica is registered")
	default:
		return ok("%s ready", plural(answered, "replica is", "replicas are"))
	}
}

func plural(number int, one, many string) string {
	if number == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", number, many)
}

// Versions judges whether all replicas have the version of the command.
func Versions(i Installation, own string) Result {
	var other []string
	i.each(func(s Service, r Replica) {
		if r.Version != "" && r.Version != own {
			other = append(other, fmt.Sprintf("%s %s has %s", s.Name, r.ID, r.Version))
		}
	})
	if len(other) > 0 {
		return warn("This program has version %s; %s", own, list(other))
	}
	return ok("All replicas have version %s", own)
}

// Shards judges whether every shard has a leader.
func Shards(i Installation) Result {
	var without []string
	total := 0
	for _, s := range i.Services {
		total += s.Shards
		if s.LedShards < s.Shards {
			without = append(without, fmt.Sprintf("%d of %d shards of %s", s.Shards-s.LedShards, s.Shards, s.Name))
		}
	}
	if len(without) > 0 {
		return fail("%s have no leader", list(without))
	}
	return ok("%s a leader", plural(total, "shard has", "shards have"))
}

// Loops judges the loops of all replicas that answered.
func Loops(i Installation) Result {
	var failing, shadow, switched []string
	total := 0
	i.each(func(s Service, r Replica) {
		for _, l := range r.Loops {
			name := fmt.Sprintf("%s of %s %s", l.Name, s.Name, r.ID)
			total++
			switch l.State {
			case LoopFailing, LoopStalled:
				failing = append(failing, strings.TrimSuffix(name+" is "+string(l.State)+": "+l.Error, ": "))
			case LoopRunning, LoopStandby:
				if l.Shadow {
					shadow = append(shadow, name)
				}
				if !l.Switched.IsZero() {
					switched = append(switched, name)
				}
			case LoopDisabled:
				total--
			}
		}
	})
	switch {
	case len(failing) > 0:
		return fail("%s", list(failing))
	case total == 0:
		return Undetermined("no replica told its loops")
	case len(shadow) > 0:
		return warn("%s only and write nothing: %s", plural(len(shadow), "loop plans", "loops plan"), list(shadow))
	case len(switched) > 0:
		return ok("%s; in --dry-run and switched on: %s", plural(total, "loop runs", "loops run"), list(switched))
	default:
		return ok("%s", plural(total, "loop runs", "loops run"))
	}
}

// Dependencies judges whether the replicas reach etcd and kube-apiserver.
func Dependencies(i Installation) Result {
	var broken []string
	total := 0
	i.each(func(s Service, r Replica) {
		for _, d := range r.Dependencies {
			total++
			if !d.Healthy {
				broken = append(broken, fmt.Sprintf("%s of %s %s: %s", d.Name, s.Name, r.ID, d.Message))
			}
		}
	})
	switch {
	case len(broken) > 0:
		return fail("%s", list(broken))
	case total == 0:
		return Undetermined("no replica told its dependencies")
	default:
		return ok("All %s of the replicas answer", plural(total, "connection", "connections"))
	}
}

// Verdict judges the gateway's verdict.
func Verdict(i Installation) Result {
	switch i.Verdict {
	case "OK":
		return ok("The verdict is OK")
	case "WARNING":
		return warn("The verdict is WARNING: %s", list(i.Problems))
	case "FAILED":
		return fail("The verdict is FAILED: %s", list(i.Problems))
	default:
		return Undetermined("the verdict is %s: %s", i.Verdict, list(i.Problems))
	}
}

// Lag is how late a piece of work is.
type Lag struct {
	// Work names it: "the Lease write of node-7".
	Work string
	Lag  time.Duration
	// Past work is done and cannot be a failure.
	Past bool
}

// Lags judges how late the work of the services is.
func Lags(lags []Lag) Result {
	if len(lags) == 0 {
		return skip("No service has written anything in the last minutes")
	}
	worst := slices.MaxFunc(lags, func(a, b Lag) int {
		return cmp.Or(cmp.Compare(a.severity(), b.severity()), cmp.Compare(a.Lag, b.Lag))
	})
	text := fmt.Sprintf("The latest of %s is %s, %s late", count(len(lags), "write"), worst.Work, max(worst.Lag, 0).Round(time.Millisecond))
	switch worst.severity() {
	case 2:
		return fail("%s", text)
	case 1:
		return warn("%s", text)
	default:
		return ok("%s", text)
	}
}

func (l Lag) severity() int {
	switch {
	case l.Lag < lagWarning:
		return 0
	case l.Lag < lagFailure || l.Past:
		return 1
	default:
		return 2
	}
}

// Coverage is which Nodes have an agent.
type Coverage struct {
	Nodes []string
	// Agents are the Nodes with a lease of an agent that has not expired.
	Agents []string
	// Missing says which part of the leases could not be read; empty if none.
	Missing string
}

// AgentCoverage judges whether every Node has an agent.
func AgentCoverage(c Coverage) Result {
	var without []string
	for _, node := range c.Nodes {
		if !slices.Contains(c.Agents, node) {
			without = append(without, node)
		}
	}
	switch {
	case len(c.Nodes) == 0:
		return skip("The cluster has no Node")
	case len(without) == 0:
		return ok("%s an agent", plural(len(c.Nodes), "Node has", "Nodes have"))
	case c.Missing != "":
		return Undetermined("%s", c.Missing)
	case len(c.Agents) == 0:
		return skip("No Node has an agent; the kubelets renew their Leases themselves")
	default:
		return warn("%d of %d Nodes have no agent: %s", len(without), len(c.Nodes), list(without))
	}
}

// Carrier is what is known about Trivet's side of a duty.
type Carrier struct {
	// On lists the replicas whose loop writes, and Off those whose loop is off or only plans.
	On, Off []string
	// Failing lists the replicas whose loop fails or is stalled, Beginning those whose loop runs
	// and has made no pass since it was switched on.
	Failing, Beginning []string
	// Silent lists replicas without an answer.
	Silent []string
	// Since is when the first of the writing replicas started, or was switched on.
	Since time.Time
}

// loopOf are Trivet's loops of duties.
var loopOf = map[Duty]struct{ service, loop string }{
	Slices:    {"slicesvc", "endpointslices"},
	Mirroring: {"slicesvc", "endpointslice-mirroring"},
	Nodes:     {"leasesvc", "node-health"},
	Evictions: {"leasesvc", "taint-eviction"},
	Endpoints: {"bootstrapsvc", "kubernetes-endpoints"},
}

// LoopOf returns the service and the loop of a duty.
func LoopOf(duty Duty) (service, loop string) { return loopOf[duty].service, loopOf[duty].loop }

// CarrierOf returns what an installation shows about a duty.
func CarrierOf(i Installation, duty Duty) Carrier {
	var c Carrier
	service, loop := LoopOf(duty)
	for _, r := range i.Service(service).Replicas {
		if r.Missing != "" {
			c.Silent = append(c.Silent, r.ID)
			continue
		}
		at := slices.IndexFunc(r.Loops, func(l Loop) bool { return l.Name == loop })
		if at < 0 || r.Loops[at].State == LoopDisabled || r.Loops[at].Shadow {
			c.Off = append(c.Off, r.ID)
			continue
		}
		c.On = append(c.On, r.ID)
		if state := r.Loops[at].State; state == LoopFailing || state == LoopStalled {
			c.Failing = append(c.Failing, r.ID)
		}
		if l := &r.Loops[at]; l.State == LoopRunning && l.Succeeded.Before(l.Switched) {
			c.Beginning = append(c.Beginning, r.ID)
		}
		began := r.Started
		if switched := r.Loops[at].Switched; switched.After(began) {
			began = switched
		}
		if c.Since.IsZero() || began.Before(c.Since) {
			c.Since = began
		}
	}
	return c
}

// Adopts reports whether a replica of bootstrapsvc runs with --adopt-master-leases.
func (i Installation) Adopts() bool {
	adopting := false
	i.each(func(_ Service, r Replica) { adopting = adopting || r.Adopts })
	return adopting
}

// Writers judges whether exactly one program carries a duty.
func Writers(duty Duty, i Installation, upstream Observation, now time.Time) Result {
	service, loop := LoopOf(duty)
	c := CarrierOf(i, duty)
	since := now.Sub(upstream.Last)
	after := !upstream.Last.IsZero() && upstream.Last.After(c.Since)
	switch {
	case len(c.On) == 0 && len(c.Silent) > 0:
		return Undetermined("%s of %s did not answer", list(c.Silent), service)
	case len(c.On) == 0 && upstream.Activity == Active:
		return ok("Upstream alone writes: %s", upstream.Sentence)
	case len(c.On) == 0 && upstream.Activity == Inactive:
		return fail("No program writes: the loop %s of %s is off, and %s", loop, service, upstream.Sentence)
	case len(c.On) == 0:
		return skip("The loop %s of %s is off; %s", loop, service, upstream.Sentence)
	case duty == Endpoints && upstream.Activity == Active && i.Adopts():
		return warn("A migration is in progress: %s", upstream.Sentence)
	case len(c.Off) > 0:
		return warn("The loop %s is on in %s and off in %s", loop, list(c.On), list(c.Off))
	case upstream.Activity == Active && upstream.Direct && (after || upstream.Current):
		return fail("Two programs write: the loop %s of %s is on, and %s", loop, service, upstream.Sentence)
	case upstream.Activity == Active:
		return warn("Two programs may write: the loop %s of %s is on, and %s", loop, service, upstream.Sentence)
	case upstream.Activity == Unclear && after && since < handOver:
		return warn("Upstream wrote after %s had begun, %s: %s", service, ago(now, upstream.Last), upstream.Sentence)
	case upstream.Activity == Unclear:
		return ok("%s writes, and upstream has not written since; %s", service, upstream.Sentence)
	default:
		return ok("%s alone writes: %s", service, upstream.Sentence)
	}
}

// Gateway judges whether the gateway answered. where names it.
func Gateway(where string, f Failure) Result {
	switch {
	case f.Failed() && f.Answered:
		return fail("There is no answer of %s: %s", where, f.Text)
	case f.Failed():
		return Undetermined("%s did not answer: %s", where, f.Text)
	default:
		return ok("Answered: %s", where)
	}
}
