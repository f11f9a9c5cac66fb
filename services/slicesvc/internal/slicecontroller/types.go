package slicecontroller

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// Key names a Service, a Pod or a slice.
type Key = index.Key

func keyOf(namespace, name string) Key { return Key{Namespace: namespace, Name: name} }

var (
	// ErrServiceNotFound is returned for a Service that does not exist.
	ErrServiceNotFound = errors.New("no such service")
	// ErrPodNotFound is returned for a Pod that does not exist.
	ErrPodNotFound = errors.New("no such pod")
	// ErrUnmanaged is returned for a Service whose slices are not written here.
	ErrUnmanaged = errors.New("service is not managed")
	// ErrSlicesUnread is wrapped by a sync that planned nothing, because the current state of a
	// slice could not be read.
	ErrSlicesUnread = errors.New("slices of the service cannot be read")
	// ErrShardNotHeld is returned if this replica does not hold, or no longer holds, the shard.
	ErrShardNotHeld = errors.New("shard is not held here")
)

// SyncHistory is how the syncs of a Service went on this replica.
type SyncHistory struct {
	// LastSync is the time of the last successful sync; zero if there is none.
	LastSync time.Time
	// LastError is the error of the last sync. It is empty if that succeeded, or if the Service's
	// shard is not held here.
	LastError string
	// Failures is the number of failures since the last success.
	Failures int
}

// ServiceState is what is known of one Service. Its objects are shared and must not be changed.
type ServiceState struct {
	Service   *corev1.Service
	Unmanaged index.Unmanaged
	// Slices are the slices of the Service, unordered, as they were written last.
	Slices []*discoveryv1.EndpointSlice
	// WriteTimes has the time of this replica's last write in this term, by the name of the slice.
	WriteTimes map[string]time.Time
	History    SyncHistory
	// LastPlan is the last sync of this term; its Time is zero if there was none.
	LastPlan LastPlan
	// ContendedBy names another writer that keeps reverting slices; empty if there is none.
	ContendedBy string
	// Topology is the Service's own value of its trafficDistribution or topology annotation.
	Topology string
	// TopologyProblem says why a Service with the topology annotation has no hints, in the first
	// family without hints. To find it costs a plan of the Service.
	TopologyProblem string
}

// Trigger is what a sync was for.
type Trigger string

const (
	// ByTerm means that a term of the Service's shard began here.
	ByTerm Trigger = "TERM"
	// ByService means that the Service changed.
	ByService Trigger = "SERVICE"
	// ByPod means that a Pod changed that the Service selects or selected.
	ByPod Trigger = "POD"
	// ByNode means that a Node changed that a Pod is bound to, or that hints depend on.
	ByNode Trigger = "NODE"
	// BySlice means that another writer changed or deleted a slice of the Service.
	BySlice Trigger = "SLICE"
	// ByConflict means that a slice changed while it was being written.
	ByConflict Trigger = "CONFLICT"
	// ByRetry means that the last sync failed.
	ByRetry Trigger = "RETRY"
	// ByRequest means that a client asked for a sync.
	ByRequest Trigger = "REQUEST"
	// ByCompaction means that the Service was quiet and fewer slices may be enough.
	ByCompaction Trigger = "COMPACTION"
)

// LastPlan is what a sync did.
type LastPlan struct {
	// Time is the beginning of the sync.
	Time time.Time
	// Trigger is the first cause of the sync.
	Trigger Trigger
	// Latency is the time from the change to the answer of the last write. It is 0 if the time of
	// the change is unknown or nothing was written.
	Latency time.Duration
	// Creates, Updates and Deletes count the stored changes.
	Creates, Updates, Deletes int
}

func (p LastPlan) writes() int { return p.Creates + p.Updates + p.Deletes }

// Preview is what the next sync of a Service would write.
type Preview struct {
	Plan pack.Plan
	// MissingNodes delay endpoints until they exist.
	MissingNodes []string
	// CatchingUp says that the cache may lack writes of the last holder of the shard. A sync waits
	// for them.
	CatchingUp bool
}

// EndpointFacts is what is known of one Pod in one Service.
type EndpointFacts struct {
	Service *corev1.Service
	// Candidate has the Pod and its Node.
	Candidate desired.Candidate
	// Slices are the slices of the Service, unordered.
	Slices []*discoveryv1.EndpointSlice
	// Pending says that a sync of the Service is due, running or failing here. It is false if the
	// Service's shard is not held here.
	Pending bool
}

// ReconcileResult is what a requested sync did.
type ReconcileResult struct {
	Plan pack.Plan
	// Applied says that all of the plan was stored.
	Applied bool
}
