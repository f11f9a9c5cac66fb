package recording

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"
)

// Change is a value that a field of an object has taken.
type Change struct {
	Step string
	// After is the time since the step began.
	After  time.Duration
	Kind   string
	Object string
	Field  string
	// Value is empty if the object no longer has the field.
	Value string
}

// Step is a part of a scenario.
type Step struct {
	Name     string
	Duration time.Duration
}

// Recording is all that was observed in one run of a scenario.
type Recording struct {
	// Side says which controllers ran.
	Side string
	// Began is the wall time of the first step.
	Began    time.Time
	Versions map[string]string
	Steps    []Step
	// Changes are ordered by step and time.
	Changes []Change
}

// The lines of a saved recording: one header, then one line for each change.
type (
	header struct {
		Side     string            `json:"side"`
		Began    time.Time         `json:"began"`
		Versions map[string]string `json:"versions,omitempty"`
		Steps    []stepLine        `json:"steps"`
	}
	stepLine struct {
		Name         string `json:"name"`
		Milliseconds int64  `json:"ms"`
	}
	changeLine struct {
		Step         string `json:"step"`
		Milliseconds int64  `json:"ms"`
		Kind         string `json:"kind"`
		Object       string `json:"object"`
		Field        string `json:"field"`
		Value        string `json:"value,omitempty"`
	}
)

// Save writes the recording as JSON lines. Times are rounded to milliseconds.
func (r Recording) Save(to io.Writer) error {
	encoder := json.NewEncoder(to)
	encoder.SetEscapeHTML(false)
	first := header{Side: r.Side, Began: r.Began, Versions: r.Versions}
	for _, step := range r.Steps {
		first.Steps = append(first.Steps, stepLine{Name: step.Name, Milliseconds: step.Duration.Milliseconds()})
	}
	if err := encoder.Encode(first); err != nil {
		return fmt.Errorf("write header of recording: %w", err)
	}
	for _, c := range r.Changes {
		line := changeLine{Step: c.Step, Milliseconds: c.After.Milliseconds(), Kind: c.Kind, Object: c.Object, Field: c.Field, Value: c.Value}
		if err := encoder.Encode(line); err != nil {
			return fmt.Errorf("write change: %w", err)
		}
	}
	return nil
}

// Load reads a saved recording. A change of a step that the header does not name is an error.
func Load(from io.Reader) (Recording, error) {
	decoder := json.NewDecoder(bufio.NewReader(from))
	var first header
	if err := decoder.Decode(&first); err != nil {
		return Recording{}, fmt.Errorf("read header of recording: %w", err)
	}
	r := Recording{Side: first.Side, Began: first.Began, Versions: first.Versions}
	for _, s := range first.Steps {
		r.Steps = append(r.Steps, Step{Name: s.Name, Duration: time.Duration(s.Milliseconds) * time.Millisecond})
	}
	for {
		var line changeLine
		err := decoder.Decode(&line)
		if err == io.EOF {
			return r, nil
		}
		if err != nil {
			return Recording{}, fmt.Errorf("read change %d: %w", len(r.Changes)+1, err)
		}
		if !slices.ContainsFunc(r.Steps, func(s Step) bool { return s.Name == line.Step }) {
			return Recording{}, fmt.Errorf("change %d is of step %q, which the header does not name", len(r.Changes)+1, line.Step)
		}
		r.Changes = append(r.Changes, Change{
			Step: line.Step, After: time.Duration(line.Milliseconds) * time.Millisecond,
			Kind: line.Kind, Object: line.Object, Field: line.Field, Value: line.Value,
		})
	}
}
