// Package loop runs the loops of a process and says how each of them fares.
//
// A [Loop] is a named piece of work that goes on until its context ends and
// reports every finished pass. A [Runner] decides which loops are enabled,
// starts them at jittered moments, starts them again when they return early
// or panic, and answers from memory what each one is doing.
//
// # Invariants
//
//   - [Runner.Run] and [Runner.RunTerm] return only after every loop they
//     started has returned: a term is never given up under a running loop.
//   - One loop never has two overlapping passes within one call of Run or
//     RunTerm. Several terms may run the same loop side by side; what is
//     told about it is then the sum of its runs and the worst of its states.
//   - A pass that fails because its context ended is not a failure.
//   - A loop that is switched off by the selection never starts.
//
// # Not here
//
// The runner knows nothing of leadership: whoever holds a term calls RunTerm
// with the term's context. It does not stop a loop that ignores its context,
// it waits for it; [Runner.Check] makes such a loop visible as stalled.
package loop
