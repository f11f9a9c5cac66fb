// Package loop runs the loops of a process and reports their states.
//
// A [Loop] is named work that runs until its context ends and reports each finished pass. A
// [Runner] selects the enabled loops, starts them, restarts them after an early return or a panic,
// and keeps their states in memory.
//
// # Invariants
//
//   - [Runner.Run] and [Runner.RunTerm] return only after every loop that they started has
//     returned, so no loop runs after its term was released.
//   - Passes of one loop do not overlap within one call of Run or RunTerm. Several terms may run
//     the same loop concurrently; its status is then the sum of the runs and the worst of the
//     states.
//   - A pass that fails because its context ended is not a failure.
//   - A loop that the selection disables never starts.
//
// The runner does not know leadership: the body of a term calls RunTerm with the term's context.
// The runner waits for a loop that ignores its context; [Runner.Check] reports such a loop as
// stalled.
package loop
