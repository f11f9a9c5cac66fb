// Package schedule draws the faults of a history from a seed. The same seed gives the same faults
// at the same times.
//
// Faults overlap, but one target has at most one fault at a time, and a fault that needs etcd does
// not overlap with an outage of etcd. A history has each kind of fault once before it has any kind
// twice.
package schedule
