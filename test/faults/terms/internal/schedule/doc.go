// Package schedule draws the faults of a history from a seed: the same seed gives the same faults at the same times.
//
// Faults overlap, but never two on one target: a replica that is frozen is not killed, and nothing is asked of an etcd that
// is away. Kinds are dealt like cards, so that a history has each of them once before it has any twice.
package schedule
