package loop

import (
	"encoding"
	"fmt"
	"slices"
	"time"
)

// State is the state of a loop. Its text form is stable.
type State int

const (
	// Disabled loops are disabled by the selection.
	Disabled State = iota
	// Standby loops are enabled but not started: a Leader loop outside a term, or any loop before
	// its Run.
	Standby
	// Running loops succeeded in their last pass, or have not finished one.
	Running
	// Failing loops failed in their last pass and continue.
	Failing
	// Stalled loops have not finished a pass for longer than Loop.Stall.
	Stalled
)

var (
	_ encoding.TextMarshaler   = Disabled
	_ encoding.TextUnmarshaler = (*State)(nil)
)

// states are the texts of the states, in their order.
func states() []string {
	return []string{"disabled", "standby", "running", "failing", "stalled"}
}

// String returns the state's text.
func (s State) String() string {
	if texts := states(); s >= 0 && int(s) < len(texts) {
		return texts[s]
	}
	return fmt.Sprintf("State(%d)", int(s))
}

// MarshalText returns the state's text, which is also its JSON.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses the result of MarshalText.
func (s *State) UnmarshalText(text []byte) error {
	i := slices.Index(states(), string(text))
	if i < 0 {
		return fmt.Errorf("unknown loop state %q; known are %q", text, states())
	}
	*s = State(i)
	return nil
}

// Status is the state of one loop and its history since the process started, over all its terms.
// Its JSON is stable; /loops serves it.
type Status struct {
	// Name is the loop's name.
	Name string `json:"name"`
	// State is the worst state among the terms that run it now.
	State State `json:"state"`
	// DryRun says that the loop plans and writes nothing: also what it wrote before has returned.
	DryRun bool `json:"dry_run,omitempty"`
	// Switched is since when the loop writes because it is switched on, see [Runner.SetSwitched].
	Switched time.Time `json:"switched,omitzero"`
	// LastRun is when a pass last finished, successful or not.
	LastRun time.Time `json:"last_run,omitzero"`
	// LastSuccess is when a pass last finished without an error.
	LastSuccess time.Time `json:"last_success,omitzero"`
	// LastError is the error of the last pass; empty if it succeeded. With several terms it is the
	// latest error without a later success in its term.
	LastError string `json:"last_error,omitempty"`
	// Runs counts finished passes.
	Runs int64 `json:"runs"`
	// Failures counts passes that failed.
	Failures int64 `json:"failures"`
}
