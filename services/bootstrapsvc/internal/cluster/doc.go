// Package cluster reads and writes the Kubernetes objects of the baseline.
//
// Reads are live, never from a cache: a leader asks a handful of questions every ten seconds, and a decision about what
// every pod depends on is not worth making from yesterday's answer. An object that does not exist is no error.
//
// Every write is guarded: a create succeeds only where nothing is, an update only over the resourceVersion that the plan
// was made from, a delete only of that UID and resourceVersion. A write without its guard is refused here. When somebody
// else was faster, the error wraps ErrConflict: read and plan again. An error wraps ErrUnavailable where the apiserver did
// not answer, answered that it cannot now, or that it is too busy.
//
// The package decides nothing. That writes happen only under a held term is the client's duty, which is fenced.
package cluster
