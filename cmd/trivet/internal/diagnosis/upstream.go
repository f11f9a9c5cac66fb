package diagnosis

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// recent is the age of a write that proves that its writer runs now.
	recent = 2 * time.Minute
	// managerSilence is the age of the last renewal after which kube-controller-manager does not
	// run. It renews every two seconds and loses its Lease after 15.
	managerSilence = time.Minute
	// registrationTime is how long kube-controller-manager may take from its election to the Events
	// about Nodes, and registrationWindow how long kube-apiserver surely keeps them.
	registrationTime   = 30 * time.Second
	registrationWindow = 10 * time.Minute
)

// Duty is a duty that either upstream's programs or Trivet's carry.
type Duty string

// The duties.
const (
	Slices    Duty = "slices"
	Mirroring Duty = "mirroring"
	Nodes     Duty = "nodes"
	Evictions Duty = "evictions"
	Endpoints Duty = "endpoints"
)

// Duties returns all duties.
func Duties() []Duty { return []Duty{Slices, Mirroring, Nodes, Evictions, Endpoints} }

// Activity says whether a loop is on.
type Activity int

// The activities.
const (
	Unclear Activity = iota
	Active
	Inactive
)

// Observation is what is known about the activity of a loop.
type Observation struct {
	Activity Activity
	// Direct means that a write or an Event of the loop is the evidence, not a flag.
	Direct bool
	// Current means that the evidence lasts as long as the loop is on.
	Current bool
	// Last is the last observed write; zero if none.
	Last time.Time
	// Nodes is the number of Nodes that were read for it.
	Nodes int
	// Sentence says it without a full stop.
	Sentence string
}

func observed(activity Activity, direct bool, last time.Time, format string, args ...any) Observation {
	return Observation{Activity: activity, Direct: direct, Last: last, Sentence: fmt.Sprintf(format, args...)}
}

func (s Observation) lasting() Observation {
	s.Current = true
	return s
}

// Program is a static Pod of the control plane, with the flag that switches a loop.
type Program struct {
	Pod, Node string
	Started   time.Time
	// Flag is the value of the flag; Given is false if the flag is not set.
	Flag  string
	Given bool
}

// Manager is what the cluster shows about kube-controller-manager.
type Manager struct {
	// LeaseFound says whether its Lease of leader election exists.
	LeaseFound        bool
	Holder            string
	Acquired, Renewed time.Time
	// Programs are its static Pods that run, with --controllers. Empty if they are not visible.
	Programs []Program
	// NotRunning are the names of its other Pods. Each may return with any flag.
	NotRunning []string
}

// isGone reports that no kube-controller-manager runs. Without a Lease it may run without leader
// election.
func (m Manager) isGone(now time.Time) bool {
	return m.LeaseFound && (m.Holder == "" || now.Sub(m.Renewed) > managerSilence)
}

func (m Manager) isRunning(now time.Time) bool { return m.LeaseFound && !m.isGone(now) }

// Began returns since when kube-controller-manager has run its present controllers; zero if
// unknown. running is false if it certainly does not run.
func (m Manager) Began(now time.Time) (began time.Time, running bool) {
	if m.isRunning(now) {
		return m.Acquired, true
	}
	return time.Time{}, !m.isGone(now)
}

// LeaderIsVisible reports whether the holder of the Lease is one of Programs, or a process that one
// of them has replaced on its machine. The holder has the name of the machine before "_".
func (m Manager) LeaderIsVisible() bool {
	machine, _, found := strings.Cut(m.Holder, "_")
	return found && slices.ContainsFunc(m.Programs, func(p Program) bool { return p.Node == machine })
}

// Switched returns whether --controllers of all visible Pods switches the controller of a duty on
// or off.
func (m Manager) Switched(duty Duty) Activity {
	activity, _ := m.switched(controllerOf[duty])
	return activity
}

// switched returns whether --controllers of all visible Pods switches a controller on or off.
func (m Manager) switched(controller string) (Activity, string) {
	return agree(m.Programs, func(p Program) bool { return p.runs(controller) })
}

// runs follows the rule of kube-controller-manager: a name switches a controller on, -name off, and
// * on what is not named. The taken controllers are on by default.
func (p Program) runs(controller string) bool {
	if !p.Given {
		return true
	}
	names := strings.Split(p.Flag, ",")
	for i, name := range names {
		if bare := strings.TrimPrefix(name, "-"); aliases[bare] != "" {
			names[i] = strings.Replace(name, bare, aliases[bare], 1)
		}
	}
	switch {
	case slices.Contains(names, controller):
		return true
	case slices.Contains(names, "-"+controller):
		return false
	default:
		return slices.Contains(names, "*")
	}
}

// aliases are former names of controllers that kube-controller-manager still takes.
var aliases = map[string]string{
	"endpointslice": controllerOf[Slices], "endpointslicemirroring": controllerOf[Mirroring], "nodelifecycle": controllerOf[Nodes],
}

// agree returns the common answer of all programs and the names of their Pods.
func agree(programs []Program, on func(Program) bool) (Activity, string) {
	var pods []string
	activity := Unclear
	for i, p := range programs {
		pods = append(pods, p.Pod)
		now := Inactive
		if on(p) {
			now = Active
		}
		if i > 0 && now != activity {
			return Unclear, ""
		}
		activity = now
	}
	return activity, list(pods)
}

func started(programs []Program) time.Time {
	var last time.Time
	for _, p := range programs {
		if p.Started.After(last) {
			last = p.Started
		}
	}
	return last
}

// ManagerActivity judges whether kube-controller-manager runs.
func ManagerActivity(m Manager, now time.Time) Result {
	switch {
	case m.isGone(now):
		return warn("kube-controller-manager has not renewed its Lease since %s: no replica of it leads", date(m.Renewed))
	case m.LeaseFound:
		return ok("kube-controller-manager %s leads since %s", m.Holder, date(m.Acquired))
	default:
		return Undetermined("kube-controller-manager has no Lease in kube-system; it may run without leader election, or elsewhere")
	}
}

// Write is the last write of a program to an object.
type Write struct {
	Object string
	Time   time.Time
}

// Writes are the last writes of both sides to the objects of a duty, from managed fields.
type Writes struct {
	// Objects is the number of objects that were read.
	Objects int
	// Incomplete means that the cluster has more objects.
	Incomplete       bool
	Upstream, Trivet []Write
}

// Newest returns the last of some writes; the zero value without any.
func Newest(writes []Write) Write {
	var newest Write
	for _, w := range writes {
		if w.Time.After(newest.Time) {
			newest = w
		}
	}
	return newest
}

// ControllerOf returns the name of upstream's controller of a duty in --controllers; empty if the
// duty is not one of kube-controller-manager.
func ControllerOf(duty Duty) string { return controllerOf[duty] }

// controllerOf are the names of upstream's controllers of duties in --controllers.
var controllerOf = map[Duty]string{
	Slices: "endpointslice-controller", Mirroring: "endpointslice-mirroring-controller",
	Nodes: "node-lifecycle-controller", Evictions: "taint-eviction-controller",
}

// UpstreamSlices judges whether upstream's endpointslice controller is on.
func UpstreamSlices(w Writes, m Manager, now time.Time) Observation {
	return upstreamByWrites(Slices, "EndpointSlice", w, m, now)
}

// UpstreamMirroring judges whether upstream's endpointslice-mirroring controller is on.
func UpstreamMirroring(w Writes, m Manager, now time.Time) Observation {
	return upstreamByWrites(Mirroring, "mirrored EndpointSlice", w, m, now)
}

// UpstreamEvictions judges whether upstream's taint-eviction controller is on. The Pods that it
// deletes keep no trace of it.
func UpstreamEvictions(m Manager, now time.Time) Observation {
	return upstreamByWrites(Evictions, "Pod that is still there", Writes{}, m, now)
}

// upstreamByWrites judges a controller by its last write, the Lease of its program and its flag, in
// this order. A quiet cluster without visible flags leaves it unclear.
func upstreamByWrites(duty Duty, kind string, w Writes, m Manager, now time.Time) Observation {
	controller, last := controllerOf[duty], Newest(w.Upstream)
	history := "it has written no " + kind
	if !last.Time.IsZero() {
		history = fmt.Sprintf("its last write of %s %s was %s", kind, last.Object, ago(now, last.Time))
	}
	if w.Incomplete {
		history += fmt.Sprintf(", among the first %d", w.Objects)
	}
	flag, pods := m.switched(controller)
	began := started(m.Programs)
	switch {
	case m.isGone(now) && !last.Time.After(m.Renewed):
		return observed(Inactive, true, last.Time, "kube-controller-manager does not run since %s; %s", date(m.Renewed), history)
	case flag == Inactive && !last.Time.After(began):
		return observed(Inactive, false, last.Time, "--controllers of %s switches %s off; %s", pods, controller, history)
	case !last.Time.IsZero() && now.Sub(last.Time) < recent:
		return observed(Active, true, last.Time, "kube-controller-manager wrote %s %s %s", kind, last.Object, ago(now, last.Time))
	case flag == Active && !m.isGone(now):
		return observed(Active, false, last.Time, "--controllers of %s has %s on; %s", pods, controller, history)
	case m.isRunning(now):
		return observed(Unclear, false, last.Time, "kube-controller-manager runs, and %s", history)
	default:
		return observed(Unclear, false, last.Time, "kube-controller-manager has no Lease, and %s", history)
	}
}

// NodeFacts are what the cluster shows about the loop of node health.
type NodeFacts struct {
	// Nodes is the number of Nodes.
	Nodes int
	// Writes are those of conditions and taints.
	Writes Writes
	// Registered is the last Event by which upstream's controller, at its start, registers Nodes.
	Registered Write
	// EventsRead says whether Events could be read.
	EventsRead bool
}

// UpstreamNodes judges whether upstream's node-lifecycle controller is on. At each start, it sends
// an Event for each Node.
func UpstreamNodes(f NodeFacts, m Manager, now time.Time) Observation {
	running := m.isRunning(now)
	age := now.Sub(m.Acquired)
	start := m.Acquired.Truncate(time.Second) // times of Events and of managed fields are whole seconds
	switch {
	case running && !f.Registered.Time.IsZero() && !f.Registered.Time.Before(start):
		return observed(Active, true, f.Registered.Time, "kube-controller-manager registered Node %s after its start, %s", f.Registered.Object, ago(now, f.Registered.Time)).lasting()
	case running && f.EventsRead && f.Nodes > 0 && age > registrationTime && age < registrationWindow && Newest(f.Writes.Upstream).Time.Before(start):
		return observed(Inactive, true, Newest(f.Writes.Upstream).Time, "kube-controller-manager leads since %s and has registered no Node", ago(now, m.Acquired))
	default:
		return upstreamByWrites(Nodes, "Node", f.Writes, m, now)
	}
}

// MasterLease is the key of a kube-apiserver with its own endpoint reconciler.
type MasterLease struct {
	Address string
	// Alive means that the key has a lease, which the kube-apiserver renews.
	Alive bool
}

// EndpointFacts are what the cluster shows about the endpoints of default/kubernetes.
type EndpointFacts struct {
	// KeysRead says whether the keys below /registry/masterleases were read from etcd.
	KeysRead bool
	// Keys come from etcd, or from bootstrapsvc with --adopt-master-leases.
	Keys []MasterLease
	// Writes are those of the Endpoints and EndpointSlices of default/kubernetes.
	Writes Writes
	// Programs are the static Pods of kube-apiserver, with --endpoint-reconciler-type.
	Programs []Program
}

// UpstreamEndpoints judges whether a kube-apiserver writes the endpoints of default/kubernetes.
func UpstreamEndpoints(f EndpointFacts, now time.Time) Observation {
	var alive []string
	for _, key := range f.Keys {
		if key.Alive {
			alive = append(alive, key.Address)
		}
	}
	last := Newest(f.Writes.Upstream)
	flag, pods := agree(f.Programs, func(p Program) bool { return p.Flag != "none" })
	switch {
	case len(alive) > 0:
		return observed(Active, true, last.Time, "kube-apiserver's endpoint reconciler renews %s: %s", count(len(alive), "key"), list(alive)).lasting()
	case f.KeysRead:
		return observed(Inactive, true, last.Time, "no kube-apiserver renews a key of its endpoint reconciler")
	case flag == Inactive && !last.Time.After(started(f.Programs)):
		return observed(Inactive, false, last.Time, "--endpoint-reconciler-type of %s is none", pods)
	case !last.Time.IsZero() && now.Sub(last.Time) < recent:
		return observed(Active, true, last.Time, "a kube-apiserver wrote the endpoints of default/kubernetes %s", ago(now, last.Time))
	case flag == Active:
		return observed(Active, false, last.Time, "--endpoint-reconciler-type of %s is not none", pods)
	default:
		return observed(Unclear, false, last.Time, "a kube-apiserver writes the endpoints only when they change; its keys in etcd would show it")
	}
}

// UpstreamBefore judges, before an install, whether upstream's loop is on. Both are well, but a
// loop that is on is turned off before Trivet's begins.
func UpstreamBefore(s Observation) Result {
	switch s.Activity {
	case Active:
		return warn("Upstream's loop is on: %s", s.Sentence)
	case Inactive:
		return ok("Upstream's loop is off: %s", s.Sentence)
	default:
		return Undetermined("%s", s.Sentence)
	}
}
