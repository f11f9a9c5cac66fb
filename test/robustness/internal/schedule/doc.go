// Package schedule has the table of faults, draws the faults of a run from a seed, and shrinks a
// schedule that fails. The same seed gives the same faults, targets and times.
//
// A schedule is a list of steps. A step injects one fault, or two at overlapping times, into one
// service each. After the last fault of a step is over, the run waits until its effects are over,
// so that what follows is the work of one step.
package schedule
