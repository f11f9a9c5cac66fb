// Package fault decides what is broken in a demo: which faults are possible, which are in effect,
// which action comes next, and what a person sees of each. It does no I/O and reads no clock.
package fault

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Kind is the kind of a fault.
type Kind string

// The kinds of faults.
const (
	Node      Kind = "node"
	Zone      Kind = "zone"
	Service   Kind = "service"
	APIServer Kind = "apiserver"
	Address   Kind = "address"
	Pods      Kind = "pods"
)

// The ways in which a target is broken.
const (
	Silent    = "silent"
	Hang      = "hang"
	Stop      = "stop"
	Kill      = "kill"
	Delete    = "delete"
	Duplicate = "duplicate"
	Flap      = "flap"
	Unready   = "unready"
)

// KindInfo describes a kind.
type KindInfo struct {
	Kind Kind `json:"kind"`
	// Text says what the fault does, for a person.
	Text string `json:"text"`
	// Hows are the ways in which a target of the kind is broken; the first one is the default.
	Hows []string `json:"hows"`
	// Targets are the names of all targets of the kind.
	Targets []string `json:"targets"`
}

// Kinds returns all kinds, without their targets.
func Kinds() []KindInfo {
	return []KindInfo{
		{Kind: Node, Text: "the agent and the kubelet of a Node send nothing", Hows: []string{Silent}},
		{Kind: Zone, Text: "every Node of a zone is silent", Hows: []string{Silent}},
		{Kind: Service, Text: "a replica of a service hangs, stops or is killed", Hows: []string{Hang, Stop, Kill}},
		{Kind: APIServer, Text: "the second kube-apiserver hangs, stops or is killed", Hows: []string{Hang, Stop, Kill}},
		{Kind: Address, Text: "the IPAddress of a ClusterIP is deleted, or a second Service gets the ClusterIP", Hows: []string{Delete, Duplicate}},
		{Kind: Pods, Text: "the Pods of a Service become ready and not ready in turn, or stay not ready", Hows: []string{Flap, Unready}},
	}
}

// Target names what is broken: at most one fault is in effect for it.
type Target struct {
	Kind Kind   `json:"kind"`
	Name string `json:"target"`
}

func (t Target) String() string { return string(t.Kind) + " " + t.Name }

// Request asks for a fault.
type Request struct {
	Kind Kind `json:"kind"`
	// Name is the target; empty means the first one without a fault. The name of a service means
	// its last replica without a fault.
	Name string `json:"target,omitempty"`
	// How is one of the kind's ways; empty means the first.
	How string `json:"how,omitempty"`
	// Seconds is the time until the fault ends by itself; 0 means never.
	Seconds float64 `json:"seconds,omitempty"`
}

// MaxDuration limits the time after which a fault ends by itself.
const MaxDuration = time.Hour

// Phase is the phase of a fault. A fault that was restored does not exist any more.
type Phase string

// The phases of a fault.
const (
	Breaking  Phase = "breaking"
	Broken    Phase = "broken"
	Restoring Phase = "restoring"
)

// Fault is a fault that is in effect.
type Fault struct {
	Target
	How   string    `json:"how"`
	Phase Phase     `json:"phase"`
	Since time.Time `json:"since"`
	// Until is when the fault ends by itself; zero means never.
	Until time.Time `json:"until,omitzero"`
	// Effect has what the break did.
	Effect Effect `json:"effect"`
	// Problem is why the target is not restored yet; empty without a failure.
	Problem string `json:"problem,omitempty"`
	// Steps are what to look at next.
	Steps []Step `json:"steps"`

	wanted  bool      // false after a request to restore
	failure string    // why the break failed
	retryAt time.Time // when to restore again after a failure
	running bool      // an action is in progress
}

// Effect is what a break did.
type Effect struct {
	// Text says it for a person.
	Text string `json:"text"`
	// Address is the ClusterIP of a fault of kind Address.
	Address string `json:"address,omitempty"`
	// Pod is one of the Pods of a fault of kind Pods.
	Pod string `json:"pod,omitempty"`
}

// Inventory has the targets of a demo.
type Inventory struct {
	// Zones has the names of the Nodes of each zone.
	Zones map[string][]string
	// Replicas are the names of the replicas, service-N.
	Replicas []string
	// APIServers are the kube-apiservers that may be broken.
	APIServers []string
	// Services are the Services with Pods, namespace/name.
	Services []string
	// ClusterIPs are the Services with a ClusterIP, namespace/name.
	ClusterIPs []string
}

func (i Inventory) targets(kind Kind) []string {
	var names []string
	switch kind {
	case Node:
		for _, nodes := range i.Zones {
			names = append(names, nodes...)
		}
		slices.Sort(names)
	case Zone:
		for zone := range i.Zones {
			names = append(names, zone)
		}
		slices.Sort(names)
	case Service:
		names = i.Replicas
	case APIServer:
		names = i.APIServers
	case Address:
		names = i.ClusterIPs
	case Pods:
		names = i.Services
	}
	return names
}

// ParseKind returns the kind with a name, singular or plural.
func ParseKind(text string) (Kind, error) {
	var names []string
	for _, info := range Kinds() {
		name := string(info.Kind)
		if text == name || text == name+"s" || text == name+"es" || text+"s" == name {
			return info.Kind, nil
		}
		names = append(names, name)
	}
	return "", fmt.Errorf("%q is none of %s", text, strings.Join(names, ", "))
}

// howOf returns the way to break a target of a kind.
func howOf(kind Kind, how string) (string, error) {
	for _, info := range Kinds() {
		switch {
		case info.Kind != kind:
		case how == "":
			return info.Hows[0], nil
		case slices.Contains(info.Hows, how):
			return how, nil
		default:
			return "", fmt.Errorf("how: %q is none of %s", how, strings.Join(info.Hows, ", "))
		}
	}
	_, err := ParseKind(string(kind))
	return "", err
}
