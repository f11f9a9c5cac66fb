// Package batch says how long the changes of a Service wait for others, so that
// one write answers several.
//
// Promise: as long as little happens, what decides where clients send traffic is
// written at once. The more changes come, the more Services wait, the slower the
// kube-apiserver answers and the more it refuses, the longer changes wait for
// each other, and never longer than the cap of their urgency, counted from the
// first of them. In the same state the more urgent never waits longer.
//
//	urgency  idle  cap  what
//	Urgent   0     1 s  an endpoint starts or stops being ready or serving, or goes
//	Normal   1 s   2 s  an endpoint comes that is not ready: nobody routes to it, and it may soon be
//	Lazy     1 s   5 s  labels, what else nobody routes by
//
// With a fixed period, as kube-controller-manager's
// --endpointslice-updates-batch-period gives one, all of them wait for that long
// after the first change instead, whatever the load.
//
// Invariants: no I/O; time is a parameter, and may stand still or go backwards
// without harm. Not safe for concurrent use.
//
// What it does not do: it keeps no queue and knows no Service.
package batch
