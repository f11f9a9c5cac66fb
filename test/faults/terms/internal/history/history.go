package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// History is the complete record of one run.
type History struct {
	// Shards is the number of shards. TTL is that of the sessions.
	Shards int
	TTL    time.Duration
	// End is the end of the observation. The replicas are stopped after it.
	End int64
	// Logs has one entry for each process. A restarted replica is another process.
	Logs []Log
	// Versions has all versions of all registers by revision. Claims has every claim.
	Versions []Version
	Claims   []Claim
	// Faults has the injected faults and the observed stalls.
	Faults []Fault
}

// Version is one effective write in etcd.
type Version struct {
	Shard    int
	Revision int64
	Register Register
}

// Claim is the key of one term in etcd.
type Claim struct {
	Shard  int
	Holder string
	// Epoch is the revision that created the key. Gone is the revision that deleted it, or 0.
	Epoch int64
	Gone  int64
}

// Fault is one fault of a replica, etcd or the machine.
type Fault struct {
	Kind FaultKind
	// Replica is empty for a fault of etcd or the machine.
	Replica string
	// From and To are the clock at the begin and end.
	From, To int64
}

// FaultKind separates the faults that the analysis treats differently.
type FaultKind string

const (
	// Revocation is the forced revocation of a replica's lease.
	Revocation FaultKind = "revocation"
	// Outage is an unavailability of etcd.
	Outage FaultKind = "outage"
	// Stall is a time in which the test process, and probably every replica, did not run.
	Stall FaultKind = "stall"
	// Other is any other fault.
	Other FaultKind = "other"
)

// ElectionTimeout is that of etcd. A new leader extends all leases by it.
const ElectionTimeout = time.Second

// Bound is the time that a shard may be without a holder after each fault.
func (h History) Bound() time.Duration { return h.TTL + time.Second }

// Kind is the kind of an event.
type Kind string

const (
	// Passed is a successful check of a term.
	Passed Kind = "passed"
	// Wrote is a write to the register of a shard, and Read a read.
	Wrote Kind = "wrote"
	Read  Kind = "read"
)

// Outcome is the outcome of a write or read.
type Outcome string

const (
	// Unknown is the outcome of a request without an answer.
	Unknown Outcome = ""
	// Applied is the outcome of a write that took effect.
	Applied Outcome = "applied"
	// Refused is the outcome of a write whose guard did not hold.
	Refused Outcome = "refused"
	// Answered is the outcome of a read with an answer.
	Answered Outcome = "answered"
)

// Register is the content of a shard's register: the epoch of the write, and an id that is unique
// to the write. It is zero before the first write.
type Register struct {
	Epoch int64  `json:"epoch,omitempty"`
	ID    string `json:"id,omitempty"`
}

// Event is an action of a replica. A write or read is logged twice: without an outcome before the
// request, and with one after the answer. The first entry shows the requests that a killed replica
// had sent.
type Event struct {
	Kind  Kind `json:"kind"`
	Shard int  `json:"shard"`
	// Value is the written value. Other events only set its epoch.
	Value Register `json:"value,omitzero"`
	// ID identifies a read. A write is identified by its value.
	ID string `json:"id,omitempty"`
	// From and To are the clock before and after the action.
	From int64 `json:"from"`
	To   int64 `json:"to,omitempty"`
	// Outcome is set with the answer. Seen is the register in the answer to a read or refused
	// write.
	Outcome Outcome  `json:"outcome,omitempty"`
	Seen    Register `json:"seen,omitzero"`
}

// Log is the log of one process.
type Log struct {
	Replica string
	Events  []Event
}

// ReadLog reads one JSON event per line. It ignores an incomplete last line, which a kill can
// leave.
func ReadLog(replica string, from io.Reader) (Log, error) {
	log := Log{Replica: replica}
	lines := bufio.NewReader(from)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return log, nil
		}
		if err != nil {
			return log, fmt.Errorf("read log of %s: %w", replica, err)
		}
		var event Event
		if err := json.Unmarshal(bytes.TrimSpace(line), &event); err != nil {
			return log, fmt.Errorf("log of %s, line %d: %w", replica, number, err)
		}
		log.Events = append(log.Events, event)
	}
}
