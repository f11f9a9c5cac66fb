// Package certs issues the certificates of an installation and decides when they are renewed.
//
// An [Authority] signs a [Leaf] for each server. [Plan] compares what an installation has with what
// it needs at a given time, and returns the next state. A change of the authority takes three plans
// with an overlap between them: the new authority is trusted everywhere before it signs, and the
// former authority stays trusted while its certificates may still be in use.
//
// The package does no I/O and reads no clock. It writes no Secret; the command `trivet certs` does.
package certs
