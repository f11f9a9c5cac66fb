// Package shadow holds what loops in dry run find: a loop that plans, compares its plan with what
// another program writes, and writes nothing.
//
// A service makes a [Tracker] for each such loop with [Trackers.Tracker] and gives it the
// differences of each object in each pass. A difference counts after [Config.Settle]; package
// difference has the rules. Package shadowapi serves what counts.
package shadow
