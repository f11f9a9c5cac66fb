// Package baselinecontroller keeps the system namespaces and the Service default/kubernetes as
// package baseline plans them.
//
// [Reconciler] is the loop that every part of the baseline shares: observe, plan, apply, and
// observe again until nothing is left to write. One goroutine owns each part, so passes never
// overlap. The loop makes a pass at once, every period, after a trigger, and on request of an RPC.
// After a failure it retries with a backoff from one second up to the period.
//
// # Reads and writes
//
// [KubeObjects] reads live, never from a cache: a leader makes a handful of reads every ten
// seconds, and every pod depends on the result. An object that does not exist is no error.
//
// Every write is guarded. A create succeeds only if the object does not exist, an update only over
// the resourceVersion that the plan was made from, a delete only of that UID and resourceVersion. A
// write without its guard is rejected. If another writer was faster, the error wraps
// guarded.ErrConflict: observe and plan again. An error wraps guarded.ErrUnavailable if the
// kube-apiserver did not answer, answered that it cannot serve now, or is too busy. The Kubernetes
// client fences writes: it must reject writes outside of a held term.
package baselinecontroller
