package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// Kind says what an event is.
type Kind string

const (
	// Passed is a check of a term that allowed to act.
	Passed Kind = "passed"
	// Wrote is a write to the register of a shard, Read a read.
	Wrote Kind = "wrote"
	Read  Kind = "read"
)

// Outcome of a write or read.
type Outcome string

const (
	// Unknown: there is no answer, be it lost or not awaited.
	Unknown Outcome = ""
	// Applied: the write took effect.
	Applied Outcome = "applied"
	// Refused: the guard did not hold.
	Refused Outcome = "refused"
	// Answered: the read was answered.
	Answered Outcome = "answered"
)

// Register is the contents of the register of a shard: the epoch under which it was written, and an id that no other write
// has. It is zero before the first write.
type Register struct {
	Epoch int64  `json:"epoch,omitempty"`
	ID    string `json:"id,omitempty"`
}

// Event is one thing that a replica did. A write or read is logged twice, before it is sent without an outcome and
// after its answer with one, so that it is known of a killed replica what it had sent.
type Event struct {
	Kind  Kind `json:"kind"`
	Shard int  `json:"shard"`
	// Value is what is written; of other events only its epoch counts.
	Value Register `json:"value,omitzero"`
	// ID names a read; writes are named by their values.
	ID string `json:"id,omitempty"`
	// From and To are the clock before and after.
	From int64 `json:"from"`
	To   int64 `json:"to,omitempty"`
	// Outcome, and what a read or a refused write saw.
	Outcome Outcome  `json:"outcome,omitempty"`
	Seen    Register `json:"seen,omitzero"`
}

// Log is what one process did.
type Log struct {
	Replica string
	Events  []Event
}

// ReadLog reads events, one JSON object in each line. The last line may be cut short by a kill.
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
