// Package shadow compares what Nodes and their Pods say with what node-health and taint-eviction
// would write.
//
// Promise: a difference is one that a write of node-health would remove now. Differences that
// follow from rules which both programs have, such as the rate of a zone, have a reason.
//
// Invariants: no I/O, no clock. Inputs are not changed.
package shadow
