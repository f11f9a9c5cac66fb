// Package evictioncontroller runs taint eviction for one term: one goroutine owns the state of all
// Nodes, workers evict.
//
// Every Interval a pass takes in what changed, asks package eviction for a plan, and gives
// evictions to the workers, the Pod that was due first before the others. A pass never waits for
// Kubernetes. Before a Pod is evicted its Node is read past the cache, and the eviction is dropped
// unless it still holds. Then the Pod gets the condition DisruptionTarget, unless it has finished,
// and is deleted. Both are guarded by the version that was decided from. A failed eviction is
// retried with backoff, as long as the Pod must leave.
//
// Invariants: no Pod is evicted before all Nodes and Pods are listed. Writes use the context of
// Run, which carries the term. Run returns after its workers. The controller adds no taint and
// removes none.
package evictioncontroller
