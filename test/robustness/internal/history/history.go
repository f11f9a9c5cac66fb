package history

import (
	"slices"
	"time"
)

// Services of Trivet that a record names.
const (
	Leasesvc     = "leasesvc"
	Bootstrapsvc = "bootstrapsvc"
	Slicesvc     = "slicesvc"
	Gateway      = "gateway"
)

// History is the complete record of one run.
type History struct {
	// Begin is the end of the start-up: the oracles judge what happens from then on. End is the end
	// of the record.
	Begin, End time.Duration
	// Shards is the number of shards by service.
	Shards map[string]int
	// Grace is how long a node is silent before it is marked.
	Grace time.Duration
	// Windows are the faults and the stalls of the machine.
	Windows []Window
	// Gaps are the times in which the record of etcd was not known to be complete.
	Gaps []Gap

	Downs      []Down
	Claims     []Claim
	Acts       []Act
	Nodes      []NodeVersion
	Lives      []Life
	Renewals   []Renewal
	Services   []ServiceVersion
	Pods       []PodVersion
	Slices     []SliceVersion
	Servers    []Server
	Endpoints  []EndpointsVersion
	Allocation []AllocationVersion
	Foreign    []ForeignVersion
	Answers    []Answer
	Readings   []Reading
	Mutations  []Mutation
	// Marked is the finding whose mark changes, and Marks are the versions of that.
	Marked string
	Marks  []MarkVersion
	Calls  []Call
	Levels []Level
}

// Window is the time of one fault, or a time in which the machine did not run the world.
type Window struct {
	// Fault is the name of the fault, empty for a stall. Faults of one step are injected together.
	Fault string
	Step  int
	// Service is the only service with the fault, or empty for all.
	Service  string
	From, To time.Duration
	// Excused is the time before which the services cannot do their work: To, an earlier time if
	// they have to notice the fault first, or 0 if each bound runs from the start of the fault.
	Excused time.Duration
	// Shows are the rules that the fault is there to test: it excuses none of them.
	Shows []string
	// Graceful says that no client may notice the fault.
	Graceful bool
	// Late is how much later than it was sent a request of the service may reach the record.
	Late time.Duration
	// Unreached is how the names of the processes begin that receive nothing from some callers
	// meanwhile: those of one replica. It is empty if all may receive.
	Unreached string
	// WritesHang says that a write of kube-apiserver may hang for seconds and fail meanwhile,
	// because etcd lost its leader. A replica whose self-check did so takes that for an outage.
	WritesHang bool
	// NoQuorum says that etcd has no quorum meanwhile. A leader stops when it cannot renew its
	// session. The key of its term stays, because no member removes it.
	NoQuorum bool
}

// Gap is a time in which the record of etcd was behind, such as while etcd did not run. A change
// that was recorded at a time after From, up to To, may have been made at any time since From.
type Gap struct{ From, To time.Duration }

// Down is a time in which a process does not run: it was killed, or it is frozen.
type Down struct {
	Process  string
	From, To time.Duration // To is 0 for ever
}

// Claim is the key of one term in etcd: Holder may act for Shard from then on.
type Claim struct {
	Service string
	Shard   int
	// Holder is the process, as Act.Process names it.
	Holder string
	// Epoch is the revision that created the key. Gone is the revision that deleted it, or 0.
	Epoch, Gone int64
	From, To    time.Duration // To is 0 while the key exists
}

// AnyShard is the shard of an act that no name assigns to one shard.
const AnyShard = -1

// Act is one change of a Kubernetes object by a replica, as its proxy saw it.
type Act struct {
	Service, Process string
	// Shard is that of the object, or AnyShard.
	Shard int
	// Object is the kind, the namespace and the name.
	Object string
	Verb   string
	// Sent is when the proxy received the request, and Answered when it received the answer.
	Sent, Answered time.Duration
	// Revision is that of the change in etcd.
	Revision int64
}

// NodeVersion is one version of a Node.
type NodeVersion struct {
	Revision int64
	At       time.Duration
	Name     string
	// Ready is the status of the condition Ready.
	Ready string
	Gone  bool
}

// Life is a time in which a node lives: its agent runs, or its kubelet renews its Lease.
type Life struct {
	Node     string
	Kubelet  bool
	From, To time.Duration // To is 0 while it lives
}

// Renewal is one version of the Lease of a node.
type Renewal struct {
	Revision int64
	At       time.Duration
	Node     string
	// Renewed is the renewTime of the Lease, and Duration its duration.
	Renewed  time.Time
	Duration time.Duration
	Gone     bool
}

// ServiceVersion is one version of a Service.
type ServiceVersion struct {
	Revision int64
	At       time.Duration
	// Name includes the namespace.
	Name     string
	Selector map[string]string
	// PublishNotReady is publishNotReadyAddresses.
	PublishNotReady bool
	// Uses are its addresses and ports.
	Uses []string
	Gone bool
}

// PodVersion is one version of a Pod.
type PodVersion struct {
	Revision        int64
	At              time.Duration
	Namespace, Name string
	Labels          map[string]string
	// Address is empty without one, and for a Pod that has ended.
	Address string
	Ready   bool
	Gone    bool
}

// SliceVersion is one version of an EndpointSlice that slicesvc manages.
type SliceVersion struct {
	Revision int64
	At       time.Duration
	// Name and Service include the namespace.
	Name, Service string
	// Ready says of each address whether it is ready.
	Ready map[string]bool
	Gone  bool
}

// Server is a time in which a kube-apiserver runs, or does not.
type Server struct {
	Address  string
	Running  bool
	From, To time.Duration // To is 0 while it lasts
}

// EndpointsVersion has the addresses of all EndpointSlices of default/kubernetes after a change.
type EndpointsVersion struct {
	Revision  int64
	At        time.Duration
	Addresses []string
}

// AllocationVersion is one allocation of an address or a port, or its end.
type AllocationVersion struct {
	Revision int64
	At       time.Duration
	Subject  string
	Gone     bool
}

// ForeignVersion is one version of an object that no service may change. The test creates it once.
type ForeignVersion struct {
	Revision int64
	At       time.Duration
	// Object is the kind, the namespace and the name.
	Object string
	// Owner is the service that could take it for its own.
	Owner string
	Gone  bool
}

// Answer is one answer of the gateway about the leaders of shards.
type Answer struct {
	Asked, Answered time.Duration
	// Failed has the error of a call without an answer.
	Failed string
	// Partial are the services about which the answer says that parts are missing. Missing has the
	// shards of those whose missing shards it names; it may lack any shard of the other ones.
	Partial map[string]bool
	Missing map[string][]int
	Leaders []Leader
}

// Lacks says whether an answer is labelled to lack a shard.
func (a Answer) Lacks(service string, shard int) bool {
	named := a.Missing[service]
	return a.Partial[service] && (len(named) == 0 || slices.Contains(named, shard))
}

// Leader is what an answer says about one shard.
type Leader struct {
	Service string
	Shard   int
	// Holder is empty for a shard without a leader.
	Holder string
	Epoch  int64
}

// Clone returns a copy whose slices can be changed.
func (h History) Clone() History {
	h.Windows, h.Downs, h.Claims, h.Acts = slices.Clone(h.Windows), slices.Clone(h.Downs), slices.Clone(h.Claims), slices.Clone(h.Acts)
	h.Nodes, h.Lives, h.Renewals = slices.Clone(h.Nodes), slices.Clone(h.Lives), slices.Clone(h.Renewals)
	h.Services, h.Pods, h.Slices = slices.Clone(h.Services), slices.Clone(h.Pods), slices.Clone(h.Slices)
	h.Servers, h.Endpoints, h.Allocation = slices.Clone(h.Servers), slices.Clone(h.Endpoints), slices.Clone(h.Allocation)
	h.Foreign, h.Answers = slices.Clone(h.Foreign), slices.Clone(h.Answers)
	h.Readings, h.Mutations, h.Marks = slices.Clone(h.Readings), slices.Clone(h.Mutations), slices.Clone(h.Marks)
	h.Calls, h.Levels, h.Gaps = slices.Clone(h.Calls), slices.Clone(h.Levels), slices.Clone(h.Gaps)
	return h
}
