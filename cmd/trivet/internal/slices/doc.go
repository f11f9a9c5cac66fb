// Package slices is `trivet slices`: the EndpointSlices that Services have, how full they are, and what would be written.
//
// A Service is listed with a state: kept, where slicesvc keeps its slices and the last pass went well; failing; contended, where
// another writer keeps undoing what is written; unmanaged, where it has no selector or is an ExternalName. Only failing and
// contended ones make the exit code 1. `trivet slices plan` is what `kubectl diff` is to manifests.
package slices
