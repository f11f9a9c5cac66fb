package history

import "time"

// Mutation is one call that changes the mark of a finding, one at a time.
type Mutation struct {
	// Sent is when the call began, and Answered when its answer was there.
	Sent, Answered time.Duration
	// Value is the mark, or empty for its removal.
	Value string
	// Accepted says that the answer was a success. Without, the call may have had its effect or
	// not, and may still have it.
	Accepted bool
}

// MarkVersion is one version of the mark in etcd. Value is empty without a mark.
type MarkVersion struct {
	Revision int64
	At       time.Duration
	Value    string
}

// Kinds of readings.
const (
	NodesRead    = "nodes"
	SlicesRead   = "slices"
	FindingsRead = "findings"
)

// Reading is one answer of the gateway to a list.
type Reading struct {
	Asked, Answered time.Duration
	// Kind is what was listed, and Service the service that has it.
	Kind, Service string
	// Objects has the version of each listed Node and EndpointSlice, and the mark of a finding.
	Objects map[string]string
	// Age is how old the answer says that it may be.
	Age time.Duration
	// Missing are the shards that the answer says it lacks, Partial that it lacks unknown ones.
	Missing []int
	Partial bool
}

// Call is one call of the test, with the retries of Trivet's client.
type Call struct {
	// Method is the full name of the method, and Target the program that is called.
	Method, Target string
	From, To       time.Duration
	// Failed has the error that the caller sees.
	Failed string
}

// Level is a quantity that the test measures once, with its limits: the memory of a process, or the
// number of records that a log has lost.
type Level struct {
	At time.Duration
	// Service is that of the process, and What the quantity with its unit.
	Service, Process, What string
	Value, Least, Most     float64
}
