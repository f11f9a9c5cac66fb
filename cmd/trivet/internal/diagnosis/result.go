// Package diagnosis decides what the facts about a cluster mean: whether each condition of an
// installation holds, which program carries a duty, and whether two programs carry the same one.
//
// All functions are pure: package clusterstate reads the facts, and time is a parameter. A fact
// that could not be read leads to [Unknown], never to [Failed].
package diagnosis

import (
	"fmt"
	"strings"
	"time"
)

// State is the result of a check in one word.
type State string

// The states, from good to bad.
const (
	// Skipped means that the check does not apply.
	Skipped State = "skipped"
	// OK means that nothing needs attention.
	OK State = "ok"
	// Warning means that it works and needs attention.
	Warning State = "warning"
	// Unknown means that the check could not determine the answer.
	Unknown State = "unknown"
	// Failed means that the condition does not hold.
	Failed State = "failed"
)

// States returns all states.
func States() []State { return []State{Skipped, OK, Warning, Unknown, Failed} }

// Mark returns the character before a result: √, ‼, × or ·.
func (s State) Mark() string {
	switch s {
	case OK:
		return "√"
	case Failed:
		return "×"
	case Skipped:
		return "·"
	default:
		return "‼"
	}
}

// Result is what a check found.
type Result struct {
	State State
	// Found is one sentence.
	Found string
	// Hint says what to do. Empty means the action of the check in the catalogue.
	Hint string
}

func ok(format string, args ...any) Result   { return result(OK, format, args) }
func skip(format string, args ...any) Result { return result(Skipped, format, args) }
func warn(format string, args ...any) Result { return result(Warning, format, args) }
func fail(format string, args ...any) Result { return result(Failed, format, args) }

// Undetermined returns the result of a check that could not read its facts.
func Undetermined(format string, args ...any) Result {
	return result(Unknown, "It could not be determined: "+format, args)
}

func result(state State, format string, args []any) Result {
	text := strings.TrimRight(fmt.Sprintf(format, args...), ".")
	return Result{State: state, Found: text + "."}
}

func (r Result) withHint(format string, args ...any) Result {
	r.Hint = fmt.Sprintf(format, args...)
	return r
}

// Failure is the failure of a request to a server or to the operating system. The zero value means
// that it succeeded.
type Failure struct {
	// Text has the cause.
	Text string
	// Answered means that the other side refused. Otherwise there was no answer in time.
	Answered bool
}

// Failed reports whether the request failed.
func (f Failure) Failed() bool { return f.Text != "" }

// Outcome is the overall result of many checks.
type Outcome struct {
	// Counts has the number of results in each state.
	Counts map[State]int
}

// Summarize counts the states of results.
func Summarize(results []Result) Outcome {
	counts := map[State]int{}
	for _, r := range results {
		counts[r.State]++
	}
	return Outcome{Counts: counts}
}

// Worst returns the state that decides: failed before unknown before warning. Without any of them
// it is ok.
func (o Outcome) Worst() State {
	for _, state := range []State{Failed, Unknown, Warning} {
		if o.Counts[state] > 0 {
			return state
		}
	}
	return OK
}

// list joins the first names, and counts the remaining ones.
func list(names []string) string {
	const most = 3
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

func count(number int, noun string) string {
	if number == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", number, noun)
}

// ago returns how long ago a time is, in its largest units.
func ago(now, at time.Time) string {
	d := max(now.Sub(at), 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd ago", int(d.Hours()/24))
	}
}

func date(at time.Time) string { return at.UTC().Format("2006-01-02 15:04 UTC") }
