// Package mirroring tests the mirroring loop of slicesvc beside that of kube-controller-manager, on
// two real control planes. Every case does the same to both, step by step, and compares what comes
// of it at rest: the slices with their labels, annotations and owners, the Events, and the writes.
// A difference needs an allowance, which names a promise. An allowance that no difference needs
// fails the case.
//
// Random histories do the same at random: what slicesvc has made after a history is what
// kube-controller-manager makes of the same objects from nothing.
//
// It needs the binary, and minutes: `make conformance`. Without -manager its tests are skipped.
package mirroring
