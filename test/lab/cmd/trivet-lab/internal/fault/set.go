package fault

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// retryPause is the time from a restore that failed to the next one.
const retryPause = 5 * time.Second

// Set has the faults of a demo. It is not safe for concurrent use.
type Set struct {
	inventory Inventory
	faults    []*Fault // in the order of their start
}

// NewSet returns a set without faults.
func NewSet(inventory Inventory) *Set { return &Set{inventory: inventory} }

// Kinds returns all kinds with their targets.
func (s *Set) Kinds() []KindInfo {
	kinds := Kinds()
	for i := range kinds {
		kinds[i].Targets = append([]string{}, s.inventory.targets(kinds[i].Kind)...) // a page reads a list, not null
	}
	return kinds
}

// List returns a copy of the faults, in the order of their start.
func (s *Set) List() []Fault {
	list := make([]Fault, 0, len(s.faults))
	for _, f := range s.faults {
		list = append(list, *f)
	}
	return list
}

// Find returns the fault of a target.
func (s *Set) Find(target Target) (Fault, bool) {
	if f := s.find(target); f != nil {
		return *f, true
	}
	return Fault{}, false
}

func (s *Set) find(target Target) *Fault {
	i := slices.IndexFunc(s.faults, func(f *Fault) bool { return f.Target == target })
	if i < 0 {
		return nil
	}
	return s.faults[i]
}

// Add adds the fault of a request. Its action begins with the next call of Start.
func (s *Set) Add(request Request, now time.Time) (Target, error) {
	how, err := howOf(request.Kind, request.How)
	if err != nil {
		return Target{}, err
	}
	if !(request.Seconds >= 0 && request.Seconds <= MaxDuration.Seconds()) { // also true for NaN
		return Target{}, fmt.Errorf("for: %v s is not between 0 and %v", request.Seconds, MaxDuration)
	}
	name, err := s.resolve(request.Kind, request.Name)
	if err != nil {
		return Target{}, err
	}
	target := Target{Kind: request.Kind, Name: name}
	if old := s.find(target); old != nil {
		return Target{}, fmt.Errorf("%s is %s already (%s); restore it first", target, old.Phase, old.How)
	}
	added := &Fault{Target: target, How: how, Phase: Breaking, Since: now, wanted: true}
	if request.Seconds > 0 {
		added.Until = now.Add(time.Duration(math.Ceil(request.Seconds * float64(time.Second))))
	}
	s.faults = append(s.faults, added)
	return target, nil
}

// resolve returns the name of a target.
func (s *Set) resolve(kind Kind, name string) (string, error) {
	targets := s.inventory.targets(kind)
	if len(targets) == 0 {
		return "", fmt.Errorf("this demo has no %s to break", kind)
	}
	isFree := func(candidate string) bool { return s.find(Target{Kind: kind, Name: candidate}) == nil }
	if name == "" {
		if i := slices.IndexFunc(targets, isFree); i >= 0 {
			return targets[i], nil
		}
		return "", fmt.Errorf("every %s is broken already", kind)
	}
	if kind == Zone {
		name = name[strings.LastIndexByte(name, ':')+1:] // without the region
	}
	if slices.Contains(targets, name) {
		return name, nil
	}
	var ofService []string
	for _, candidate := range targets {
		_, short, _ := strings.Cut(candidate, "/")
		if short == name {
			return candidate, nil // a Service without its namespace
		}
		if service, _ := cutReplica(candidate); kind == Service && service == name {
			ofService = append(ofService, candidate)
		}
	}
	for _, candidate := range slices.Backward(ofService) {
		if isFree(candidate) {
			return candidate, nil
		}
	}
	if len(ofService) > 0 {
		return "", fmt.Errorf("every replica of %s is broken already", name)
	}
	return "", fmt.Errorf("there is no %s %q; there are %s", kind, name, listed(targets))
}

// cutReplica returns the service and the number of a replica's name.
func cutReplica(name string) (service, number string) {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return name, ""
	}
	return name[:i], name[i+1:]
}

// maxListed limits the names in an error.
const maxListed = 8

func listed(names []string) string {
	if len(names) <= maxListed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s … %s", strings.Join(names[:maxListed-1], ", "), names[len(names)-1])
}

// Restore asks to restore the target, or every target if it is zero, and returns the affected
// targets. A target with a kind and no name stands for all targets of the kind.
func (s *Set) Restore(target Target) ([]Target, error) {
	var restored []Target
	for _, f := range s.faults {
		if (target.Kind == "" || f.Kind == target.Kind) && (target.Name == "" || f.matches(target.Name)) {
			f.wanted, f.retryAt, f.Problem = false, time.Time{}, ""
			restored = append(restored, f.Target)
		}
	}
	if len(restored) == 0 && target.Name != "" {
		return nil, fmt.Errorf("%s is not broken", target)
	}
	return restored, nil
}

// matches reports whether a name means the fault's target, as in a Request.
func (f *Fault) matches(name string) bool {
	_, short, _ := strings.Cut(f.Name, "/")
	service, _ := cutReplica(f.Name)
	return f.Name == name || short == name || f.Kind == Service && service == name
}

// Action is what to do for a fault: to break its target, or to restore it.
type Action struct {
	Fault   Fault
	Restore bool
}

// Start returns the actions that are due at now. Each runs until Done; a fault has one action at a
// time. A fault whose time is over is restored.
func (s *Set) Start(now time.Time) []Action {
	var actions []Action
	for _, f := range s.faults {
		if !f.Until.IsZero() && !now.Before(f.Until) {
			f.wanted = false
		}
		switch {
		case f.running:
		case f.Phase == Breaking:
			f.running = true
			actions = append(actions, Action{Fault: *f})
		case !f.wanted && !now.Before(f.retryAt):
			f.running, f.Phase = true, Restoring
			actions = append(actions, Action{Fault: *f, Restore: true})
		}
	}
	return actions
}

// Done records the end of an action. A break that failed is restored, because it may have done a
// part. A restore that failed is repeated after a pause.
func (s *Set) Done(action Action, effect Effect, err error, now time.Time) {
	f := s.find(action.Fault.Target)
	if f == nil {
		return
	}
	f.running = false
	switch {
	case !action.Restore && err != nil:
		f.Phase, f.wanted, f.failure = Restoring, false, err.Error()
	case !action.Restore:
		f.Phase, f.Effect = Broken, effect
		f.Steps = s.steps(*f)
	case err != nil:
		f.Problem, f.retryAt = err.Error(), now.Add(retryPause)
	default:
		s.faults = slices.DeleteFunc(s.faults, func(other *Fault) bool { return other == f })
	}
}

// Failure returns why the break of a fault failed; nil if it did not fail.
func (f *Fault) Failure() error {
	if f.failure == "" {
		return nil
	}
	return fmt.Errorf("break %s: %s", f.Target, f.failure)
}

// Next returns when an action becomes due by time alone; zero means never.
func (s *Set) Next() time.Time {
	var next time.Time
	for _, f := range s.faults {
		at := f.retryAt
		if f.wanted {
			at = f.Until
		}
		if !f.running && !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// SilentNodes returns the Nodes that are to send nothing: those with a fault, and those of zones
// with one. A Node stays silent while one of both lasts.
func (s *Set) SilentNodes() map[string]bool {
	silent := map[string]bool{}
	for _, f := range s.faults {
		switch {
		case !f.wanted:
		case f.Kind == Node:
			silent[f.Name] = true
		case f.Kind == Zone:
			for _, node := range s.inventory.Zones[f.Name] {
				silent[node] = true
			}
		}
	}
	return silent
}
