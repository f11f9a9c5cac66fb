// Package decisions keeps the newest decisions of a process in memory.
//
// A controller calls [Log.Record] where it decides. Recording takes a lock for a few instructions,
// copies one value, and allocates nothing once the rings have grown. A reader takes what it has not
// seen yet with [Log.After], at its own pace: a slow reader delays nothing, and is told how many
// decisions it missed.
//
// There is a [Ring] for each importance. A roll-out that writes thousands of EndpointSlices fills
// the ring of slices, and pushes out no decision about a Node.
package decisions

import (
	"fmt"
	"time"
)

// Action is what was decided.
type Action uint8

// The actions. Their names are those of the API without its prefix.
const (
	unspecified Action = iota
	TermTaken
	TermGivenUp
	TermLost
	MarkingSuspended
	MarkingResumed
	EvictionsHeld
	EvictionsResumed
	NodeMarkedUnknown
	NodeBack
	TaintAdded
	TaintRemoved
	PodMarkedNotReady
	EvictionScheduled
	EvictionCancelled
	PodEvicted
	WriteRefused
	LeaseExpired
	LeaseDuplicated
	SlicesWritten
	SlicesContended
	BaselineWritten
	APIServerAdded
	APIServerRemoved
	FindingOpened
	FindingClosed
	RepairStarted
	RepairApplied
	RepairEnded
	RepairCancelled
	actionCount
)

// Ring is a ring of a process, by the importance of its decisions.
type Ring uint8

// The rings.
const (
	// Cluster has decisions about the process, the control plane and the whole cluster.
	Cluster Ring = iota
	// Objects has decisions about Nodes and findings, and refused writes.
	Objects
	// Pods has decisions about Pods and leases.
	Pods
	// Slices has written EndpointSlices.
	Slices
	ringCount
)

var actions = [actionCount]struct {
	name string
	ring Ring
}{
	unspecified:       {"UNSPECIFIED", Cluster},
	TermTaken:         {"TERM_TAKEN", Cluster},
	TermGivenUp:       {"TERM_GIVEN_UP", Cluster},
	TermLost:          {"TERM_LOST", Cluster},
	MarkingSuspended:  {"MARKING_SUSPENDED", Cluster},
	MarkingResumed:    {"MARKING_RESUMED", Cluster},
	EvictionsHeld:     {"EVICTIONS_HELD", Cluster},
	EvictionsResumed:  {"EVICTIONS_RESUMED", Cluster},
	NodeMarkedUnknown: {"NODE_MARKED_UNKNOWN", Objects},
	NodeBack:          {"NODE_BACK", Objects},
	TaintAdded:        {"TAINT_ADDED", Objects},
	TaintRemoved:      {"TAINT_REMOVED", Objects},
	PodMarkedNotReady: {"POD_MARKED_NOT_READY", Pods},
	EvictionScheduled: {"EVICTION_SCHEDULED", Pods},
	EvictionCancelled: {"EVICTION_CANCELLED", Pods},
	PodEvicted:        {"POD_EVICTED", Pods},
	WriteRefused:      {"WRITE_REFUSED", Objects},
	LeaseExpired:      {"LEASE_EXPIRED", Pods},
	LeaseDuplicated:   {"LEASE_DUPLICATED", Objects},
	SlicesWritten:     {"SLICES_WRITTEN", Slices},
	SlicesContended:   {"SLICES_CONTENDED", Objects},
	BaselineWritten:   {"BASELINE_WRITTEN", Cluster},
	APIServerAdded:    {"APISERVER_ADDED", Cluster},
	APIServerRemoved:  {"APISERVER_REMOVED", Cluster},
	FindingOpened:     {"FINDING_OPENED", Objects},
	FindingClosed:     {"FINDING_CLOSED", Objects},
	RepairStarted:     {"REPAIR_STARTED", Cluster},
	RepairApplied:     {"REPAIR_APPLIED", Objects},
	RepairEnded:       {"REPAIR_ENDED", Cluster},
	RepairCancelled:   {"REPAIR_CANCELLED", Cluster},
}

func (a Action) String() string {
	if a >= actionCount {
		return fmt.Sprintf("Action(%d)", uint8(a))
	}
	return actions[a].name
}

func (a Action) ring() Ring {
	if a >= actionCount {
		return Objects
	}
	return actions[a].ring
}

// Actions returns all actions.
func Actions() []Action {
	all := make([]Action, 0, actionCount-1)
	for a := unspecified + 1; a < actionCount; a++ {
		all = append(all, a)
	}
	return all
}

// Object is what a decision is about. The zero value stands for the process.
type Object struct {
	// Kind is "Node", "Pod", "Service", "Endpoints", "Lease", "APIServer", "Finding", "Repair",
	// "Shard", or another kind of Kubernetes.
	Kind, APIVersion     string
	Namespace, Name, UID string
}

// Decision is one decision. Record sets Time, Ring and Number.
type Decision struct {
	Time   time.Time
	Action Action
	Object Object
	// Node is the Node of a Pod; empty for other objects.
	Node string
	// Shard and Epoch are those of the term; Epoch is 0 for a decision without a term.
	Shard int32
	Epoch int64
	// Message says why. It is cut to MaxMessage bytes.
	Message string
	// ResourceVersion is the version that the decision was made from.
	ResourceVersion string
	// InputAge is how old the decisive input was; 0 for none.
	InputAge time.Duration
	// Created, Updated and Deleted count written objects.
	Created, Updated, Deleted int32
	Ring                      Ring
	// Number is the number of the decision in its ring, from 1.
	Number uint64
}

// MaxMessage is the longest message in bytes.
const MaxMessage = 512

// fixedSize is the size of a Decision without its texts, rounded up.
const fixedSize = 320

func (d *Decision) size() int {
	return fixedSize + len(d.Object.Kind) + len(d.Object.APIVersion) + len(d.Object.Namespace) + len(d.Object.Name) + len(d.Object.UID) +
		len(d.Node) + len(d.Message) + len(d.ResourceVersion)
}
